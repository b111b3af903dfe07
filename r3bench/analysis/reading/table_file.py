"""A long table as written in a file: read, and checked row by row."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.reading.columns import BASE, level_text, untrained_rows
from r3bench.errors import DataError
from r3bench.readers.file import read_table
from r3bench.records import Outcome

OUTCOMES: dict[str, Outcome] = {"": "finished", "finished": "finished", "diverged": "diverged", "missing": "failed"}


def read_frame(path: Path, rename: Mapping[str, str]) -> Any:
    """The table as written: text stays text, so that a level keeps its spelling; `rename`: see `Reading`."""
    if not path.is_file():
        raise DataError(f"{path}: no such file or study folder")
    return read_table(path, rename, keep=())


def first_wrong(path: Path | str, wrong: np.ndarray, say: Any) -> None:
    """`DataError` for the first row that is wrong; row 1 is the first after the header."""
    where = np.flatnonzero(wrong)
    if where.size:
        more = f" ({where.size - 1} more like it)" if where.size > 1 else ""
        raise DataError(f"{path}: row {where[0] + 1}: {say(where[0])}{more}")


def complete(column: Any, path: Path | str, name: str) -> None:
    first_wrong(path, column.isna().to_numpy(), lambda i: f"{name}: empty, expected a value")


def _counts(frame: Any, path: Path | str, name: str) -> np.ndarray:
    """(N,) int64 of a column of whole numbers, 0 or above."""
    import pandas as pd

    column = frame[name]
    if column.dtype == bool:
        return column.to_numpy(np.int64)
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    wrong = ~(np.isfinite(values) & (values >= 0) & (values == np.floor(values)))
    first_wrong(
        path, wrong, lambda i: f"{name}: got {plainly(column.iloc[i])}, expected a whole number, 0 or above"
        + (" (a count; of a share, times the number of samples)" if name != "seed" and 0 < values[i] < 1 else ""),
    )  # fmt: skip
    return values.astype(np.int64)


def plainly(value: Any) -> str:
    """A value as its writer would write it: `0.5`, not `np.float64(0.5)`."""
    return repr(value.item() if isinstance(value, np.generic) else value)


@dataclass(frozen=True)
class Rows:
    """A checked table; N rows."""

    run: np.ndarray  # (N,) text
    seed: np.ndarray  # (N,) int
    benchmark: np.ndarray  # (N,) text
    question: np.ndarray  # (N,) text
    counts: dict[str, np.ndarray]  # samples, correct, perhaps truncated: (N,) int
    tokens: np.ndarray | None  # (N,) float
    outcome: np.ndarray  # (N,) 'finished', 'diverged' or 'failed'; rows of the latter two hold no answers
    base: np.ndarray  # (N,) bool, of the untrained model
    levels: dict[str, np.ndarray]  # factor -> (N,) text


def checked_rows(frame: Any, factors: list[str], path: Path | str) -> Rows:
    """The columns, each checked by itself and against the others of its row."""
    import pandas as pd

    counts = {
        c: _counts(frame, path, c) for c in ("samples", "correct", "truncated") if c in frame and c not in factors
    }
    keys = frame[["run", "benchmark", "question"]].map(lambda v: str(v).strip())
    outcome = np.full(len(frame), "finished", object)
    if "outcome" in frame and "outcome" not in factors:
        words = [level_text(v).lower() for v in frame["outcome"]]
        first_wrong(
            path, np.array([w not in OUTCOMES for w in words]),
            lambda i: f"outcome: got '{words[i]}', expected finished, diverged or missing (--ignore outcome leaves the "
            "column out)",
        )  # fmt: skip
        outcome = np.array([OUTCOMES[w] for w in words], object)
    lost = outcome != "finished"
    samples = counts["samples"]
    first_wrong(path, (samples < 1) & ~lost, lambda i: f"samples: got {samples[i]}, expected at least 1")
    first_wrong(path, (samples > 0) & lost, lambda i: f"samples: got {samples[i]} for a run without a score of its "
                "own, expected 0")  # fmt: skip
    for column in ("correct", "truncated"):
        if column in counts:
            first_wrong(
                path, counts[column] > samples,
                lambda i, c=column: f"{c}: got {counts[c][i]} of {samples[i]} samples",
            )  # fmt: skip
    tokens = None
    if "tokens" in frame and "tokens" not in factors:
        tokens = pd.to_numeric(frame["tokens"], errors="coerce").to_numpy(float)
        first_wrong(
            path, ~(tokens >= 0) & ~lost,
            lambda i: f"tokens: got {plainly(frame['tokens'].iloc[i])}, expected a number, 0 or above",
        )  # fmt: skip
    again = keys.duplicated().to_numpy()
    first_wrong(
        path, again,
        lambda i: "run '{}', benchmark '{}', question '{}' occur in an earlier row too".format(*keys.iloc[i]),
    )  # fmt: skip
    base = None
    if BASE in frame and BASE not in factors:
        base = untrained_rows(np.array([level_text(v) for v in frame[BASE]], object), str(path))
        if base is None:
            factors.append(BASE)
    return Rows(
        run=keys["run"].to_numpy(object),
        seed=_counts(frame, path, "seed"),
        benchmark=keys["benchmark"].to_numpy(object),
        question=keys["question"].to_numpy(object),
        counts=counts,
        tokens=tokens,
        outcome=outcome,
        base=np.zeros(len(frame), bool) if base is None else base,
        levels={f: np.array([level_text(v) for v in frame[f]], object) for f in factors},
    )
