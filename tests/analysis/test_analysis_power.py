"""Whole studies drawn from the planner's assumptions: at the printed effect, four of five get the verdict."""

import itertools

import numpy as np
import pytest

from r3bench.analysis.declared import Declared
from r3bench.analysis.results import Results, Run, Scores
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.families import PRIMARY
from r3bench.analysis.statistics.power import Design, VarianceAssumptions, detectable_effect

# factors, seeds, questions, answers; AIME is 30 questions
SETTINGS = {
    "2^4 x 3, 30 x 16": (4, 3, 30, 16),
    "one factor x 3, 30 x 32": (1, 3, 30, 32),
    "2^3 x 2, 500 x 4": (3, 2, 500, 4),
    "2^4 x 1, 30 x 16": (4, 1, 30, 16),
    "2^2 x 5, 100 x 8": (2, 5, 100, 8),
}
ASSUMED = VarianceAssumptions(run_sd=0.015, run_question_sd=0.06, within_question=0.2, question_effect_sd=0.06)


def realised(factors: int, seeds: int, questions: int, samples: int, count: int) -> float:
    """Share of studies in which the first factor, with the planned effect and the only one, is called up."""
    names = "abcd"[:factors]
    levels = dict.fromkeys(names, ("off", "on"))
    cells = list(itertools.product(("off", "on"), repeat=factors))
    design = Design(levels, [dict(zip(names, c, strict=True)) for c in cells], seeds)
    weights = next(c.weights for c in design.contrasts if c.kind == "main")
    effect = detectable_effect(
        [(ASSUMED, questions)], design, weights, samples=samples, alpha=0.05 / factors, scope="verdict"
    )
    codes = np.array([[(v == "on") - 0.5 for v in c] for c in cells]).repeat(seeds, axis=0)
    # p(1-p) is within_question on average: half of the questions at each of two difficulties around 1/2
    spread = np.sqrt(0.25 - ASSUMED.within_question - ASSUMED.run_question_sd**2 - ASSUMED.run_sd**2)
    difficulty = 0.5 + spread * np.where(np.arange(questions) % 2, 1, -1)
    runs = tuple(
        Run(f"r{i}", i % seeds, dict(zip(names, cells[i // seeds], strict=True))) for i in range(len(cells) * seeds)
    )
    ids, rng, hits = tuple(f"{i:04d}" for i in range(questions)), np.random.default_rng(1), 0
    for _ in range(count):
        varying = rng.normal(0, ASSUMED.question_effect_sd, (factors, questions))
        varying[0] += effect
        p = difficulty + codes @ varying + rng.normal(0, ASSUMED.run_sd, (len(codes), 1))
        p = np.clip(p + rng.normal(0, ASSUMED.run_question_sd, (len(codes), questions)), 0, 1)
        correct = rng.binomial(samples, p)
        scores = Scores(ids, np.full(correct.shape, samples), correct)
        found = effects(Results("power", levels, runs, {"p": scores}, Declared()), draws=0)[0]
        hits += next(e for e in found if e.family == PRIMARY and e.term == "a").verdict() == "up"
    return hits / count


@pytest.mark.parametrize("name", ["2^4 x 3, 30 x 16", "one factor x 3, 30 x 32"])
def test_a_planned_verdict_is_reached(name):
    assert 0.7 < realised(*SETTINGS[name], count=120) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_planned_verdict_is_reached_as_often_as_planned(name):
    assert realised(*SETTINGS[name], count=1500) == pytest.approx(0.8, abs=0.03)
