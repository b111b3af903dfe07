"""Models made on this machine (built or converted), kept in the user's cache folder. Importing this loads no torch."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from r3bench.errors import StateError
from r3bench.files import put_folder
from r3bench.lock import Locked, exclusive


def cache_root() -> Path:
    """`$R3BENCH_CACHE`, else `$XDG_CACHE_HOME/r3bench`, else `~/.cache/r3bench`."""
    if own := os.environ.get("R3BENCH_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "r3bench"


def cached_folder(name: str, build: Callable[[Path], None], doing: str) -> Path:
    """The cache folder `name`, made by `build(folder)` when it isn't there yet.

    Processes that ask at once build it once: the others wait. The folder appears under its name only when it is
    complete and on disk, so a kill at any moment leaves nothing torn.

    Args:
        name: folder name; it must change whenever the content should (put a hash into it).
        build: writes the content into the empty folder it is given.
        doing: what is shown while it runs, such as 'building the embedded model (about 20 s, once)'.

    Raises:
        StateError: when the cache folder can't be written.
    """
    root = cache_root()
    target = root / name
    if target.is_dir():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with exclusive(root / f"{name}.lock", _waiting(doing)):
            if not target.is_dir():
                _build(root, target, build, doing)
    except OSError as error:
        raise StateError(
            f"{target}: can't be made in the cache ({error.strerror or error}); "
            "set R3BENCH_CACHE to a writable folder with space"
        ) from error
    return target


def _waiting(doing: str) -> Callable[[Locked], None]:
    def say(_taken: Locked) -> None:
        print(f"r3bench: waiting for another process that is {doing}", file=sys.stderr, flush=True)

    return say


def _build(root: Path, target: Path, build: Callable[[Path], None], doing: str) -> None:
    for left_over in root.glob(f".{target.name}.*.tmp"):  # of a killed process: whoever built it held the lock
        shutil.rmtree(left_over, ignore_errors=True)
    print(f"r3bench: {doing} ...", file=sys.stderr, flush=True)
    temporary = Path(tempfile.mkdtemp(dir=root, prefix=f".{target.name}.", suffix=".tmp"))
    try:
        build(temporary)
        put_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"r3bench: saved in {target}", file=sys.stderr, flush=True)
