"""Are the answers that a record sums up there, and what they were? Looks at row counts and digests, not at rows."""

from collections.abc import Iterable
from pathlib import Path

from r3bench.records import RunPaths, RunRecord
from r3bench.seals import changed


def answered(record: RunRecord, paths: RunPaths, tasks: Iterable[str]) -> bool:
    """Whether every task has at least as many readable answers stored as its summary is about, none of them changed."""
    if any(name.endswith(".parquet") for name in changed(paths.root, record.files)):
        return False
    for task in tasks:
        summary = record.eval.get(task, {})
        questions, samples = summary.get("questions"), summary.get("samples")
        if not isinstance(questions, int) or not isinstance(samples, int):  # edited: measuring again makes it new
            return False
        rows = [rows_of(path) or 0 for path in (paths.evaluation / task).glob("*.parquet")]
        if not rows or sum(rows) < questions * samples:
            return False
    return True


def rows_of(path: Path) -> int | None:
    """Rows of a parquet file, from its footer; None if it can't be read as one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return None
