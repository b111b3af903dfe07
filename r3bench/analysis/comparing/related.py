"""What two studies of ours differ in besides their results: settings of paired cells, golds of paired questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.reading.study import run_folder
from r3bench.analysis.results import Results
from r3bench.errors import StateError
from r3bench.files import expect, read_json

Cell = tuple[str, ...]
LONGEST = 60  # characters of a setting that are shown


def related_notes(
    studies: tuple[Results, Results], folders: tuple[Path, Path], both: Sequence[tuple[Cell, Cell]]
) -> list[str]:
    """Settings that differ between paired cells, and questions of one id with other gold answers.

    Args:
        studies: a and b, with the benchmarks and questions of both.
        folders: of them.
        both: the cells that are paired, as each study has them.
    """
    return [*_setting_notes(studies, folders, both), *_gold_notes(studies, folders)]


def _setting_notes(
    studies: tuple[Results, Results], folders: tuple[Path, Path], both: Sequence[tuple[Cell, Cell]]
) -> list[str]:
    where: dict[str, list[str]] = {}  # difference -> cells that have it
    read = 0
    for pair in both:
        found = [
            config
            for results, folder, cell in zip(studies, folders, pair, strict=True)
            if (config := _config(results, folder, cell)) is not None
        ]
        if len(found) == 2:
            read += 1
            for difference in setting_differences(*found):
                where.setdefault(difference, []).append(studies[0].label(pair[0]))
    return [
        f"setting {difference}" + ("" if len(cells) == read else f" (in {', '.join(cells)})")
        for difference, cells in where.items()
    ]


def _config(results: Results, folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The resolved configuration of a cell's first run; None where there is none to read."""
    for run, index in zip(results.runs, results.cell_of.tolist(), strict=True):
        if index >= 0 and results.cells[index] == cell:
            path = run_folder(folder, run.run) / "config.json"
            try:
                return expect(read_json(path), path)
            except StateError:
                return None
    return None


def setting_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Settings in which two resolved configurations differ as `key: x and y`; seed and name left out."""
    flat = [dict(_flat(values)) for values in (a, b)]
    return [
        f"{key}: " + " and ".join(f"{values.get(key)!r:.{LONGEST}}" for values in flat)
        for key in dict.fromkeys([*flat[0], *flat[1]])
        if key not in ("seed", "name") and flat[0].get(key) != flat[1].get(key)
    ]


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        inner = isinstance(value, Mapping) and bool(value)
        found += _flat(value, f"{before}{key}.") if inner else [(f"{before}{key}", value)]
    return found


def _gold_notes(studies: tuple[Results, Results], folders: tuple[Path, Path]) -> list[str]:
    notes = []
    for task, scores in studies[0].benchmarks.items():
        a, b = (_golds(results, folder, task) for results, folder in zip(studies, folders, strict=True))
        other = [q for q in scores.questions if q in a and q in b and a[q] != b[q]]
        if other:
            q = other[0]
            notes.append(
                f"{task}: {len(other)} of {len(scores.questions)} questions have another gold answer in b ({q}: "
                f"{a[q]:.{LONGEST}} and {b[q]:.{LONGEST}}): where an id stands for two questions, nothing is paired"
            )
    return notes


def _golds(results: Results, folder: Path, task: str) -> dict[str, str]:
    """Question -> gold answer, from the answers of the first run that has some; empty where none can be read."""
    for row, run in enumerate(results.runs):
        if not results.benchmarks[task].measured[row]:
            continue
        found: dict[str, str] = {}
        for shard in sorted((run_folder(folder, run.run) / "eval" / task).glob("*.parquet")):
            try:
                table = pq.read_table(shard, columns=["question", "gold"])
            except (pa.ArrowException, OSError):
                continue
            found.update(zip(table["question"].to_pylist(), map(str, table["gold"].to_pylist()), strict=True))
        return found
    return {}
