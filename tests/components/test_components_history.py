"""The bounds of the trajectory history: what is kept, on any number of ranks and after a restart."""

import gc
import hashlib
import json
import tracemalloc
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from component_tools import stored
from hypothesis import given
from hypothesis import strategies as st

from r3bench.component import Trajectory
from r3bench.config.load import config_hash, parse_recipe, resolved
from r3bench.errors import ConfigError
from r3bench.training.checkpoint import save_state
from r3bench.training.step.history import HistoryBounds, TrajectoryHistory, owner

KIND = ("fresh", "fresh", "reflection", "continuation")  # most answers are to the bare question
# question, length, number of the kind, right, cut off
ANSWERS = st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(0, 3), st.booleans(), st.booleans())
BATCHES = st.lists(st.lists(ANSWERS, max_size=8), max_size=8)
BOUNDS = st.builds(HistoryBounds, st.integers(1, 4), st.integers(1, 60), st.none() | st.integers(1, 3))
pytestmark = pytest.mark.filterwarnings("ignore:history.max_tokens")


def row(question, length, step, kind=0, right=True, cut=False):
    ids = np.full(length, step, np.int32)
    summary = stored(
        f"q{question}", 0, bool(right), step=step, length=length, provenance=KIND[kind], truncated=bool(cut)
    )
    return Trajectory(summary, ids, np.zeros(length, np.float32))


def expected(batches, bounds):
    """What the bounds keep, told plainly: (question, serial), by kind and oldest first."""
    kept, serials, passed = {kind: [] for kind in KIND}, {}, set()

    def stays(rows, item):
        """The newest of its verdict."""
        later = rows[rows.index(item) + 1 :]
        return not any(other["q"] == item["q"] and other["verdict"] == item["verdict"] for other in later)

    for step, batch in enumerate(batches):
        for question, length, number, right, cut in batch:
            serials[question] = serials.get(question, -1) + 1
            kind, name = KIND[number], (f"q{question}", serials[question])
            rows = kept[kind]
            rows.append({"q": question, "name": name, "length": length, "step": step, "verdict": (right, cut)})
            own = [item for item in rows if item["q"] == question]
            for item in own:
                beyond = item in own[: -bounds.per_question] or item["name"] in passed
                if beyond and not (kind == "fresh" and stays(rows, item)):
                    kept[kind] = rows = [other for other in rows if other is not item]
        for kind, rows in kept.items():
            if bounds.max_age is not None:
                rows = [item for item in rows if step - item["step"] <= bounds.max_age]
            while sum(item["length"] for item in rows) > bounds.max_tokens:
                ordinary = [
                    item for item in rows
                    if item["name"] not in passed and not (kind == "fresh" and stays(rows, item))
                ]  # fmt: skip
                first = (ordinary or rows)[0]
                before = rows[: rows.index(first)] if ordinary else rows
                passed.update(item["name"] for item in before)
                rows = [item for item in rows if item is not first]
            kept[kind] = rows
    return [item["name"] for kind in dict.fromkeys(KIND) for item in kept[kind]]


def insert(stores, batches, first=0):
    for step, batch in enumerate(batches, first):
        for store in stores:
            store.insert([row(*answer[:2], step, *answer[2:]) for answer in batch], step)


def names(stores):
    """(question, serial) of all that the ranks hold, oldest first."""
    rows = [saved for store in stores for saved in store.state()[1]["rows"]]
    return [(saved[0], saved[1]) for saved in sorted(rows, key=lambda saved: saved[-1])]


@given(BATCHES, BOUNDS)
def test_the_bounds_keep_the_same_on_any_number_of_ranks(batches, bounds):
    for ranks in (1, 2, 3):
        stores = [TrajectoryHistory(bounds, rank, ranks) for rank in range(ranks)]
        insert(stores, batches)
        assert names(stores) == expected(batches, bounds)
        held = [set(names([store])) for store in stores]
        assert sum(map(len, held)) == len(set.union(*held)), "no trajectory is held twice"


@given(BATCHES, BATCHES, BOUNDS)
def test_a_restart_on_another_number_of_ranks_keeps_the_same(before, after, bounds):
    stores = [TrajectoryHistory(bounds, rank, 2) for rank in range(2)]
    insert(stores, before)
    shares = [(arrays, json.loads(json.dumps(plain))) for arrays, plain in (store.state() for store in stores)]
    for ranks in (1, 3):
        again = [TrajectoryHistory(bounds, rank, ranks) for rank in range(ranks)]
        for store in again:
            store.load(shares)
        assert names(again) == names(stores)
        insert(again, after, len(before))
        assert names(again) == expected([*before, *after], bounds)


