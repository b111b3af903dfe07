"""Mistakes that would only show after training are refused before it, by `validate` and by `ablate`, in one line."""
# ruff: noqa: E501, a table of cases

import http.server
import itertools
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from project_tools import changed, replaced

from r3bench.errors import DataError, R3BenchError
from r3bench.sweep.preflight.tried import tried_apart

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


def model(change: Change | None = None, **settings: object) -> Change:
    """A folder of one's own with the embedded model, changed."""

    def copied(home: Path) -> None:
        from r3bench.training.models.load import model_folder

        shutil.copytree(model_folder("embedded"), home / "model")
        changed(home, {"model": "../../model", **{k.replace("__", "."): v for k, v in settings.items()}})
        if change is not None:
            change(home / "model")

    return copied


def json_of(file: str, **values: object) -> Change:
    return lambda folder: (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | values))


def chat(text: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        json_of("tokenizer_config.json", chat_template=text)(folder)

    return change


def row(path: str, place: int, **values: object) -> Change:
    def change(home: Path) -> None:
        rows = [json.loads(line) for line in (home / path).read_text().splitlines()]
        rows[place].update(values)
        (home / path).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return change


def questions(count: int) -> Change:
    rows = [{"uid": f"t{n}", "question": f"Add {n} to 1.", "gold": n + 1, "level": n} for n in range(count)]
    return written("data/train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def both(*changes: Change) -> Change:
    return lambda home: [change(home) for change in changes]


def scorer(body: str) -> Change:
    return both(
        replaced("evals/own.yaml", "  id: uid", "  id: uid\n  scorer: ../rewards.py:judge"),
        lambda home: (home / "rewards.py").write_text(
            (home / "rewards.py").read_text() + f"\nimport time\ndef judge(completions, level, **_):\n    {body}\n"
        ),
    )


NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ m['content'] }}\n{% endfor %}"
)
CASES: dict[str, tuple[Change, str]] = {
    "task's file": (gone("evals/own.yaml"), r"eval\.tasks: no task 'own'"),
    "no loader": (
        written("evals/own.yaml", "task: own\ndataset_kwargs: {file: ../data/heldout.jsonl}\n"),
        r"own\.yaml: no custom_dataset and no dataset_path, so nothing says where .*'include: _maths\.yaml'",
    ),
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
    "component never asked": (replaced("components/nudge.py", "shapes_reward = True", "shapes_reward = False"), r"nudge\.py: component 'nudge': it has score\(\) and shapes_reward = False"),
    "component that can't be made": (
        replaced("components/nudge.py", "    def score", "    def __init__(self, config, facts):\n        raise OSError('no')\n\n    def score"),
        r"nudge\.py: component 'nudge' can't be made: OSError: no",
    ),
    "component's arguments": (replaced("components/nudge.py", "step, entropies)", "step)"), r"nudge\.py: component 'nudge': score\(\) can't be asked"),
    "component's rounds": (replaced("components/nudge.py", "    shapes_reward = True", "    shapes_reward = True\n    resamples = True"), r"max_rounds"),
    "component's name": (replaced("components/nudge.py", 'name = "nudge"', 'name = "budge"'), r"nudge\.py: no Component subclass"),
    "a gold among the data": (row("data/train.jsonl", 5, gold="}{"), r"data\.answer: the gold answer '\}\{' of question 'train-5'"),
    "a gold among a task's": (row("data/heldout.jsonl", 6, gold="}{"), r"own\.yaml: the gold answer of question 'heldout-6'"),
    "a task's gold that is no number": (row("data/heldout.jsonl", 6, gold=float("nan")), r"heldout\.jsonl:7: column 'gold' is empty"),
    "a task's gold of another kind": (row("data/heldout.jsonl", 6, gold=True), r"heldout\.jsonl:7: column 'gold' holds True, expected a text or number"),
    "a task's question of another kind": (row("data/heldout.jsonl", 6, question=7), r"heldout\.jsonl:7: column 'question' holds 7, expected a text"),
    "a task's missing id": (row("data/heldout.jsonl", 6, uid=None), r"heldout\.jsonl:7: column 'uid' is empty"),
    "a task's path": (keys(eval__tasks=["../../evals/own.yaml"]), r"eval\.tasks: got '\.\./\.\./evals/own\.yaml', expected a name: put the file into \./evals and name it 'own'"),
    "a task's key": (replaced("evals/own.yaml", "  id: uid", "  id: uid\n  scorrer: ../rewards.py:near"), r"own\.yaml: dataset_kwargs\.scorrer: unknown key; did you mean 'scorer'"),
    "a task's threshold": (replaced("evals/own.yaml", "  id: uid", "  id: uid\n  threshold: 0.5"), r"dataset_kwargs\.threshold: got 0\.5 without a scorer"),
    "kind of a task's value": (replaced("evals/own.yaml", "[level]", "level"), r"dataset_kwargs\.columns: got 'level', expected a list"),
    "a task's column of ours": (replaced("evals/own.yaml", "[level]", "[level, scorer]"), r"dataset_kwargs\.columns: got 'scorer', which is a name of ours"),
    "a task's prompt that is a word": (replaced("evals/own.yaml", "task: own", "task: own\ndoc_to_text: promt"), r"own\.yaml: doc_to_text: gives 'promt' for every question"),
    "scorer that raises for one row": (scorer("return [1 / (n - 5) and 1.0 for n in level]"), r"own\.yaml: scorer: 'judge' raised ZeroDivisionError"),
    "scorer that hangs": (scorer("time.sleep(1e6)"), r"own\.yaml: scorer gave nothing within 0\.5 s"),
    "reward that raises for one row": (both(questions(300), rewards("    return [1 / (n - 123) for n in kwargs['level']]")), r"'.*near' raised ZeroDivisionError"),
    "reward that needs a box": (rewards("    return [float(c[-1]['content'].split('boxed{')[1] > '') for c in completions]"), r"'.*near' raised IndexError"),
    "reward that sleeps": (rewards("    import time; time.sleep(1e6)"), r"'.*near' gave nothing within 0\.5 s"),
    "reward that works for ever": (rewards("    while True:\n        try:\n            [1] * 9\n        except Exception: pass"), r"'.*near' gave nothing within 0\.5 s"),
    "async reward that waits": (replaced("rewards.py", "    return [0.1", "    import asyncio; await asyncio.sleep(1e6)\n    return [0.1"), r"'.*later' gave nothing within 0\.5 s"),
    "reward's file that hangs": (replaced("rewards.py", "async def", "import time\ntime.sleep(1e6)\n\n\nasync def"), r"importing them gave nothing within 0\.5 s"),
    "template's format": (replaced("prompts/ask.txt", "{level}", "{level:02d}"), r"ask\.txt: data\.template: \{level:02d\} is not filled in; expected \{level\}"),
    "template's column of two words": (both(written("prompts/ask.txt", "{problem} {the level}"), keys(data__columns=["the level"]), lambda home: [
        (home / path).write_text((home / path).read_text().replace('"level"', '"the level"').replace("[level]", "[the level]"))
        for path in ("data/train.jsonl", "data/heldout.jsonl", "evals/own.yaml")
    ]), r"\{the level\} is not filled in: its name isn't of letters"),
    "template's space": (replaced("prompts/ask.txt", "{level}", "{ level }"), r"\{ level \} is not filled in"),
    "column of the trainer's": (keys(data__columns=["level", "prompts"]), r"columns: got 'prompts', which is a name of the trainer's"),
    "style beside a template": (keys(eval__style="r1", eval__template="{problem}"), r"eval: template: got one beside style 'r1'"),
    "component that raises": (replaced("components/nudge.py", "in group.rows}", "in group.row}"), r"nudge\.py: component 'nudge': score\(\) raised AttributeError"),
    "component that gives a list": (replaced("components/nudge.py", "return {", "return [0.1]  # {"), r"score\(\) gave \[0\.1\], expected a mapping"),
    "component that gives too much": (replaced("components/nudge.py", "self.config.size for", "float('inf') for"), r"score\(\) gave inf for row 0"),
    "component that hangs": (replaced("components/nudge.py", "        return {", "        import time; time.sleep(1e6)\n        return {"), r"score\(\) gave nothing within 0\.5 s"),
    "model's chat template": (model(chat("{% for m in messages %}{{ m['content'] }")), r"'\./model': its chat template refuses the prompt \(data\.template\)"),
    "chat without a system turn": (model(chat(NO_SYSTEM), data__system="Be brief."), r"refuses the prompt \(data\.system\): no system role"),
    "chat without one in evaluation": (model(chat(NO_SYSTEM), eval__system="Be brief."), r"refuses the prompt \(eval\.system\): no system role"),
    "model's shapes": (model(json_of("config.json", vocab_size=7)), r"'\./model': model\.safetensors: .* by config\.json it is \(7, 96\)"),
    "model's cut weights": (model(lambda folder: (folder / "model.safetensors").write_bytes(b"cut")), r"'\./model' can't be loaded"),
    "adapters' modules": (keys(model={"name": "embedded", "lora": {"target_modules": ["q_prj"]}}), r"target_modules: the model has no 'q_prj'; did you mean 'q_proj'"),
    "revision of a folder": (keys(model={"name": "embedded", "revision": "main"}), r"model\.revision: got 'main', expected null"),
    "model of a hub that can't be reached": (keys(model="nobody/nothing"), r"model\.name: 'nobody/nothing' can't be looked at"),
    "prompt longer than the context": (written("prompts/ask.txt", "{problem} {level}" + " word" * 900), r"max_completion_length: got 24, but the model takes 512 tokens"),
    "answers longer than the context": (keys(trainer__max_completion_length=999), r"max_completion_length: got 999, but the model takes 512"),
    "evaluation longer than the context": (keys(eval__max_tokens=999), r"eval\.max_tokens: got 999, but with a prompt of \d+ tokens \(task 'own'\)"),
    "fewer questions than a batch": (questions(1), r"data: 1 questions, expected at least 2"),
    "checkpoints within a batch": (keys(trainer__save_steps=3, trainer__num_iterations=2), r"trainer\.save_steps: got 3, expected a multiple of 2"),
    "evaluation of TRL's": (keys(trainer__eval_strategy="steps"), r"trainer\.eval_strategy: got 'steps', expected 'no'"),
    "tracker's name": (keys(trainer__report_to="wandbb"), r"trainer\.report_to: got 'wandbb'; did you mean 'wandb'"),
    "model's folder": (own_model, r"model\.name: '.*model' can't be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_refused_before_training(mine: Path, r3bench, case: str, tmp_path: Path, monkeypatch) -> None:
    change, says = CASES[case]
    monkeypatch.chdir(tmp_path / "elsewhere")
    if "within" in says:
        monkeypatch.setenv("R3BENCH_PATIENCE", "0.5")
    change(mine)
    for command in (("validate",), ("ablate", "--runs", str(tmp_path / "runs"))):
        result = r3bench(command[0], str(mine / "ablations/grid.yaml"), *command[1:])
        if "can't be looked at" in says and command[0] == "validate":
            assert result.exit_code == 0 and re.search(f"warning: {says}", result.stderr)  # perhaps it can elsewhere
            continue
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


ODDITIES: dict[str, Change] = {
    "byte-order marks": lambda home: [
        (home / path).write_bytes(b"\xef\xbb\xbf" + (home / path).read_bytes())
        for path in ("rewards.py", "prompts/ask.txt", "data/train.jsonl", "evals/own.yaml")
    ],
    "another encoding": replaced("rewards.py", "\ndef near", "# -*- coding: latin-1 -*-\ndef near"),
    "braces of TeX": written("prompts/ask.txt", "{problem} \\frac{1}{2} \\text{level} {{level}} {level} \\boxed{}"),
    "a reward that prints": rewards("    print('loud'); return [0.5 for _ in completions]"),
    "a reward that abstains": rewards("    return [None for _ in completions]"),
    "a reward that gives an array": rewards("    import numpy; return numpy.ones(len(completions))"),
    "a model of one's own": model(),
    "adapters": keys(model={"name": "embedded", "lora": {"target_modules": ["q_proj", "mlp.up_proj"]}}),
    "questions that differ in kind": lambda home: [row(f"data/{name}.jsonl", 3, gold=gold)(home)
        for name in ("train", "heldout") for gold in ("\\frac{1}{2}", "x^2+1", "\\text{Sunday}", 0.5)],
    "a component with a state": replaced(
        "components/nudge.py", "        return {",
        "        assert step.step == 0 and not step.history.summaries(step.groups[0].question)\n        return {",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODDITIES)
def test_what_is_odd_but_right_passes(mine: Path, r3bench, tmp_path: Path, monkeypatch, case: str) -> None:
    monkeypatch.chdir(tmp_path / "elsewhere")
    ODDITIES[case](mine)
    result = r3bench("validate", str(mine / "ablations/grid.yaml"), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["warnings"] == []


@pytest.mark.parametrize("text", ["", "0", "90", "soon", "-1", "inf"])
def test_patience_is_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from r3bench.sweep.preflight.patience import SECONDS, patience

    monkeypatch.setenv("R3BENCH_PATIENCE", text)
    if text in ("", "0", "90"):
        assert patience() == (float(text) if text else SECONDS)
    else:
        with pytest.raises(R3BenchError, match=f"R3BENCH_PATIENCE: got '{text}', expected seconds"):
            patience()


def test_the_limit_leaves_another_timer_as_it_was(capsys: pytest.CaptureFixture) -> None:
    import signal

    from r3bench.sweep.preflight.patience import within

    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 50, 7)
        with within("it"):
            print("said")
        left, every = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 40 < left <= 50 and every == 7
        assert capsys.readouterr() == ("", "said\n")
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 1000])
def test_questions_are_asked_about_evenly(count: int) -> None:
    from r3bench.sweep.preflight.asked import ROWS, spread

    places = spread(count)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert places[0] == 0 and places[-1] == count - 1 and len(places) == min(count, ROWS)
    assert not gaps or max(gaps) - min(gaps) <= 1


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

    from r3bench.sweep.dispatch.ablate import ablate

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

    from r3bench.sweep.dispatch.ablate import ablate

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
    from r3bench.sweep.opening import open_study

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


class Answers(http.server.BaseHTTPRequestHandler):
    """A hub that knows no model."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("answers", [False, True])
def test_a_hub_is_asked_once(mine: Path, r3bench, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """One that can't be reached costs no retries, one that answers says that there is no such model."""
    import datasets
    from huggingface_hub import constants

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port if answers else 9}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for module in (constants, datasets.config):
            monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
        changed(mine, {"model": "nobody/nothing"})
        began = time.monotonic()
        result = r3bench("validate", str(mine / "ablations/grid.yaml"))
        assert time.monotonic() - began < 20
        server.shutdown()
    if answers:
        assert result.exit_code == 2 and "model.name: the hub has no 'nobody/nothing'" in result.stderr
    else:
        assert result.exit_code == 0 and "warning: model.name: 'nobody/nothing' can't be looked at" in result.stderr
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE
