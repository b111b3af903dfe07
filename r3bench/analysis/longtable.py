"""What an analysis rests on as one file: a row per run, benchmark and question, as `r3bench analyze` reads it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.results import Results
from r3bench.files import replacing


def long_table(results: Results) -> pa.Table:
    """The counts of every run that answered a benchmark; see `r3bench.analysis.external.load_table` for the columns.

    Runs that diverged or are missing have no answers, hence no rows. A column `base` marks the untrained model.
    """
    tokens = all(s.tokens is not None and np.isfinite(s.tokens[s.measured]).all() for s in results.benchmarks.values())
    truncated = all(s.truncated is not None for s in results.benchmarks.values())
    rows: dict[str, list[Any]] = {name: [] for name in ("run", "seed", *results.factors)}
    if any(run.base for run in results.runs):
        rows["base"] = []
    rows |= {name: [] for name in ("benchmark", "question", "samples", "correct")}
    rows |= {name: [] for name, known in (("tokens", tokens), ("truncated", truncated)) if known}
    for benchmark, scores in results.benchmarks.items():
        for place in np.flatnonzero(scores.measured).tolist():
            run, count = results.runs[place], len(scores.questions)
            if run.outcome != "finished":
                continue
            constant = {"run": run.run, "seed": run.seed, "base": "model" if run.base else "", "benchmark": benchmark}
            for name in rows.keys() & (constant.keys() | results.factors.keys()):
                rows[name] += [constant[name] if name in constant else run.levels.get(name, "")] * count
            rows["question"] += scores.questions
            for name in rows.keys() & {"samples", "correct", "tokens", "truncated"}:
                rows[name] += getattr(scores, name)[place].tolist()
    return pa.table(rows)


def write_long_table(results: Results, path: Path) -> None:
    """Write `long_table` as parquet."""
    with replacing(path) as temporary:
        pq.write_table(long_table(results), temporary, compression="zstd")
