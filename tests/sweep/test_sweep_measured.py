"""What counts as measured: the settings that scores were drawn under, not what the recipe says now."""

import dataclasses

import pytest
from toy import TOY, toy_evaluate

from r3bench.config.load import load_recipe
from r3bench.errors import Diverged, StateError
from r3bench.evaluation.settings import KEY, measured, settings
from r3bench.files import read_json, read_jsonl, write_json
from r3bench.records import RunPaths, read_record, write_record
from r3bench.seals import sealed
from r3bench.sweep.cell_run import finished, run_cell
from r3bench.sweep.cells import BASE_MODEL


@pytest.fixture
def cell(home):
    """`cell(*overrides, evaluate=...)`: the same run directory, measured as the overrides say."""

    def run(*overrides, evaluate=toy_evaluate, environment=TOY.environment, **options):
        recipe = load_recipe("quickstart", list(overrides))
        steps = dataclasses.replace(TOY, evaluate=evaluate, environment=environment)
        return run_cell(recipe, home / "run", steps=steps, **options)

    return run


def refuse(*args, **options):
    raise StateError("its answers were sampled with temperature 0.6 (now 1.0)")


def killed(*args, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "change", ["temperature=1.0", "top_p=0.5", "max_tokens=7", "seed=3", "style=r1", "require_boxed=false", "samples=9"]
)
def test_another_setting_is_refused_every_time_it_is_asked_for(home, cell, change):
    first = cell("eval.temperature=0.6")
    for _ in range(2):
        with pytest.raises(StateError, match="sampled with"):
            cell("eval.temperature=0.6", f"eval.{change}", evaluate=refuse)
    assert read_json(home / "run" / "config.json")["eval"]["temperature"] == 0.6  # what was measured
    assert cell("eval.temperature=0.6", evaluate=refuse) == first


def test_more_questions_are_asked_for_until_they_are_there(home, cell):
    first = cell("eval.limit=10")
    with pytest.raises(KeyboardInterrupt):
        cell("eval.limit=200", evaluate=killed)
    assert finished(load_recipe("quickstart", ["eval.limit=200"]), RunPaths(home / "run")) is None
    record = cell("eval.limit=200")
    assert record.eval["embedded"][KEY]["limit"] == 200 and first.eval["embedded"][KEY]["limit"] == 10
    assert read_json(home / "run" / "config.json")["eval"]["limit"] == 200
    assert cell("eval.limit=10", evaluate=refuse) == record  # the ten are among them
    with pytest.raises(KeyboardInterrupt):
        cell(evaluate=killed)  # all questions


def test_scores_added_by_hand_under_other_settings_are_not_taken_for_the_recipes(home, cell):
    record, paths = cell(), RunPaths(home / "run")
    added = toy_evaluate(
        "m", load_recipe("quickstart", ["eval.temperature=0.5", "eval.tasks=[embedded-20]"]).eval, paths.evaluation,
        default_max_tokens=48,
    )  # fmt: skip
    write_record(dataclasses.replace(record, eval={**record.eval, **added}), paths)
    assert set(cell(evaluate=refuse).eval) == {"embedded", "embedded-20"}
    with pytest.raises(StateError, match="sampled with"):
        cell("eval.tasks=[embedded,embedded-20]", evaluate=refuse)


def test_the_training_cap_is_the_same_as_its_number():
    section = load_recipe("quickstart").eval
    spelled = dataclasses.replace(section, max_tokens=48)
    assert measured({"embedded": {"samples": 4, KEY: settings(section, 48)}}, spelled, 48)
    assert not measured({"embedded": {"samples": 4, KEY: settings(section, 48)}}, section, 64)
    assert not measured({"embedded": {"samples": 4}}, section, 48)  # a record from before settings were kept


def diverge(*args, **options):
    raise Diverged("the model's logits are not numbers")


def test_weights_that_diverge_only_when_sampled_are_an_outcome(home, cell):
    record = cell(evaluate=diverge)
    assert record.train.outcome == "diverged" and record.eval == {}
    assert record.train.reason == "in evaluation: the model's logits are not numbers"
    assert read_record(RunPaths(home / "run")) == record == cell(evaluate=killed)  # never tried again


def test_a_start_model_without_numbers_is_an_error_of_the_user(home, cell):
    with pytest.raises(Diverged):
        cell(evaluate=diverge, factors=BASE_MODEL)
    assert not (home / "run" / "run.json").exists()


