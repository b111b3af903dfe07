"""The bounds of the trajectory history: what is kept, on any number of ranks and after a restart."""

import gc
import hashlib
import json
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from component_tools import stored
from hypothesis import given
from hypothesis import strategies as st

from r3bench.config.load import config_hash, parse_recipe, resolved
from r3bench.errors import ConfigError
from r3bench.training.checkpoint import save_state
from r3bench.training.component import Trajectory
from r3bench.training.history import HistoryBounds, TrajectoryHistory, owner

BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=8), max_size=8)
BOUNDS = st.builds(HistoryBounds, st.integers(1, 4), st.integers(1, 60), st.none() | st.integers(1, 3))


def row(question, length, step):
    ids = np.full(length, step, np.int32)
    return Trajectory(stored(f"q{question}", 0, True, step=step, length=length), ids, np.zeros(length, np.float32))


def expected(batches, bounds):
    """What the bounds keep, told plainly: (question, serial) oldest first."""
    kept, serials = [], {}
    for step, batch in enumerate(batches):
        for question, length in batch:
            serials[question] = serials.get(question, -1) + 1
            kept.append((question, serials[question], length, step))
            own = [item for item in kept if item[0] == question]
            if len(own) > bounds.per_question:
                kept.remove(own[0])
        if bounds.max_age is not None:
            kept = [item for item in kept if step - item[3] <= bounds.max_age]
        while sum(item[2] for item in kept) > bounds.max_tokens:
            kept.pop(0)
    return [(f"q{question}", serial) for question, serial, _, _ in kept]


def insert(stores, batches, first=0):
    for step, batch in enumerate(batches, first):
        for store in stores:
            store.insert([row(question, length, step) for question, length in batch], step)


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
    before["data"] = {key: value for key, value in before["data"].items() if key != "solution"}
    identity = hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()[:12]
    assert config_hash(base) == config_hash(same) == identity
    for other in ({"history": {"max_tokens": 1000}}, {"history": {"max_age": 3}}, {"data": {"solution": None}}):
        assert config_hash(parse_recipe(other, "recipe")) != config_hash(base)
    assert parse_recipe({"history": {"max_tokens": 1000}}, "recipe").history == HistoryBounds(max_tokens=1000)
    for bad in ("per_question", "max_tokens", "max_age"):
        with pytest.raises(ConfigError, match=rf"history: {bad}: got 0, expected at least 1"):
            parse_recipe({"history": {bad: 0}}, "recipe")


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
