"""Arguments and flags that several commands share, where runs are looked for, and how results are printed."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from r3bench.commands import shell

if TYPE_CHECKING:
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.output.choices import Choices
    from r3bench.analysis.reading.columns import Reading
    from r3bench.analysis.reading.outside import Outside

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the result and errors.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds runs and studies.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that replace the recipe's.")]
StudyName = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="A study's folder, or its name below --runs.", autocompletion=shell.studies),
]
Tasks = Annotated[
    str | None,
    typer.Option("--tasks", metavar="A,B", help="Names that `r3bench list tasks` shows.", autocompletion=shell.tasks),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's folder, or its id below --runs.", autocompletion=shell.runs),
]
RUNS = Path("runs")
Factors = Annotated[
    str | None, typer.Option("--factors", metavar="A,B", help="A table's columns that are factors; others aren't read.")
]
Ignore = Annotated[
    str | None,
    typer.Option("--ignore", metavar="A,B", help="A table's columns that aren't read: a date, a device, ..."),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename", metavar="OLD=NEW", help="Call a table's column by another name; may be given several times."
    ),
]
Reference = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="FACTOR=LEVEL", help="Hold a factor's other levels against this one."),
]
Fixed = Annotated[
    Path | None,
    typer.Option("--declared", metavar="YAML", help="What was fixed beforehand: primary, macro, margin, levels, ..."),
]
# What --json prints: name -> version, which grows when a key goes or changes its meaning. docs/json.md has the keys.
SCHEMAS = {
    "ablate": 1, "agreement": 1, "analyze": 1, "answers": 1, "calibrate": 1, "check": 1, "compare": 1,
    "compare-studies": 1, "convert": 1, "copy": 1, "env": 1, "eval": 1, "eval-checkpoints": 1, "exclude": 1,
    "explain": 1, "export": 1, "import": 1, "list": 1, "merge": 1, "plan": 1, "plan-recipe": 1, "plot": 1,
    "plot-kinds": 1, "prompts": 1,
    "push": 1, "quickstart": 1, "regrade": 1, "report": 1, "serve": 1, "status": 1, "studies": 1, "tables": 1,
    "trace": 1, "train": 1, "validate": 1, "verify": 1,
}  # fmt: skip
FormatName = Annotated[
    str | None,
    typer.Option("--from", metavar="NAME", help="Whose files: lm-eval, verl, lighteval, ...; else found out."),
]
Metric = Annotated[
    str | None, typer.Option("--metric", metavar="NAME", help="The score of another tool's files that decides.")
]
Filter = Annotated[str | None, typer.Option("--filter", metavar="NAME", help="Which of lm-eval's filters counts.")]
Right = Annotated[
    float | None, typer.Option("--right", metavar="X", help="From which score on an answer is right; default: 1 is.")
]
Missing = Annotated[
    str | None, typer.Option("--missing", metavar="HOW", help="Answers without a verdict: refuse, wrong or drop.")
]
Step = Annotated[
    int | None, typer.Option("--step", metavar="N", help="Training step of verl's or TRL's dumps; default: the last.")
]
Regrade = Annotated[bool, typer.Option("--regrade", help="Grade the answers' texts anew, with our rules.")]
Boxed = Annotated[
    bool, typer.Option("--require-boxed/--any-form", help="With --regrade: does only a boxed answer count?")
]
TABLES = (".csv", ".tsv", ".parquet")
KINDS = ("recipes", "grids", "components", "tasks")  # what can be named; catalog.KINDS has the folders


Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B", help="Columns by their headings, in order; `benchmarks`: all of those."),
]
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="A,B", help="Tables: main, cells, cells-BENCHMARK, answers, effects, ..."),
]
Decimals = Annotated[int | None, typer.Option("--decimals", metavar="N", help="Decimals of points; default: 1.")]
Caption = Annotated[str | None, typer.Option("--caption", metavar="TEXT", help="Title of the first table.")]
Label = Annotated[str | None, typer.Option("--label", metavar="TEXT", help="LaTeX label of the first table.")]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NAME",
        help="wide (a column per benchmark), long (a table each), effects, pass@k, maj@k; a paper's: r3-table1, "
        "r3-table3.",
    ),
]
Sd = Annotated[
    str | None,
    typer.Option("--sd", metavar="FORM", help="Deviation over seeds in the wide table: pm, brackets, subscript, none."),
]
IntervalForm = Annotated[
    str | None,
    typer.Option("--interval", metavar="FORM", help="Interval in the wide table: brackets, pm, subscript or none."),
]
MarkForm = Annotated[
    str | None,
    typer.Option("--mark", metavar="HOW", help="Cells not shown to differ from the best: bold, letters or none."),
]
Ks = Annotated[
    str | None,
    typer.Option("--k", metavar="1,8,...", help="The k of --layout pass@k and maj@k; default: 1, 2, 4, ... and all."),
]
PageWidth = Annotated[
    str | None,
    typer.Option("--width", metavar="WIDTH", help="page (5.5 in; both columns of two) or column (3.25 in)."),
]
Shown = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="Another name for a file's column, or for a heading, cell or factor in the tables; repeatable.",
    ),
]


def choices_of(
    source: str | Path, rename: list[str] | None, columns: str | None, only: str | None, k: str | None, **others: Any
) -> "tuple[Choices, list[str]]":
    """What was chosen of the printed tables, and the `--rename` that are about the columns of a file instead."""
    from r3bench.analysis.output.choices import choices_from

    pairs = _pairs("--rename", rename, "OLD=NEW")
    of_file = _columns(str(source)) if pairs else set()
    values = {
        "columns": names_of("--columns", columns) if columns is not None else None,
        "only": names_of("--only", only) if only is not None else None,
        "k": ks_of(k) if k is not None else None,
        "rename": {k: v for k, v in pairs.items() if k not in of_file},
        **others,
    }
    return choices_from(values), [f"{k}={v}" for k, v in pairs.items() if k in of_file]


def _columns(source: str) -> set[str]:
    """The columns of tables from elsewhere, which may have to be read by other names; none of a study."""
    path = Path(source)
    if path.is_dir():
        from r3bench.analysis.reading.outside import is_study

        if is_study(path):
            return set()
    from r3bench.readers.collect import first_columns
    from r3bench.readers.formats import column_names
    from r3bench.readers.map import Entry, read_map
    from r3bench.readers.options import Options

    if path.is_file() and path.suffix in (".yaml", ".yml"):
        return first_columns(read_map(path, Options()).entries)
    return set(column_names(path)) if path.is_file() else first_columns([Entry(source)])


def study_folder(name: str, runs: Path) -> Path:
    """The folder of a study: a path, or a name below `runs`.

    Raises:
        StateError: there is none; names the nearest.
    """
    from r3bench.errors import StateError, nearest

    for folder in (Path(name), runs / name):
        if (folder / "study.json").is_file():
            return folder
    known = [path.parent.name for path in runs.glob("*/study.json")]
    raise StateError(f"study '{name}': no such folder with a study.json, nor below {runs}{nearest(name, known)}")


def told(
    declared: Path | None,
    factors: str | None,
    ignore: str | None,
    rename: list[str] | None,
    reference: list[str] | None,
) -> "tuple[Declared | None, Reading]":
    """What the options of a table say: what was declared (None without a file), and how the table is to be read."""
    from r3bench.analysis.declared import declared_from
    from r3bench.analysis.reading.columns import Reading, joined, reading_from
    from r3bench.config.yaml_file import read_yaml

    fixed, written = None, Reading()
    if declared is not None:
        written, rest = reading_from(read_yaml(declared), str(declared))
        fixed = declared_from(rest, str(declared))
    given = Reading(
        factors=names_of("--factors", factors) if factors is not None else None,
        ignore=names_of("--ignore", ignore) if ignore is not None else (),
        rename=_pairs("--rename", rename, "OLD=NEW"),
        reference=_pairs("--reference", reference, "FACTOR=LEVEL"),
    )
    return fixed, joined(given, written)


def other_files(
    format: str | None,
    metric: str | None,
    filter: str | None,
    right: float | None,
    missing: str | None,
    step: int | None,
    regrade: bool,
    boxed: bool,
) -> "Outside | None":
    """What the options about other tools' files say; None where none was given."""
    from r3bench.analysis.reading.outside import Outside, outside_from

    values = {"format": format, "metric": metric, "filter": filter, "right": right, "missing": missing, "step": step}
    found = outside_from(values, "--from", regrade=regrade, boxed=boxed)
    return None if found == Outside() else found


