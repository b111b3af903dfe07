"""From files to one long table: a row per run, benchmark and question, with counts."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, DataError
from r3bench.readers.file import READ, read_table, suffix
from r3bench.readers.formats import FORMATS, Format, column_names, format_named, format_of, keys_of, nearest_format
from r3bench.readers.map import Entry, Match, filled, matches
from r3bench.readers.rows import TEXTS, from_frame

KEYS = ("run", "seed", "benchmark", "question")
OWN = (*KEYS, "base", "samples", "correct", "tokens", "truncated", "outcome", "identity", "where", *TEXTS)
SUMMARY = re.compile(r"results_.*\.json")  # as lm-eval and lighteval write one beside their answers
SEEDED = re.compile(r"(?<![A-Za-z0-9])(seed|s)([-_=]?)\d+(?![A-Za-z0-9])", re.I)


@dataclass(frozen=True)
class Collected:
    """What was read."""

    frame: Any  # DataFrame: run, seed, factors, base, benchmark, question, samples, correct, tokens, truncated
    notes: tuple[str, ...]
    dropped: tuple[str, ...] = ()  # columns that are about answers
    factors: tuple[str, ...] = ()  # columns that a map or pattern named as factors
    renamed: tuple[str, ...] = ()  # columns of tables that were called otherwise, as the options said


def collect(entries: Sequence[Entry], where: str, *, regrade: bool = False, require_boxed: bool = True) -> Collected:
    """The counts of all files of a map.

    Args:
        entries: of the map.
        where: what errors call the whole.
        regrade: grade the texts of all answers anew.
        require_boxed: then only a boxed answer counts.

    Raises:
        ConfigError: the map can't be used.
        DataError: naming the file, and the row where there is one.
    """
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    factors: list[str] = []
    renamed: list[str] = []
    owned: dict[Path, int] = {}
    for number, entry in enumerate(entries):
        files = matches(entry)
        for match in files:
            if owned.setdefault(match.path.resolve(), number) != number:
                raise ConfigError(f"{where}: {match.path} is of two entries of the map")
        chosen, said = _chosen(files, entry, regrade)
        notes += said
        for match, layout in chosen:
            if entry.options.rename and layout.name == "rows":
                renamed += [str(c) for c in read_table(match.path).columns if str(c) in entry.options.rename]
            for record in layout.read(match.path, entry.options):
                records.append(_placed(record, match, entry, layout, factors))
    found = _table(records, notes, where, entries, regrade, require_boxed)
    return Collected(*found, tuple(dict.fromkeys(factors)), tuple(dict.fromkeys(renamed)))


def first_columns(entries: Sequence[Entry]) -> set[str]:
    """The columns of the first file of every entry that could be a table of its own; see `column_names`."""
    found: set[str] = set()
    for entry in entries:
        for match in matches(entry):
            if suffix(match.path) in READ and _layout(match.path, entry) is FORMATS["rows"]:
                found.update(column_names(match.path))
                break
    return found


def from_answers(
    frame: Any, where: str, entry: Entry, *, regrade: bool = False, require_boxed: bool = True
) -> Collected:
    """The counts of a table with one row per answer that is in memory."""
    records = from_frame(frame, where, entry.options)
    for record in records:
        record.setdefault("benchmark", "all")
    return Collected(*_table(records, [], where, [entry], regrade, require_boxed))


def _chosen(files: Sequence[Match], entry: Entry, regrade: bool) -> tuple[list[tuple[Match, Format]], list[str]]:
    """The files to read with their layouts, and notes on those that are left out."""
    found: list[tuple[Match, Format]] = []
    unknown = []
    for match in files:
        whose = _layout(match.path, entry)
        if whose is None:
            unknown.append(match.path)
        else:
            found.append((match, whose))
    if not found:
        first = next((p for p in unknown if suffix(p) in READ), unknown[0])
        raise DataError(f"{first}: no known layout{nearest_format(keys_of(first) if suffix(first) in READ else ())}")
    names = {layout.name for _, layout in found}
    if len(names) > 1:
        tables = [m.path for m, f in found if f.name == "rows"]
        if tables and entry.options.format is None:  # a summary beside a tool's own files
            unknown += tables
            found = [(m, f) for m, f in found if f.name != "rows"]
    unknown = [p for p in unknown if not SUMMARY.fullmatch(p.name)]
    found, again = _newest(found, entry, regrade)
    notes = [f"{entry.files}: {len(unknown)} other files not read: {_few(unknown)}"] if unknown else []
    return found, [*notes, *again]


def _layout(path: Path, entry: Entry) -> Format | None:
    if entry.options.format is not None:
        layout = format_named(entry.options.format, entry.files)
        if suffix(path) not in layout.kinds:
            return None
        lacking = layout.lacks(keys_of(path)) if layout.name != "rows" else []
        if lacking and layout.name != "openai-evals":
            if suffix(path) == ".json":
                return None  # a summary beside the answers
            raise DataError(f"{path}: no {', '.join(lacking)}, which {layout.what} has{nearest_format(keys_of(path))}")
        return layout
    if suffix(path) not in READ:
        return None
    found = format_of(path)
    return FORMATS["rows"] if found is None and suffix(path) != ".json" else found


def _newest(
    found: list[tuple[Match, Format]], entry: Entry, regrade: bool
) -> tuple[list[tuple[Match, Format]], list[str]]:
    """Without what was measured again later; verdicts without the bare answers beside them, or the other way round."""
    kinds = {_kind(m.path) for m, f in found if f.name == "opencompass"}
    if kinds == {"results", "predictions"}:
        left = "results" if regrade else "predictions"
        found = [(m, f) for m, f in found if f.name != "opencompass" or _kind(m.path) != left]
    stamps: dict[tuple[Any, ...], set[str]] = {}
    for match, layout in found:
        place = layout.place(match.path)
        stamps.setdefault((layout.name, place.owner, place.benchmark), set()).add(place.stamp)
    kept, older = [], []
    for match, layout in found:
        place = layout.place(match.path)
        times = stamps[layout.name, place.owner, place.benchmark]
        step = entry.options.step
        if step is not None and layout.name in ("verl", "trl"):
            digits = re.findall(r"\d+", match.path.stem)
            if not digits or int(digits[-1]) != step:
                continue
        elif entry.options.measured_again == "newest" and place.stamp != max(times):
            older.append(match.path)
            continue
        kept.append((match, layout))
    if not kept:
        raise DataError(f"{entry.files}: no file of step {entry.options.step}")
    what = "measured again later, or earlier in training"
    notes = [f"{entry.files}: {len(older)} files not read, {what} (measured_again: all reads them): {_few(older)}"]
    return kept, notes if older else []


def _kind(path: Path) -> str:
    return "predictions" if "predictions" in path.parts else "results"


def _few(paths: Sequence[Path]) -> str:
    return ", ".join(p.name for p in paths[:3]) + (", ..." if len(paths) > 3 else "")


def _placed(record: dict[str, Any], match: Match, entry: Entry, layout: Format, factors: list[str]) -> dict[str, Any]:
    """A record with what the map knows of its run."""
    known = {k: v for k, v in match.known.items() if v is not None}
    where = entry.files
    levels = {f: filled(level, known, f"{where}: factors.{f}") for f, level in entry.factors.items()}
    used = {n for level in entry.factors.values() for n in re.findall(r"\{(\w+)\}", level)}
    for name, value in known.items():
        if name in ("run", "seed", "benchmark") or name in used:
            continue
        if name in OWN:
            raise ConfigError(f"{where}: {{{name}}}: a table has a column of that name; call the factor otherwise")
        if levels.get(name, value) != value:
            raise ConfigError(f"{where}: {name} is '{value}' by the pattern and '{levels[name]}' by the map")
        levels[name] = value
    if not entry.base:
        factors += [f for f in levels if f not in factors]
    seed = entry.seed if entry.seed is not None else known.get("seed")
    place = layout.place(match.path)
    told: dict[str, Any] = {} if entry.base else dict(levels)
    if seed is not None:
        told["seed"] = int(seed)
    elif entry.base:
        told["seed"] = record.get("seed", 0)
    run = entry.run or known.get("run")
    if run is not None:
        told["run"] = filled(run, known, f"{where}: run")
    elif entry.base:
        told["run"] = record.get("run", "untrained model")
    elif seed is not None and "run" not in record:
        told["run"] = "-".join([*levels.values(), f"s{seed}"]) if levels else f"s{seed}"
    benchmark = entry.benchmark or known.get("benchmark") or record.get("benchmark") or place.benchmark
    told["benchmark"] = str(benchmark) if benchmark else "all"
    told["base"] = "model" if entry.base else record.get("base", "")
    return {"where": str(match.path), "path": match.path, "layout": layout.what, **record, **told}


def _table(
    records: list[dict[str, Any]], notes: list[str], where: str, entries: Sequence[Entry], regrade: bool, boxed: bool
) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    import pandas as pd

    if not records:
        raise DataError(f"{where}: no answers")
    for key in ("seed", "run"):
        lacking = next((r for r in records if _nothing(r.get(key))), None)
        if lacking is not None:
            raise DataError(_unplaced(key, lacking, where))
    for i, record in enumerate(records):
        if _nothing(record.get("question")):
            raise DataError(f"{record['where']}: no question id in answer {i + 1}")
        record["question"] = _name(record["question"])
    _one_text(records)
    if regrade:
        notes.append(_graded(records, boxed, where))
    elif any("samples" not in r and r.get("correct") is None for r in records):
        records, said = _without_missing(records, entries, where)
        notes += said
    extra = list(dict.fromkeys(k for r in records for k in r if k not in (*OWN, "path", "layout")))
    kept, said = _of_runs(records, extra)
    notes += said
    return _counts(pd, records, kept, where), tuple(notes), tuple(c for c in extra if c not in kept)


def _unplaced(key: str, record: dict[str, Any], where: str) -> str:
    """No seed or run: with the pattern that would say it, where the path has one."""
    path = record.get("path")
    shown = str(path or where)
    found = list(SEEDED.finditer(shown))
    hint = ""
    if found:
        last = found[-1]
        start, end = shown.rfind("/", 0, last.start()) + 1, shown.find("/", last.end())
        before, middle = shown[:start], shown[start : last.start()]
        rest = shown[last.end() : end if end >= 0 else len(shown)]
        tail = "/**" if end >= 0 else ""
        cell = "{cell}" + (middle[-1] if middle[-1] in "-_.=" else "") if middle else ""
        hint = f", such as '{before}{cell}{last[1]}{last[2]}{{seed}}{rest}{tail}'"
    said = f" ({record['layout']})" if "layout" in record else ""
    return (
        f"{shown}{said}: nothing says which {key} it is of. Give a pattern with {{seed}} and a name per factor"
        f"{hint}, or a map of files to runs, or a column '{key}' (docs/other-tools.md)"
    )


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()


def _name(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _one_text(records: Sequence[dict[str, Any]]) -> None:
    """`DataError` where one id stands for two questions, or one answer stands twice."""
    texts: dict[tuple[str, str], dict[str, Any]] = {}
    answers: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        if record.get("identity") is not None:
            first = texts.setdefault((record["benchmark"], record["question"]), record)
            if first["identity"] != record["identity"]:
                raise DataError(
                    f"{record['where']}: question {record['question']} of {record['benchmark']} is another text than "
                    f"in {first['where']}: their ids don't mean the same"
                )
        if not _nothing(record.get("sample")):
            key = (record.get("run"), record.get("seed"), record.get("benchmark"), record["question"], record["sample"])
            if key in answers:
                raise DataError(
                    f"{record['where']}: answer {record['sample']} to question {record['question']} of run "
                    f"{record.get('run')} stands in {answers[key]['where']} too"
                )
            answers[key] = record


def _graded(records: Sequence[dict[str, Any]], boxed: bool, where: str) -> str:
    """Give every answer a verdict of ours; what to say about them.

    Raises:
        DataError: an answer has no text or no gold answer.
    """
    from r3bench.grading import Grader

    for record in records:
        for key in ("response", "gold"):
            if "samples" in record or (key == "gold" and _nothing(record.get(key))) or key not in record:
                raise DataError(
                    f"{record['where']}: no {key} to grade by (--regrade needs every answer's text and gold)"
                )
    before = [record.get("correct") for record in records]
    with Grader(require_boxed=boxed) as grader:
        verdicts = grader.grade(
            ["" if _nothing(r["response"]) else str(r["response"]) for r in records], [str(r["gold"]) for r in records]
        )
        name = grader.name
    for record, judged in zip(records, verdicts, strict=True):
        record["correct"] = judged.correct
    known = [(b, v.correct) for b, v in zip(before, verdicts, strict=True) if b is not None]
    if not known:
        return f"verdicts by {name}"
    same = sum(b == v for b, v in known)
    return f"verdicts by {name}; the stored ones are the same for {same} of {len(known)} answers"


def _without_missing(
    records: list[dict[str, Any]], entries: Sequence[Entry], where: str
) -> tuple[list[dict[str, Any]], list[str]]:
    how = {entry.options.missing for entry in entries}
    missing = [r for r in records if "samples" not in r and r.get("correct") is None]
    if how == {"wrong"}:
        for record in missing:
            record["correct"] = False
        return records, [f"{len(missing)} of {len(records)} answers have no verdict and count as wrong, as asked"]
    if how == {"drop"}:
        kept = [r for r in records if r not in missing] if len(missing) < 50 else [
            r for r in records if "samples" in r or r.get("correct") is not None
        ]  # fmt: skip
        return kept, [f"{len(missing)} of {len(records)} answers have no verdict and are left out, as asked"]
    first, more = missing[0], f" ({len(missing) - 1} more like it)" if len(missing) > 1 else ""
    raise DataError(
        f"{first['where']}: no verdict on an answer to question {first['question']}{more}; say --missing wrong or "
        "--missing drop, or grade anew (--regrade)"
    )


def _of_runs(records: Sequence[dict[str, Any]], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns that are the same within each run; one that differs within most runs is about answers, and no factor."""
    kept, notes = [], []
    for column in columns:
        seen: dict[Any, set[str]] = {}
        for record in records:
            seen.setdefault(record.get("run"), set()).add(str(record.get(column)))
        mixed = sum(len(values) > 1 for values in seen.values())
        if mixed * 2 > len(seen):
            notes.append(f"column '{column}' was not read: it differs between answers of one run")
        else:
            kept.append(column)
    return kept, notes


