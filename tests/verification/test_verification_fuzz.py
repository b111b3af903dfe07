"""Damage to any file of a study: the same numbers, or a line that names the file; never a traceback.

A part runs here, more of it with `-m slow`, and every byte of every file with `python benchmarks/fuzz.py --all`.
"""

import random
import shutil
from pathlib import Path

import pytest
from fuzz import KINDS, READERS, damages, fuzz, fuzz_index, prepare

from r3bench.analysis import write_tables
from r3bench.verification.tables import difference

ELSEWHERE = ("tables",)  # every damage makes all tables anew: below, against tables that are made once


@pytest.fixture(scope="module")
def corrupt(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(Path(shutil.copytree(made, tmp_path_factory.mktemp("fuzz") / "honest")))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ELSEWHERE])
def test_no_damage_is_silent_and_none_ends_in_a_traceback(corrupt: Path, kind: str) -> None:
    counts = fuzz(corrupt, kind, random.Random(kind), flips=4, only=[name for name in READERS if name != "verify"])
    assert sum(counts.found.values()) >= 10
    assert counts.bad == []
    assert set(counts.found) - {"same"} or kind in ("journal", "attempts", "train.json")


def test_no_damage_of_a_table_passes(corrupt: Path, tmp_path: Path) -> None:
    for path in write_tables(corrupt, tmp_path):
        for done, content in damages(path.read_bytes(), random.Random(path.name), 40):
            damaged = corrupt / "tables" / path.name
            whole = damaged.read_bytes()
            damaged.write_bytes(content)
            found = difference(damaged, path)
            if path.suffix != ".parquet":  # a file of counts has bytes that say nothing, and is compared by its counts
                assert (found is None) == (content == whole), (path.name, done)
            damaged.write_bytes(whole)


def test_no_damage_of_the_index_changes_or_stops_anything(made: Path, tmp_path: Path) -> None:
    counts = fuzz_index(Path(shutil.copytree(made, tmp_path / "honest")), random.Random(0), 3)
    assert counts.bad == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_damage(corrupt: Path, kind: str) -> None:
    assert fuzz(corrupt, kind, random.Random(1), flips=150).bad == []
