"""Results that are no study of ours: tables in memory, and other tools' files, as one long table."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from r3bench.analysis.declared import Declared, declared_from
from r3bench.analysis.reading.columns import Reading, joined, reading_from, renamed
from r3bench.analysis.reading.longtable import Stored
from r3bench.errors import ConfigError, DataError, nearest
from r3bench.readers.collect import Collected, collect, from_answers
from r3bench.readers.file import LINES, READ, called, read_table, suffix
from r3bench.readers.formats import FORMATS, format_of
from r3bench.readers.map import Entry, FileMap, is_pattern, options_from, read_map
from r3bench.readers.options import Options
from r3bench.readers.rows import SAME, TEXTS

MAPS = (".yaml", ".yml")


@dataclass(frozen=True)
class Outside:
    """How another tool's files are to be read."""

    options: Options = field(default_factory=Options)
    regrade: bool = False  # grade the texts of all answers anew
    require_boxed: bool = True  # then only a boxed answer counts


@dataclass(frozen=True)
class Table:
    """A long table in memory, and what is known of it."""

    frame: Any  # DataFrame
    where: str  # what errors call it
    name: str
    stored: Stored | None = None  # what a file of ours says besides its rows
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # columns of a table of answers that are about answers: not read in any case
    renamed: tuple[str, ...] = ()  # columns of answers that were given their names when they were read
    reading: Reading = field(default_factory=Reading)  # said by a map
    declared: Declared | None = None  # said by a map

    def completed(self, reading: Reading, declared: Declared | None) -> tuple[Reading, Declared | None]:
        """What is said of the table, completed by what its map says."""
        said = joined(reading, self.reading)
        said = dataclasses.replace(
            said,
            ignore=tuple(c for c in said.ignore if c not in self.dropped),
            rename={old: new for old, new in said.rename.items() if old not in self.renamed},
        )
        return said, declared if declared is not None else self.declared


def outside_from(values: Mapping[str, Any], where: str, *, regrade: bool = False, boxed: bool = True) -> Outside:
    """A checked `Outside`; keys without a value are left out.

    Raises:
        ConfigError: naming the option.
    """
    told = {key: value for key, value in values.items() if value is not None}
    return Outside(options_from(told, where), regrade, boxed)


def is_study(folder: Path) -> bool:
    """Whether a folder is a study of ours, or one of our runs."""
    return (folder / "study.json").is_file() or any(folder.glob("run.json")) or any(folder.glob("*/run.json"))


