"""The model card of a run: from what, how, and how good. Goes with the weights to a hub or a colleague."""

import json
from pathlib import Path

from r3bench.config.sections import LoraSection, Recipe
from r3bench.files import write_text
from r3bench.records import RunPaths, RunRecord, TrainRecord


def model_card(recipe: Recipe, record: RunRecord) -> str:
    """Markdown with the hub's metadata block: cell, seed, commit, base, components, scores."""
    factors = ", ".join(f"{name}={level}" for name, level in sorted(record.factors.items())) or "none"
    on = ", ".join(sorted(recipe.components)) or "none"
    idle = sorted(name for name, acted in record.train.acted.items() if not acted)
    facts = {
        "Run": record.run_id,
        "Cell": factors,
        "Seed": record.seed,
        "Commit": record.commit or "not known",
        "Base model": recipe.model.name + (f" at {recipe.model.revision}" if recipe.model.revision else ""),
        "Questions": recipe.data.name,
        "Adapters": _adapters(recipe.model.lora),
        "Components": on + (f" (never acted: {', '.join(idle)})" if idle else ""),
        "Training": f"{record.train.outcome}, {record.train.steps} updates, {record.train.generated_tokens} tokens "
        f"sampled on {record.train.processes} x {record.train.device}",
        "Weights": _weights(record.train),
        "Ended": record.ended,
    }  # fmt: skip
    lines = [
        "---",
        *([f"base_model: {json.dumps(recipe.model.name)}"] if _on_hub(recipe.model.name) else []),
        "library_name: transformers",
        "tags: [grpo, r3bench]",
        "---",
        "",
        f"# {_cell(record.run_id)}",
        "",
        "Trained with r3bench. One run of one seed: compare recipes by their study's table, not by this model.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {_cell(value)} |" for key, value in facts.items()),
        "",
    ]
    if record.eval:
        lines += ["## Scores", "", "| benchmark | measure | value | questions |", "|---|---|---|---|"]
        for task, summary in sorted(record.eval.items()):
            scores = [(key, value) for key, value in sorted(summary.items()) if "@" in key and value is not None]
            lines += [
                f"| {_cell(task)} | {_cell(key)} | {value:.4f} | {summary['questions']} |" for key, value in scores
            ]
        lines.append("")
    return "\n".join(lines)


def _weights(train: TrainRecord) -> str:
    """In what they were trained, and how many of them moved."""
    if train.weights_dtype is None:
        return "not known"
    moved = "" if train.weights_changed is None else f", {100 * train.weights_changed:.1f} % of them changed"
    return f"{train.weights_dtype}, computed in {train.compute_dtype}, {train.strategy}{moved}"


def write_card(recipe: Recipe, record: RunRecord, paths: RunPaths) -> Path | None:
    """Write the card beside the weights; None for a run that kept none."""
    if not paths.model.is_dir():
        return None
    path = paths.model / "README.md"
    write_text(path, model_card(recipe, record))
    return path


def _adapters(lora: LoraSection | None) -> str:
    if lora is None:
        return "none"
    return f"merged, rank {lora.rank}; also in adapter/" if lora.merge else f"alone, rank {lora.rank}; not merged"


def _on_hub(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "~", "/"))


def _cell(value: object) -> str:
    """A value that stays in its table cell and is no markup."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return "".join(f"\\{c}" if c in "\\|<>[]`*!#" else c for c in text)
