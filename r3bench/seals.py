"""Checksums that tie a record to the bytes behind it: of whole files, of JSON documents, of single JSON lines.

They find damage (a flipped bit, a cut file, a folder that was swapped or edited) and prove nothing about intent:
whoever edits a file can also write its checksum anew.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from r3bench.errors import StateError

SEAL = "digest"  # key of a sealed document: SHA-256 over the rest of it
LINE = "crc32"  # key of a sealed JSON line: CRC-32 over the rest of it
ABOUT = (".json", ".jinja", ".txt", ".model", ".md")  # files of a model that are not its weights
Files = dict[str, dict[str, Any]]  # path below a folder -> {"bytes": size, "sha256": hex digits}


def file_digest(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file's content."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": found}


def bytes_digest(content: bytes) -> dict[str, Any]:
    """`file_digest` of a file with this content."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def digests(root: Path, paths: Iterable[Path]) -> Files:
    """The digest of each of `paths` that is there, by its name below `root`, with '/' between folders."""
    return {path.relative_to(root).as_posix(): file_digest(path) for path in sorted(paths) if path.is_file()}


def weights_digest(files: Mapping[str, Any]) -> str | None:
    """12 hex digits over the digests of a model's weights among `files`; None where there are none."""
    found = {
        name: digest
        for name, digest in files.items()
        if name.startswith("model/") and not name.endswith(("/training_args.bin", *ABOUT))
    }
    return hashlib.sha256(_content(found, SEAL)).hexdigest()[:12] if found else None


def changed(root: Path, files: Mapping[str, Any]) -> dict[str, str]:
    """The files below `root` that are not as they were: name -> what is wrong with it."""
    found = {}
    for name, known in files.items():
        wrong = fault(root / name, known)
        if wrong is not None:
            found[name] = wrong
    return found


def fault(path: Path, known: Mapping[str, Any]) -> str | None:
    """What is wrong with a file that once had the digest `known`; None if nothing is."""
    try:
        if not path.is_file():
            return "is missing"
        if path.stat().st_size != known.get("bytes"):
            return f"has {path.stat().st_size} bytes, {known.get('bytes')} when it was recorded"
        return None if file_digest(path) == known else "has other content than when it was recorded"
    except OSError as error:
        return f"can't be read ({error.strerror})"


def _content(values: Mapping[str, Any], without: str) -> bytes:
    rest = {key: value for key, value in values.items() if key != without}
    return json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, JSON-ready, with the digest of their content under `SEAL`."""
    return {**values, SEAL: hashlib.sha256(_content(values, SEAL)).hexdigest()}


def unsealed(values: Any, where: Path | str) -> Any:
    """`values` without their digest, once it is found to be right; values without one come back as they are.

    Raises:
        StateError: the content is not what it was when it was sealed.
    """
    if not isinstance(values, dict) or SEAL not in values:
        return values
    if values != sealed(values):
        raise StateError(f"{where}: its content and its digest don't agree; the file is damaged or was edited")
    return {key: value for key, value in values.items() if key != SEAL}


def sealed_line(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, one JSON line, with the checksum of their content under `LINE`."""
    return {**values, LINE: f"{zlib.crc32(_content(values, LINE)):08x}"}


def unsealed_line(values: dict[str, Any]) -> dict[str, Any] | None:
    """The line without its checksum, None if it is wrong; a line without one comes back as it is."""
    if LINE not in values:
        return values
    rest = {key: value for key, value in values.items() if key != LINE}
    return rest if sealed_line(rest)[LINE] == values[LINE] else None