def names_of(option: str, text: str) -> tuple[str, ...]:
    """Names with commas between them.

    Raises:
        ConfigError: one of them is empty.
    """
    from r3bench.errors import ConfigError

    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ConfigError(f"{option}: got '{text}', expected names of columns with commas between them")
    return names


def ks_of(text: str) -> tuple[int, ...]:
    """The numbers of `--k`.

    Raises:
        ConfigError: something else stands there.
    """
    from r3bench.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise ConfigError(f"--k: got '{text}', expected whole numbers with commas between them")
    return tuple(map(int, parts))


def _pairs(option: str, given: list[str] | None, form: str) -> dict[str, str]:
    from r3bench.errors import ConfigError

    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = (part.strip() for part in text.rpartition("="))
        if not equals or not key or not value:
            raise ConfigError(f"{option}: got '{text}', expected {form}")
        if key in found:
            raise ConfigError(f"{option} {text}: '{key}' was given before, as '{found[key]}'")
        found[key] = value
    return found


def table_file(name: str) -> Path | None:
    """The path if `name` is a file that could be a table, or is spelled like one; None for a study or run."""
    path = Path(name)
    return path if path.is_file() or path.suffix in TABLES else None


def named_source(name: str, runs: Path) -> str:
    """A source of results as it is given or, where nothing of that name is there, a study or run below `runs`.

    Raises:
        StateError: a word that is close to a study's name and nothing else.
    """
    path = Path(name)
    if path.exists() or "*" in name or "{" in name or path.suffix in TABLES or not name:
        return name
    if (runs / name / "study.json").is_file():
        return str(runs / name)
    found = run_folder(name, runs)
    if found is not None:
        return str(found)
    from r3bench.errors import StateError, nearest

    hint = nearest(name, [study.parent.name for study in runs.glob("*/study.json")])
    if "did you mean" in hint:
        raise StateError(f"{name}: no such file or folder, nor a study below {runs}{hint}")
    return name


