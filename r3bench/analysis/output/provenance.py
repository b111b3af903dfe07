"""Where a table cell comes from: run ids, commit, configuration hash, environment."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r3bench.analysis.output.repeat import repeat_command
from r3bench.analysis.reading.study import load_study, run_folder
from r3bench.analysis.results import Results, Run
from r3bench.analysis.statistics.cells import BASE_LABEL
from r3bench.errors import ConfigError, StateError, nearest
from r3bench.files import expect, read_json


def trace(study: Path, cell: str) -> dict[str, Any]:
    """Everything a cell's numbers rest on, as JSON-ready data.

    Args:
        study: study folder.
        cell: as printed in a table ('replay + ranking', 'all off', 'untrained model'), a run's name or id, or
            `factor=level,factor=level` (factors left out may have any level).

    Returns:
        `cell`, `levels`, and `runs`: per run its id, seed, outcome, commit, configuration hash, times, answers per
        benchmark, environment, the files it was read from, and the command that makes it once more (`again`).

    Raises:
        ConfigError: no such cell; names the nearest one.
    """
    results = load_study(study)
    runs = [r for r in results.runs if r.run in _matching(results, cell)]
    return {
        "study": results.name,
        "cell": cell,
        "levels": sorted({", ".join(f"{f}={v}" for f, v in r.levels.items()) or BASE_LABEL for r in runs}),
        "runs": [_describe(results, run, study) for run in runs],
    }


def trace_text(study: Path, cell: str) -> str:
    """`trace` as text for a terminal: a line per fact; what is empty or not known is left out."""
    found = trace(study, cell)
    lines = [f"{found['study']}: {cell} ({'; '.join(found['levels'])})"]
    for run in found["runs"]:
        root = run_folder(study, run["run"])
        facts = {key: value for key, value in run.items() if key not in ("run", "train", "environment", "files")}
        lines += ["", run["run"], *_lines(facts)]
        train = {key: value for key, value in (run["train"] or {}).items() if facts.get(key) != value}
        for name, part in (("training", train), ("environment", run["environment"])):
            inner = _lines(part)
            lines += [f"  {name}", *(f"  {line}" for line in inner)] if inner else []
        lines.append(f"  files in {root}: {', '.join(Path(name).name for name in run['files'])}")
    return "\n".join(_printable(line) for line in lines) + "\n"


def _lines(facts: Mapping[str, Any]) -> list[str]:
    shown = {key: _said(value) for key, value in facts.items()}
    return [f"  {key}: {text}" for key, text in shown.items() if text]


def _said(value: Any) -> str:
    """A value in a line: mappings and lists are listed, files stand with the start of their SHA-256, empty is ''."""
    if value is None or value in ("", (), [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        if set(value) == {"bytes", "sha256"}:
            return f"{str(value['sha256'])[:12]}"
        return ", ".join(f"{key} {_said(inner) or '-'}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_said(inner) or "-" for inner in value)
    first, *more = str(value).rstrip("\n").split("\n")
    return f"{first} (and {len(more)} more {'line' if len(more) == 1 else 'lines'})" if more else first


def _printable(line: str) -> str:
    """Without what could steer a terminal: these files may be anyone's."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def runs_of_cell(study: Path, cell: str) -> set[str]:
    """Ids of the runs of a cell, named as for `trace`; raises what that does."""
    return _matching(load_study(study), cell)


def _matching(results: Results, cell: str) -> set[str]:
    named: dict[str, set[str]] = {}
    for run, index in zip(results.runs, results.cell_of, strict=True):
        label = BASE_LABEL if run.base else results.label(results.cells[index])
        for name in {label, run.run, *([run.record.name] if run.record else [])}:
            named.setdefault(name, set()).add(run.run)
    if cell in named:
        return named[cell]
    if "=" in cell and " + " not in cell:  # with it, it is a name from a table, and not one of this study
        wanted = dict(part.strip().partition("=")[::2] for part in cell.split(","))
        for factor, level in wanted.items():
            if factor not in results.factors:
                raise ConfigError(f"cell '{cell}': no factor '{factor}'{nearest(factor, results.factors)}")
            if level not in results.factors[factor]:
                raise ConfigError(f"cell '{cell}': no level {factor}={level}{nearest(level, results.factors[factor])}")
        found = {r.run for r in results.runs if not r.base and all(r.levels[f] == v for f, v in wanted.items())}
        if found:
            return found
    left_out = "".join(f"; {note}" for note in results.notes if ": left out, " in note)
    hint = nearest(cell, [n for n in named if "-s" not in n] or named)
    raise ConfigError(f"cell '{cell}': not in this study{hint}{left_out}")


def _describe(results: Results, run: Run, study: Path) -> dict[str, Any]:
    root = run_folder(study, run.run)
    row = results.runs.index(run)
    record = run.record
    answers = {name: int(s.samples[row].sum()) for name, s in results.benchmarks.items()}
    found: dict[str, Any] = {
        "run": run.run,
        "seed": run.seed,
        "outcome": run.outcome,
        "reason": run.reason,
        "commit": record.commit if record else None,
        "config_hash": record.config_hash if record else None,
        "started": record.started if record else None,
        "ended": record.ended if record else None,
        "train": asdict(record.train) if record else None,
        "answers": answers,
        "files": sorted(str(p) for p in root.glob("*.json*")),
    }
    try:
        environment = expect(read_json(root / "environment.json"), root / "environment.json")
    except StateError as error:
        environment = {"missing": str(error)}
    found["environment"] = environment
    processes = record.train.processes if record and not run.base else 0
    try:
        config = read_json(root / "config.json")
    except StateError:
        config = None
    found["again"] = repeat_command(root, config, environment, processes, record.train.strategy if record else None)
    return found
