"""Tables from elsewhere are read as they are meant, or refused with what to say: factors, reference, copies, gaps."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import analyze, load_study
from r3bench.analysis.output.external import load_table
from r3bench.analysis.output.tables import cell_frame, write_tables
from r3bench.analysis.reading.columns import Reading
from r3bench.analysis.reading.longtable import long_table
from r3bench.cli import app
from r3bench.errors import ConfigError, DataError

NUMBERS = ("estimate", "se", "df", "low", "high", "p", "p_adjusted", "low_these_questions", "equivalence_p")


def made(runs, questions=12, samples=8, seed=0, benchmarks=("b",)):
    """A table; runs: one mapping per run of its columns, `run` and `seed` among them."""
    rng = np.random.default_rng(seed)
    rows = []
    for run in runs:
        for benchmark in benchmarks:
            shift = rng.normal(0.0, 0.5)
            for q in range(questions):
                p = 1 / (1 + np.exp(-(shift + 0.4 * (q - questions / 2))))
                rows.append({**run, "benchmark": benchmark, "question": f"q{q}", "samples": samples,
                             "correct": int(rng.binomial(samples, p))})  # fmt: skip
    return pd.DataFrame(rows)


def crossed(seeds=3, unique=False, **factors):
    """Every combination of levels with every seed."""
    runs = [{}]
    for factor, levels in factors.items():
        runs = [{**r, factor: v} for r in runs for v in levels]
    out = [{"seed": s, **r} for r in runs for s in range(seeds)]
    return [{"run": f"r{i}", **r, **({"seed": i} if unique else {})} for i, r in enumerate(out)]


def saved(frame, tmp_path, name="t.csv"):
    path = tmp_path / name
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def numbers(found):
    return {(e["benchmark"], e["kind"], e["term"]): [e[k] for k in NUMBERS] for e in found["effects"]}


ODD = ("base", "model", "order", "dataset", "seed2", "data_seed", "cell", "runs", "accuracy", "tokens2", "missing",
       "benchmark ", "a=b", "factor.x", "outcome2", "name", "best")  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_factor_may_have_any_name(tmp_path, name):
    """The numbers are those under a plain name, also in the files that are written and read again."""
    frame = made(crossed(replay=["off", "on"], backbone=["llama", "qwen"]))
    plain = analyze(saved(frame, tmp_path))
    file = saved(frame.rename(columns={"backbone": name}), tmp_path, "odd.csv")
    named = analyze(file)
    odd = numbers(named)
    assert list(odd.values()) == list(numbers(plain).values()) and len(odd) > 8
    assert any(name.strip() in e["term"] for e in named["effects"])
    results = load_table(file)
    write_tables(results, tmp_path / "out")
    again = analyze(tmp_path / "out" / "questions.parquet")
    assert numbers(again) == odd
    from r3bench.analysis.statistics.cells import cell_rows

    heads = [c.name for c in cell_frame(cell_rows(results)).columns]
    assert len(heads) == len(set(heads)) and any(h.endswith(name) for h in heads)


@pytest.mark.parametrize("mark", ["model", "Model", " MODEL "])
def test_base_marks_the_untrained_model_with_one_word(tmp_path, mark):
    runs = crossed(replay=["off", "on"])
    runs = [{**r, "base": ""} for r in runs] + [{"run": "m", "seed": 0, "replay": "", "base": mark}]
    results = load_table(saved(made(runs), tmp_path))
    assert [r.run for r in results.runs if r.base] == ["m"] and list(results.factors) == ["replay"]


@pytest.mark.parametrize("flag", ["yes", "True", "1", "on", "x", True, 1])
def test_base_as_a_flag_is_refused(tmp_path, flag):
    runs = crossed(replay=["off", "on"])
    runs = [{**r, "base": ""} for r in runs] + [{"run": "m", "seed": 0, "replay": "off", "base": flag}]
    with pytest.raises(DataError, match=r"row \d+: base: got .*expected 'model'.*--rename base=NAME"):
        analyze(saved(made(runs), tmp_path))
    both = [{**r, "base": "qwen"} for r in crossed(replay=["off", "on"])] + [{**runs[-1], "base": "model"}]
    with pytest.raises(DataError, match="base: got 'qwen', but row 73 has 'model'"):
        analyze(saved(made(both), tmp_path))


def test_columns_that_are_no_factor_are_named_and_take_nothing_away(tmp_path):
    runs = crossed(replay=["off", "on"])
    plain = analyze(saved(made(runs), tmp_path))
    more = [{**r, "split": "test", "copy": r["seed"], "id": r["run"], "lib": 1.5} for r in runs]
    found = analyze(saved(made(more), tmp_path, "more.csv"))
    assert numbers(found) == numbers(plain)
    assert [c["cell"] for c in found["cells"]] == [c["cell"] for c in plain["cells"]]
    for told in ("'split' is no factor: it is 'test' in all trained runs", "'copy' is no factor: it repeats the seed",
                 "'id' is no factor: it repeats the run's name", "'lib' is no factor: it is '1.5'"):  # fmt: skip
        assert any(told in n for n in found["notes"]), told
    assert not any("no factor" in n for n in plain["notes"])


def gpu(i, r):
    return "ab"[(i + r["seed"]) % 2]


NUISANCE = {
    "date of an arm": lambda i, r: "2025-01" if r["replay"] == "off" else "2025-02",
    "date of a run": lambda i, r: f"2025-01-{i + 1:02d}",
    "device by seed": lambda i, r: "ab"[r["seed"] % 2],
    "device at random": lambda i, r: "aabbabbaabab"[i],
    "step of one run": lambda i, r: 900 if i == 1 else 1000,
    "copy of the seed, spelled": lambda i, r: f"s{r['seed']}",
    "id": lambda i, r: f"wandb-{i * 7919 % 1000}",
}


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("what", list(NUISANCE))
def test_a_column_that_may_be_a_circumstance_is_named_with_what_to_say(tmp_path, what, unique):
    if unique and ("device" in what or "spelled" in what):
        pytest.skip("nothing tells such a column from a factor where every run has a seed of its own")
    runs = crossed(replay=["off", "on"], seeds=4)
    frame = made([{**r, "extra": NUISANCE[what](i, r)} for i, r in enumerate(runs)])
    if unique:
        frame["seed"] = frame["run"].str[1:].astype(int) + 10
    path = saved(frame, tmp_path)
    with pytest.raises(DataError, match=r"columns? 'extra'|and 'extra'|'replay'.*--ignore extra") as error:
        analyze(path)
    assert "--factors" in str(error.value) and "--ignore extra" in str(error.value)
    plain = analyze(saved(frame.drop(columns="extra"), tmp_path, "plain.csv"))
    for option in (["--ignore", "extra"], ["--factors", "replay"]):
        done = CliRunner().invoke(app, ["analyze", str(path), "--json", *option])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert numbers(found) == numbers(plain)
        assert any("column 'extra' was not read" in n for n in found["notes"])


DESIGNS = {
    "crossed": crossed(replay=["off", "on"], ranking=["off", "on"]),
    "crossed, seeds of their own": crossed(replay=["off", "on"], ranking=["off", "on"], unique=True),
    "one seed": crossed(replay=["off", "on"], ranking=["off", "on"], seeds=1),
    "one seed each": crossed(replay=["off", "on"], ranking=["off", "on"], seeds=1, unique=True),
    "one factor, seeds of their own": crossed(method=["grpo", "dapo", "ppo"], unique=True),
    "one run a model": crossed(model=list("abcdef"), seeds=1),
    "one run": crossed(model=["a"], seeds=1),
    "unbalanced": [r for i, r in enumerate(crossed(replay=["off", "on"], ranking=["off", "on"], seeds=6)) if i % 5],
    "add one": [r for r in crossed(a=["off", "on"], b=["off", "on"], c=["off", "on"])
                if [r["a"], r["b"], r["c"]].count("on") < 2],
    "leave one out": [r for r in crossed(a=["off", "on"], b=["off", "on"], c=["off", "on"])
                      if [r["a"], r["b"], r["c"]].count("on") > 1],
    "half fraction": [r for r in crossed(a=["off", "on"], b=["off", "on"], c=["off", "on"])
                      if [r["a"], r["b"], r["c"]].count("on") % 2 == 0],
    "half fraction, one seed": [r for r in crossed(a=["off", "on"], b=["off", "on"], c=["off", "on"], seeds=1)
                                if [r["a"], r["b"], r["c"]].count("on") % 2 == 0],
    "levels": crossed(ranking=["off", "on", "random"], rate=[0.1, 0.5]),
}  # fmt: skip


@pytest.mark.parametrize("design", list(DESIGNS))
def test_designs_are_taken_as_they_are(tmp_path, design):
    runs = DESIGNS[design]
    results = load_table(saved(made(runs), tmp_path))
    factors = [f for f in runs[0] if f not in ("run", "seed")]
    varied = [f for f in factors if len({r[f] for r in runs}) > 1]
    assert list(results.factors) == varied
    assert len(results.cells) == len({tuple(str(r[f]) for f in varied) for r in runs})


def test_the_reference_is_what_was_said(tmp_path):
    runs = crossed(method=["grpo", "dapo", "ppo"])
    path = saved(made(runs), tmp_path)
    first = analyze(path)
    note = "reference of method: dapo, the first in order, since none was named (--reference method=LEVEL)"
    assert note in first["notes"]
    done = CliRunner().invoke(app, ["analyze", str(path), "--json", "--reference", "method=grpo"])
    found = json.loads(done.stdout)
    assert not any("first in order" in n for n in found["notes"])
    mains = {e["term"]: e["estimate"] for e in found["effects"] if e["kind"] == "main"}
    means = {c["levels"]["method"]: c["accuracy"] for c in found["cells"]}
    assert mains == pytest.approx({f"method={m}": means[m] - means["grpo"] for m in ("dapo", "ppo")})
    fixed = tmp_path / "d.yaml"
    fixed.write_text("levels: {method: [ppo, grpo, dapo]}\nmargin: 0.02\n")
    done = CliRunner().invoke(app, ["analyze", str(path), "--json", "--declared", str(fixed)])
    assert [e["term"] for e in json.loads(done.stdout)["effects"] if e["kind"] == "main"] == [
        "method=grpo",
        "method=dapo",
    ]
    for said, message in [
        ("metod=grpo", "no such factor; did you mean 'method'"),
        ("method=gpo", "no such level.*'grpo'"),
        ("method", "expected FACTOR=LEVEL"),
    ]:
        done = CliRunner().invoke(app, ["analyze", str(path), "--reference", said])
        assert done.exit_code == 2 and re.search(message, str(done.exception) + done.output), done.output


@pytest.mark.parametrize("levels", [("OFF", "On"), ("No", "YES"), ("None", "True"), ("False", "True"), ("0", "1")])
def test_off_in_any_spelling_is_the_reference_and_all_off(tmp_path, levels):
    found = analyze(saved(made(crossed(replay=list(levels))), tmp_path))
    assert {e["term"] for e in found["effects"]} == {"replay"}
    assert {c["cell"] for c in found["cells"]} == {"all off", "replay"}
    assert not any("first in order" in n for n in found["notes"])


@pytest.mark.parametrize("pair", [("on", "On"), ("1e-4", "0.0001"), ("0.1", "0.10"), ("my  way", "My way")])
def test_one_level_in_two_spellings_is_refused(tmp_path, pair):
    runs = crossed(rate=["other", pair[0]])
    runs[4]["rate"] = pair[1]
    with pytest.raises(DataError, match=r"row \d+: rate: got '.*' in row \d+: one level in two spellings"):
        analyze(saved(made(runs), tmp_path))


def test_levels_that_differ_late_are_told_apart(tmp_path):
    for values in ([1000001, 1000002], [0.12345671, 0.12345672]):
        for name in ("t.csv", "t.parquet"):
            results = load_table(saved(made(crossed(step=values)), tmp_path, name))
            assert results.factors["step"] == tuple(map(str, values))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_copy_of_a_run_is_refused(tmp_path, shuffled):
    frame = made(crossed(replay=["off", "on"]))
    copy = frame[frame["run"] == "r4"].assign(run="again")
    frame = pd.concat([frame, copy.sample(frac=1, random_state=1) if shuffled else copy], ignore_index=True)
    with pytest.raises(DataError, match="runs 'r4' and 'again': one cell, seed 1 and the same counts"):
        analyze(saved(frame, tmp_path))
    with pytest.raises(DataError, match="runs 'r4' and 'again'"):  # also with a question less
        analyze(saved(frame.drop(index=len(frame) - 1), tmp_path))


def test_runs_of_one_cell_and_seed_are_told(tmp_path):
    frame = made(crossed(replay=["off", "on"]))
    assert not any("share seed" in n or "same counts" in n for n in analyze(saved(frame, tmp_path))["notes"])
    other = frame[frame["run"] == "r4"].assign(run="again")
    other.loc[other.index[0], "correct"] = (other["correct"].iloc[0] + 1) % 9
    notes = analyze(saved(pd.concat([frame, other]), tmp_path))["notes"]
    assert any("runs r4, again of one cell share seed 1 and count as 2 replicates" in n for n in notes)
    other = frame[frame["run"] == "r4"].assign(run="again", seed=9)
    notes = analyze(saved(pd.concat([frame, other]), tmp_path))["notes"]
    assert any("runs r4 and again of one cell have the same counts" in n for n in notes)


def test_a_question_that_one_run_lacks_is_left_out_with_a_note(tmp_path):
    frame = made(crossed(replay=["off", "on"]), benchmarks=("a", "b"))
    lacking = frame.drop(index=17)
    gone = frame.loc[17]
    want = analyze(saved(frame[~((frame["benchmark"] == gone["benchmark"]) & (frame["question"] == gone["question"]))],
                         tmp_path, "want.csv"))  # fmt: skip
    found = analyze(saved(lacking, tmp_path))
    assert numbers(found) == numbers(want)
    assert (
        f"{gone['benchmark']}: 1 of 12 questions left out, not answered by every run (r0 answered 11)" in found["notes"]
    )
    assert not any("left out" in n for n in want["notes"])


def test_a_benchmark_that_one_run_lacks_costs_that_run_there_only(tmp_path):
    frame = made(crossed(replay=["off", "on"]), benchmarks=("a", "b"))
    found = analyze(saved(frame[~((frame["run"] == "r2") & (frame["benchmark"] == "b"))], tmp_path))
    assert "r2: no answers for b" in found["notes"]
    cells = {(c["benchmark"], c["cell"]): (c["runs"], c["missing"]) for c in found["cells"]}
    assert cells["a", "all off"] == (["r0", "r1", "r2"], []) and cells["b", "all off"] == (["r0", "r1"], ["r2"])


def test_names_in_a_file_may_change_places(tmp_path):
    runs = crossed(replay=["off", "on"])
    path = saved(made(runs), tmp_path)
    odd = made(runs).rename(columns={"run": "id", "replay": "run", "correct": "n_right"})
    done = CliRunner().invoke(
        app, ["analyze", str(saved(odd, tmp_path, "odd.csv")), "--json", "--rename", "id=run", "--rename", "run=replay",
              "--rename", "n_right=correct"],
    )  # fmt: skip
    assert done.exit_code == 0 and numbers(json.loads(done.stdout)) == numbers(analyze(path)), done.output
    for rename, message in [
        ({"nope": "x"}, "no such column"),
        ({"replay": "seed"}, "two columns would be called 'seed'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            analyze(path, reading=Reading(rename=rename))
    for reading, message in [
        (Reading(factors=("repaly",)), "did you mean 'replay'"),
        (Reading(ignore=("seed",)), "needed"),
        (Reading(factors=("replay",), ignore=("replay",)), "stands in"),
    ]:
        with pytest.raises(ConfigError, match=message):
            analyze(path, reading=reading)


@pytest.mark.parametrize("command", ["analyze", "tables", "report"])
def test_every_command_on_a_table_takes_the_same_options(tmp_path, command):
    frame = made([{**r, "when": f"d{i}"} for i, r in enumerate(crossed(method=["grpo", "dapo"]))])
    path = saved(frame.rename(columns={"run": "id"}), tmp_path)
    fixed = tmp_path / "d.yaml"
    fixed.write_text("confidence: 0.9\nmargin: 0.03\n")
    options = ["--declared", str(fixed), "--ignore", "when", "--rename", "id=run", "--reference", "method=grpo"]
    done = CliRunner().invoke(app, [command, str(path), *options])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text() if command == "report" else done.output
    assert "90 %" in text and "method=dapo" in text and "3.0 points" in text and "first in order" not in text
    if command == "tables":
        assert (tmp_path / "t-tables" / "questions.parquet").exists()
    done = CliRunner().invoke(app, ["compare", str(path), "r0", "r1", *options])
    assert done.exit_code == 0 and "90 % interval" in done.output, done.output


def test_compare_of_a_table_is_the_paired_test_of_its_rows(tmp_path):
    from r3bench.evaluation.compare import paired

    frame = made(crossed(model=["a", "b"], seeds=1))
    path = saved(frame, tmp_path)
    done = CliRunner().invoke(app, ["compare", str(path), "r1", "r0", "--json"])
    share = {r: g.sort_values("question")["correct"].to_numpy() / 8 for r, g in frame.groupby("run")}
    (row,) = json.loads(done.stdout)["tasks"]
    assert {k: row[k] for k in ("difference", "low", "high", "p")} == pytest.approx(
        {k: paired(share["r1"], share["r0"])[k] for k in ("difference", "low", "high", "p")}
    )
    for words, message in [(["r0"], "expected the names of two runs"), (["r0", "r9"], "no run 'r9'"),
                           (["r0", "r1", "--tasks", "c"], "no benchmark 'c'")]:  # fmt: skip
        done = CliRunner().invoke(app, ["compare", str(path), *words])
        assert done.exit_code == 2 and message in str(done.exception) + done.output


STUDIES = {
    "levels out of order": Spec(factors={"lr": ["0.0008", "0.0001"], "a": ["on", "off"]}, effects={"lr": -2.0}),
    "diverged and missing": Spec(
        diverged=[(1, 0)], gave_up=[(2, 1)], analysis={"failed_score": "base", "margin": 0.05}
    ),
    "scored zero": Spec(diverged=[(1, 0)], analysis={"failed_score": "zero", "confidence": 0.9, "primary": ["replay"]}),
    "odd names": Spec(factors={"base": ["off", "on"], "run": ["off", "on"], "tokens": ["off", "on"]}, effects={}),
    "macro": Spec(benchmarks={"x": 20, "y": 10, "z": 8}, analysis={"macro": ["x", "y"]}),
}


@pytest.mark.parametrize("case", list(STUDIES))
def test_the_counts_of_a_study_give_all_of_its_tables_again(tmp_path, case):
    """Levels in their order, the reference, what was declared, runs without a model: all numbers and notes."""
    root = make_study(tmp_path / "demo", STUDIES[case])
    write_tables(root, tmp_path / "out")
    file = tmp_path / "out" / "questions.parquet"
    first, again = analyze(root), analyze(file)
    assert first["effects"] == again["effects"] and first["sensitivity"] == again["sensitivity"]
    assert first["notes"] == again["notes"] and first["variance"].keys() == again["variance"].keys()
    skip = ("acted", "summary", "generated_tokens", "train_seconds", "tokens", "truncated")
    for cell, other in zip(first["cells"], again["cells"], strict=True):
        assert {k: v for k, v in cell.items() if k not in skip} == {k: v for k, v in other.items() if k not in skip}
    results, back = load_study(root), load_table(file)
    assert dict(results.factors) == dict(back.factors) and results.declared == back.declared
    assert long_table(back).equals(long_table(results))


def test_another_reference_than_the_declared_one_is_told(tmp_path):
    root = make_study(tmp_path / "demo")
    write_tables(root, root / "tables")
    note = "reference of replay: on, chosen now; the study had declared off beforehand"
    for path in (root, root / "tables" / "questions.parquet"):
        found = analyze(path, reading=Reading(reference={"replay": "on"}))
        assert note in found["notes"] and "replay=off" in {e["term"] for e in found["effects"]}
        assert note not in analyze(path)["notes"]
    with pytest.raises(ConfigError, match="--factors, --ignore and --rename are for a table"):
        analyze(root, reading=Reading(ignore=("x",)))
    declared = load_study(root).declared
    with pytest.raises(ConfigError, match="--declared is for a table"):
        analyze(root, declared)
    told = analyze(root / "tables" / "questions.parquet", replace(declared, margin=0.2))["notes"]
    assert any("declared was given now" in n or "what is declared was given now" in n for n in told)


def test_a_run_that_diverged_can_be_told_in_a_table(tmp_path):
    frame = made([*crossed(replay=["off", "on"]), {"run": "m", "seed": 0, "replay": "", "base": "model"}])
    frame["base"] = frame["base"].fillna("")
    frame["outcome"] = "finished"
    frame.loc[frame["run"] == "r4", ["outcome", "samples", "correct"]] = ["diverged", 0, 0]
    frame.loc[frame["run"] == "r5", ["outcome", "samples", "correct"]] = ["missing", 0, 0]
    found = analyze(saved(frame, tmp_path))
    cell = next(c for c in found["cells"] if c["cell"] == "replay")
    assert (cell["runs"], cell["diverged"], cell["missing"]) == (["r3", "r4"], 1, ["r5"])
    one, base = (next(c for c in found["cells"] if c["base_model"] == b and c["cell"] != "all off")["accuracy"]
                 for b in (False, True))  # fmt: skip
    alone = analyze(saved(frame[~frame["run"].isin(["r4", "r5"])], tmp_path, "alone.csv"))
    kept = next(c for c in alone["cells"] if c["cell"] == "replay")["accuracy"]
    assert one == pytest.approx((kept + base) / 2)
    frame.loc[frame["run"] == "r4", "samples"] = 8
    with pytest.raises(DataError, match="samples: got 8 for a run without a score"):
        analyze(saved(frame, tmp_path))
    with pytest.raises(DataError, match="outcome: got 'crashed', expected finished, diverged or missing"):
        analyze(saved(frame.assign(outcome="crashed"), tmp_path))


def test_edited_metadata_is_refused_by_name(tmp_path):
    import pyarrow.parquet as pq

    root = make_study(tmp_path / "demo")
    write_tables(root, tmp_path)
    file = tmp_path / "questions.parquet"
    table = pq.read_table(file)
    wrong = b'{"name": "x", "factors": {}, "levels": {"a": 1}, "declared": {}, "reasons": {}, "notes": []}'
    for text in (b"{", b"[]", b'{"name": 1}', b"\xff", wrong):
        pq.write_table(table.replace_schema_metadata({b"r3bench.analysis": text}), file)
        done = CliRunner().invoke(app, ["analyze", str(file)])
        assert done.exit_code in (2, 3) and "questions.parquet" in str(done.exception) + done.output