def in_memory(frame: Any, outside: Outside, rename: Mapping[str, str] | None = None) -> Table:
    """A DataFrame with a row per question (`samples`, `correct`) or per answer.

    Raises:
        DataError: it is no DataFrame, or lacks a column.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"got a {type(frame).__name__}, expected a path or a pandas DataFrame")
    if isinstance(frame.index, pd.MultiIndex) or frame.index.name is not None:
        frame = frame.reset_index()
    names = dict(rename or {})
    frame = called(frame, [*names, *([outside.options.metric] if outside.options.metric else [])])
    columns = [str(c) for c in frame.columns]
    if "samples" in [names.get(c, c) for c in columns] and not outside.regrade:
        return Table(frame.copy(), "the table", "table")
    frame = frame.set_axis(renamed(columns, names, "the table"), axis=1)
    table = _table(_answers(frame, "the table", outside), "the table", "table")
    return dataclasses.replace(table, renamed=tuple(names))


def read_outside(source: str | Path, reading: Reading, outside: Outside | None) -> Table | None:
    """Another tool's results as a long table; None for a file that is one already.

    Raises:
        ConfigError: a map or an option that can't be used.
        DataError: no layout fits; names the nearest and what is missing.
    """
    how, path, text = outside or Outside(), Path(source), str(source)
    options = dataclasses.replace(how.options, verdicts=not how.regrade, rename=dict(reading.rename))
    if path.suffix in MAPS and path.is_file():
        listed = read_map(path, options)
        return _mapped(listed, path, how)
    if path.is_dir() or is_pattern(text):
        ours = (path / "config.json").is_file() or any(path.glob("*/study.json"))
        if path.is_dir() and (ours or not any(suffix(p) in READ for p in path.rglob("*"))):
            raise DataError(f"{path}: {what_is(path)}")
        found = collect([Entry(text, options=options)], text, regrade=how.regrade, require_boxed=how.require_boxed)
        return _table(found, text, _title(path))
    if not path.is_file():
        raise DataError(f"{path}: {what_is(path)}")
    if suffix(path) in (*LINES, ".json", ".parquet") and how.options.format is None:
        layout = format_of(path)
    else:
        layout = FORMATS.get(how.options.format or "")
    if layout is None and suffix(path) in READ:
        if outside is None and suffix(path) == ".parquet" and _ours(path):
            return None
        return _rows(path, reading, how)
    if layout is None and how.options.format is None:
        return None
    found = collect([Entry(text, options=options)], text, regrade=how.regrade, require_boxed=how.require_boxed)
    return _table(found, text, path.stem)


def _title(path: Path) -> str:
    """The last folder in a path that is no pattern."""
    return next((part for part in reversed(path.parts) if not set(part) & set("*{?/")), "results")


def _ours(path: Path) -> bool:
    from r3bench.readers.formats import keys_of

    return {"samples", "correct"} <= set(keys_of(path))


def _rows(path: Path, reading: Reading, how: Outside) -> Table | None:
    """A table with a row per answer; None for one with a row per question."""
    frame = read_table(path, reading.rename, keep=[how.options.metric] if how.options.metric else ())
    if not all(old in frame.columns for old in reading.rename):
        return None  # which says so
    frame = frame.set_axis(renamed([str(c) for c in frame.columns], reading.rename, str(path)), axis=1)
    columns = {str(c) for c in frame.columns}
    judged = bool(columns & {"correct", *SAME["correct"]}) or how != Outside()
    misspelt = get_close_matches("samples", columns - {"sample", *SAME["sample"]}, 1, 0.6)
    if ("samples" in columns and not how.regrade) or misspelt or not judged:
        return None
    table = _table(_answers(frame, str(path), how), str(path), path.stem)
    return dataclasses.replace(table, renamed=tuple(reading.rename))


def _answers(frame: Any, where: str, how: Outside) -> Collected:
    options = dataclasses.replace(how.options, verdicts=not how.regrade)
    return from_answers(
        frame, where, Entry(where, options=options), regrade=how.regrade, require_boxed=how.require_boxed
    )


def _table(found: Collected, where: str, name: str, reading: Reading | None = None) -> Table:
    said = reading or Reading()
    if found.factors and said.factors is None:
        varied = tuple(f for f in found.factors if found.frame[f].nunique(dropna=True) > 1)
        said = dataclasses.replace(said, factors=varied or None)
    notes = (*found.notes, *_uneven(found.frame))
    return Table(
        found.frame, where, name, notes=notes, dropped=(*found.dropped, *TEXTS), renamed=found.renamed, reading=said
    )


def _mapped(listed: FileMap, path: Path, how: Outside) -> Table:
    rest = dict(listed.rest)
    analysis = rest.pop("analysis", {})
    reading, unknown = reading_from(rest, str(path))
    for key in unknown:
        known = ("runs", "levels", "reference", "factors", "ignore", "rename", "analysis", "format", "metric",
                 "filter", "right", "missing", "measured_again", "step")  # fmt: skip
        raise ConfigError(f"{path}.{key}: unknown key{nearest(str(key), known)}")
    if not isinstance(analysis, dict):
        raise ConfigError(f"{path}: analysis: got {analysis!r}, expected a mapping, as in a grid")
    found = collect(listed.entries, str(path), regrade=how.regrade, require_boxed=how.require_boxed)
    table = _table(found, str(path), path.stem, reading)
    if analysis:
        table = dataclasses.replace(table, declared=declared_from(analysis, f"{path}: analysis"))
    return table


def _uneven(frame: Any) -> list[str]:
    """A note on questions with more or fewer answers than most of their benchmark have."""
    notes = []
    for benchmark, rows in frame.groupby("benchmark", sort=True):
        counts = rows["samples"].value_counts()
        if len(counts) > 1:
            usual, other = int(counts.index[0]), int(counts.sum() - counts.iloc[0])
            row = rows[rows["samples"] != usual].iloc[0]
            notes.append(
                f"{benchmark}: {other} of {int(counts.sum())} rows have other than {usual} answers, such as question "
                f"{row['question']} of run {row['run']} with {row['samples']}: a question that stands twice, or "
                "answers that are missing"
            )
    return notes


def what_is(path: Path) -> str:
    """What a folder or file is that is no study, in words, and what to do with it."""
    if not path.exists():
        return f"no such file or study folder{nearest(path.name, [p.name for p in path.parent.glob('*')])}"
    if path.is_file():
        return "a file that is no table (expected .csv, .tsv, .jsonl, .parquet, .xlsx, or a map in .yaml)"
    studies = sorted(p.parent.name for p in path.glob("*/study.json"))
    if studies:
        return f"a folder of studies; name one of {', '.join(studies[:5])}{', ...' if len(studies) > 5 else ''}"
    if (path / "config.json").is_file() and not (path / "environment.json").is_file():
        return "a model's folder, no study; measure it with r3bench eval"
    if (path / "config.json").is_file():
        return "a run that isn't finished (no run.json); r3bench train or ablate finishes it"
    if not any(path.iterdir()):
        return "an empty folder"
    names = sorted(p.name for p in path.iterdir())
    return f"no study: no study.json or run.json, and no file of answers; it holds {', '.join(names[:4])}"
