"""How often the model goes over a sampled batch, counted at the model itself, is what `docs/costs.md` says.

python -m pytest -m slow tests/components/test_components_costs.py
"""

import contextlib
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from train_tools import train
from trl.trainer.grpo_trainer import GRPOTrainer

from r3bench.training.step import mixing, moments, trl_adapter

PAGE = (Path(__file__).parents[2] / "docs" / "costs.md").read_text()
SETTINGS = {  # column of the page -> arguments
    "one update": {},
    "one update, temperature 0.6": {"temperature": 0.6},
    "two updates, KL": {"num_iterations": 2, "beta": 0.1},
    "two updates, temperature 0.6": {"num_iterations": 2, "temperature": 0.6},
}
FOUR = {
    "replay": {"warmup": 0, "truncated_negatives": True},
    "reflection": {"warmup": 0, "max_share": 1.0, "min_attempts": 1, "template": "short"},
    "ranking": {"scope": "failed"},
    "retrospective": {"gate_auc": 0.0, "quantile": 0.0, "cuts": "grid", "spacing": 1, "max_fraction": 0.5},
}
COMBINATIONS = {
    "none": {},
    **{name: {name: settings} for name, settings in FOUR.items()},
    "replay, in place": {"replay": {**FOUR["replay"], "mode": "replace"}},
    "all four": FOUR,
}


class Passes:
    """Rows that went through the model, by what for: `rows[batch][purpose]`."""

    def __init__(self, monkeypatch):
        from transformers import LlamaModel

        self.rows, self.purposes = [], []
        plain = LlamaModel.forward

        def counted(model, *args, **kwargs):
            purpose = self.purposes[0] if self.purposes else "unknown"
            if purpose != "sampling":
                self.rows[-1][purpose] += len(kwargs["input_ids"])
            return plain(model, *args, **kwargs)

        monkeypatch.setattr(LlamaModel, "forward", counted)
        self.wrap(monkeypatch, GRPOTrainer, "_generate_single_turn", lambda *_, **__: "sampling")
        self.wrap(monkeypatch, GRPOTrainer, "_get_per_token_logps_and_entropies", self.of_trl)
        self.wrap(monkeypatch, moments.Moments, "_entropies", lambda *_, **__: "entropies")
        self.wrap(monkeypatch, moments.Moments, "_score_rows", lambda *_, **__: "given way")
        self.wrap(monkeypatch, mixing.trl_adapter, "score_tokens", self.of_mixing)
        self.wrap(monkeypatch, trl_adapter, "hidden_states", lambda *_, **__: "probe")

    def wrap(self, monkeypatch, owner, name, purpose_of):
        plain = getattr(owner, name)

        def wrapped(*args, **kwargs):
            with self.purpose(purpose_of(*args, **kwargs)):
                return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    @contextlib.contextmanager
    def purpose(self, name):
        self.purposes.append(name)
        yield
        self.purposes.pop()

    @staticmethod
    def of_trl(trainer, model, *_, **__):
        return "loss" if torch.is_grad_enabled() else "reference" if model is trainer.ref_model else "old"

    @staticmethod
    def of_mixing(*_, reference=False, **__):
        return "historic reference" if reference else "historic"


def failing(completion_ids, **_):
    return [float(sum(ids) % 5 == 0) for ids in completion_ids]


def documented():
    """Row of the page's table -> column -> passes."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    start = next(n for n, line in enumerate(lines) if line.startswith("| on |"))
    names = [cell.strip() for cell in lines[start].strip("|").split("|")][1:]
    found = {}
    for line in lines[start + 2 :]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != len(names) + 1:
            break
        found[cells[0].replace("`", "")] = dict(zip(names, cells[1:], strict=True))
    return found


def text_of(batches, records, updates):
    """The passes of a run as the page writes them."""
    seen = Counter()
    for rows, record in zip(batches, records, strict=True):
        sampled, trained = len(record["rows"]), sum(len(part["prompt_ids"]) for part in record["parts"])
        whole = len(record["fresh"])
        assert sampled <= whole
        assert rows.pop("loss") == trained and trained % updates == 0
        for name in ("old", "reference"):
            assert rows.pop(name, whole) == whole, "every sampled row once"
        historic = sum(int((part["r3_row"] < 0).sum()) for part in record["parts"] if "r3_row" in part) // updates
        for name, most in {"entropies": whole, "probe": whole, "given way": whole}.items():
            assert rows[name] <= most, name
        assert rows["historic"] <= historic and rows["historic reference"] <= historic
        seen.update(+rows)
    return seen


@pytest.mark.parametrize(
    "column",
    [pytest.param(name, marks=[pytest.mark.slow] * (number in (1, 3))) for number, name in enumerate(SETTINGS)],
)
def test_the_page_says_how_often_the_model_goes_over_a_batch(tiny_model, tmp_path, monkeypatch, column):
    table = documented()
    assert set(table) == set(COMBINATIONS)
    changes = SETTINGS[column]
    updates = changes.get("num_iterations", 1)
    for name, components in COMBINATIONS.items():
        with monkeypatch.context() as patch:
            passes = Passes(patch)
            plain = GRPOTrainer._generate_and_score_completions
            sizes = []

            def opened(trainer, inputs, plain=plain, passes=passes, sizes=sizes):
                passes.rows.append(Counter())
                sizes.append(inputs)
                return plain(trainer, inputs)

            patch.setattr(GRPOTrainer, "_generate_and_score_completions", opened)
            trainer = train(
                tiny_model,
                tmp_path / name,
                components,
                failing,
                rows=2,
                steps=6 * updates,
                learning_rate=1e-3,
                **changes,
            )
        for record, fresh in zip(trainer.records, sizes, strict=True):
            record["fresh"] = fresh
        found = ["old"] * all("old" in rows for rows in passes.rows)
        found += ["reference"] * all("reference" in rows for rows in passes.rows)
        found += ["loss" if updates == 1 else f"loss x {updates}"]
        assert not any(rows["unknown"] for rows in passes.rows)
        extra = text_of(passes.rows, trainer.records, updates)
        found += [key for key in ("entropies", "probe", "given way", "historic", "historic reference") if extra[key]]
        assert ", ".join(found) == table[name][column], name
        assert all(
            any(key.startswith(part) and value for key, value in trainer.evidence.items()) for part in components
        )


def test_every_pass_of_the_table_has_its_reason():
    passes = {
        part.strip().removesuffix(" x 2")
        for row in documented().values()
        for c in row.values()
        for part in c.split(",")
    }
    reasons = set(re.findall(r"^\| ([a-z ]+) \| [a-z]", PAGE, re.MULTILINE))
    assert passes <= reasons, passes - reasons
