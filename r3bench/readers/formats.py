"""Which tool wrote a file, by what is in it; where its name and folder say of which task and when."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, DataError, first_line, nearest
from r3bench.readers import layouts
from r3bench.readers.file import LINES, READ, content, json_lines, read_json, read_table, suffix
from r3bench.readers.options import Options
from r3bench.readers.rows import read_rows

DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"  # as lm-eval and lighteval write it
LM_EVAL = re.compile(rf"samples_(?P<task>.+)_(?P<date>{DATE})")
LIGHTEVAL = re.compile(rf"details_(?P<task>.+?)_(?P<date>{DATE})")
COMPASS = re.compile(r"\d{8}_\d{6}")
COMPLETIONS = re.compile(r"completions_(\d+)")


@dataclass(frozen=True)
class Place:
    """What a file's place says of it."""

    owner: Path  # folder of what was measured, the same whenever it was
    benchmark: str | None = None  # task
    stamp: str = ""  # when it was measured, or after which training step; sorts by time


@dataclass(frozen=True)
class Format:
    """One tool's layout."""

    name: str  # as --from takes it
    what: str  # in words
    kinds: tuple[str, ...]  # suffixes
    keys: tuple[frozenset[str], ...]  # keys or columns that it has: one of these sets
    read: Callable[[Path, Options], list[dict[str, Any]]]
    place: Callable[[Path], Place]

    def lacks(self, keys: Iterable[str]) -> list[str]:
        """What is missing of the set that is nearest."""
        have = set(keys)
        fewest = min(len(wanted - have) for wanted in self.keys)
        return sorted(next(wanted - have for wanted in self.keys if len(wanted - have) == fewest))


def _lm_eval(path: Path) -> Place:
    named = LM_EVAL.fullmatch(_stem(path))
    return Place(path.parent, named["task"], named["date"]) if named else Place(path.parent, _stem(path))


def _lighteval(path: Path) -> Place:
    named = LIGHTEVAL.fullmatch(_stem(path))
    dated = re.fullmatch(DATE, path.parent.name) is not None
    owner = path.parent.parent if dated else path.parent
    task = named["task"].split("|") if named else [_stem(path)]
    task = task[:-1] if len(task) > 1 and task[-1].isdigit() else task  # the number of examples shown
    return Place(owner, "|".join(task), named["date"] if named else "")


def _verl(path: Path) -> Place:
    stem = _stem(path)
    return Place(path.parent, None, stem.zfill(12) if stem.isdigit() else "")


def _matharena(path: Path) -> Place:
    return Place(path.parent, path.parent.parent.name or None)


def _opencompass(path: Path) -> Place:
    dates = [part for part in path.parts if COMPASS.fullmatch(part)]
    parts = [p for p in path.parent.parts if not COMPASS.fullmatch(p) and p not in ("results", "predictions")]
    stem = _stem(path)
    part = layouts.PART.fullmatch(stem)
    if part is not None and path.with_name(f"{part[1]}_0.json").exists():
        stem = part[1]
    return Place(Path(*parts), stem, dates[-1] if dates else "")


def _plain(path: Path) -> Place:
    return Place(path.parent)


FORMATS = {
    f.name: f
    for f in (
        Format("lm-eval", "lm_eval --log_samples", LINES, (frozenset({"doc_id", "resps", "filtered_resps"}),),
               layouts.lm_eval, _lm_eval),
        Format("verl", "verl's validation_data_dir", LINES, (frozenset({"input", "output", "score", "step"}),),
               layouts.verl, _verl),
        Format("lighteval", "lighteval --save-details", (".parquet",),
               (frozenset({"doc", "metric", "model_response"}),), layouts.lighteval, _lighteval),
        Format("matharena", "MathArena's outputs", (".json",),
               (frozenset({"answers", "correct", "messages", "gold_answer"}),), layouts.matharena, _matharena),
        Format("opencompass", "OpenCompass's results or predictions", (".json",),
               (frozenset({"details"}), frozenset({"prediction", "origin_prompt"})), layouts.opencompass, _opencompass),
        Format("openai-evals", "oaieval's event log", LINES,
               (frozenset({"spec"}), frozenset({"sample_id", "event_id", "type", "data"})), layouts.openai_evals,
               _plain),
        Format("trl", "TRL's log_completions", (".parquet",),
               (frozenset({"step", "prompt", "completion", "advantage"}),), layouts.trl, _plain),
        Format("rows", "a table with one row per answer", READ,
               (frozenset({"question", "correct"}),), read_rows, _plain),
    )
}  # fmt: skip


def _stem(path: Path) -> str:
    return path.name[: path.name.lower().rindex(suffix(path))] if suffix(path) else path.name


def format_named(name: str, where: str) -> Format:
    """The layout called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"{where}: no format '{name}'{nearest(name, FORMATS)}")
    return FORMATS[name]


def keys_of(path: Path) -> list[str]:
    """Names at the top of a file: columns, or keys of its first object (of its first entry, where keys are numbers)."""
    kind = suffix(path)
    if kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(pa.BufferReader(content(path))).names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: can't be read: {first_line(error)}") from error
    if kind in LINES:
        return list(next(json_lines(path), (0, {}))[1])
    if kind == ".json":
        value = read_json(path)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and value and all(k.isdigit() for k in value):
            value = next(iter(value.values()))
        return list(value) if isinstance(value, dict) else []
    return []


def column_names(path: Path) -> list[str]:
    """Names of a table's columns; keys of a file that is no table, none of what can't be read.

    Raises:
        DataError: it can't be read.
    """
    kind = suffix(path)
    if kind not in READ:
        return []
    if kind in (*LINES, ".parquet") or (kind == ".json" and format_of(path) is not None):
        return keys_of(path)
    return [str(name) for name in read_table(path, numbers=False).columns]


def format_of(path: Path) -> Format | None:
    """Whose layout a file has; None for a table of another's making, such as a CSV."""
    kind, keys = suffix(path), keys_of(path)
    return next((f for f in FORMATS.values() if f.name != "rows" and kind in f.kinds and not f.lacks(keys)), None)


def nearest_format(keys: Iterable[str]) -> str:
    """`"; nearest is lm-eval (...), which has doc_id as well"`; nothing where no key is one of a known layout."""
    have = set(keys)

    def shared(f: Format) -> float:
        return max(len(wanted & have) / len(wanted) for wanted in f.keys)

    best = max((f for f in FORMATS.values()), key=shared)
    if shared(best) == 0:
        return f"; known: {', '.join(FORMATS)} (docs/other-tools.md)"
    lacking = ", ".join(best.lacks(have))
    return f"; nearest is {best.name} ({best.what})" + (f", which has {lacking} as well" if lacking else "")
