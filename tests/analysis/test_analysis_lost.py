"""Runs without a model: only one that diverged is an outcome; what a machine or a bug ended is missing."""

import json
import shutil

import pytest
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import analyze, load_study, render_tables, write_report
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.cli import app

KINDS = ("bug", "preempted", "timeout", "disk", "out_of_memory", "locked", "stopped", "import", "anything")
ESTIMATES = ("estimate", "se", "df", "low", "high", "p", "p_adjusted", "low_these_questions", "bootstrap_low")


def numbers(root):
    """What an analysis gives, without names, notes and counts of runs."""
    found = analyze(root)
    cells = [{k: v for k, v in c.items() if isinstance(v, float | None)} for c in found["cells"]]
    return [{k: e[k] for k in ("term", "kind", *ESTIMATES)} for e in found["effects"]], cells, found["sensitivity"]


@pytest.mark.parametrize("rule", ["base", "zero", "drop"])
def test_a_run_that_a_machine_ended_is_missing_whatever_is_declared(tmp_path, rule):
    """The numbers are those of the same study without the run; its name, class and number are told."""
    spec = Spec(gave_up=[(2, 1)], analysis={"failed_score": rule})
    root = make_study(tmp_path / "s", spec)
    lost = root / "replay-s1-000000000003"
    without = shutil.copytree(root, tmp_path / "w")
    shutil.rmtree(without / lost.name)
    expected = numbers(without)
    for kind in KINDS:
        events = [{"event": "failure", "kind": kind, "message": f"it was {kind}"}, {"event": "gave_up"}]
        (lost / "attempts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
        assert numbers(root) == expected, kind
        notes = analyze(root)["notes"]
        assert f"{lost.name}: missing ({kind}: it was {kind})" in notes
        assert any(n.startswith(f"1 of 12 runs are missing (1 {kind.replace('_', ' ')})") for n in notes)
        assert not any("diverged" in n for n in notes)
    text = render_tables(root)
    assert "| replay | 2 |" in text and "2 finished, 1 missing" in text and "Sensitivity" not in text
    assert "1 of 12 runs are missing" in write_report(root, tmp_path / "r.html", figures=False).read_text()
    (lost / "attempts.jsonl").write_text(
        json.dumps({"event": "gave_up"}) + "\n"
    )  # as after a full disk: no class noted
    assert numbers(root) == expected


def test_killed_out_of_disk_and_diverged_runs_in_one_study(tmp_path):
    """What each becomes: only the diverged one has a score, and only it is in the sensitivity analysis."""
    spec = Spec(gave_up=[(2, 1), (3, 0)], diverged=[(1, 0)], failure=("preempted", "worker was killed (SIGKILL)"))
    root = make_study(tmp_path / "s", spec)
    full = next(p for p in root.iterdir() if p.name.startswith("replay+ranking-s0"))
    events = [{"event": "failure", "kind": "disk", "message": "No space left on device"}, {"event": "gave_up"}]
    (full / "attempts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    rows = {r.label: r for r in cell_rows(load_study(root))}
    assert {k: (len(r.runs), r.diverged, len(r.missing)) for k, r in rows.items()} == {
        "untrained model": (1, 0, 0), "all off": (3, 0, 0), "ranking": (3, 1, 0), "replay": (2, 0, 1),
        "replay + ranking": (2, 0, 1),
    }  # fmt: skip
    dropped = {r.label: r for r in cell_rows(load_study(root), "drop")}
    for label in ("replay", "replay + ranking", "all off"):
        assert rows[label].accuracy.value == dropped[label].accuracy.value
    base = rows["untrained model"].accuracy.value
    assert rows["ranking"].accuracy.value == pytest.approx((2 * dropped["ranking"].accuracy.value + base) / 3)
    result = CliRunner().invoke(app, ["tables", "s", "--runs", str(tmp_path)])
    assert result.exit_code == 0
    for told in (
        "1 of 12 runs diverged: scored as the untrained model",
        "2 finished, 1 missing",
        "2 finished, 1 diverged",
        "2 of 12 runs are missing (1 disk, 1 preempted)",
        f"{full.name}: missing (disk: No space left on device)",
        "missing (preempted: worker was killed (SIGKILL))",
        "diverged (loss is nan at step 3)",
        "Sensitivity: tested effects without the runs that diverged",
    ):
        assert told in result.output, told


def test_a_cell_that_lost_all_its_runs_has_no_number(tmp_path):
    root = make_study(tmp_path / "s", Spec(gave_up=[(2, s) for s in range(3)]))
    results = load_study(root)
    row = next(r for r in cell_rows(results) if r.label == "replay")
    assert row.accuracy is None and row.gain_off is None and len(row.missing) == 3 and not row.runs
    found, notes = effects(results, draws=0)
    assert any("partial grid: 3 of 4" in n for n in notes)
    assert "| replay | 0 | - |" in render_tables(root)
    assert {e.assumes for e in found if e.kind == "main"} == {"no interaction at all"}


def test_a_diverged_run_is_scored_only_as_declared(tmp_path):
    """Without a measured untrained model there is nothing to score it as: left out, and told."""
    root = make_study(tmp_path / "s", Spec(diverged=[(2, 1)], base_model=False))
    without = shutil.copytree(root, tmp_path / "w")
    shutil.rmtree(without / "replay-s1-000000000003")
    assert numbers(root)[0] == numbers(without)[0]
    assert any("untrained model was not measured" in n for n in analyze(root)["notes"])
    scored = make_study(tmp_path / "z", Spec(diverged=[(2, 1)], base_model=False, analysis={"failed_score": "zero"}))
    row = next(r for r in cell_rows(load_study(scored)) if r.label == "replay")
    other = next(r for r in cell_rows(load_study(scored), "drop") if r.label == "replay")
    assert row.accuracy.value == pytest.approx(2 / 3 * other.accuracy.value)
    assert not any("untrained model was not measured" in n for n in analyze(scored)["notes"])


def test_a_base_model_that_failed_is_not_scored(tmp_path):
    """Its logits are no numbers, say: it has no accuracy, and nothing can be scored as it."""
    root = make_study(tmp_path / "s", Spec(diverged=[(-1, 0)]))
    rows = cell_rows(load_study(root))
    assert all(r.gain_base is None for r in rows) and (rows[0].accuracy, rows[0].diverged) == (None, 0)
    assert not any("runs diverged" in n for n in analyze(root)["notes"])
