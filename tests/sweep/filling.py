"""A disk, a quota or the inodes used up at the moment a certain file is written: an audit hook, as in `killing`."""

import errno
import os
import sys
from pathlib import Path

WAYS = ("quota", "full", "inodes")
POINTS = {  # what is written -> part of its path, also of the temporary name
    "checkpoint": "/checkpoints/",
    "shard": ".parquet",
    "record": "/.run.json.",
    "attempts": "/attempts.jsonl",
    "index": "optuna.db",
    "table": "/tables/",
    "report": "report.html",
}


def fill(root, way):
    """Use up what is left on the file system of `root`: in files that `clear` removes."""
    for number in range(100_000):
        try:
            with open(Path(root) / f"ballast-{number}", "wb") as file:
                while way == "full":
                    file.write(b"x" * 65536)
                    file.flush()
        except OSError:
            return _last_bytes(root) if way == "full" else None


def _last_bytes(root):
    with open(Path(root) / "ballast-0", "ab") as file:
        for size in (4096, 512, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError:
                continue


def clear(root):
    """Make room again."""
    for path in Path(root).glob("ballast-*"):
        path.unlink()


def fill_at(point, root, way):
    """Before the first write of `point` below `root`: a full disk, no inodes; a `quota` refuses all from then on."""
    part, root = POINTS[point], str(root)
    struck = [False]

    def hook(event, arguments):
        if event == "sqlite3.connect":
            path, writes = os.fspath(arguments[0]), True
        elif event == "open":
            path, mode, flags = arguments
            writes = (mode and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        else:
            return
        if not writes or not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(root):
            return
        path = os.fspath(path)
        if "ballast" in path:
            return
        if not struck[0] and part in path:
            struck[0] = True
            if way != "quota":
                fill(root, way)
        if struck[0] and way == "quota" and not path.endswith(".lock"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)

    sys.addaudithook(hook)
    return struck
