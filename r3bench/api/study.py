"""A study, or anyone's results, as pandas DataFrames."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from r3bench.api.plot import Plots
from r3bench.errors import ConfigError, StateError, first_line, nearest

if TYPE_CHECKING:
    import pandas as pd

    from r3bench.analysis.results import Results


class Study:
    """What a study shows. Every table is a DataFrame of its own; accuracies and effects are shares (0-1).

    Made by `r3bench.load` and `Grid.run`.
    """

    def __init__(self, results: "Results", path: Path | None = None) -> None:
        self._results = results
        self.path = path  # its folder; None for results from elsewhere

    def __repr__(self) -> str:
        runs = len(self._results.runs)
        return f"<Study {self.name}: {len(self._results.cells)} cells, {runs} runs, {', '.join(self.benchmarks)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the tables, as `r3bench tables --format html` prints them."""
        return self.table("html")

    @property
    def name(self) -> str:
        """The study's name."""
        return self._results.name

    @property
    def factors(self) -> dict[str, tuple[str, ...]]:
        """Factor -> levels, the reference first."""
        return dict(self._results.factors)

    @property
    def benchmarks(self) -> list[str]:
        """Names of what was measured."""
        return list(self._results.benchmarks)

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        return list(self._analysis["notes"])

    @property
    def plot(self) -> Plots:
        """Figures; each method returns matplotlib axes."""
        return Plots(self._results)

    @cached_property
    def cells(self) -> "pd.DataFrame":
        """A row per benchmark and cell: accuracy, gains, their intervals, lengths, cost, what acted."""
        import pandas as pd

        rows = [{**row, **row["levels"]} for row in self._analysis["cells"]]
        return pd.DataFrame([{k: v for k, v in row.items() if k != "levels"} for row in rows])

    @cached_property
    def effects(self) -> "pd.DataFrame":
        """A row per benchmark and effect: kind, term, estimate, interval, p, p_adjusted."""
        import pandas as pd

        return pd.DataFrame(self._analysis["effects"])

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """A row per run: cell, seed, levels, outcome, accuracy on every benchmark, cost of training."""
        import pandas as pd

        results, rows = self._results, []
        for i, run in enumerate(results.runs):
            train = run.record.train if run.record is not None else None
            accuracy = {
                name: float(s.accuracy[i].mean()) if s.measured[i] else None for name, s in results.benchmarks.items()
            }
            rows.append({
                "run": run.run, "cell": self._cell(i), "seed": run.seed, "base_model": run.base,
                **{f: run.levels.get(f) for f in results.factors}, "outcome": run.outcome, "reason": run.reason,
                **accuracy, "generated_tokens": train.generated_tokens if train else None,
                "train_seconds": train.train_seconds if train else None, "steps": train.steps if train else None,
            })  # fmt: skip
        return pd.DataFrame(rows)

    @cached_property
    def questions(self) -> "pd.DataFrame":
        """The long table: a row per run, benchmark and question, with counts."""
        from r3bench.analysis.reading.longtable import long_table

        return long_table(self._results).replace_schema_metadata(None).to_pandas()

    @cached_property
    def answers(self) -> "pd.DataFrame":
        """A row per stored answer: run, cell, benchmark, question, repeat, response, gold, extracted, correct, ...

        Raises:
            StateError: the results hold no texts, or a file of them is damaged.
        """
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        from r3bench.analysis.reading.study import run_folder
        from r3bench.records import RunPaths

        if self.path is None:
            raise StateError(f"{self.name}: a table of counts, which holds no answers; load the study's folder")
        parts = []
        for i, run in enumerate(self._results.runs):
            for shard in RunPaths(run_folder(self.path, run.run)).shards():
                try:
                    frame = pq.read_table(shard).to_pandas()
                except (pa.ArrowException, OSError) as error:
                    raise StateError(f"{shard}: can't be read: {first_line(error)}") from error
                first = {"run": run.run, "cell": self._cell(i), "benchmark": shard.parent.name}
                parts.append(frame.assign(**first)[[*first, *frame.columns]])
        if not parts:
            raise StateError(f"{self.path}: no stored answers (an archive may have left them out)")
        return pd.concat(parts, ignore_index=True).rename(columns={"seed": "draw_seed"})

    @cached_property
    def curves(self) -> "pd.DataFrame":
        """A row per run and logged step: cell, seed, step, generated tokens, seconds, training accuracy, length."""
        import pandas as pd

        from r3bench.analysis.statistics.curves import run_curve

        columns = ["run", "cell", "seed", "step", "tokens", "seconds", "accuracy", "length", "measure"]
        parts = []
        for i, run in enumerate(self._results.runs):
            train = run.record.train if run.record is not None else None
            log = self._results.metrics.get(run.run, ())
            curve = run_curve(log, train.generated_tokens, train.train_seconds) if train is not None else None
            if curve is not None:
                parts.append(pd.DataFrame({
                    "run": run.run, "cell": self._cell(i), "seed": run.seed, "step": curve.steps.astype(int),
                    "tokens": curve.tokens, "seconds": curve.seconds, "accuracy": curve.accuracy,
                    "length": curve.length, "measure": curve.measure,
                }))  # fmt: skip
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    @cached_property
    def held_out(self) -> "pd.DataFrame":
        """A row per run and measured checkpoint: cell, seed, benchmark, questions, tokens, seconds, accuracy.

        Of the first benchmark with measured checkpoints; without any, no rows.
        """
        import pandas as pd

        from r3bench.analysis.comparing.heldout import held_out

        columns = ["run", "cell", "seed", "benchmark", "questions", "tokens", "seconds", "accuracy"]
        found = held_out(self.path, self._results) if self.path is not None else None
        if found is None:
            return pd.DataFrame(columns=columns)
        parts = [
            pd.DataFrame({
                "run": run.run, "cell": cell, "seed": run.seed, "benchmark": found.benchmark,
                "questions": found.questions, "tokens": run.tokens, "seconds": run.seconds, "accuracy": run.accuracy,
            })
            for cell, runs in found.cells.items()
            for run in runs
        ]  # fmt: skip
        return pd.concat(parts, ignore_index=True)

    def at_k(self, score: Literal["pass", "maj"] = "pass", ks: Sequence[int] | None = None) -> "pd.DataFrame":
        """pass@k or maj@k: a row per benchmark, cell and k, with both intervals and the gain over the reference.

        Args:
            score: 'pass' (the unbiased estimator of arXiv 2107.03374) or 'maj'; maj@k needs a study's answers.
            ks: up to the answers that every run has to every question; None: 1, 2, 4, ... and all.

        Raises:
            ConfigError: a score that there isn't, or a k beyond the answers.
            StateError: one answer to every question, or counts where answers are needed.
        """
        import pandas as pd

        from r3bench.analysis.output.at_k import SCORES, at_k

        if score not in SCORES:
            raise ConfigError(f"at_k: score: got '{score}'{nearest(score, SCORES)}")
        return pd.DataFrame([row.record() for row in at_k(self._results, score, ks)])

    def compare(self, other: "Study", tasks: Sequence[str] | None = None) -> "pd.DataFrame":
        """The cells that both studies have, this one minus the other: a row per benchmark and cell.

        Args:
            other: the study to hold it against.
            tasks: benchmarks; None: all that both have, and their macro average.

        Returns:
            `difference` and its interval, as `r3bench compare STUDY STUDY` prints them; `attrs["notes"]` has what else
            differs, `attrs["only_a"]` and `attrs["only_b"]` the cells that one of them lacks.

        Raises:
            StateError, ConfigError: nothing in common, or a task that one of them lacks.
        """
        import pandas as pd

        from r3bench.analysis.comparing.between import compare_studies

        found = compare_studies(self._results, other._results, tasks, (self.path, other.path)).record()
        frame = pd.DataFrame(found.pop("cells"))
        frame.attrs.update(found)
        return frame

    def table(self, format: str = "markdown", layout: str | None = None, **chosen: Any) -> str:
        """The tables that `r3bench tables` prints.

        Args:
            format: 'markdown', 'latex', 'html' or 'csv'.
            layout: 'wide', 'long', 'effects', 'pass@k', 'maj@k' or a paper's; None: all of them.
            chosen: `columns`, `only`, `rename`, `decimals`, `caption`, `label`, `sd`, `interval`, `mark`, `k`, `width`,
                as the options of `r3bench tables`; names and `k` are lists, `rename` is a mapping.

        Raises:
            ConfigError: a choice that there isn't, or a column, table or text that the tables don't have.
        """
        from r3bench.analysis.output.choices import choices_from
        from r3bench.analysis.output.tables import render_tables

        return str(render_tables(self._results, format, layout, choices_from(chosen)))

    def _cell(self, index: int) -> str:
        from r3bench.analysis.statistics.cells import BASE_LABEL

        place = int(self._results.cell_of[index])
        return BASE_LABEL if place < 0 else self._results.label(self._results.cells[place])

    @cached_property
    def _analysis(self) -> dict[str, Any]:
        from r3bench.analysis.output.external import analysis

        return analysis(self._results)


