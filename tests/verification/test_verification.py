"""`r3bench verify`: an honest study passes, and whatever is changed in it, with or without new digests, is named."""

import gzip
import io
import json
import re
import shutil
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spoil import faults, rescore, reseal, rows_of, run_of
from typer.testing import Result

from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, read_record, write_record
from r3bench.seals import digests
from r3bench.verification.earlier import earlier_tables

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]


def test_an_honest_study_passes_and_nothing_is_written(r3bench: Run, study: Path) -> None:
    before = digests(study, (path for path in study.rglob("*") if path.is_file()))
    result = r3bench("verify", "honest")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("all that could be compared agrees\n")
    checked = json.loads(r3bench("verify", "honest", "--json").stdout)["checked"]
    assert checked["grading"] == 5 * 12
    assert {"study", "records", "configurations", "files", "answers", "golds", "tables"} <= checked.keys()
    assert all(checked.values())
    assert digests(study, (path for path in study.rglob("*") if path.is_file())) == before
    assert json.loads(r3bench("verify", "honest", "--sample", "3", "--json").stdout)["checked"]["grading"] == 5 * 3
    assert "grading" not in json.loads(r3bench("verify", "honest", "--sample", "0", "--json").stdout)["checked"]


def test_a_run_alone_is_verified(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    assert faults(r3bench, run.name) == faults(r3bench, str(run)) == []
    (run / "model" / "weights").write_text("others")
    assert [(check, Path(where).name) for check, where, _ in faults(r3bench, str(run))] == [("files", "weights")]


def test_falsified_verdicts_are_named_even_with_every_digest_and_score_made_anew(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    rows = rows_of(run)
    wrong = [(path, row) for path, found in rows.items() for row in found if not row["correct"]]
    for _, row in wrong:
        row.update(correct=True)
    rescore(run, rows)
    r3bench("tables", "honest")
    found = faults(r3bench, "honest")
    assert {(check, Path(where).name) for check, where, _ in found} == {("grading", path.name) for path, _ in wrong}
    assert len(found) == len(wrong) > 0
    assert f"question {wrong[0][1]['question']}, repeat {wrong[0][1]['repeat']}" in found[0][2]
    r3bench("export", "honest", "out.tar.gz")
    assert len(faults(r3bench, "out.tar.gz")) == len(wrong)  # also with a manifest that was made afterwards


def test_an_extracted_answer_and_a_gold_that_were_changed_are_named(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    rows = rows_of(run)
    path = next(iter(rows))
    right = next(row for row in rows[path] if row["correct"])
    right.update(extracted="43")
    wrong = next(row for row in rows[path] if not row["correct"])
    wrong.update(gold="41", correct=True)
    rescore(run, rows)
    checks = {check for check, _, _ in faults(r3bench, "honest")}
    assert {"grading", "golds"} <= checks


def test_a_score_is_named(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    for key, value in (("avg@2", 0.99), ("pass@2", 0.123), ("maj@2", 0.9), ("mean_tokens", 3.0), ("no_answer", 0.5)):
        whole = (run / "run.json").read_bytes()
        reseal(run / "run.json", lambda v, key=key, value=value: v["eval"]["embedded"].update({key: value}))
        found = faults(r3bench, "honest", "--sample", "0")
        assert ("answers", str(run / "run.json")) in [(check, str(Path(where))) for check, where, _ in found] or any(
            f"{key} is" in what for _, _, what in found
        )
        (run / "run.json").write_bytes(whole)


@pytest.mark.parametrize("also", ["run.json", "run.json and study.json"])
def test_a_moved_factor_is_named(r3bench: Run, study: Path, also: str) -> None:
    """Two runs trade their cells; all digests are made anew."""
    one, other = run_of(study, "replay"), run_of(study, "base")
    a, b = read_json(one / "run.json")["factors"], read_json(other / "run.json")["factors"]
    reseal(one / "run.json", lambda v: v.update(factors=b))
    reseal(other / "run.json", lambda v: v.update(factors=a))
    if "study" in also:
        trade = {one.name: b, other.name: a}

        def traded(spec: dict[str, Any]) -> None:
            for cell in spec["cells"]:
                cell["factors"] = trade.get(cell["run_id"], cell["factors"])

        reseal(
            study / "study.json", lambda v: [c.update(factors=trade.get(c["run_id"], c["factors"])) for c in v["cells"]]
        )
        r3bench("tables", "honest")
    found = faults(r3bench, "honest", "--sample", "0")
    for run in (one, other):
        assert any(run.name in where + what for _, where, what in found), run.name
    told = {check for check, _, _ in found}
    assert "configurations" in told
    assert ("study" if "study" in also else "records") in told


def test_removed_repeats_are_named(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    RunPaths(run).shards()[1].unlink()
    assert {check for check, _, _ in faults(r3bench, "honest", "--sample", "0")} >= {"files", "answers"}
    write_record(read_record(RunPaths(run)), RunPaths(run))
    found = faults(r3bench, "honest", "--sample", "0")
    assert any(check == "answers" and "has 1 answers, expected 2" in what for check, _, what in found)


def test_answers_that_are_copies_of_others_are_named(r3bench: Run, study: Path) -> None:
    """A wrong answer replaced by a right one to the same question, and one moved to another question."""
    run = run_of(study, "replay")
    rows = rows_of(run)
    path = next(iter(rows))
    right = next(row for row in rows[path] if row["correct"])
    for row in rows[path]:
        if not row["correct"]:
            row.update({**right, "question": row["question"]})
    rescore(run, rows)
    found = faults(r3bench, "honest")
    assert any(check == "answers" and "its seed is that of another answer" in what for check, _, what in found)


@pytest.mark.parametrize("what", [".", "eval", "run.json", "train.json", "config.json"])
@pytest.mark.parametrize("resealed", [False, True])
def test_swapped_runs_are_named(r3bench: Run, study: Path, what: str, resealed: bool) -> None:
    one, other = run_of(study, "replay"), run_of(study, "base")
    for a, b in ((one, study / "spare"), (other, one), (study / "spare", other)):
        if what == ".":
            shutil.move(a, b)
        else:
            b.mkdir(exist_ok=True)
            shutil.move(a / what, b / what)
    shutil.rmtree(study / "spare", ignore_errors=True)
    if resealed and what == ".":
        for run in (one, other):
            reseal(run / "run.json", lambda v, run=run: v.update(run_id=run.name))
    elif resealed and what != "run.json":
        for run in (one, other):
            write_record(read_record(RunPaths(run)), RunPaths(run))
    found = faults(r3bench, "honest", "--sample", "0")
    for run in (one, other):
        assert any(run.name in where + what for _, where, what in found), (run.name, found)


def test_edited_tables_are_named_with_their_line(r3bench: Run, study: Path) -> None:
    for file in sorted((study / "tables").iterdir()):
        whole = file.read_bytes()
        if file.suffix == ".parquet":
            file.write_bytes(whole[:-20])
        else:
            text = whole.decode()
            place = next(i for i in range(len(text) // 2, len(text)) if text[i].isdigit())
            file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        found = faults(r3bench, "honest", "--sample", "0")
        assert [(check, Path(where).name) for check, where, _ in found] == [("tables", file.name)]
        file.write_bytes(whole)


def test_tables_in_the_form_of_an_earlier_version_pass_with_a_note(r3bench: Run, study: Path) -> None:
    file = study / "tables" / "tables.tex"
    text = earlier_tables(study)
    assert text.startswith("\\begin{table}[ht]\n\\centering\\small\n\\caption{honest: ")
    file.write_text(text)
    result = r3bench("verify", "honest", "--sample", "0")
    assert result.exit_code == 0 and "in the form of an earlier version" in result.stdout
    place = next(i for i in range(len(text) // 2, len(text)) if text[i].isdigit())
    file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    found = faults(r3bench, "honest", "--sample", "0")
    assert [(check, Path(where).name) for check, where, _ in found] == [("tables", "tables.tex")]


def test_an_edited_study_file_is_named(r3bench: Run, study: Path) -> None:
    file = study / "study.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"margin"', b'"margim"'))
    write_json(file, {**read_json(file), "duplicates": []}, sort_keys=False)
    reseal_changes: list[Callable[[dict[str, Any]], object]] = [
        lambda v: v["cells"].pop(),
        lambda v: v["cells"][1].update(seed=4),
        lambda v: v["cells"][1].update(config_hash="0" * 12),
        lambda v: v["grid"].update(seeds=[0, 1]),
    ]
    for change in reseal_changes:
        file.write_bytes(whole)
        reseal(file, change)
        found = faults(r3bench, "honest", "--sample", "0")
        assert any(check in ("study", "records") for check, _, _ in found), found
    file.write_bytes(whole.replace(b'"replay"', b'"repl\\u0061y"'))  # the same
    assert faults(r3bench, "honest", "--sample", "0") == []
    for text in (b"", b"{", b"[" * 200_000, whole.replace(b'"seed": 0', b'"seed": 1', 1)):
        file.write_bytes(text)
        assert any(check == "study" for check, _, _ in faults(r3bench, "honest", "--sample", "0"))


@pytest.mark.parametrize("change", ["model", "log", "checkpoint", "environment", "attempts", "config"])
def test_every_other_file_is_named(r3bench: Run, study: Path, change: str) -> None:
    run = run_of(study, "replay")
    file = {
        "model": run / "model" / "weights", "log": run / "metrics.jsonl", "environment": run / "environment.json",
        "attempts": run / "attempts.jsonl", "config": run / "config.json",
        "checkpoint": run / "checkpoints" / "checkpoint-2" / "weights",
    }[change]  # fmt: skip
    if change == "checkpoint":
        from r3bench.training.checkpoint import mark_complete

        mark_complete(file.parent)
        assert faults(r3bench, "honest", "--sample", "0") == []
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    found = [Path(where).absolute() for _, where, _ in faults(r3bench, "honest", "--sample", "0")]
    assert file in found or file.parent in found


def test_unfinished_and_older_studies_are_told_and_no_fault(r3bench: Run, study: Path) -> None:
    shutil.rmtree(run_of(study, "replay"))
    shutil.rmtree(study / "tables")
    result = r3bench("verify", "honest", "--sample", "0")
    assert result.exit_code == 0, result.stdout
    assert "not finished (no run.json)" in result.stdout
    done = r3bench("export", "honest", "part.tar.gz")
    assert "not finished: 1 runs (replay-s0-" in done.stderr


def test_an_archive_has_a_manifest_and_its_tables(r3bench: Run, study: Path) -> None:
    assert r3bench("export", "honest", "out.tar.gz").exit_code == 0
    with tarfile.open("out.tar.gz") as archive:
        names = archive.getnames()
        manifest = json.load(archive.extractfile("honest/manifest.json"))  # type: ignore[arg-type]
    assert "honest/tables/tables.md" in names
    assert {f"honest/{name}" for name in manifest["files"]} == set(names) - {"honest/manifest.json"}
    assert manifest["unfinished"] == []
    checked = json.loads(r3bench("verify", "out.tar.gz", "--json").stdout)["checked"]
    assert checked["archive"] == len(manifest["files"])
    assert r3bench("import", "out.tar.gz", "--runs", "there").exit_code == 0
    assert not Path("there/honest/manifest.json").exists()
    assert faults(r3bench, "there/honest") == []


def repack(change: Callable[[str, bytes], bytes | None], extra: dict[str, bytes] | None = None) -> None:
    """`out.tar.gz` with its files changed or left out, as `bad.tar.gz`."""
    with tarfile.open("out.tar.gz") as old, tarfile.open("bad.tar.gz", "w:gz") as new:
        for member in old:
            content = change(member.name, old.extractfile(member).read())  # type: ignore[union-attr]
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
        for name, content in (extra or {}).items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            new.addfile(about, io.BytesIO(content))


def test_whatever_is_changed_in_an_archive_is_refused_and_named(r3bench: Run, study: Path) -> None:
    r3bench("export", "honest", "out.tar.gz")
    with tarfile.open("out.tar.gz") as archive:
        names = archive.getnames()
    for name in names:
        repack(lambda n, c, name=name: c + b" " if n == name else c)
        result = r3bench("import", "bad.tar.gz", "--runs", "there")
        same = name.endswith("manifest.json")  # a blank behind it says nothing else
        assert (result.exit_code == 0) == same, name
        if not same:
            assert name.removeprefix("honest/") in result.stderr
            assert result.stderr.count("\n") == 1
            assert not list(Path("there").glob("*"))
        shutil.rmtree("there", ignore_errors=True)
    repack(lambda n, c: None if n.endswith("attempts.jsonl") else c)
    assert "attempts.jsonl: is missing" in r3bench("import", "bad.tar.gz", "--runs", "there").stderr
    repack(lambda n, c: c, {"honest/planted.txt": b"x"})
    assert "planted.txt: is not in the manifest" in r3bench("import", "bad.tar.gz", "--runs", "there").stderr
    repack(lambda n, c: c.replace(b'"unfinished": []', b'"unfinished": 3') if n.endswith("manifest.json") else c)
    assert "manifest.json: " in r3bench("import", "bad.tar.gz", "--runs", "there").stderr
    assert r3bench("import", "bad.tar.gz", "--anyway", "--study", "x").exit_code == 0
    repack(lambda n, c: None if n.endswith("manifest.json") else c)
    told = r3bench("import", "bad.tar.gz", "--study", "old")
    assert told.exit_code == 0
    assert "no manifest" in told.stderr


def test_a_header_that_claims_gigabytes_is_refused_at_once(r3bench: Run, folder: Path) -> None:
    member = tarfile.TarInfo("s/study.json")
    member.type, member.size = tarfile.XHDTYPE, 2 << 30
    with gzip.open("bad.tar.gz", "wb") as file:
        file.write(member.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    start = time.process_time()
    result = r3bench("import", "bad.tar.gz")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "bad.tar.gz: a header in it claims" in result.stderr
    assert tracemalloc.get_traced_memory()[1] < 50e6
    assert time.process_time() - start < 20
    tracemalloc.stop()


@pytest.mark.parametrize("run", ["../../../etc", "a/b", "", ".", "..", "x" * 300, "a\nb", 3, None])
def test_a_run_id_that_leads_elsewhere_is_refused(r3bench: Run, study: Path, run: object) -> None:
    reseal(study / "study.json", lambda v: v["cells"][0].update(run_id=run))
    for arguments in (("tables", "honest"), ("status", "honest"), ("export", "honest", "out.tar.gz")):
        result = r3bench(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1), arguments
        assert "study.json: cells[0]: run_id: got" in result.stderr
    with tarfile.open("bad.tar.gz", "w:gz") as archive:
        archive.add(study / "study.json", "s/study.json")
    assert r3bench("import", "bad.tar.gz").exit_code == 2
    assert any(check == "study" for check, _, _ in faults(r3bench, "honest", "--sample", "0"))


def test_recorded_results_pass_and_say_what_can_be_told(r3bench: Run) -> None:
    for name in ("quickstart", "embedded_components", "smollm2_gsm8k"):
        result = r3bench("verify", str(ROOT / "results" / name))
        assert result.exit_code == 0, result.stdout
        assert "can't be" in result.stdout or "can go unseen" in result.stdout


@pytest.mark.parametrize("file", ["effects.csv", "cells.csv", "tables.md", "questions.parquet"])
def test_recorded_results_that_were_edited_are_named(r3bench: Run, folder: Path, file: str) -> None:
    copy = Path(shutil.copytree(ROOT / "results" / "quickstart", folder / "copy"))
    path = copy / file
    if file == "questions.parquet":
        path.write_bytes(path.read_bytes()[:-9])
    elif file == "tables.md":
        path.write_text(re.sub(r"\| (\d)(\d\.\d \()", r"| 8\2", path.read_text(), count=1))
    else:
        path.write_text(re.sub(r"\b0\.\d{6,}", lambda number: f"{float(number[0]) + 0.01}", path.read_text(), count=1))
    assert {Path(where).name for _, where, _ in faults(r3bench, str(copy))} >= {file}


def test_what_cannot_be_verified_is_one_line(r3bench: Run, folder: Path) -> None:
    (folder / "text").write_text("hello")
    for target, code in (("nowhere", 3), (str(folder), 3), ("text", 2)):
        result = r3bench("verify", target)
        assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.stderr
    assert r3bench("verify", "text", "--sample", "-1").exit_code == 2


def test_an_excluded_run_is_told_and_travels(study: Path, r3bench: Callable[..., Result], folder: Path) -> None:
    run = next(path.parent.name for path in sorted(study.glob("replay*/run.json")))
    assert r3bench("exclude", run, "--reason", "a power cut").exit_code == 0
    before = r3bench("verify", "honest")
    assert before.exit_code == 3, "its tables are of before the exclusion"
    assert "tables.md: line" in before.stdout
    assert r3bench("tables", "honest").exit_code == 0
    after = r3bench("verify", "honest")
    assert after.exit_code == 0, after.stdout
    assert f"note: {run}: left out, excluded by hand" in after.stdout
    assert r3bench("export", "honest", "x.tar.gz").exit_code == 0
    assert "a power cut" in r3bench("verify", "x.tar.gz").stdout
    assert r3bench("import", "x.tar.gz", "--study", "theirs").exit_code == 0
    assert "a power cut" in r3bench("tables", "theirs").stdout
    text = (study / "exclusions.jsonl").read_text()
    (study / "exclusions.jsonl").write_text(text.replace("power", "tower"))
    assert "line 1 is torn or damaged" in r3bench("verify", "honest").stdout
    assert r3bench("tables", "honest").exit_code == 3
