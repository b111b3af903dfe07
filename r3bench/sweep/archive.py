"""A study as one archive, and back: what its tables, report and trace rest on, and the weights if asked for.

An archive may come from anywhere, so nothing in it decides where a file goes: only plain files and folders below one
top folder are taken, everything is unpacked beside the target and renamed at the end.
"""

import gzip
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from r3bench.errors import DataError, StateError
from r3bench.files import replacing, sync_directory
from r3bench.records import CARD

LEFT_OUT = {"checkpoints", "tables"}  # folders: for resuming only; made anew from the rest
LEFT_OUT_ENDINGS = (
    ".lock",
    ".db",
    ".db-journal",
    ".db-wal",
    ".db-shm",
    ".torn",
    ".tmp",
    ".log",
    ".tar.gz",
)  # of this machine
CHUNK = 1 << 20  # bytes copied at a time
UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeError)


def export_study(study: Path, file: Path, *, models: bool = False) -> int:
    """Write the study in `study` to the gzipped tar archive `file`; the number of files in it.

    The same content gives the same bytes: order, times and owners are fixed. Checkpoints, locks and the index, which is
    made anew from the rest, are left out.

    Args:
        study: folder with a study.json.
        file: archive, replaced when it is there.
        models: with the weights.
    """
    top = study.resolve().name
    count = 0
    with (
        replacing(file) as temporary,
        open(temporary, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _files(study, models):
            with open(path, "rb") as content:
                member = tarfile.TarInfo(f"{top}/{path.relative_to(study).as_posix()}")
                member.size = os.fstat(content.fileno()).st_size
                member.mode = 0o644
                archive.addfile(member, content)
            count += 1
    return count


def _files(study: Path, models: bool) -> Iterator[Path]:
    for folder, names, files in os.walk(study):
        kept = [name for name in names if name not in LEFT_OUT and not name.startswith(".")]
        names[:] = sorted(name for name in kept if not Path(folder, name).is_symlink())
        weights = Path(folder).name == "model" and not models
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or name.endswith(LEFT_OUT_ENDINGS) or path.is_symlink():
                continue
            if not weights or name == CARD:
                yield path


def import_study(file: Path, runs: Path, name: str | None = None) -> Path:
    """Unpack an archive of `export_study` into `runs/<name>`; returns that folder.

    Args:
        file: the archive.
        runs: folder that holds studies.
        name: the study's folder there; the archive's own by default.

    Raises:
        DataError: not an archive, cut off, not a study, or an entry that reaches out of the study's folder.
        StateError: the folder is there already, or the disk is too full.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    runs.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=runs, prefix=".import."))
    try:
        try:
            with tarfile.open(file, "r:gz") as archive:
                top = _unpack(archive, temporary, file)
        except UNREADABLE as error:
            raise DataError(f"{file}: not a gzipped tar archive, or cut off ({error})") from error
        source = temporary / top
        _check_study(source, file)
        target = runs / (name or top)
        if target.exists():
            raise StateError(f"{target}: already there; --study NAME gives the imported study another folder")
        os.chmod(source, 0o755)
        os.replace(source, target)
        sync_directory(runs)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _unpack(archive: tarfile.TarFile, folder: Path, file: Path) -> str:
    """Write the archive's files below `folder`; the name of its one top folder."""
    tops: set[str] = set()
    seen: set[str] = set()
    free = shutil.disk_usage(folder).free
    for member in archive:
        parts = _parts(member, file)
        tops.add(parts[0])
        if len(tops) > 1:
            raise DataError(f"{file}: holds {' and '.join(sorted(tops))}, expected one study")
        if member.isdir():
            continue
        spelled = "/".join(parts).casefold()  # some file systems don't tell A from a
        if spelled in seen:
            raise DataError(f"{file}: holds '{'/'.join(parts)}' twice")
        seen.add(spelled)
        free -= member.size
        if free < 0:
            raise StateError(f"{folder.parent}: {file} holds more than the disk has room for")
        path = folder.joinpath(*parts)
        content = archive.extractfile(member)
        assert content is not None  # a plain file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as target:
                _copy(content, target)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{file}: '{'/'.join(parts)}' is a file and a folder") from error
    if not tops:
        raise DataError(f"{file}: is empty, expected a study")
    return tops.pop()


def _parts(member: tarfile.TarInfo, file: Path) -> tuple[str, ...]:
    """The path of an entry as names; refuses links, devices and whatever leads out of the folder."""
    shown = member.name.encode("unicode_escape").decode()
    if not (member.isreg() or member.isdir()):
        raise DataError(f"{file}: '{shown}' is a link or device, expected plain files")
    path = PurePosixPath(member.name)
    bad = any(part == ".." or part.startswith(".") or not part.isprintable() for part in path.parts)
    if path.is_absolute() or bad or "\\" in member.name or ":" in member.name or not path.parts:
        raise DataError(f"{file}: '{shown}' would not stay in the study's folder, or is hidden; nothing was imported")
    if member.isreg() and len(path.parts) < 2:
        raise DataError(f"{file}: '{shown}' is in no folder, expected a study")
    return path.parts


def _copy(content: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(content, target, CHUNK)
    target.flush()
    os.fsync(target.fileno())


def _check_study(folder: Path, file: Path) -> None:
    try:
        found = json.loads((folder / "study.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: has no readable study.json, expected an archive that r3bench export wrote") from error
    if not isinstance(found, dict) or not {"grid", "cells", "schema"} <= found.keys():
        raise DataError(f"{file}: its study.json is not a study's")
