"""The testbed's recorded cards and tables stand in the pages as their scripts print them, from what is kept."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from r3bench import catalog

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "testbed"
sys.path.insert(0, str(FOLDER))

import cards  # noqa: E402
import table  # noqa: E402

PRESETS = sorted(name for name in catalog.names("ablations", ".yaml", "recipes") if name.startswith("testbed_"))


def test_the_cards_on_the_page_are_those_that_were_printed():
    page = cards.PAGE.read_text()
    assert cards.with_cards(page) == page
    assert sorted(re.findall(r"<!-- card: (\w+) -->", page)) == PRESETS
    for name in PRESETS:
        assert (FOLDER / "cards" / f"{name}.txt").read_text().startswith(f"{name}, measured on ")
        assert name in catalog.names("ablations", ".yaml")


def test_a_changed_card_is_seen():
    page = cards.PAGE.read_text()
    assert cards.with_cards(page.replace("positive - off", "positive + off")) == page


@pytest.mark.parametrize(
    "command", re.findall(r"<!-- table: (.+) -->", (FOLDER / "README.md").read_text()), ids=lambda c: c.split()[0]
)
def test_the_tables_are_those_of_the_kept_lines(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["table.py", *command.split()])
    table.main()
    printed = capsys.readouterr().out.strip()
    after = (FOLDER / "README.md").read_text().partition(f"<!-- table: {command} -->\n")[2]
    assert after.startswith(f"{printed}\n")


def test_differences_are_welchs_and_adjusted_after_holm():
    """Worked by hand: means 2 points apart, variances 1 and 4 over 3 and 3 seeds, 2.94 degrees of freedom."""
    estimate, low, high, p = table.gap(np.array([0.03, 0.05, 0.07]), np.array([0.02, 0.03, 0.04]))
    assert estimate == pytest.approx(2.0)
    standard = math.sqrt(4 / 3 + 1 / 3)
    degrees = (4 / 3 + 1 / 3) ** 2 / ((4 / 3) ** 2 / 2 + (1 / 3) ** 2 / 2)
    assert degrees == pytest.approx(2.9412, abs=1e-4)
    quantile = (high - low) / 2 / standard
    assert 3.182 < quantile < 3.30  # between Student's for 3 degrees and for 2.9
    assert (low + high) / 2 == pytest.approx(2.0)
    assert 0.2 < p < 0.25
    assert table.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert table.holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_line_is_what_a_run_says(tmp_path):
    for name in ("base-model-s0-0a", "base-s0-0a", "replay-s3-0b"):
        (tmp_path / name).mkdir()
        train = {
            "generated_tokens": 200,
            "steps": 2,
            "train_seconds": 1.25,
            "acted": {"replay": True, "ranking": False},
        }
        measured = {"bed": {"avg@4": 0.5, "tokens_wrong": {"mean": 7.0}}}
        (tmp_path / name / "run.json").write_text(json.dumps({"train": train, "eval": measured}))
        log = [
            {"generated_tokens": 100, "exploration/dead": 1.0, "exploration/solved": 0.0},
            {"generated_tokens": 200, "exploration/dead": 0.5, "exploration/solved": 0.25},
        ]
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    first, second = table.collect(tmp_path)
    assert (first["arm"], second["arm"], second["seed"]) == ("GRPO", "replay", "3")
    assert [second[key] for key in table.DEAD] == ["nan", "nan", "1.0000", "nan", "0.5000"]
    assert (second["solved"], second["wrong_tokens"], second["acted"]) == ("0.2500", "7.00", "replay")