def test_halvings_are_in_the_record_and_may_be_absent(home, cell):
    assert cell(halvings=2).train.halvings == 2
    paths = RunPaths(home / "run")
    assert read_json(paths.train)["halvings"] == 2
    values = read_json(paths.record)
    del values["train"]["halvings"]
    write_json(paths.record, sealed(values))
    assert read_record(paths).train.halvings == 0


def test_an_edited_component_is_another_run_and_an_unfinished_one_is_not_trained_with_it(home, cell):
    (home / "components").mkdir()
    source = home / "components" / "brevity.py"
    text = """
from dataclasses import dataclass
from r3bench.component import Component

@dataclass(frozen=True)
class BrevityConfig:
    weight: float = 0.1  # of the bonus

class Brevity(Component):
    name = "brevity"
    Config = BrevityConfig
"""
    source.write_text(text)
    old = load_recipe("quickstart", ["components.brevity=true"])
    source.write_text(text + "# another rule\n")
    with pytest.raises(StateError, match="component 'brevity': its file was"):
        run_cell(old, home / "run", steps=TOY)
    source.write_text(text)
    run_cell(old, home / "run", steps=TOY)
    assert read_json(home / "run" / "config.json")["sources"] == old.sources
    source.write_text(text + "# another rule\n")
    with pytest.raises(StateError, match="is the record of"):
        cell("components.brevity=true")


def test_measuring_later_keeps_the_commit_of_the_training(home, cell):
    def at(commit):
        return {"commit": commit, "dirty": False}

    first = cell(environment=lambda: at("aaa"))
    assert first.commit == "aaa" and read_json(home / "run" / "eval" / "environment.json") == at("aaa")
    again = cell("eval.samples=8", environment=lambda: at("bbb"))
    assert again.commit == "aaa" and again.started == first.started
    assert read_json(home / "run" / "environment.json")["commit"] == "aaa"
    assert read_json(home / "run" / "eval" / "environment.json") == at("bbb")
    (home / "run" / "environment.json").write_text("{")  # torn: what is known is better than nothing
    cell("eval.samples=9", environment=lambda: at("ccc"))
    assert read_json(home / "run" / "environment.json")["commit"] == "ccc"


def test_only_the_first_rank_writes_what_training_came_to(home, monkeypatch):
    """Another rank doesn't know how long it took; halved batches made each write it."""
    monkeypatch.setenv("RANK", "1")
    paths = RunPaths(home / "run")

    def train(recipe, paths, quiet=False):
        record = TOY.train(recipe, paths)
        write_json(paths.train, dataclasses.asdict(dataclasses.replace(record, train_seconds=5.0)))  # the first rank's
        return dataclasses.replace(record, train_seconds=0.0)

    run_cell(load_recipe("quickstart"), paths.root, halvings=1, steps=dataclasses.replace(TOY, train=train))
    assert read_json(paths.train)["train_seconds"] == 5.0


def test_tasks_that_were_added_by_hand_stay_in_the_record(home, cell):
    record = cell()
    added = {**record.eval, "extra": record.eval["embedded"]}
    write_record(dataclasses.replace(record, eval=added), RunPaths(home / "run"))
    assert set(cell("eval.samples=8").eval) == {"embedded", "extra"}
    (home / "run" / "train.json").unlink()  # other weights: what the old ones scored doesn't count any more
    assert set(cell("eval.samples=9").eval) == {"embedded"}


@pytest.mark.parametrize("harm", ["deleted", "torn"])
def test_answers_that_were_partly_lost_are_drawn_again(home, cell, harm):
    record = cell()
    shards = sorted((home / "run" / "eval" / "embedded").glob("*.parquet"))
    assert len(shards) == 4
    whole = shards[1].read_bytes()
    shards[1].unlink() if harm == "deleted" else shards[1].write_bytes(whole[:-20])
    assert finished(load_recipe("quickstart"), RunPaths(home / "run")) is None
    assert cell().eval == record.eval and shards[1].read_bytes() == whole
    assert len(read_jsonl(home / "executions.jsonl")) == 1  # without training
    assert harm == "deleted" or shards[1].with_name(f"{shards[1].name}.torn").exists()


@pytest.mark.parametrize("key", ["questions", "settings"])
def test_a_summary_that_lost_a_key_is_made_again_from_its_answers(home, cell, key):
    whole = read_json(home / "run" / "run.json") if cell() else None
    record = {**whole, "eval": {"embedded": {k: v for k, v in whole["eval"]["embedded"].items() if k != key}}}
    write_json(home / "run" / "run.json", record)
    assert cell().eval == whole["eval"] and len(read_jsonl(home / "executions.jsonl")) == 1
