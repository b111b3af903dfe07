"""Whether training questions stand in the benchmarks of a study: counted once per study, told by every table."""

import json
from pathlib import Path
from typing import Any

from r3bench.config.strict import plain
from r3bench.files import write_json
from r3bench.seals import sealed
from r3bench.sweep.study import Study


def overlap_file(root: Path) -> Path:
    """`overlap.json` of a study folder."""
    return root / "overlap.json"


def note_overlap(study: Study) -> dict[str, dict[str, Any]]:
    """Write `overlap.json`: task -> questions, exact and near copies, the most over the cells' training sets."""
    from r3bench.evaluation.overlap import training_overlap

    recipes = {json.dumps([plain(cell.recipe.data), list(cell.recipe.eval.tasks)]): cell.recipe for cell in study.cells}
    worst: dict[str, dict[str, Any]] = {}
    for recipe in recipes.values():
        for task, found in training_overlap(recipe.data, recipe.eval.tasks).items():
            counts = {key: int(found[key]) for key in ("questions", "exact", "near")}
            known = worst.setdefault(task, counts)
            worst[task] = {key: max(known[key], counts[key]) for key in counts}
    write_json(overlap_file(study.root), sealed(worst))
    return worst