def _counts(pd: Any, records: Sequence[dict[str, Any]], extra: Sequence[str], where: str) -> Any:
    """The long table."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    whole = {name: all(not _nothing(r.get(name)) for r in records) for name in ("tokens", "truncated")}
    outcomes = any("outcome" in r for r in records)
    for record in records:
        key = (record.get("run"), record["benchmark"], record["question"])
        count = record.get("samples", 1)
        right = record["correct"] if "samples" in record else int(bool(record["correct"]))
        row = rows.setdefault(key, {
            "run": record.get("run"), "seed": record["seed"], "base": record.get("base") or "",
            **{c: record.get(c) for c in extra}, **({"outcome": record.get("outcome")} if outcomes else {}),
            "benchmark": record["benchmark"], "question": record["question"], "samples": 0, "correct": 0,
            **({"tokens": 0.0} if whole["tokens"] else {}), **({"truncated": 0} if whole["truncated"] else {}),
        })  # fmt: skip
        for column in ("seed", *extra):
            if str(row[column]) != str(record.get(column)):
                raise DataError(
                    f"{record['where']}: {column} is '{record.get(column)}' for run '{key[0]}', which has "
                    f"'{row[column]}' elsewhere; one name for two runs? (--ignore {column} leaves a column out)"
                )
        if whole["tokens"]:
            row["tokens"] = (row["tokens"] * row["samples"] + float(record["tokens"]) * count) / (
                row["samples"] + count
            )
        if whole["truncated"]:
            row["truncated"] += record["truncated"] if "samples" in record else int(bool(record["truncated"]))
        row["samples"] += count
        row["correct"] += right
    frame = pd.DataFrame(list(rows.values()))
    return frame if (frame["base"] != "").any() else frame.drop(columns="base")
