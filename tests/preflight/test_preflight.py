"""Mistakes that would only show after training are refused before it, by `validate` and by `ablate`, in one line."""
# ruff: noqa: E501, a table of cases

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from project_tools import changed, replaced

from r3bench.errors import DataError, R3BenchError
from r3bench.sweep.preflight import tried_apart

Change = Callable[[Path], object]


def gone(path: str) -> Change:
    return lambda home: (home / path).unlink()


def keys(**changes: object) -> Change:
    return lambda home: changed(home, {key.replace("__", "."): value for key, value in changes.items()})


def written(path: str, text: str) -> Change:
    return lambda home: (home / path).write_text(text)


def rewards(body: str) -> Change:
    return replaced(
        "rewards.py", '    return [float(str(gold) in completion[-1]["content"]) for completion, gold in zip(completions, answer)]',
        body,
    )  # fmt: skip


def own_model(home: Path) -> None:
    folder = home / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"')
    changed(home, {"model": "../../model"})


CASES: dict[str, tuple[Change, str]] = {
    "task's file": (gone("evals/own.yaml"), r"eval\.tasks: no task 'own'"),
    "include": (gone("evals/_maths.yaml"), r"own\.yaml: include: '_maths\.yaml': no such file"),
    "functions of a task": (gone("evals/utils.py"), r"own\.yaml: .*utils\.load': no utils\.py beside it"),
    "function of a task": (replaced("evals/_maths.yaml", "utils.load", "utils.laod"), r"has no 'laod'; did you mean 'load'"),
    "name of a task": (replaced("evals/own.yaml", "task: own", "task: other"), r"own\.yaml: expected a task called 'own'"),
    "YAML of a task": (replaced("evals/own.yaml", "task: own", "task: [own"), r"own\.yaml:\d+: not valid YAML"),
    "task's data file": (gone("data/heldout.jsonl"), r"own\.yaml: dataset_kwargs\.file: .*heldout\.jsonl: no such file"),
    "task's column": (replaced("evals/own.yaml", "question", "qestion"), r"heldout\.jsonl:1: .*problem.*'qestion'; did you mean 'question'"),
    "task's stored data": (
        written("evals/own.yaml", "task: own\ninclude: _maths.yaml\ndataset_kwargs: {name: nowhere, items: 3}\n"),
        r"own\.yaml: dataset_kwargs\.name: 'nowhere': no hub data set is known",
    ),
    "number of a task's questions": (
        replaced("evals/own.yaml", "  id: uid", "  id: uid\n  items: 9"), r"heldout\.jsonl: 8 questions, expected 9",
    ),
    "task's gold": (
        replaced("data/heldout.jsonl", '"gold": 1,', '"gold": "}{",'), r"own\.yaml: the gold answer of question 'heldout-0'.*can't be graded",
    ),
    "task's scorer": (
        replaced("evals/own.yaml", "  id: uid", "  id: uid\n  scorer: ../rewards.py:farther"), r"scorer: .*rewards\.py has no 'farther'",
    ),
    "task's gold by its scorer": (
        lambda home: (
            replaced("evals/own.yaml", "  id: uid", "  id: uid\n  scorer: ../rewards.py:never")(home),
            (home / "rewards.py").write_text((home / "rewards.py").read_text() + "\ndef never(completions, **_):\n    return [0.0 for _ in completions]\n"),
        ), r"own\.yaml: the gold answer of question 'heldout-0'.*isn't right by the task's scorer",
    ),
    "task's scorer that raises": (
        lambda home: (
            replaced("evals/own.yaml", "  id: uid", "  id: uid\n  scorer: ../rewards.py:broken")(home),
            (home / "rewards.py").write_text((home / "rewards.py").read_text() + "\ndef broken(completions, **_):\n    return 1 / 0\n"),
        ), r"own\.yaml: scorer: 'broken' raised ZeroDivisionError",
    ),
    "data file": (gone("data/train.jsonl"), r"train\.jsonl: no such file"),
    "data's question": (keys(data__problem="qestion"), r"train\.jsonl:1: data\.problem: no column 'qestion'; did you mean 'question'"),
    "data's answer": (keys(data__answer="golf"), r"data\.answer: no column 'golf'; did you mean 'gold'"),
    "data's further column": (keys(data__columns=["levle"]), r"data\.columns: no column 'levle'; did you mean 'level'"),
    "data's JSON": (replaced("data/train.jsonl", '{"uid": "train-3"', '{"uid" "train-3"'), r"train\.jsonl:4: not valid JSON"),
    "data's empty cell": (replaced("data/train.jsonl", "Start with 5, add 1.", ""), r"train\.jsonl:6: column 'question': the problem is empty"),
    "data's gold": (replaced("data/train.jsonl", '"gold": 1,', '"gold": "}{",'), r"train\.jsonl: data\.answer: the gold answer '\}\{' of question 'train-0'"),
    "template's file": (gone("prompts/ask.txt"), r"data\.template.*ask\.txt: no such file"),
    "template without the question": (written("prompts/ask.txt", "Level {level}."), r"ask\.txt has no \{problem\}"),
    "template's column": (replaced("prompts/ask.txt", "{level}", "{topic}"), r"ask\.txt: data\.template: \{topic\} has no column 'topic'"),
    "template with the answer": (replaced("prompts/ask.txt", "{level}", "{answer}"), r"\{answer\} would tell the model the answer"),
    "system's file": (keys(data__system="../../prompts/none.txt"), r"data\.system.*none\.txt: no such file"),
    "reward's file": (gone("rewards.py"), r"reward\.functions.*rewards\.py.*: no such file"),
    "reward's name": (replaced("rewards.py", "def near", "def nearer"), r"reward\.functions\[1\].*has no 'near'; did you mean 'nearer'"),
    "reward's module": (keys(reward__functions=["accuracy", "no_such_package.rewards:near"], reward__weights=[1, 1]), r"no module 'no_such_package"),
    "reward's form": (keys(reward__functions=["accuracy", "near"], reward__weights=[1, 1]), r"functions: got 'near', expected"),
    "reward's Python": (replaced("rewards.py", "def near(", "def near(("), r"rewards\.py:\d+: not valid Python"),
    "reward's imports": (replaced("rewards.py", "async def", "import no_such_module\n\n\nasync def"), r"rewards\.py: can't be imported: ModuleNotFoundError"),
    "reward that raises": (rewards("    raise KeyError('nothing')"), r"reward\.functions\[1\]: '.*near' raised KeyError"),
    "reward that exits": (rewards("    raise SystemExit(0)"), r"reward\.functions\[1\]: '.*near' raised SystemExit"),
    "async reward that raises": (replaced("rewards.py", "0.1 * number", "number['x']"), r"reward\.functions\[2\]: '.*later' raised TypeError"),
    "reward with too few values": (rewards("    return [1.0]"), r"'.*near' gave 1 values for 8 answers"),
    "reward that gives texts": (rewards("    return ['good'] * len(completions)"), r"'.*near' gave 'good', expected a number or None"),
    "reward that gives NaN": (rewards("    return [float('nan')] * len(completions)"), r"'.*near' gave nan, expected a finite number"),
    "reward that gives a number": (rewards("    return 1.0"), r"'.*near' gave 1\.0, expected a list"),
    "reward's signature": (replaced("rewards.py", "def near(completions, answer, **kwargs)", "def near(completion, answer)"), r"'.*near' can't be called"),
    "reward's missing column": (keys(data__columns=[], data__template=None), r"'.*later' can't be called: missing a required argument: 'level'"),
    "same name twice": (keys(reward__functions=["../../rewards.py:near", "../../rewards.py:near"], reward__weights=[1, 1]), r"got 'near' twice"),
    "weights": (keys(reward__weights=[1]), r"weights: got 1 numbers for 3 functions"),
    "who decides": (keys(reward__correctness="neer"), r"correctness: got 'neer', expected one of the functions"),
    "component never asked": (replaced("components/nudge.py", "    shapes_reward = True\n", ""), r"nudge\.py: component 'nudge': it has score\(\) but not"),
    "component that can't be made": (
        replaced("components/nudge.py", "    def score", "    def __init__(self, config, facts):\n        raise OSError('no')\n\n    def score"),
        r"nudge\.py: component 'nudge' can't be made: OSError: no",
    ),
    "component's arguments": (replaced("components/nudge.py", "groups, entropies)", "groups)"), r"nudge\.py: component 'nudge': score\(\) can't be asked"),
    "component's rounds": (replaced("components/nudge.py", "    shapes_reward = True", "    shapes_reward = True\n    resamples = True"), r"max_rounds"),
    "component's name": (replaced("components/nudge.py", 'name = "nudge"', 'name = "budge"'), r"nudge\.py: no Component subclass"),
    "model's folder": (own_model, r"model\.name: '.*model' can't be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_refused_before_training(mine: Path, r3bench, case: str, tmp_path: Path, monkeypatch) -> None:
    change, says = CASES[case]
    monkeypatch.chdir(tmp_path / "elsewhere")
    change(mine)
    for command in (("validate",), ("ablate", "--runs", str(tmp_path / "runs"))):
        result = r3bench(command[0], str(mine / "ablations/grid.yaml"), *command[1:])
        assert result.exit_code == 2, result.output
        lines = [line for line in result.stderr.splitlines() if line.startswith("r3bench: ")]
        assert len(lines) == 1, result.stderr
        assert re.search(says, lines[0]), lines[0]
        assert "Traceback" not in result.output
    assert not list((tmp_path / "runs").rglob("metrics.jsonl"))
    assert not list((tmp_path / "runs").rglob("attempts.jsonl"))


def test_the_task_of_a_search_is_tried_too(mine: Path, r3bench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = "task: own-validation\ntest_split: validation\ninclude: _maths.yaml\ndataset_kwargs: {file: ../data/gone.jsonl, split: validation}\n"
    (mine / "evals/own-validation.yaml").write_text(text)
    grid = mine / "ablations/grid.yaml"
    grid.write_text(
        grid.read_text() + "tuning: {space: {trainer.learning_rate: [0.001, 0.01]}, trials: 2, task: own-validation}\n"
    )
    for command in ("validate", "ablate"):
        result = r3bench(command, str(grid))
        assert result.exit_code == 2 and "own-validation.yaml: dataset_kwargs.file" in result.stderr, result.output
    assert not (tmp_path / "elsewhere/runs/grid/tuning").exists()


def test_what_has_no_fault_passes(mine: Path, r3bench, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("grid.yaml", "recipes/mine.yaml"):
        assert r3bench("validate", str(mine / "ablations" / name)).exit_code == 0
        assert r3bench("plan", str(mine / "ablations" / name)).exit_code == 0


def test_the_same_in_a_process_of_its_own(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dispatcher without torch does: a mistake keeps its words and its exit code."""
    from r3bench.config.load import load_recipe

    recipe = load_recipe(str(mine / "ablations/recipes/mine.yaml"))
    assert recipe.sources.keys() == {"nudge", "./rewards.py:near", "./rewards.py:later", "./prompts/ask.txt"}
    monkeypatch.setattr("sys.modules", {k: v for k, v in __import__("sys").modules.items() if k != "lm_eval"})
    rewards("    raise KeyError('nothing')")(mine)
    with pytest.raises(R3BenchError, match=r"reward\.functions\[1\]: './rewards\.py:near' raised KeyError") as caught:
        tried_apart([recipe])
    assert caught.value.exit_code == 2


def test_a_failed_base_model_stops_the_grid(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only measuring shows: the model before training comes first, alone, and its mistake ends the study."""
    from concurrent.futures import ThreadPoolExecutor

    from r3bench.sweep.ablate import ablate

    started: list[str] = []

    def run(work: dict) -> dict:
        started.append(str(work["factors"]))
        raise DataError("heldout.jsonl:3: no such column")

    said: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        report = ablate(
            str(mine / "ablations/grid.yaml"), tmp_path / "runs", executor=pool, slots=4, run=run, say=said.append
        )
    assert started == ["{'base': 'model'}"]
    assert "heldout.jsonl:3: no such column" in str(report.reason)
    assert len(report.failed) == 1 and len(report.left) == 2


def test_a_machines_failure_of_the_base_model_stops_nothing(mine: Path, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from r3bench.sweep.ablate import ablate

    started: list[str] = []

    def run(work: dict) -> dict:
        started.append(str(work["factors"]))
        raise RuntimeError("a bug")

    with ThreadPoolExecutor(4) as pool:
        ablate(
            str(mine / "ablations/grid.yaml"), tmp_path / "runs", executor=pool, slots=4, run=run, say=lambda line: None
        )
    assert len(started) == 3 and started[0] == "{'base': 'model'}"


def test_own_code_is_part_of_a_runs_identity(mine: Path) -> None:
    from r3bench.config.load import load_recipe, run_id

    path = str(mine / "ablations/recipes/mine.yaml")
    seen = {run_id(load_recipe(path))}
    for file in ("rewards.py", "prompts/ask.txt", "components/nudge.py"):
        (mine / file).write_text((mine / file).read_text() + "\n# another text\n")
        seen.add(run_id(load_recipe(path)))
    assert len(seen) == 4


def test_a_study_is_the_same_from_everywhere(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from r3bench.sweep.ablate import open_study

    def cells(name: str) -> list[str]:
        return [cell.run_id for cell in open_study(name, tmp_path).cells]

    away = cells(str(mine / "ablations/grid.yaml"))
    monkeypatch.chdir(mine)
    assert cells("grid") == cells("ablations/grid.yaml") == away
    moved = tmp_path / "moved"
    monkeypatch.chdir(tmp_path)
    mine.rename(moved)
    assert cells(str(moved / "ablations/grid.yaml")) == away
    described = json.dumps(open_study(str(moved / "ablations/grid.yaml"), tmp_path).describe())
    assert str(tmp_path) not in described


def test_a_folder_does_not_take_a_built_in_name(mine: Path) -> None:
    from r3bench.config.load import load_recipe

    for name in ("embedded", "gsm8k"):
        (mine / "ablations/recipes" / name).mkdir()
    changed(mine, {"data": "gsm8k"})
    recipe = load_recipe(str(mine / "ablations/recipes/mine.yaml"))
    assert (recipe.model.name, recipe.data.name) == ("embedded", "gsm8k")
