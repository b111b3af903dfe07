"""Loss and gradient of every update, recomputed from equations and derivatives by hand; a few by default, all as slow.

`python benchmarks/recompute.py` prints the table of the whole set.
"""

import numpy as np
import pytest
from recomputation import COMPONENTS, FOUR, LOSSES, cases, recomputed

from reference_loss import Row  # isort: skip
from reference_objective import Objective, divisors, sizes_of, terms  # isort: skip

CLOSE = 1e-4  # relative; float32 leaves a few 1e-6
FEW = [
    ("all four", "cispo", 0.05, "two halves, two passes"),
    ("all four", "gspo", 0.0, "two passes"),
    ("replay", "bnpo", 0.05, "two halves"),
    ("replay, `shaped`", "dr_grpo", 0.05, "two halves, two passes"),
]


def compare(tiny_model, folder, case, **changes):
    found = recomputed(tiny_model, folder, *case, **changes)
    assert found.updates - found.without > 0
    assert max(found.gradient, found.entry, found.loss) <= CLOSE, found
    return found


@pytest.mark.parametrize("case", FEW, ids=lambda case: ", ".join(map(str, case)))
def test_a_few_of_them(tiny_model, tmp_path, case):
    compare(tiny_model, tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases()), ids=lambda case: ", ".join(map(str, case)))
def test_all_of_them(tiny_model, tmp_path, case):
    compare(tiny_model, tmp_path, case)


def test_the_set_is_whole():
    every = set(cases())
    assert set(FEW) <= every
    for what in FOUR:
        for loss in LOSSES:
            for beta in (0.0, 0.05):
                for updates in ("one", "two passes", "two halves"):
                    assert (what, loss, beta, updates) in every
    assert {case[0] for case in every} == set(COMPONENTS)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_derivatives_by_hand_equal_differences_of_the_loss(loss, corrected):
    """Of every rule for historic rows, with given tokens, bounds that act, and a KL term; what is held stays held."""
    rng, checked = np.random.default_rng(3), 0
    settings = LOSSES[loss]
    objective = Objective(
        settings["loss_type"], "importance_sampling_level" in settings, 0.1, 1.1 if loss == "cispo" else 0.15,
        beta=0.3, corrected=corrected,
    )  # fmt: skip
    for rule in ("fresh", "decoupled", "ppo", "shaped", "none"):
        for advantage in (-0.7, 1.2):
            now = rng.normal(-2, 0.5, 7)
            row = Row(
                [], list(range(7)), [0, 0, 1, 1, 1, 1, 1], advantage, now + rng.normal(0, 0.2, 7), rule,
                now + rng.normal(0, 0.4, 7), reference=now + rng.normal(0, 0.3, 7),
            )  # fmt: skip
            gradient = terms(row, now, objective).gradient
            for t in range(2, 7):
                ends = []
                for sign in (1, -1):
                    moved = now.copy()
                    moved[t] += sign * 1e-5
                    ends.append(terms(row, moved, objective, at=now).loss.sum())
                assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(gradient[t - 2], abs=1e-8)
                checked += abs(gradient[t - 2]) > 1e-3
    assert checked > 30


def test_averages_by_hand():
    parts = [
        [Row([], [1] * 4, [1, 1, 1, 0], 1.0, np.zeros(4)), Row([], [1] * 2, [1, 0], 1.0, np.zeros(2))],
        [Row([], [1] * 5, [1] * 5, 1.0, np.zeros(5))],
    ]
    sizes = sizes_of([row for part in parts for row in part])
    assert (sizes.rows, sizes.tokens) == (3, 9)
    assert divisors(parts, sizes, Objective("grpo")) == [[9, 3], [15]]
    assert divisors(parts, sizes, Objective("dr_grpo", cap=10)) == [[30, 30], [30]]
    assert divisors(parts, sizes, Objective("dapo")) == divisors(parts, sizes, Objective("cispo")) == [[9, 9], [9]]
    assert divisors(parts, sizes, Objective("bnpo")) == [[8, 8], [10]]


def broken(monkeypatch, what):
    """A fault on purpose in what the loss is handed."""
    from r3bench.training.step import loss_inputs, mixing

    if what == "KL on rows declared without":
        monkeypatch.setattr(mixing, "NO_KL_KEY", "nobody_reads_this")
    elif what == "weight of the first update kept":
        monkeypatch.setattr(loss_inputs, "SHAPED_KEY", "nobody_reads_this")
    else:
        monkeypatch.setattr(mixing, "SCALE_KEY", "nobody_reads_this")


@pytest.mark.parametrize(
    ("what", "case"),
    [
        ("KL on rows declared without", ("repo", "dapo", 0.05, "two halves, two passes")),
        ("KL on rows declared without", ("reflection, re-attached", "grpo", 0.05, "two passes")),
        ("weight of the first update kept", ("exgrpo", "dapo", 0.05, "two halves, two passes")),
        ("padding rows counted", ("all four", "grpo", 0.0, "two halves")),
    ],
)
def test_a_fault_on_purpose_shows(tiny_model, tmp_path, monkeypatch, what, case):
    broken(monkeypatch, what)
    found = recomputed(tiny_model, tmp_path, *case)
    assert max(found.gradient, found.entry) > 10 * CLOSE, found


def test_historic_rows_have_the_kl_term_that_is_declared(tiny_model, tmp_path):
    """`replay` and `rescue` with it, `repo` and `exgrpo` without; four updates, so `exgrpo` is shaped anew."""
    for what, without in (("replay", False), ("rescue", False), ("repo", True), ("exgrpo", True)):
        found = compare(tiny_model, tmp_path / what, (what, "grpo", 0.05, "two halves, two passes"))
        historic = sum(n for key, n in found.seen.items() if key.split()[-1] in ("added", "swapped"))
        assert historic > 0 and found.seen["historic rows without KL"] == (historic if without else 0), what


@pytest.mark.parametrize("corrected", [True, False], ids=["corrected", "uncorrected"])
@pytest.mark.parametrize(
    "case",
    [
        ("replay, `none`", "dapo", 0.05, "two halves, two passes"),
        ("replay, `none`, in place", "gspo", 0.05, "two passes"),
        ("replay, `ppo`", "grpo", 0.05, "two halves"),
        ("reflection, re-attached", "grpo", 0.05, "two passes"),
        ("reflection, re-attached, `none`", "cispo", 0.05, "two halves"),
    ],
    ids=lambda case: ", ".join(map(str, case)),
)
def test_the_kl_term_beside_weights_that_correct_nothing(tiny_model, tmp_path, case, corrected):
    """Loss and gradient of the KL term on replayed rows, and its absence on re-attached ones; with the ratio or not."""
    found = compare(tiny_model, tmp_path, case, use_bias_correction_kl=corrected)
    historic = sum(n for key, n in found.seen.items() if key.split()[-1] in ("added", "swapped"))
    assert historic > 0 and found.seen["historic rows without KL"] == historic * ("re-attached" in case[0])