def other_source(name: str, runs: Path) -> Path | None:
    """The path if `name` is a file, folder or pattern of results that are no study; None for a study or run."""
    path = Path(name)
    if path.is_dir():
        ours = any((folder / "study.json").is_file() for folder in (path, runs / name))
        return None if ours or (path / "run.json").is_file() else path
    return path if "*" in name or "{" in name else table_file(name)


def run_folder(name: str, runs: Path) -> Path | None:
    """The directory of a run: a path, or a run id below `runs` or one of its studies; None when there is none."""
    if not name:
        return None
    for folder in (Path(name), runs / name, *(study / name for study in sorted(runs.glob("*/")))):
        # a model's folder has a config.json of its own, but no environment.json
        if (folder / "config.json").is_file() and (folder / "environment.json").is_file():
            return folder
    return None


def answers_folder(name: str, runs: Path) -> Path:
    """The directory of a run, or a folder of stored answers.

    Raises:
        StateError: there is neither; names the nearest run.
    """
    from r3bench.errors import StateError, nearest

    folder = run_folder(name, runs) or Path(name)
    if not name or not folder.exists():
        known = {path.parent.name for pattern in ("*/run.json", "*/*/run.json") for path in runs.glob(pattern)}
        raise StateError(f"run '{name}': no such folder, nor a run below {runs}{nearest(name, known)}")
    return folder


def progress(quiet: bool) -> Callable[[str], None]:
    """Takes lines for the user while something runs: they go to stderr, so that stdout is the result alone."""
    from r3bench.secrets import masked

    return (lambda line: None) if quiet else (lambda line: typer.echo(masked(line), err=True))


def prints_aside() -> "contextlib.AbstractContextManager[object]":
    """While the user's rewards, scorers and components run: what they print goes to stderr, stdout is the result."""
    return contextlib.redirect_stdout(sys.stderr)


def warn(lines: Iterable[str]) -> None:
    """Warnings for the user, on stderr."""
    for line in lines:
        typer.echo(f"warning: {printable(line)}", err=True)


def printable(text: str) -> str:
    """`text` without what could steer a terminal: control characters and direction marks are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(value: Mapping[str, Any], schema: str) -> None:
    """One JSON document on stdout, with the name and version of its schema (`SCHEMAS`, docs/json.md)."""
    document = {**value, "schema": f"r3bench.{schema}/{SCHEMAS[schema]}"}
    typer.echo(json.dumps(document, indent=2, sort_keys=True, allow_nan=False))


def print_made(paths: Sequence[object], schema: str, as_json: bool, **more: Any) -> None:
    """What a command made (files, folders, addresses), one a line; as JSON under `made`, with `more` beside it."""
    if as_json:
        print_json({"made": [str(path) for path in paths], **more}, schema)
        return
    for path in paths:
        typer.echo(path)


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces apart; the last column is left ragged."""
    table = [[printable(cell) for cell in row] for row in rows]
    if not table:
        return
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]]).rstrip())


def print_pairs(values: Mapping[str, Any]) -> None:
    """`key  value` lines."""
    print_columns([key, str(value)] for key, value in values.items())
