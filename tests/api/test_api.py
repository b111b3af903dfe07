"""`import r3bench` in a script: grids from mappings, studies as DataFrames, axes, and mistakes in one line."""

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic import Spec, make_study

import r3bench

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_study(
        tmp_path_factory.mktemp("runs") / "demo", Spec(benchmarks={"embedded": 40, "amc": 30}, metrics=True)
    )


@pytest.fixture(scope="module")
def study(folder):
    return r3bench.load(str(folder))


def test_tables_are_those_of_analyze(study, folder):
    found = r3bench.analyze(str(folder))
    assert study.effects.to_dict("records")[0]["estimate"] == found["effects"][0]["estimate"]
    assert len(study.effects) == len(found["effects"])
    assert study.cells["accuracy"].tolist() == [c["accuracy"] for c in found["cells"]]
    assert study.notes == found["notes"]
    assert list(study.factors) == [c for c in study.cells.columns if c in study.factors]
    assert study.table("markdown").count("|") > 20


def test_runs_questions_answers_and_curves_add_up(study):
    from_answers = study.answers.groupby(["run", "benchmark"])["correct"].mean()
    from_questions = study.questions.assign(share=lambda f: f["correct"] / f["samples"])
    from_questions = from_questions.groupby(["run", "benchmark"])["share"].mean()
    for row in study.runs.itertuples():
        for benchmark in study.benchmarks:
            value = getattr(row, benchmark)
            assert value == pytest.approx(from_questions[row.run, benchmark])
            assert value == pytest.approx(from_answers[row.run, benchmark])
    trained = study.runs[~study.runs["base_model"]]
    assert set(study.curves["run"]) == set(trained["run"])
    for run, curve in study.curves.groupby("run"):
        log = [json.loads(line) for line in (study.path / run / "metrics.jsonl").read_text().splitlines()]
        log = [line for line in log if "correct" in line or "reward" in line]
        assert curve["step"].tolist() == [line["step"] for line in log]


def test_scores_of_k_answers_are_a_frame(study):
    frame = study.at_k("pass", [1, 3])
    assert sorted(set(frame["k"])) == [1, 3] and len(frame) == 2 * len(study.cells)
    one = frame[frame["k"] == 1].set_index(["benchmark", "cell"])["value"]
    assert one.to_dict() == pytest.approx(study.cells.set_index(["benchmark", "cell"])["accuracy"].to_dict())
    assert (study.at_k("maj")["value_low"] <= study.at_k("maj")["value"]).all()
    with pytest.raises(r3bench.errors.ConfigError, match="did you mean 'pass'"):
        study.at_k("pas")


@pytest.mark.parametrize("name", ["effects", "interactions", "cells", "length", "questions", "curves"])
def test_plots_are_axes_with_something_on_them(study, name, tmp_path):
    from matplotlib.axes import Axes

    axes = getattr(study.plot, name)()
    assert isinstance(axes, Axes)
    assert axes.has_data() or axes.images
    axes.figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["effects", "interactions", "cells", "length", "questions", "curves"])
def test_plots_are_drawn_into_axes_of_ones_own(study, name):
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert getattr(study.plot, name)(ax=right) is right
    assert right.figure is figure and (right.has_data() or right.images) and not left.has_data()
    alone = getattr(study.plot, name)()
    drawn, apart = ([list(line.get_ydata()) for line in axes.lines] for axes in (right, alone))
    assert drawn == apart
    assert alone.get_xlabel() == right.get_xlabel()
    with pytest.raises(r3bench.StateError, match="ax: got a Figure, expected matplotlib axes"):
        getattr(study.plot, name)(ax=figure)


def test_a_study_in_a_notebook_and_in_a_pickle(study):
    import copy
    import pickle

    assert study._repr_html_() == study.table("html")
    for again in (pickle.loads(pickle.dumps(study)), copy.deepcopy(study)):
        pd.testing.assert_frame_equal(again.effects, study.effects)
        assert repr(again) == repr(study) and again.path == study.path


@pytest.mark.parametrize(("told", "said"), [
    ({"factors": "replay"}, r"load: factors: got 'replay', expected a list of columns such as \['replay'\]"),
    ({"reference": "replay=on"}, "load: reference: got a str, expected a mapping"),
    ({"missing": "no"}, "load.missing: got 'no', expected refuse, wrong, drop"),
    ({"format": "lmeval"}, "did you mean 'lm-eval'"),
    ({"ignore": ["replay"], "factors": ["replay"]}, "replay"),
])  # fmt: skip
def test_what_load_cannot_do_is_one_line(study, told, said):
    with pytest.raises(r3bench.R3BenchError, match=said) as error:
        r3bench.load(study.questions, **told)
    assert "\n" not in str(error.value)


