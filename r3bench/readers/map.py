"""A map of files to runs: which files are of which run, seed and levels. A small YAML, or a pattern with names."""

import dataclasses
import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r3bench.config.yaml_file import read_yaml
from r3bench.errors import ConfigError, DataError, nearest
from r3bench.readers.formats import format_named
from r3bench.readers.options import Options

NAME = re.compile(r"\{(\w+)\}")
OPTIONS = ("format", "metric", "filter", "right", "missing", "measured_again", "step")
ENTRY = ("files", "run", "seed", "benchmark", "factors", "base", *OPTIONS)
WORDS = {"missing": ("refuse", "wrong", "drop"), "measured_again": ("newest", "all")}


@dataclass(frozen=True)
class Entry:
    """Files, and what is known of the runs in them."""

    files: str  # a file, a folder, or a pattern with *, ** and {names}
    run: str | None = None  # name of the run, with {names}; None: made of levels and seed
    seed: int | None = None  # training seed; None: {seed} of the pattern, or a column
    benchmark: str | None = None  # None: {benchmark} of the pattern, or as the files say
    factors: Mapping[str, str] = field(default_factory=dict)  # factor -> level, with {names}
    base: bool = False  # the untrained model
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Match:
    """A file of an entry."""

    path: Path
    known: Mapping[str, str]  # what the names in the pattern stand for here


@dataclass(frozen=True)
class FileMap:
    """A whole map."""

    entries: tuple[Entry, ...]
    rest: Mapping[str, Any] = field(default_factory=dict)  # keys about the table: levels, reference, ignore, ...


def is_pattern(text: str) -> bool:
    """Whether `text` has names or stars in it and is no file itself."""
    return bool(re.search(r"[*{]", text)) and not Path(text).exists()


def read_map(path: Path, options: Options) -> FileMap:
    """The map in a YAML file; its paths are relative to it.

    Args:
        path: the file.
        options: given beside it; they are taken before the file's.

    Raises:
        ConfigError: naming the file, the key, the value and what was expected.
    """
    values = read_yaml(path)
    listed = values.pop("runs", None)
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path}: runs: got {listed!r}, expected a list of {{files: ..., seed: ..., factors: ...}}")
    if isinstance(rename := values.get("rename"), dict):  # what else it may be is for the table to say
        names = {str(old): str(new) for old, new in rename.items()}
        options = dataclasses.replace(options, rename={**names, **options.rename})
    common = {key: values.pop(key) for key in OPTIONS if key in values}
    entries = []
    for number, entry in enumerate(listed):
        where = f"{path}: runs[{number}]"
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: got {entry!r}, expected a mapping with files")
        entries.append(_entry({**common, **entry}, where, path.parent, options))
    return FileMap(tuple(entries), values)


def _entry(values: dict[str, Any], where: str, folder: Path, given: Options) -> Entry:
    for key in values:
        if key not in ENTRY:
            raise ConfigError(f"{where}.{key}: unknown key{nearest(key, ENTRY)}")
    files, seed, factors = values.get("files"), values.get("seed"), values.get("factors") or {}
    if not isinstance(files, str) or not files:
        raise ConfigError(f"{where}.files: got {files!r}, expected a path or pattern")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ConfigError(f"{where}.seed: got {seed!r}, expected a whole number, 0 or above")
    if not isinstance(factors, dict) or not all(isinstance(v, str | bool | int | float) for v in factors.values()):
        raise ConfigError(f"{where}.factors: got {factors!r}, expected factor: level")
    if not isinstance(values.get("base", False), bool):
        raise ConfigError(f"{where}.base: got {values['base']!r}, expected true or false")
    told = {key: values[key] for key in OPTIONS if values.get(key) is not None}
    checked = options_from(told, where)
    default = Options()
    over = {f.name: getattr(given, f.name) for f in dataclasses.fields(Options)
            if getattr(given, f.name) != getattr(default, f.name)}  # fmt: skip
    return Entry(
        files=str(folder / Path(files).expanduser()),
        run=None if values.get("run") is None else str(values["run"]),
        seed=seed,
        benchmark=None if values.get("benchmark") is None else str(values["benchmark"]),
        factors={str(k): _level(v) for k, v in factors.items()},
        base=bool(values.get("base", False)),
        options=dataclasses.replace(checked, **over),
    )


def options_from(values: Mapping[str, Any], where: str) -> Options:
    """Checked `Options`.

    Raises:
        ConfigError: naming `where`, the key and what was expected.
    """
    if "format" in values:
        format_named(str(values["format"]), f"{where}.format")
    for key, words in WORDS.items():
        if key in values and values[key] not in words:
            raise ConfigError(f"{where}.{key}: got {values[key]!r}, expected {', '.join(words)}")
    for key, kind in (("right", int | float), ("step", int)):
        if key in values and (isinstance(values[key], bool) or not isinstance(values[key], kind)):
            raise ConfigError(f"{where}.{key}: got {values[key]!r}, expected a number")
    return Options(**values)


def _level(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def matches(entry: Entry) -> list[Match]:
    """The files of an entry, sorted; folders are looked through, hidden files left out.

    Raises:
        DataError: there are none.
    """
    stars = NAME.sub("*", entry.files)
    pattern = re.compile(_expression(entry.files))
    found = []
    for name in sorted(glob.glob(re.sub(r"\[", "[[]", stars), recursive=True)):
        known = pattern.fullmatch(name)
        if known is None:
            continue  # a name that stands twice in the pattern, for two things; or a seed that is no number
        path = Path(name)
        inner = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        found += [Match(p, known.groupdict()) for p in inner if not _hidden(p, path)]
    files = {match.path: match for match in found}  # `**` finds a folder and what is in it
    if not files:
        raise DataError(f"{entry.files}: no such file{_instead(entry.files)}")
    return list(files.values())


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _instead(pattern: str) -> str:
    """What there is instead of a first part of the path that isn't there."""
    path = Path(pattern)
    for parent in reversed(path.parents):
        if not parent.exists():
            break
    else:
        parent = path
    if NAME.search(parent.name) or "*" in parent.name or not parent.parent.is_dir():
        return ""
    return nearest(parent.name, [p.name for p in parent.parent.iterdir() if not p.name.startswith(".")])


def _expression(pattern: str) -> str:
    """A regular expression with a group for every name; a seed is digits, `**/` any number of folders."""
    seen: set[str] = set()
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\{\w+\})", pattern)
    out = []
    for part in parts:
        named = NAME.fullmatch(part)
        if named:
            inner = r"\d+" if named[1] == "seed" else "[^/]+?"
            out.append(f"(?P={named[1]})" if named[1] in seen else f"(?P<{named[1]}>{inner})")
            seen.add(named[1])
        else:
            out.append({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part)))
    return "".join(out)


def filled(template: str, known: Mapping[str, str], where: str) -> str:
    """A template with what its names stand for.

    Raises:
        ConfigError: a name that the pattern hasn't got.
    """
    for name in NAME.findall(template):
        if name not in known:
            raise ConfigError(f"{where}: '{template}': no {{{name}}} in the pattern{nearest(name, known)}")
    return NAME.sub(lambda found: known[found[1]], template)
