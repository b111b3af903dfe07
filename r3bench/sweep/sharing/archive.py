"""A study as one archive, and back: what its tables, report and trace rest on, and the weights if asked for.

`manifest.json` in it has the digest of every other file and says which runs are not finished. An archive may come from
anywhere, so nothing in it decides where a file goes: only plain files and folders below one top folder are taken,
everything is unpacked beside the target and renamed at the end. How much is read at a time has a limit, whatever the
archive says of itself.
"""

import contextlib
import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from r3bench.errors import DataError, StateError
from r3bench.files import read_json, replacing, sync_directory
from r3bench.record_types import check, plain_name
from r3bench.records import CARD, read_study
from r3bench.seals import changed, digests, sealed, unsealed

LEFT_OUT = {"checkpoints"}  # folders: for resuming only
MANIFEST = "manifest.json"  # of an archive
MANIFEST_SCHEMA = 1
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
LONGEST = 1 << 22  # bytes of one read: more is asked for only by a header that claims to be that long
MOST_ENTRIES = 1_000_000  # files and folders of an archive
UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeError)


def export_study(study: Path, file: Path, *, models: bool = False) -> dict[str, Any]:
    """Write the study in `study` to the gzipped tar archive `file`; returns its manifest.

    The same content gives the same bytes: order, times and owners are fixed. Checkpoints, locks and the index, which is
    made anew from the rest, are left out.

    Args:
        study: folder with a study.json.
        file: archive, replaced when it is there.
        models: with the weights.
    """
    top = study.resolve().name
    about = manifest(study, models)
    with (
        replacing(file) as temporary,
        open(temporary, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        text = (json.dumps(about, indent=2, sort_keys=True) + "\n").encode()
        archive.addfile(_member(f"{top}/{MANIFEST}", len(text)), io.BytesIO(text))
        for path in _files(study, models):
            with open(path, "rb") as content:
                size = os.fstat(content.fileno()).st_size
                archive.addfile(_member(f"{top}/{path.relative_to(study).as_posix()}", size), content)
    return about


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


def manifest(study: Path, models: bool) -> dict[str, Any]:
    """What an archive of the study holds: digests of its files, and the planned runs that have no record.

    Raises:
        StateError: `study.json` can't be read.
    """
    spec = read_study(study / "study.json")
    missing = [c["run_id"] for c in spec["cells"] if not (study / c["run_id"] / "run.json").is_file()]
    files = digests(study, _files(study, models))
    return sealed({"schema": MANIFEST_SCHEMA, "files": files, "unfinished": missing, "weights": models})


def manifest_faults(study: Path) -> tuple[int | None, dict[str, str]]:
    """How many files an unpacked archive's manifest lists, None without one, and what is wrong: file -> why."""
    file = study / MANIFEST
    if not file.exists():
        return None, {}
    try:
        about = unsealed(read_json(file), MANIFEST)
        check(about, {"files": "files with their sizes and digests", "unfinished": "a list of texts"}, MANIFEST)
    except StateError as error:
        return 0, {MANIFEST: str(error).removeprefix(f"{file}: ").removeprefix(f"{MANIFEST}: ")}
    known = about["files"]
    bad = {name: "leads out of the study" for name in known if not all(map(plain_name, name.split("/")))}
    wrong = changed(study, {name: digest for name, digest in known.items() if name not in bad}) | bad
    for path in _files(study, models=True):
        name = path.relative_to(study).as_posix()
        if name not in known:
            wrong[name] = "is not in the manifest"
    return len(known), wrong


def _files(study: Path, models: bool) -> Iterator[Path]:
    for folder, names, files in os.walk(study):
        kept = [name for name in names if name not in LEFT_OUT and not name.startswith(".")]
        names[:] = sorted(name for name in kept if not Path(folder, name).is_symlink())
        weights = Path(folder).name == "model" and not models
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or name.endswith(LEFT_OUT_ENDINGS) or path.is_symlink():
                continue
            if name == MANIFEST and Path(folder) == study:
                continue
            if not weights or name == CARD:
                yield path


def links(study: Path) -> list[Path]:
    """Symbolic links in a study: an archive leaves them out, so that nothing from outside the study gets into it."""
    found = []
    for folder, names, files in os.walk(study):
        names[:] = sorted(name for name in names if name not in LEFT_OUT and not name.startswith("."))
        kept = [name for name in files if not name.startswith(".") and not name.endswith(LEFT_OUT_ENDINGS)]
        found += [path for name in [*names, *sorted(kept)] if (path := Path(folder, name)).is_symlink()]
    return found


@contextlib.contextmanager
def unpacked(file: Path, folder: Path) -> Iterator[Path]:
    """The study of an archive, unpacked into a folder of its own below `folder` that is removed afterwards.

    Raises:
        DataError: not an archive, cut off, not a study, or an entry that reaches out of the study's folder.
        StateError: the disk is too full.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".import."))
    try:
        try:
            with gzip.open(file, "rb") as content:
                bounded: Any = _Bounded(content, file)
                with tarfile.open(fileobj=bounded, mode="r:") as archive:
                    top = _unpack(archive, temporary, file)
        except UNREADABLE as error:
            raise DataError(f"{file}: not a gzipped tar archive, or cut off ({error})") from error
        yield temporary / top
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Bounded:
    """A file that refuses to be read in pieces of any size: tarfile reads a header as long as it claims to be."""

    def __init__(self, content: Any, file: Path) -> None:
        self._content, self._file = content, file
        self.seek, self.tell, self.name = content.seek, content.tell, str(file)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST:
            raise DataError(f"{self._file}: a header in it claims {size} bytes, expected at most {LONGEST}")
        found: bytes = self._content.read(size)
        return found


def import_study(
    file: Path, runs: Path, name: str | None = None, check: Callable[[Path], None] = lambda study: None
) -> Path:
    """Unpack an archive of `export_study` into `runs/<name>`; returns that folder.

    Args:
        file: the archive.
        runs: folder that holds studies.
        name: the study's folder there; the archive's own by default.
        check: called with the unpacked study before it gets its place; may raise to refuse it.

    Raises:
        DataError: not an archive, cut off, not a study, or an entry that reaches out of the study's folder.
        StateError: the folder is there already, or the disk is too full.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    runs.mkdir(parents=True, exist_ok=True)
    with unpacked(file, runs) as source:
        target = runs / (name or source.name)
        if target.exists():
            raise StateError(f"{target}: already there; --study NAME gives the imported study another folder")
        _check_study(source, file)
        check(source)
        (source / MANIFEST).unlink(missing_ok=True)  # of the archive: the study may grow from here
        os.chmod(source, 0o755)
        os.replace(source, target)
        sync_directory(runs)
    return target


def _unpack(archive: tarfile.TarFile, folder: Path, file: Path) -> str:
    """Write the archive's files below `folder`; the name of its one top folder."""
    tops: set[str] = set()
    seen: set[str] = set()
    free = shutil.disk_usage(folder).free
    count = 0
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps them all
        count += 1
        if count > MOST_ENTRIES:
            raise DataError(f"{file}: holds more than {MOST_ENTRIES} files")
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
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
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
    if any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in path.parts):
        raise DataError(f"{file}: '{shown[:60]}...' is a name of more than 255 bytes")
    if member.isreg() and len(path.parts) < 2:
        raise DataError(f"{file}: '{shown}' is in no folder, expected a study")
    return path.parts


def _copy(content: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(content, target, CHUNK)
    target.flush()
    os.fsync(target.fileno())


def _check_study(folder: Path, file: Path) -> None:
    try:
        found = read_study(folder / "study.json")
    except (StateError, OSError) as error:
        said = str(error).removeprefix(f"{folder}/")
        raise DataError(f"{file}: {said}; expected an archive that r3bench export wrote") from error
    if "grid" not in found:
        raise DataError(f"{file}: study.json: no grid; expected an archive that r3bench export wrote")
