"""Signs of life in a run directory: what hang detection and retries look at."""

from pathlib import Path

from r3bench.records import RunPaths


def saved(paths: RunPaths) -> tuple[int, int, int]:
    """How much of a run is safe, to be compared: training done (0 or 1), newest checkpoint's step, answer files."""
    names = [p.name.removeprefix("checkpoint-") for p in paths.checkpoints.glob("checkpoint-*")]
    step = max((int(name) for name in names if name.isdigit()), default=0)
    return int(paths.train.exists()), step, len(list(paths.evaluation.glob("*/*.parquet")))


def newest_change(paths: RunPaths) -> float:
    """Latest modification time (seconds since the epoch) of a step, checkpoint, evaluated shard or attempt; 0 if none.

    A directory's time changes when an entry is made in it, so a few `stat` calls see every kind of progress.
    """
    watched: list[Path] = [
        paths.metrics,
        paths.checkpoints,
        paths.train,
        paths.model,
        paths.evaluation,
        paths.root / "attempts.jsonl",
        paths.record,
    ]
    if paths.evaluation.is_dir():
        watched += list(paths.evaluation.iterdir())
    if paths.checkpoints.is_dir():
        watched += list(paths.checkpoints.iterdir())
    latest = 0.0
    for path in watched:
        try:
            latest = max(latest, path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return latest