def load(
    source: Any,
    *,
    reference: Mapping[str, Any] | None = None,
    factors: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    format: str | None = None,
    metric: str | None = None,
    filter: str | None = None,
    right: float | None = None,
    missing: Literal["refuse", "wrong", "drop"] | None = None,
    step: int | None = None,
    regrade: bool = False,
    require_boxed: bool = True,
) -> Study:
    """A study's or run's folder, a long table, another tool's files or a DataFrame, ready to be looked at.

    Args:
        source: as `r3bench.analyze` takes it; a text is a path, a pattern or a map.
        reference: factor -> the level that the others are held against.
        factors, ignore, rename: of a table: the columns that are factors, that aren't read, that are called otherwise.
        format: whose files they are ('lm-eval', 'verl', ...); None: found out.
        metric, filter, right, missing, step: of another tool's files, as `r3bench analyze` takes them.
        regrade: grade the answers' texts anew; with `require_boxed` only a boxed answer counts.

    Raises:
        StateError, DataError, ConfigError: naming the file; a folder that is no study says what it is.
    """
    from r3bench.analysis.output.external import load_any
    from r3bench.analysis.reading.columns import Reading, level_text
    from r3bench.analysis.reading.outside import Outside, is_study, outside_from

    for name, columns in (("factors", factors), ("ignore", ignore)):
        if isinstance(columns, str):
            raise ConfigError(f"load: {name}: got '{columns}', expected a list of columns such as ['{columns}']")
    for name, mapping in (("reference", reference), ("rename", rename)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ConfigError(f"load: {name}: got a {type(mapping).__name__}, expected a mapping")
    levels = {factor: level_text(level) for factor, level in (reference or {}).items()}
    reading = Reading(None if factors is None else tuple(factors), tuple(ignore), dict(rename or {}), reference=levels)
    told = {"format": format, "metric": metric, "filter": filter, "right": right, "missing": missing, "step": step}
    outside = outside_from(told, "load", regrade=regrade, boxed=require_boxed)
    folder = Path(source) if isinstance(source, str | Path) else None
    ours = folder is not None and folder.is_dir() and is_study(folder)
    results = load_any(source, reading=reading, metrics=ours, outside=None if outside == Outside() else outside)
    return Study(results, folder if ours else None)
