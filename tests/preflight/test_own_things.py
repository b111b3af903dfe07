"""Own rewards, prompts, tasks, answers in components, generators and installed packages, through real commands."""
# ruff: noqa: E501, tables of cases

import importlib
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from project_tools import changed

from r3bench import catalog, project
from r3bench.config.load import load_recipe, run_id
from r3bench.errors import ConfigError, StateError
from r3bench.records import RunPaths
from r3bench.sweep.opening import open_study

SMALL = {"max_steps": 2, "save_steps": 2, "per_device_train_batch_size": 16, "num_generations": 8,
         "max_completion_length": 24, "logging_steps": 1}  # fmt: skip
READER = """
from dataclasses import dataclass
from pathlib import Path
from r3bench.component import Component


@dataclass(frozen=True)
class ReaderConfig:
    out: str = ""  # where it writes what it reads


class Reader(Component):
    name = "reader"
    Config = ReaderConfig
    shapes_reward = True
    reads_answers = True

    def score(self, step, entropies):
        lines = []
        for group in step.groups:
            assert len(group.texts) == len(group.completion_ids) == len(group.rows)
            for text, ids in zip(group.texts, group.completion_ids):
                assert self.facts.decode(ids.tolist()) == text
                lines.append(repr(text))
        Path(self.config.out).write_text("\\n".join(lines))
        return {}
"""


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_rewards_are_called_weighed_and_decide(mine: Path, r3bench, tmp_path: Path) -> None:
    """Total = the weighed functions; who is right is decided by the one that the recipe names."""
    changed(mine, {"trainer": SMALL, "components": {}, "data.limit": 2, "reward.correctness": "later"})
    changed(mine, {"reward.threshold": 0.1, "reward.weights": [1, 0.5, 2.0]})
    path = str(mine / "ablations/recipes/mine.yaml")
    result = r3bench("train", path, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    lines = [line for line in metrics(tmp_path / "runs" / run_id(load_recipe(path))) if "reward" in line]
    assert lines
    for line in lines:
        parts = {name: line[f"rewards/{name}/mean"] for name in ("correctness", "near", "later")}
        assert line["reward"] == pytest.approx(
            parts["correctness"] + 0.5 * parts["near"] + 2.0 * parts["later"], abs=1e-5
        )
        assert parts["later"] == pytest.approx(0.05)  # levels 0 and 1: the column reached the async function
    run = tmp_path / "runs" / run_id(load_recipe(path))
    assert json.loads((run / "environment.json").read_text())["project"] == "../../project"
    more = r3bench("eval", str(run), "--samples", "3")  # the task and the prompt are found from here
    assert more.exit_code == 0, more.output


def test_what_rewards_and_components_print_is_no_result(mine: Path, r3bench, tmp_path: Path) -> None:
    """stdout is the JSON alone, whatever the user's code prints."""
    for file, old in (("rewards.py", "    return [0.1"), ("components/nudge.py", "        return {row")):
        text = (mine / file).read_text()
        indent = old[: len(old) - len(old.lstrip())]
        (mine / file).write_text(text.replace(old, f"{indent}print('loud')\n{old}"))
    (mine / "judge.py").write_text(
        "print('read')\n\n\ndef judge(completions, **_):\n    print('loud')\n    return [1 for _ in completions]\n"
    )
    (mine / "evals/own.yaml").write_text((mine / "evals/own.yaml").read_text() + "  scorer: ../judge.py:judge\n")
    changed(mine, {"trainer": {**SMALL, "max_steps": 1, "save_steps": 1}})
    path, runs = str(mine / "ablations/recipes/mine.yaml"), str(tmp_path / "runs")
    run = str(tmp_path / "runs" / run_id(load_recipe(path)))
    for command in (
        ("validate", path), ("train", path, "--runs", runs), ("eval", run, "--samples", "3"),
        ("ablate", str(mine / "ablations/grid.yaml"), "--runs", runs, "--quiet"),
    ):  # fmt: skip
        result = r3bench(*command, "--json")
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)
        assert "loud" in result.stderr


