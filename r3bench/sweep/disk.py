"""Free space: the floor below which nothing is started, and what is removed after a verified evaluation."""

import shutil
from pathlib import Path

from r3bench.records import RunPaths, RunRecord
from r3bench.sweep.stored import answered


def free_gb(path: Path) -> float:
    """Free space in GB (10^9 bytes) on the file system that holds `path` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / 1e9


def prune(paths: RunPaths, record: RunRecord, keep: str) -> list[Path]:
    """Remove checkpoints (and with `keep` 'none' the weights) of a finished run whose evaluation is complete on disk.

    Returns what was removed; nothing when `keep` is 'all', the run diverged, or answers to a task are missing.
    """
    if keep == "all" or record.train.outcome != "finished" or not record.eval:
        return []
    if not answered(record, paths, record.eval):
        return []
    removed = []
    for folder in (paths.checkpoints, *([paths.model] if keep == "none" else [])):
        if folder.is_dir():
            shutil.rmtree(folder)
            removed.append(folder)
    return removed
