"""Studies as archives: the same tables elsewhere, and nothing a hostile archive wants; model cards."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from synthetic import make_study
from typer.testing import Result

from r3bench.config.load import load_recipe
from r3bench.records import RunPaths, RunRecord, TrainRecord
from r3bench.sweep.sharing.archive import export_study
from r3bench.sweep.sharing.card import model_card, write_card


@pytest.fixture
def study(folder: Path) -> Path:
    """`runs/toy` with what a finished study has lying around."""
    found = make_study(folder / "runs" / "toy")
    run = next(path.parent for path in sorted(found.glob("*/run.json")))
    (run / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (run / "checkpoints" / "checkpoint-2" / "model.safetensors").write_bytes(b"weights")
    (run / "model").mkdir()
    (run / "model" / "model.safetensors").write_bytes(b"weights")
    (run / "model" / "README.md").write_text("card")
    (run / "run.lock").write_text("")
    (run / ".half.tmp").write_text("half")
    (found / "optuna.db").write_bytes(b"index")
    (run / "link").symlink_to("/etc/passwd")
    return found


def names(file: Path) -> set[str]:
    with tarfile.open(file) as archive:
        return set(archive.getnames())


def test_tables_are_the_same_elsewhere(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    done = r3bench("export", str(study), "out.tar.gz")
    assert (done.exit_code, done.stdout) == (0, "out.tar.gz\n"), done.stderr
    imported = r3bench("import", "out.tar.gz", "--runs", "elsewhere")
    assert imported.stdout == f"elsewhere/{study.name}\n"
    for layout in ("markdown", "latex", "html", "csv"):
        here = r3bench("tables", str(study), "--format", layout, "--out", "a")
        there = r3bench("tables", f"elsewhere/{study.name}", "--format", layout, "--out", "b")
        assert here.exit_code == 0, here.stderr
        assert here.stdout
        assert here.stdout == there.stdout
    files = sorted(path.relative_to("a") for path in Path("a").rglob("*") if path.is_file())
    assert files
    for file in files:
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes(), file
    again = r3bench("import", "out.tar.gz", "--runs", "elsewhere")
    assert (again.exit_code, again.stderr.count("\n")) == (3, 1)
    assert r3bench("import", "out.tar.gz", "--study", "other").stdout == "runs/other\n"
    assert "expected the name of a folder" in r3bench("import", "out.tar.gz", "--study", "../other").stderr
    export_study(study, folder / "second.tar.gz")
    assert (folder / "second.tar.gz").read_bytes() == (folder / "out.tar.gz").read_bytes()


def test_what_is_left_out(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    assert r3bench("export", study.name, "small.tar.gz").exit_code == 0
    assert r3bench("export", study.name, "whole.tar.gz", "--models").exit_code == 0
    small, whole = names(folder / "small.tar.gz"), names(folder / "whole.tar.gz")
    assert {name.rpartition("/")[2] for name in whole - small} == {"model.safetensors"}
    assert not [n for n in whole if "checkpoint" in n or n.endswith((".lock", ".db", ".tmp", "link")) or "/." in n]
    assert [n for n in small if n.endswith("model/README.md")]
    with tarfile.open(folder / "small.tar.gz") as archive:
        assert {(m.mtime, m.uid, m.uname, m.mode) for m in archive} == {(0, 0, "", 0o644)}


def entry(name: str, content: bytes = b"", **values: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in values.items():
        setattr(member, key, value)
    return member, content


GOOD = entry("s/study.json", b'{"schema": 1, "grid": {}, "cells": []}')
HOSTILE = {
    "absolute": entry("/tmp/r3bench-evil", b"x"),
    "parent": entry("s/../../evil", b"x"),
    "parent first": entry("../evil", b"x"),
    "symbolic link": entry("s/link", type=tarfile.SYMTYPE, linkname="/etc"),
    "hard link": entry("s/link", type=tarfile.LNKTYPE, linkname="s/study.json"),
    "device": entry("s/null", type=tarfile.CHRTYPE),
    "pipe": entry("s/pipe", type=tarfile.FIFOTYPE),
    "hidden": entry("s/.bashrc", b"x"),
    "backslash": entry("s\\..\\evil", b"x"),
    "drive": entry("C:/evil", b"x"),
    "control": entry("s/\x1b[31m", b"x"),
    "second top": entry("t/file", b"x"),
    "no folder": entry("file", b"x"),
    "twice": GOOD,
    "twice by case": entry("s/STUDY.json", b"x"),
    "file as folder": entry("s/study.json/x", b"x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_writes_nothing(r3bench: Callable[..., Result], folder: Path, name: str) -> None:
    with tarfile.open(folder / "bad.tar.gz", "w:gz") as archive:
        for member, content in (GOOD, HOSTILE[name]):
            archive.addfile(member, io.BytesIO(content))
    result = r3bench("import", "bad.tar.gz")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "\x1b" not in result.stderr
    assert sorted(path.name for path in folder.rglob("*")) == ["bad.tar.gz", "runs"]
    assert not Path("/tmp/r3bench-evil").exists()


def test_what_is_no_archive(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    r3bench("export", str(study), "whole.tar.gz")
    whole = (folder / "whole.tar.gz").read_bytes()
    bad = {
        "text": b"hello", "empty": b"", "cut": whole[: len(whole) // 2], "gzip": gzip.compress(b"hello"),
        "no files": gzip.compress(b"\0" * 10240),
    }  # fmt: skip
    for name, content in bad.items():
        (folder / name).write_bytes(content)
        result = r3bench("import", name, "--runs", "elsewhere")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), (name, result.stderr)
    assert r3bench("import", "missing").stderr == "r3bench: missing: no such file\n"
    assert not os.listdir("elsewhere")
    with tarfile.open(folder / "plain.tar.gz", "w:gz") as archive:
        member, content = entry("s/notes.txt", b"no study")
        archive.addfile(member, io.BytesIO(content))
    assert "study.json: no such file" in r3bench("import", "plain.tar.gz").stderr


def record(**values: object) -> RunRecord:
    train = TrainRecord("finished", None, 50, 1234, 60.0, "a | device", 2, {}, {"replay": True, "ranking": False})
    summary = {"questions": 30, "samples": 4, "avg@4": 0.25, "pass@4": 0.5, "maj@4": None, "truncated": 0.1}
    fields = {
        "run_id": "r3-s7-abc", "name": "r3", "config_hash": "abc", "seed": 7, "factors": {"replay": "on"},
        "train": train, "eval": {"aime24": summary}, "commit": "0123abc+dirty",
        "started": "2026-01-01", "ended": "2026-01-02",
    }  # fmt: skip
    return RunRecord(**{**fields, **values})  # type: ignore[arg-type]


def test_the_card_says_cell_seed_commit_and_scores(folder: Path) -> None:
    recipe = load_recipe("r3_1.5b")
    text = model_card(recipe, record())
    head = yaml.safe_load(text.split("---")[1])
    assert head["base_model"] == recipe.model.name
    for line in (
        "| Cell | replay=on |", "| Seed | 7 |", "| Commit | 0123abc+dirty |", "| aime24 | avg@4 | 0.2500 | 30 |",
        "| aime24 | pass@4 | 0.5000 | 30 |", "| Components | ranking, reflection, replay (never acted: ranking) |",
        "| Training | finished, 50 updates, 1234 tokens sampled on 2 x a \\| device |",
    ):  # fmt: skip
        assert line in text
    assert "maj@4" not in text
    hostile = model_card(recipe, record(factors={"x": "a\n---\n<script>"}))
    assert "<script>" not in hostile.replace("\\<script\\>", "")
    assert len(hostile.split("\n---\n")) == 2
    paths = RunPaths(folder)
    assert write_card(recipe, record(), paths) is None
    paths.model.mkdir()
    write_card(recipe, record(), paths)
    assert (paths.model / "README.md").read_text() == text


def test_the_schema_of_an_exported_study_is_its_own(study: Path) -> None:
    """What `import` asks of a study.json is what a study writes."""
    assert {"grid", "cells", "schema"} <= json.loads((study / "study.json").read_text()).keys()