def test_a_changed_reward_is_not_trained_under_the_old_name(mine: Path, tmp_path: Path) -> None:
    from r3bench.config.load import check_sources

    recipe = load_recipe(str(mine / "ablations/recipes/mine.yaml"))
    check_sources(recipe)
    (mine / "rewards.py").write_text((mine / "rewards.py").read_text() + "\n# other\n")
    with pytest.raises(StateError, match=r"reward './rewards\.py:near': its file was .* is .* now"):
        check_sources(recipe)


def test_a_reward_is_a_factor(mine: Path, tmp_path: Path) -> None:
    grid = {
        "recipe": "mine", "seeds": [0], "set": {"reward.weights": []},
        "factors": {"reward.functions": {"plain": ["accuracy"], "near": ["accuracy", "../rewards.py:near"]}},
    }  # fmt: skip
    (mine / "ablations/grid.yaml").write_text(yaml.safe_dump(grid, sort_keys=False))
    study = open_study(str(mine / "ablations/grid.yaml"), tmp_path)
    by_name = {cell.name: cell.recipe for cell in study.cells if cell.factors != {"base": "model"}}
    assert by_name["base"].reward.functions == ("accuracy",)
    assert by_name["functions.near"].reward.functions == ("accuracy", "./rewards.py:near")
    assert by_name["functions.near"].sources.keys() == {"nudge", "./rewards.py:near", "./prompts/ask.txt"}


def test_a_component_reads_answers(mine: Path, r3bench, tmp_path: Path) -> None:
    (mine / "components/reader.py").write_text(READER)
    changed(
        mine,
        {
            "trainer": {**SMALL, "max_steps": 1, "save_steps": 1},
            "components": {"reader": {"out": str(tmp_path / "read.txt")}},
        },
    )
    changed(mine, {"data.limit": 2})
    path = str(mine / "ablations/recipes/mine.yaml")
    result = r3bench("train", path, "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "read.txt").read_text().splitlines()) == 16


def test_the_prompt_is_the_same_in_training_and_evaluation(mine: Path) -> None:
    from r3bench.evaluation.tasks import load_task
    from r3bench.prompts import prompt_of
    from r3bench.training.questions.load import load_questions

    (mine / "prompts/system.md").write_text("Be brief.\n")
    changed(mine, {"data.system": "../../prompts/system.md"})
    recipe = load_recipe(str(mine / "ablations/recipes/mine.yaml"))
    asked = "Start with 3, add 1.\nThe level is 3. Answer within \\boxed{}."
    assert load_questions(recipe.data)[3]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": asked},
    ]
    prompt = prompt_of(recipe.eval, "eval")
    task = load_task("own", recipe.eval.style, prompt.template)
    assert prompt.system == "Be brief."
    assert task.doc_to_text(list(task.test_docs())[3]) == asked


def test_the_style_of_training_is_that_of_evaluation(mine: Path) -> None:
    """A recipe that says nothing of it for evaluation: a gain is never a change of prompt."""
    path = str(mine / "ablations/recipes/mine.yaml")
    changed(mine, {"data.template": None, "data.style": "plain"})
    assert load_recipe(path).eval.style == "plain"
    assert load_recipe(path, ["eval.limit=3", "data.style=r1"]).eval.style == "r1"
    assert load_recipe(path, ["eval.style=boxed"]).eval.style == "boxed"
    assert load_recipe(path, ["eval.template='{problem}!'"]).eval.style == "boxed"  # the template replaces it


SEPARATED = {"comma": (",", "csv"), "semicolon": (";", "csv"), "tab": ("\t", "tsv")}


