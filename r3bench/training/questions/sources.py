"""Where the rows of a data set come from: a file, `$R3BENCH_DATA`, the hub, or the generator."""

import csv
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from r3bench import project
from r3bench.config.load import GENERATOR
from r3bench.config.sections import DataSection
from r3bench.errors import DataError, Unreachable, first_line, nearest
from r3bench.training.questions import embedded
from r3bench.training.questions.gym import gym_rows

FILES = (".jsonl", ".parquet", ".csv", ".tsv")  # endings of files of questions
Row = tuple[str, dict[str, Any]]  # where it stands ('file:line 3', 'org/name row 3') and its columns
MATH_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip


@dataclass(frozen=True)
class KnownSet:
    """A training set that a recipe can name. Its local copy has columns problem, answer and id."""

    file: str  # file name in $R3BENCH_DATA
    hub: str | None = None  # hub id; None: no hub copy that is fit for training
    revision: str | None = None  # hub commit
    configs: tuple[str | None, ...] = (None,)  # hub configurations, one after the other
    problem: str = "problem"  # the hub copy's column with the question
    answer: str = "answer"  # the hub copy's column with the answer, or the solution that ends in it
    unanswered: int = 0  # rows without an answer known to be in the hub copy; they are left out


KNOWN = {
    "deepscaler": KnownSet(
        "deepscaler.jsonl",
        "agentica-org/DeepScaleR-Preview-Dataset",
        "b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
        unanswered=6,
    ),
    "math": KnownSet(
        "math_train.jsonl",
        "EleutherAI/hendrycks_math",
        "21a5633873b6a120296cce3e2df9d5550074f4a3",
        configs=MATH_SUBJECTS,
        answer="solution",
    ),
    "gsm8k": KnownSet(
        "gsm8k_train.jsonl",
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        configs=("main",),
        problem="question",
    ),
    "dapo": KnownSet(
        "dapo.jsonl",
        "open-r1/DAPO-Math-17k-Processed",
        "31dd309567e3da778038cc87d868b6097a3ccf68",
        configs=("all",),
        problem="prompt",
        answer="solution",
    ),
    "aime": KnownSet("aime_train.jsonl"),  # the hub's AIME 1983-2024 holds evaluation problems
}
EVALUATION = (
    "aime24", "aime25", "aime26", "amc", "amc23", "amc_2022_2023", "math500", "minerva", "olympiadbench", "gsm8k_test",
)  # fmt: skip
OPERATION = re.compile(r"(add|subtract) (\d+)")  # in a generated question
OFFLINE = "the hub can't be reached (or HF_HUB_OFFLINE is set)"


def rows(section: DataSection) -> tuple[Iterator[Row], DataSection, KnownSet | None]:
    """The rows of `section`, the section with its column names resolved, and the known set it names, if it names one.

    Raises:
        DataError: for a name, file, hub id, split or revision that can't be used.
    """
    name, kind = section.name, kind_of(section)
    if kind == "embedded":
        return _embedded(section), _columns(section, "problem", "answer"), None
    if kind == "known":
        return _known(section, KNOWN[name])
    if kind == "file":
        _refuse(section, "a file", split="train")
        return local(project.located(name)), section, None
    if kind == "generator":
        _refuse(section, "a generator", split="train")
        return gym_rows(name.partition(":")[2], section.options, "data.options"), section, None
    hub, _, config = name.partition(":")
    return _hub(hub, (config or None,), section.split, section.revision), section, None


def kind_of(section: DataSection) -> Literal["embedded", "known", "file", "generator", "hub"]:
    """What a section's name stands for; a hub id is only checked for its form.

    Raises:
        DataError: an evaluation set, or nothing that is known; names the nearest.
    """
    name = section.name
    if name.startswith(GENERATOR):
        return "generator"
    if name in embedded.CAPS:
        return "embedded"
    if section.options:
        raise DataError(
            f"data.options: got {section.options}, expected them with '{GENERATOR}GENERATOR', 'embedded' and "
            "'embedded-20' alone"
        )
    if name in EVALUATION:
        raise DataError(
            f"data.name: '{name}' is an evaluation set, training on it would void its results; name it in eval.tasks"
        )
    if name in KNOWN:
        return "known"
    if name.endswith(FILES) or name.startswith((".", "/", "~")) or project.located(name).is_file():
        return "file"
    hub, _, _ = name.partition(":")
    if hub.count("/") != 1 or not all(hub.split("/")):
        raise DataError(
            f"data.name: got '{name}', expected a known set, a file ({', '.join(FILES)}), or a hub id 'org/name'"
            f"{nearest(name, [*embedded.CAPS, *KNOWN])}"
        )
    return "hub"


def _columns(section: DataSection, problem: str, answer: str) -> DataSection:
    """`section` with a known set's columns in place of the defaults; columns named in the recipe stay."""
    defaults = DataSection()
    return replace(
        section,
        problem=problem if section.problem == defaults.problem else section.problem,
        answer=answer if section.answer == defaults.answer else section.answer,
    )


def _refuse(section: DataSection, what: str, split: str) -> None:
    if section.revision is not None:
        raise DataError(f"data.revision: got '{section.revision}', expected null: {what} has no revisions")
    if section.split != split:
        raise DataError(f"data.split: got '{section.split}', expected '{split}' for {what}")


