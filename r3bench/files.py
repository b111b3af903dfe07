"""Reading and writing files so that a kill at any moment leaves the old content or the new, never half."""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r3bench.errors import StateError
from r3bench.seals import sealed_line, unsealed_line

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full disk, used up quota, limit on a file's size


def no_room(error: BaseException) -> bool:
    """Whether a file could not be written for want of room, by the error or one that it was raised from.

    safetensors, `torch.save` and SQLite say so in words only. `torch.save` words it "unexpected pos 576 vs 534" and
    knows no cause: it may as well be another failure to write.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if _says_no_room(found):
            return True
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False


def _says_no_room(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_ROOM
    said = str(error)
    torch_save = "inline_container" in said and ("unexpected pos" in said or "write failed" in said)
    words = any(f"(os error {number})" in said or f"[Errno {number}]" in said for number in NO_ROOM)
    return torch_save or words or "database or disk is full" in said


def sync_directory(directory: Path) -> None:
    """Make renames inside `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success fsync and rename it to `path`, on error remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        os.chmod(temporary, 0o644)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        if error.errno in NO_ROOM and error.filename in (None, name):  # a write doesn't know its file
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def put_folder(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name, in place of what has it: readable by all, its files on the disk, and durable."""
    os.chmod(temporary, 0o755)
    for path in [*temporary.rglob("*"), temporary]:
        if path.is_dir():
            sync_directory(path)
        else:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)
    sync_directory(folder.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` with `content`, atomically and durably."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Replace `path` with `content` as UTF-8, atomically and durably."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: Any, *, sort_keys: bool = True) -> None:
    """Replace `path` with indented JSON, its keys sorted or as they come. NaN is an error: any reader must take it."""
    write_text(path, json.dumps(value, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file; a missing or torn one, or a folder, is a `StateError` that names it."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StateError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise StateError(f"{path}: is a folder, expected a file") from error
    except OSError as error:
        raise _no_file(path, error) from error
    except (ValueError, RecursionError) as error:  # no JSON or UTF-8, numbers of thousands of digits, deep nesting
        raise StateError(f"{path}: not readable as JSON ({error}); the file is torn or was edited") from error


def _no_file(path: Path, error: OSError) -> Exception:
    """A link that leads to itself or through a file is the study's fault; other errors are the machine's."""
    return StateError(f"{path}: {error.strerror}") if error.errno in (errno.ELOOP, errno.ENOTDIR) else error


JSON_KINDS = {dict: "a mapping", list: "a list", str: "a text", int: "an integer", float: "a number"}


def expect(value: Any, where: Path | str, /, **keys: type) -> dict[str, Any]:
    """`value`, if it is a mapping with values of these types under `keys`.

    Raises:
        StateError: it is JSON, but not what we write there; names `where` and the key.
    """
    if not isinstance(value, dict):
        raise StateError(f"{where}: got {repr(value)[:40]}, expected a mapping; the file is not ours or was edited")
    for key, kind in keys.items():
        found = value.get(key)
        fits = isinstance(found, int | float) if kind is float else isinstance(found, kind)
        if not fits or isinstance(found, bool):
            got = f"got {repr(found)[:40]}" if key in value else "missing"
            raise StateError(f"{where}: {key}: {got}, expected {JSON_KINDS[kind]}; the file is not ours or was edited")
    return value


def append_jsonl(path: Path, record: dict[str, Any]) -> None:
    """Append one JSON line with its checksum in a single write, after mending a line torn by an earlier kill."""
    line = json_line(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def json_line(record: dict[str, Any]) -> bytes:
    """A record as `append_jsonl` writes it."""
    return json.dumps(sealed_line(record), allow_nan=False).encode() + b"\n"


def read_jsonl(path: Path, bad: list[int] | None = None) -> list[dict[str, Any]]:
    """All whole lines of a JSONL file (missing file: none), without their checksums.

    Args:
        path: the file.
        bad: takes the numbers (from 1) of the lines that are left out: torn by a kill, damaged, or not a mapping.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except IsADirectoryError as error:
        raise StateError(f"{path}: is a folder, expected a file") from error
    except OSError as error:
        raise _no_file(path, error) from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        record = read_line(line)
        if record is not None:
            records.append(record)
        elif bad is not None:
            bad.append(number)
    return records


def read_line(line: bytes) -> dict[str, Any] | None:
    """The mapping on one JSON line, without its checksum; None for a torn, damaged or foreign one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return unsealed_line(record) if isinstance(record, dict) else None