@pytest.mark.parametrize("kind", SEPARATED)
def test_questions_of_a_csv_file(mine: Path, r3bench, kind: str) -> None:
    from r3bench.training.questions.load import load_questions

    by, ending = SEPARATED[kind]
    for name in ("train", "heldout"):
        frame = pd.read_json(mine / f"data/{name}.jsonl", lines=True)
        frame["question"] = frame.question + f' Say "so{by} ünd"\nso.'
        frame.to_csv(mine / f"data/{name}.{ending}", sep=by, index=False, encoding="utf-8-sig")
    (mine / "rewards.py").write_text((mine / "rewards.py").read_text().replace("0.1 * number", "0.1 * int(number)"))
    changed(mine, {"data.name": f"../../data/train.{ending}"})
    (mine / "evals/own.yaml").write_text((mine / "evals/own.yaml").read_text().replace("jsonl", ending))
    assert r3bench("validate", str(mine / "ablations/grid.yaml")).exit_code == 0
    found = load_questions(load_recipe(str(mine / "ablations/recipes/mine.yaml")).data)
    assert found["problem"][3] == f'Start with 3, add 1. Say "so{by} ünd"\nso.'
    assert found["answer"][:3] == ["1", "2", "3"] and found["level"][2] == "2" and found["question_id"][0] == "train-0"


@pytest.mark.parametrize(("text", "says"), [
    ("uid,question,question\n", "the column 'question' stands there twice"),
    ("uid,question,gold,level\na,b,1\n", "csv:2: 3 cells, but 4 columns are named"),
    ("uid,question,gold,level\na,b,,1\n", "csv:2: column 'gold': the answer is empty"),
    ("uid,question,gold,level\na,b\xfc,1,1\n".encode("latin-1"), "csv: not UTF-8 text"),
    ("", "has no rows"),
])  # fmt: skip
def test_csv_files_that_are_no_questions(mine: Path, r3bench, text: str | bytes, says: str) -> None:
    (mine / "data/train.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    changed(mine, {"data.name": "../../data/train.csv"})
    result = r3bench("validate", str(mine / "ablations/recipes/mine.yaml"))
    assert result.exit_code == 2 and says in result.stderr, result.output


def test_a_scorer_judges_answers_and_a_new_one_judges_them_anew(mine: Path, r3bench, tmp_path: Path) -> None:
    (mine / "judge.py").write_text(
        "def judge(completions, level, **_):\n    return [float('=' in c[-1]['content'] or n == 0) for c, n in zip(completions, level)]\n"
    )
    (mine / "evals/own.yaml").write_text((mine / "evals/own.yaml").read_text() + "  scorer: ../judge.py:judge\n")
    (mine / "data/heldout.jsonl").write_text(
        "".join(
            json.dumps({"uid": f"h{n}", "question": f"Start with {n}, add 1.", "gold": f"{n}+1={n + 1}", "level": n})
            + "\n"
            for n in range(4)
        )
    )
    changed(mine, {"eval.template": "{problem}"})
    project.enter(mine)
    from r3bench.config.sections import EvalSection
    from r3bench.evaluation.driver import evaluate
    from r3bench.training.models.load import model_folder

    section = EvalSection(tasks=("own",), samples=2)
    summary = evaluate(model_folder("embedded"), section, tmp_path / "out", default_max_tokens=24, quiet=True)["own"]
    rows = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "out/own").glob("*.parquet")))
    expected = rows.response.str.contains("=", regex=False) | (rows.question == "h0")
    assert (rows.correct == expected).all() and summary["avg@2"] == pytest.approx(expected.mean())
    assert set(rows.grader) == {summary["grader"]} and summary["grader"].startswith("function/judge@")

    (mine / "judge.py").write_text("def judge(completions, **_):\n    return [1 for _ in completions]\n")
    again = evaluate(model_folder("embedded"), section, tmp_path / "out", default_max_tokens=24, quiet=True)["own"]
    new = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "out/own").glob("*.parquet")))
    assert again["avg@2"] == 1.0 and again["grader"] != summary["grader"]
    assert new.response.tolist() == rows.response.tolist()