def _embedded(section: DataSection) -> Iterator[Row]:
    if section.revision is not None or section.split not in ("train", "validation"):
        key, value = ("split", section.split) if section.revision is None else ("revision", section.revision)
        expected = "'train' or 'validation' (the test split is for evaluation)" if key == "split" else "null"
        raise DataError(f"data.{key}: got '{value}', expected {expected} for '{section.name}'")
    split: embedded.Split = "train" if section.split == "train" else "validation"
    drawn = embedded.questions(split, embedded.CAPS[section.name], section.limit, _operations(section))
    return (
        (f"{section.name} row {number}", {**row, "solution": worked_solution(row)})
        for number, row in enumerate(drawn, 1)
    )


def _operations(section: DataSection) -> tuple[int, int]:
    """The range in `data.options.operations` of generated questions: a number, or [fewest, most]."""
    other = next((key for key in section.options if key != "operations"), None)
    if other is not None:
        raise DataError(
            f"data.options: '{section.name}' has no '{other}'{nearest(str(other), ['operations'])}; expected operations"
        )
    given = section.options.get("operations", [1, embedded.MAX_OPERATIONS])
    both = [given, given] if isinstance(given, int) else given
    numbers = isinstance(both, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in both)
    if not numbers or len(both) != 2 or not 1 <= both[0] <= both[1] <= embedded.MAX_OPERATIONS:
        raise DataError(
            f"data.options.operations: got {given!r}, expected a number, or [fewest, most], within "
            f"1..{embedded.MAX_OPERATIONS}"
        )
    return both[0], both[1]


def worked_solution(row: dict[str, str]) -> str:
    """The worked solution of a generated question, in the words the embedded model was warmed up with."""
    changes = tuple(int(n) if verb == "add" else -int(n) for verb, n in OPERATION.findall(row["problem"]))
    chain = embedded.Chain(int(row["answer"]) - sum(changes), changes)
    return f"{chain.working} Answer: \\boxed{{{chain.answer}}}"


def _known(section: DataSection, known: KnownSet) -> tuple[Iterator[Row], DataSection, KnownSet]:
    if section.split != "train":
        raise DataError(f"data.split: got '{section.split}', expected 'train': '{section.name}' is a training set")
    folder = os.environ.get("R3BENCH_DATA")
    if folder and (path := Path(folder).expanduser() / known.file).is_file() and section.revision is None:
        return local(path), section, known
    searched = f"$R3BENCH_DATA has no {known.file}" if folder else f"set R3BENCH_DATA to a folder with {known.file}"
    if known.hub is None:
        raise DataError(f"data.name: '{section.name}' has no hub copy fit for training; {searched}")
    try:
        found = _hub(known.hub, known.configs, "train", section.revision or known.revision)
    except DataError as error:
        raise type(error)(f"{error}; or {searched}" if not folder else f"{error}; {searched}") from error
    return found, _columns(section, known.problem, known.answer), known


def local(path: Path) -> Iterator[Row]:
    """Rows of a .jsonl, .parquet, .csv or .tsv file; one that can't be read is a `DataError` that names it.

    The cells of a CSV file are texts, an empty one is None.
    """
    check_file(path)
    if path.suffix in (".csv", ".tsv"):
        return _csv(path)
    return _parquet(path) if path.suffix == ".parquet" else _jsonl(path)


def check_file(path: Path) -> None:
    """Refuse a file of questions that isn't there or has another ending.

    Raises:
        DataError: naming the nearest file.
    """
    if not path.is_file():
        known = [p.name for p in path.parent.glob("*") if p.suffix in FILES]
        raise DataError(f"{path}: no such file{nearest(path.name, known) if known else ''}")
    if path.suffix not in FILES:
        raise DataError(f"{path}: expected a name that ends in {', '.join(FILES[:-1])} or {FILES[-1]}")


def _jsonl(path: Path) -> Iterator[Row]:
    with open(path, "rb") as file:  # bytes: only \n ends a line, not the other separators that text mode knows
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: not valid JSON ({str(error) or 'nested too deeply'})") from error
            if not isinstance(row, dict):
                raise DataError(f"{where}: got {type(row).__name__}, expected an object with columns")
            yield where, row


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # a worked solution is longer than the module's default
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
            file.seek(0)
            # what separates the names of the columns separates everything
            reader = csv.reader(file, delimiter=max("\t" if path.suffix == ".tsv" else ",;\t", key=first.count))
            names = next(reader, [])
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise DataError(f"{path}:1: the column '{twice}' stands there twice")
            for cells in reader:
                where = f"{path}:{reader.line_num}"
                if not any(cells):
                    continue
                if len(cells) != len(names):
                    raise DataError(f"{where}: {len(cells)} cells, but {len(names)} columns are named")
                yield where, {name: cell or None for name, cell in zip(names, cells, strict=True)}
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
        except csv.Error as error:
            raise DataError(f"{path}: not readable as CSV ({error})") from error


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path} row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({first_line(error)})") from error


def _hub(hub: str, configs: tuple[str | None, ...], split: str, revision: str | None) -> Iterator[Row]:
    from datasets import concatenate_datasets, load_dataset
    from datasets.exceptions import DatasetsError

    try:
        loaded = concatenate_datasets([load_dataset(hub, c, split=split, revision=revision) for c in configs])
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        offline = isinstance(error, ConnectionError) or "offline" in reason.lower() or "reach" in reason.lower()
        kind = Unreachable if offline else DataError
        raise kind(f"data.name: '{hub}' can't be loaded: {OFFLINE if offline else reason}") from error
    return ((f"{hub} row {number}", row) for number, row in enumerate(loaded, 1))