def test_recipes_set_the_bounds_and_the_defaults_leave_old_run_ids_alone():
    base = parse_recipe({}, "recipe")
    same = parse_recipe({"history": {"per_question": 32, "max_age": None}, "data": {"solution": "solution"}}, "recipe")
    sections = ("model", "data", "trainer", "budget", "reward", "components", "seed")
    before = {key: resolved(base)[key] for key in sections}
    for section, later in (
        *(("data", name) for name in ("solution", "system", "template", "columns", "options")),
        ("model", "compensation"),
        ("model", "warmup"),
        ("model", "attention"),
        *(("reward", name) for name in ("thinking", "functions", "weights", "correctness", "threshold")),
    ):
        before[section] = {key: value for key, value in before[section].items() if key != later}
    identity = hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()[:12]
    assert config_hash(base) == config_hash(same) == identity
    for other in ({"history": {"max_tokens": 1000}}, {"history": {"max_age": 3}}, {"data": {"solution": None}}):
        assert config_hash(parse_recipe(other, "recipe")) != config_hash(base)
    assert parse_recipe({"history": {"max_tokens": 1000}}, "recipe").history == HistoryBounds(max_tokens=1000)
    for bad in ("per_question", "max_tokens", "max_age"):
        with pytest.raises(ConfigError, match=rf"history: {bad}: got 0, expected at least 1"):
            parse_recipe({"history": {bad: 0}}, "recipe")


@pytest.mark.slow
def test_memory_and_files_of_a_rank_fall_as_one_over_ranks(tmp_path):
    """A rank's bytes are its share of the whole plus an index, a small part of the whole."""
    whole, *parts = (measured(tmp_path, ranks) for ranks in (1, 2, 4, 8))
    for ranks, part in zip((2, 4, 8), parts, strict=True):
        share = part["trajectories"] / whole["trajectories"]
        assert share < 1.25 / ranks, "questions are dealt out unevenly"
        assert part["memory"] < whole["memory"] * (share + 0.03)
        assert part["file"] < whole["file"] * (share + 0.03)


def measured(folder, ranks):
    """Trajectories, bytes, and bytes saved, of the fullest of so many ranks: 300 questions x 8 answers x 256 tokens."""
    counts = Counter(owner(f"q{question}", ranks) for question in range(300))
    rank = counts.most_common(1)[0][0]
    gc.collect()
    tracemalloc.start()
    store = TrajectoryHistory(HistoryBounds(per_question=8), rank, ranks, lambda items: items)
    for step in range(8):
        for question in range(300):  # one by one: what is not this rank's is gone at once
            store.insert([row(question, 256, step)], step)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    world = SimpleNamespace(
        process_index=rank, num_processes=ranks, is_main_process=False, wait_for_everyone=lambda: None
    )
    save_state(folder / str(ranks), {}, store.state(), world)
    size = sum(path.stat().st_size for path in (folder / str(ranks)).rglob("history-*"))
    return {"trajectories": len(store), "memory": memory, "file": size}


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 10**6))
def test_the_last_right_and_the_last_wrong_bare_answer_outlive_any_crowd(per_question, group, seed):
    """One right answer long ago, then groups of failures, reflections and continuations, larger than the bound."""
    rng = np.random.default_rng(seed)
    store = TrajectoryHistory(HistoryBounds(per_question))
    store.insert([row(0, 3, 0, right=i == 0) for i in range(group)], 0)
    for step in range(1, 5):
        kinds = [0] * group + [2] * group + [3] * group
        store.insert([row(0, 3, step, kind, right=kind > 0 and rng.random() < 0.5) for kind in kinds], step)
    rows = store.open(["q0"]).summaries("q0")
    assert [r.serial for r in rows] == sorted(r.serial for r in rows)
    bare = [r for r in rows if r.provenance == "fresh"]
    assert [r.step for r in bare if r.correct] == [0] and bare[-1].step == 4 and not bare[-1].correct
    assert len(bare) == min(per_question, 4 * group) + 1
    for kind in ("reflection", "continuation"):
        assert sum(r.provenance == kind for r in rows) == min(per_question, 4 * group)


@given(BATCHES, BOUNDS)
def test_what_is_kept_of_bare_answers_is_the_same_in_company(batches, bounds):
    alone, company = TrajectoryHistory(bounds), TrajectoryHistory(bounds)
    for step, batch in enumerate(batches):
        company.insert([row(*answer[:2], step, *answer[2:]) for answer in batch], step)
        alone.insert([row(*answer[:2], step, *answer[2:]) for answer in batch if answer[2] < 2], step)

    def bare(store):
        questions = [f"q{i}" for i in range(7)]
        found = [r for q in questions for r in store.open(questions).summaries(q) if r.provenance == "fresh"]
        return [r._replace(serial=0) for r in found]

    assert repr(bare(alone)) == repr(bare(company))


def test_a_store_that_is_full_says_so_once():
    store = TrajectoryHistory(HistoryBounds(max_tokens=10))
    with pytest.warns(UserWarning, match=r"history\.max_tokens: 10 tokens are reached at step 7"):
        store.insert([row(0, 6, 7), row(1, 6, 7)], 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.insert([row(2, 6, 8)], 8)
    assert store.tokens <= 10
