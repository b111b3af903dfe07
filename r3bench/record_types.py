"""What the values in a study's JSON files must be. A damaged or foreign file is refused here, by name, key and value.

The kinds: "text", "texts or null", "count" (an integer, 0 or above), "amount" (a finite number, 0 or above), ...; see
`KINDS`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from r3bench.errors import StateError

MOST = 2**63  # numbers are below this


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST  # NaN is not


def plain_name(name: Any) -> bool:
    """Whether a text can be a folder's name here: one printable part, not hidden, that leads nowhere else."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "surrogatepass")) <= 255
        and name.isprintable()
        and not name.startswith(".")
        and not any(c in name for c in "/\\")
    )


KINDS: dict[str, Callable[[Any], bool]] = {  # in words -> the check
    "a text": lambda v: isinstance(v, str),
    "a text or null": lambda v: v is None or isinstance(v, str),
    "a count": _count,
    "a count above 0": lambda v: _count(v) and v > 0,
    "a number, 0 or above": lambda v: _number(v) and v >= 0,
    "a share, 0 to 1": lambda v: v is None or (_number(v) and 0 <= v <= 1),
    "what is left of weights, by length": lambda v: _mapping(v, _left),
    "finished, diverged or failed": lambda v: v in ("finished", "diverged", "failed"),
    "a folder's name": plain_name,
    "a mapping of names to texts": lambda v: _mapping(v, lambda x: isinstance(x, str)),
    "a mapping of names to numbers": lambda v: _mapping(v, _number),
    "a mapping of names to true or false": lambda v: _mapping(v, lambda x: isinstance(x, bool)),
    "a mapping": lambda v: isinstance(v, dict),
    "a list": lambda v: isinstance(v, list),
    "a list of texts": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "files with their sizes and digests": lambda v: _mapping(v, _digest),
}
RUN = {
    "run_id": "a folder's name",
    "name": "a text",
    "config_hash": "a text",
    "seed": "a count",
    "factors": "a mapping of names to texts",
    "train": "a mapping",
    "eval": "a mapping",
    "commit": "a text or null",
    "started": "a text",
    "ended": "a text",
    "files": "files with their sizes and digests",
}
TRAIN = {
    "outcome": "finished, diverged or failed",
    "reason": "a text or null",
    "steps": "a count",
    "generated_tokens": "a number, 0 or above",
    "train_seconds": "a number, 0 or above",
    "device": "a text",
    "processes": "a count above 0",
    "evidence": "a mapping of names to numbers",
    "acted": "a mapping of names to true or false",
    "halvings": "a count",
    "notes": "a list of texts",
    "files": "files with their sizes and digests",
    "strategy": "a text or null",
    "weights_dtype": "a text or null",
    "compute_dtype": "a text or null",
    "engine": "a text or null",
    "engine_dtype": "a text or null",
    "weights_changed": "a share, 0 to 1",
    "weights_changed_sampled": "a share, 0 to 1",
    "correction": "what is left of weights, by length",
}
NEEDED = {"outcome", "steps", "generated_tokens", "train_seconds"}  # of `TRAIN`, in every version
CELL = {
    "run_id": "a folder's name",
    "name": "a text",
    "seed": "a count",
    "factors": "a mapping of names to texts",
}


def _mapping(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(fits(item) for item in value.values())


def _digest(value: Any) -> bool:
    return isinstance(value, dict) and _count(value.get("bytes")) and isinstance(value.get("sha256"), str)


def _left(value: Any) -> bool:
    return isinstance(value, dict) and _count(value.get("rows")) and _number(value.get("weight"))


def check(values: Any, kinds: Mapping[str, str], where: str, optional: Iterable[str] = ()) -> None:
    """Check that `values` is a mapping whose keys hold these kinds of values; keys besides them may be there.

    Raises:
        StateError: names `where`, the key, the value and what was expected.
    """
    if not isinstance(values, dict):
        raise StateError(f"{where}: got {_shown(values)}, expected a mapping; {EDITED}")
    for key, kind in kinds.items():
        if key not in values:
            if key in optional:
                continue
            raise StateError(f"{where}: {key}: missing, expected {kind}; {EDITED}")
        if not KINDS[kind](values[key]):
            raise StateError(f"{where}: {key}: got {_shown(values[key])}, expected {kind}; {EDITED}")


EDITED = "the file is not ours, damaged, or was edited"


def _shown(value: Any) -> str:
    return repr(value)[:40]


def check_train(values: Any, where: str) -> None:
    """Check training's part of a record."""
    check(values, TRAIN, where, optional=TRAIN.keys() - NEEDED)


def check_run(values: Any, where: str) -> None:
    """Check a whole record, the summaries of its tasks included."""
    check(values, RUN, where, optional=("commit", "config_hash", "started", "ended", "files"))
    for task, summary in values["eval"].items():
        check_summary(task, summary, where)


def check_summary(task: str, summary: Any, where: str) -> None:
    """Check the scores of one task."""
    if not plain_name(task):
        raise StateError(f"{where}: eval: got task {_shown(task)}, expected the name of a folder; {EDITED}")
    kinds = {"questions": "a count above 0", "samples": "a count above 0", "settings": "a mapping"}
    if not isinstance(summary, dict):
        raise StateError(f"{where}: eval.{task}: got {_shown(summary)}, expected a mapping; {EDITED}")
    rates = {key: "a share, 0 to 1" for key in summary if "@" in key or key in RATES}
    amounts = {key: "a number, 0 or above" for key in ("mean_tokens", "total_tokens") if key in summary}
    check(summary, {**kinds, **rates, **amounts}, f"{where}: eval.{task}", optional=kinds)


RATES = ("truncated", "no_answer", "timeouts", "agreement")  # of a summary


def check_cells(spec: Mapping[str, Any], where: str) -> None:
    """Check the cells, factors and grid of a `study.json`."""
    seen = set()
    for number, cell in enumerate(spec["cells"]):
        check(cell, CELL, f"{where}: cells[{number}]")
        if cell["run_id"] in seen:
            raise StateError(f"{where}: cells[{number}]: run_id: '{cell['run_id']}' is there twice; {EDITED}")
        seen.add(cell["run_id"])
    if "grid" in spec:
        check(spec, {"grid": "a mapping"}, where)
        check(spec["grid"], {"name": "a text", "factors": "a mapping"}, f"{where}: grid", optional=("name", "factors"))
        for factor, levels in spec["grid"].get("factors", {}).items():
            if not isinstance(levels, dict | list):
                raise StateError(
                    f"{where}: grid.factors.{factor}: got {_shown(levels)}, expected a list or mapping; {EDITED}"
                )
        if not isinstance(spec["grid"].get("analysis") or {}, dict):
            raise StateError(f"{where}: grid.analysis: got {_shown(spec['grid']['analysis'])}, expected a mapping; "
                             f"{EDITED}")  # fmt: skip
    check(spec, {"duplicates": "a list", "factors": "a list"}, where, optional=("duplicates", "factors"))
    for number, factor in enumerate(spec.get("factors", ())):
        spot = f"{where}: factors[{number}]"
        check(factor, {"name": "a text", "levels": "a list"}, spot)
        if not all(isinstance(level, str | int | float) for level in factor["levels"]):
            raise StateError(f"{spot}: levels: got {_shown(factor['levels'])}, expected a list of names; {EDITED}")