def test_a_plot_that_cannot_be_drawn_says_what_there_is(study, folder, tmp_path):
    with pytest.raises(r3bench.StateError, match="no benchmark 'amcc'; did you mean 'amc'"):
        study.plot.effects("amcc")
    with pytest.raises(r3bench.StateError, match="expected 'tokens' or 'seconds'"):
        study.plot.curves("hours")
    table = r3bench.load(study.questions)
    with pytest.raises(
        r3bench.StateError, match=r"no figure 'curves-tokens'.*training logs.*there are effects, accuracy"
    ):
        table.plot.curves()
    with pytest.raises(r3bench.StateError, match="holds no answers"):
        _ = table.answers
    assert table.curves.empty


def test_a_frame_gives_the_study_back(study):
    again = r3bench.load(study.questions, reference={f: v[0] for f, v in study.factors.items()})
    pd.testing.assert_series_equal(again.effects["estimate"], study.effects["estimate"])


def a_model(path):
    (path / "config.json").write_text("{}")


def studies(path):
    (path / "one").mkdir()
    (path / "one" / "study.json").write_text("{}")


FOLDERS = {
    "empty": (lambda path: None, "an empty folder"),
    "model": (a_model, "a model's folder"),
    "runs": (studies, "a folder of studies; name one of one"),
    "other": (lambda path: (path / "x.bin").write_text(""), "no study: no study.json or run.json.*it holds x.bin"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_is_no_study_says_what_it_is(kind, tmp_path):
    make, said = FOLDERS[kind]
    make(tmp_path)
    for source in (tmp_path, str(tmp_path)):
        with pytest.raises(r3bench.R3BenchError, match=said):
            r3bench.load(source)
    with pytest.raises(r3bench.R3BenchError, match="no such file or study folder"):
        r3bench.load(tmp_path / "nothing")


GRID = {"recipe": "quickstart", "factors": {"replay": ["off", "on"], "trainer.learning_rate": [1.0e-4, 2.0e-4]},
        "seeds": [0, 1]}  # fmt: skip


def test_a_grid_from_a_mapping_is_that_of_a_file(tmp_path, monkeypatch):
    import yaml

    monkeypatch.chdir(tmp_path)
    Path("g.yaml").write_text(yaml.safe_dump({"name": "g", **GRID}))
    ours, theirs = r3bench.Grid(GRID, name="g"), r3bench.Grid("./g.yaml")
    pd.testing.assert_frame_equal(ours.cells, theirs.cells)
    assert len(ours.cells) == 9
    assert "9 runs" in repr(ours)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sedes": [0]}, r"grid.*sedes.*did you mean 'seeds'"),
        ({"factors": {"replya": ["off", "on"]}}, "replya.*did you mean 'replay'"),
        ({"seeds": "0"}, "seeds: got"),
        ({"recipe": "quikstart"}, "quikstart.*did you mean"),
    ],
)
def test_mistakes_in_a_mapping_are_one_line(change, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(r3bench.ConfigError, match=said) as error:
        r3bench.Grid({**GRID, **change})
    assert "\n" not in str(error.value)
    with pytest.raises(r3bench.ConfigError, match="got a list, expected a mapping, or a grid's name or path"):
        r3bench.Grid([1])
    with pytest.raises(r3bench.ConfigError, match=r"no such|did you mean"):
        r3bench.Grid("quickstrt")


def test_names_are_listed_and_unknown_ones_are_none():
    assert {"Grid", "load", "analyze", "R3Config", "Component"} <= set(dir(r3bench))
    assert r3bench.Component.__module__ == "r3bench.component"
    with pytest.raises(AttributeError):
        _ = r3bench.nothing


@pytest.mark.slow
def test_a_grid_runs_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = {"recipe": "quickstart", "factors": {"replay": ["off", "on"]}, "seeds": [0], "budget": {"steps": 2},
            "set": {"data.limit": 2}, "eval": {"limit": 4, "samples": 2}, "executor": {"kind": "inline"}}  # fmt: skip
    study = r3bench.Grid(grid, name="small").run()
    assert len(study.runs) == 3
    assert set(study.curves["step"]) <= {1, 2}
    r3bench.Grid({**grid, "seeds": [0, 1]}, name="small").run()
    assert len(r3bench.load("runs/small").runs) == 5