def test_names_and_paths_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, r3bench) -> None:
    package, about = tmp_path / "site/their_package", tmp_path / "site/their_package-1.0.dist-info"
    for folder in ("components", "tasks", "recipes", "grids"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text("")
    (package / "__init__.py").write_text("def reward(completions, **_):\n    return [0.0 for _ in completions]\n")
    from project_tools import COMPONENT

    (package / "components/nudge.py").write_text(COMPONENT.lstrip())
    (package / "recipes/theirs.yaml").write_text(
        "# Theirs\ncomponents: {nudge: true}\nreward: {functions: their_package:reward}\n"
    )
    (package / "grids/their_grid.yaml").write_text("recipe: theirs\nfactors: {nudge: [off, on]}\n")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "".join(
            f"[r3bench.{kind}]\nmine = their_package.{kind}\n" for kind in ("components", "tasks", "recipes", "grids")
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    catalog.installed.cache_clear()
    try:
        assert "nudge" in r3bench("list", "components").stdout
        recipe = load_recipe("theirs")
        assert recipe.sources.keys() == {"nudge", "their_package:reward"}
        assert len(open_study("their_grid", tmp_path).cells) == 7
    finally:
        catalog.installed.cache_clear()
        sys.modules.pop("their_package", None)


@pytest.mark.parametrize("name", ["boxed", "r1", "plain"])
def test_the_printed_prompt_is_the_one_that_is_used(r3bench, name: str) -> None:
    from r3bench.prompts import fill, instruct

    printed = r3bench("prompts", name).stdout.rstrip("\n")
    assert fill(printed, {"problem": "What is 2+2?"}, "data.template") == instruct("What is 2+2?", name)  # type: ignore[arg-type]
    assert r3bench("prompts", "bxed").exit_code == 2


# ------------------------------------------------------------------------------------------------ Reasoning Gym


def test_generated_questions_have_their_own_scorer(folder: Path) -> None:
    gym = pytest.importorskip("reasoning_gym")
    from r3bench.config.load import parse_recipe
    from r3bench.sweep.preflight.tried import tried
    from r3bench.training.questions.gym import score
    from r3bench.training.questions.load import load_questions

    (folder / "evals").mkdir()
    for name in ("_maths.yaml", "utils.py"):
        (folder / "evals" / name).write_bytes((catalog.shipped("evals") / name).read_bytes())
    (folder / "evals/words.yaml").write_text(
        "task: words\ninclude: _maths.yaml\ncustom_dataset: !function utils.load_reasoning_gym\n"
        "dataset_kwargs: {generator: word_sorting, options: {size: 3, seed: 1}}\n"
    )
    values = {
        "data": {"name": "reasoning-gym:word_sorting", "options": {"size": 6, "seed": 4}},
        "eval": {"tasks": ["words"]},
        "trainer": {"max_completion_length": 48},
    }
    recipe = parse_recipe(values, "recipe")
    assert recipe.reward.functions == ("reasoning_gym",) and recipe.reward.deciding == ("reasoning_gym",)
    assert tried([recipe]) == []
    questions = load_questions(recipe.data)
    theirs = gym.create_dataset("word_sorting", size=6, seed=4)
    assert [row["problem"] for row in questions] == [theirs[n]["question"].strip() for n in range(6)]
    said = [f"It is <answer>{theirs[n]['answer']}</answer>" for n in range(5)] + ["\\boxed{nothing}"]
    own = [theirs.score_answer(theirs[n]["answer"], theirs[n]) for n in range(5)] + [
        theirs.score_answer("nothing", theirs[5])
    ]
    completions = [[{"role": "assistant", "content": text}] for text in said]
    assert score(prompts=[None] * 6, completions=completions, entry=questions["entry"]) == own
    with pytest.raises(ConfigError, match="has no 'word_sortin'; did you mean 'word_sorting'"):
        tried([parse_recipe(values | {"data": {"name": "reasoning-gym:word_sortin"}}, "recipe")])


def test_the_paths_of_a_run_are_where_its_files_are(mine: Path) -> None:
    recipe = load_recipe(str(mine / "ablations/recipes/mine.yaml"))
    assert recipe.data.name == "./data/train.jsonl"
    assert project.located(recipe.data.name) == mine / "data/train.jsonl"
    assert RunPaths(mine).root == mine
