"""Batch numbers against TRL's own check, every suggested number tried out; names that don't exist."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from trl import GRPOConfig
from typer.testing import Result

from r3bench import catalog
from r3bench.config.load import load_recipe
from r3bench.config.world import check_whole_groups, check_world, least_processes
from r3bench.errors import ConfigError, R3BenchError
from r3bench.records import RunPaths
from r3bench.sweep.executors.launch import World, launch
from r3bench.sweep.strategy import check_launch, check_numbers
from r3bench.training.questions.batches import closed_at
from r3bench.training.run import training_arguments

SMALL = st.integers(1, 12)
NUMBERS = st.fixed_dictionaries(
    {"per_device_train_batch_size": SMALL, "gradient_accumulation_steps": st.integers(1, 6),
     "num_generations": st.integers(2, 12)},
    optional={"steps_per_generation": st.integers(1, 6), "generation_batch_size": st.integers(1, 96),
              "num_generations_eval": st.integers(1, 8), "per_device_eval_batch_size": SMALL,
              "eval_strategy": st.just("steps")},
)  # fmt: skip


class Parsed(GRPOConfig):
    """TRL's arguments as they would be on a number of processes."""

    processes = 1

    @property
    def world_size(self) -> int:
        return self.processes


def trl_accepts(values: dict[str, Any], world: int) -> bool:
    evaluation = {"eval_steps": 1, "do_eval": True} if "eval_strategy" in values else {}
    Parsed.processes = world
    try:
        Parsed(output_dir="out", use_cpu=True, bf16=False, report_to="none", **values, **evaluation)
    except ValueError as error:
        assert re.search(r"divisible|must be a multiple", str(error)), error
        return False
    return True


def suggested(error: ConfigError) -> list[tuple[str, int]]:
    """The settings after 'nearest that works', each of which is meant to be enough."""
    found = re.findall(r"(\w+)=(\d+)", str(error).partition("nearest that works: ")[2])
    assert found, error
    return [(key, int(number)) for key, number in found]


def applied(values: dict[str, Any], world: int, key: str, number: int) -> tuple[dict[str, Any], int]:
    return (values, number) if key == "processes" else ({**values, key: number}, world)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(values=NUMBERS, world=st.integers(1, 12))
def test_what_trl_refuses_is_refused_with_numbers_that_work(values: dict[str, Any], world: int) -> None:
    assume(not {"steps_per_generation", "generation_batch_size"} <= values.keys())
    allowed = trl_accepts(values, world)
    try:
        check_world(values, world)
    except ConfigError as error:
        assert not allowed, error
        for key, number in suggested(error):
            changed, processes = applied(values, world, key, number)
            try:
                check_world(changed, processes)
            except ConfigError as other:  # a second thing that is wrong, which this one hid
                assert "eval_batch_size" in str(other) and "eval_batch_size" not in str(error)
            else:
                assert trl_accepts(changed, processes), (key, number)
    else:
        assert allowed


@settings(max_examples=150, deadline=None)
@given(values=NUMBERS, world=st.integers(2, 12))
def test_whole_groups_are_what_the_components_need(values: dict[str, Any], world: int) -> None:
    values = {key: value for key, value in values.items() if "eval" not in key}
    assume(not {"steps_per_generation", "generation_batch_size"} <= values.keys())
    try:
        check_world(values, world)
    except ConfigError:
        assume(False)
    steps = values.get("steps_per_generation", values["gradient_accumulation_steps"])
    local = values.get("generation_batch_size", values["per_device_train_batch_size"] * steps * world) // world
    whole = local % values["num_generations"] == 0
    try:
        check_whole_groups(values, world)
    except ConfigError as error:
        assert not whole
        for key, number in suggested(error):
            check_world({**values, key: number}, world)
            check_whole_groups({**values, key: number}, world)
    else:
        assert whole


@given(device=SMALL, steps=st.integers(1, 6), group=st.integers(2, 12), world=st.integers(1, 24))
def test_least_processes(device: int, steps: int, group: int, world: int) -> None:
    values = {"per_device_train_batch_size": device, "gradient_accumulation_steps": steps, "num_generations": group}
    assert (world % least_processes(values) == 0) == (device * steps * world % group == 0)


@given(gpus=st.integers(1, 16), nodes=st.integers(1, 3), tensor=st.integers(1, 20))
def test_an_engine_stays_on_a_node(gpus: int, nodes: int, tensor: int) -> None:
    values = {"per_device_train_batch_size": 8, "num_generations": 8, "use_vllm": True, "vllm_mode": "colocate",
              "vllm_tensor_parallel_size": tensor}  # fmt: skip
    try:
        check_world(values, gpus, nodes)
    except ConfigError as error:
        assert gpus % tensor
        ((key, number),) = suggested(error)
        check_world({**values, key: number}, gpus, nodes)
        assert abs(number - tensor) == min(abs(d - tensor) for d in range(1, gpus + 1) if gpus % d == 0)
    else:
        assert gpus % tensor == 0


def test_components_that_append_are_known_before_a_model_is_loaded() -> None:
    """Those whose mixtures or groups grow the batch: the run would stop at the first of them."""
    on = {
        name for name in catalog.component_names() if catalog.component(name).appends(catalog.component(name).Config())
    }
    assert on == {"replay", "reflection", "repo"}
    odd = ["trainer.per_device_train_batch_size=4"]
    for name in sorted(on):
        recipe = load_recipe("quickstart", [*odd, f"components.{name}=on"])
        with pytest.raises(ConfigError, match=f"component '{name}' adds to groups: 4 rows a process"):
            check_numbers(recipe, 2, 1, "ddp")
        check_numbers(load_recipe("quickstart", [f"components.{name}=on"]), 2, 1, "ddp")
    reflection = "components.reflection={placement: replace, max_share: 1.0}"  # of the one group there is
    for override in ("components.replay=replace", reflection, "components.rescue=on"):
        check_numbers(load_recipe("quickstart", [*odd, override]), 2, 1, "ddp")


def test_under_a_launcher_of_the_users_own_its_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("quickstart", ["trainer.per_device_train_batch_size=4"])
    with pytest.raises(ConfigError, match="x 1 processes = 4 rows"):
        check_launch(recipe, 1, 1, "ddp", None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    check_launch(recipe, 1, 1, "ddp", None)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="x 3 processes = 12 rows"):
        check_launch(recipe, 1, 1, "ddp", None)


NAMES = [
    ("model=embeded", "model.name: 'embeded' is neither built in", "did you mean 'embedded'?"),
    ("model=smollm2-135", "model.name: 'smollm2-135' is neither", "did you mean 'smollm2-135m'?"),
    ("model=./nowhere", "model.name: './nowhere': no such folder", ""),
    ("data=gsm8", "data.name: got 'gsm8', expected a known set", "did you mean 'gsm8k'?"),
    ("data=math500", "data.name: 'math500' is an evaluation set", ""),
    ("data=./mine.jsnol", "mine.jsnol: no such file", "did you mean 'mine.jsonl'?"),
    ("eval.tasks=[embeded]", "eval.tasks: no task 'embeded'", "did you mean 'embedded'?"),
]


@pytest.mark.parametrize("command", ["validate", "train"])
@pytest.mark.parametrize(("override", "start", "end"), NAMES)
def test_a_name_that_does_not_exist(
    r3bench: Callable[..., Result], folder: Path, command: str, override: str, start: str, end: str
) -> None:
    (folder / "mine.jsonl").write_text("{}\n")
    found = r3bench(command, "quickstart", override)
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert start in found.stderr
    assert found.stderr.rstrip().endswith(end)
    assert not (folder / "runs").exists()


def test_a_name_that_does_not_exist_in_a_grid(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.yaml").write_text("recipe: quickstart\nfactors: {model.name: [embedded, embeded]}\n")
    for command in ("validate", "ablate"):
        found = r3bench(command, "mine.yaml")
        assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
        assert "model.name: 'embeded' is neither" in found.stderr
    assert not (folder / "runs").exists()


def test_a_recipe_for_several_processes_says_so(r3bench: Callable[..., Result]) -> None:
    found = r3bench("validate", "quickstart", "trainer.per_device_train_batch_size=12")
    assert "components on: none; needs a multiple of 2 processes (--gpus)" in found.stdout
    refused = r3bench("train", "quickstart", "trainer.per_device_train_batch_size=12")
    assert "12 rows sampled together can't be cut into groups of num_generations 8" in refused.stderr


def test_float16_on_a_cpu_is_refused(r3bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = r3bench("train", "quickstart", "trainer.fp16=true", "--quiet")
    assert (found.exit_code, found.stderr.splitlines()[-1]) == (
        2, "r3bench: trainer.fp16: got True, but there is no GPU here, and on a CPU it would be left out",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sampled", "update", "iterations"), [(3, 2, 1), (2, 3, 1), (16, 8, 1), (4, 4, 3), (1, 4, 1), (6, 4, 2)]
)
def test_checkpoints_fall_on_the_end_of_a_sampled_batch(
    tmp_path: Path, sampled: int, update: int, iterations: int
) -> None:
    """Micro-step by micro-step: updates after which no sampled batch is half used."""
    micro = range(1, 200)
    ends = [n // update for n in micro if n % update == 0 and n % (sampled * iterations) == 0]
    for save in range(1, 13):
        changes = [
            f"trainer.steps_per_generation={sampled}", f"trainer.gradient_accumulation_steps={update}",
            f"trainer.num_iterations={iterations}", f"trainer.save_steps={save}",
        ]  # fmt: skip
        fits = all(n in ends for n in range(save, 25, save))
        if fits:
            training_arguments(load_recipe("quickstart", changes), RunPaths(tmp_path))
        else:
            with pytest.raises(ConfigError, match=f"save_steps: got {save}, expected a multiple of {ends[0]}:"):
                training_arguments(load_recipe("quickstart", changes), RunPaths(tmp_path))


@pytest.mark.parametrize(
    ("sampled", "update", "iterations", "batches"),
    [(3, 2, 1, 1), (3, 2, 1, 2), (3, 4, 2, 5), (5, 4, 1, 3), (2, 4, 1, 1), (1, 6, 1, 4), (4, 4, 3, 1)],
)
def test_checkpoints_where_epochs_end_within_an_update(
    tmp_path: Path, sampled: int, update: int, iterations: int, batches: int
) -> None:
    """transformers makes an epoch's last update of what is left of it; micro-step by micro-step over ten epochs."""
    changes = (
        f"steps_per_generation={sampled}",
        f"gradient_accumulation_steps={update}",
        f"num_iterations={iterations}",
    )
    recipe = load_recipe("quickstart", [*(f"trainer.{change}" for change in changes), "trainer.save_strategy=no"])
    arguments = training_arguments(recipe, RunPaths(tmp_path))
    questions = batches * arguments.generation_batch_size // arguments.num_generations
    closed, done = [], 0
    for _ in range(10):
        for step in range(1, batches * sampled * iterations + 1):
            done += 1
            if step % update == 0 or step == batches * sampled * iterations:
                closed.append(done % (sampled * iterations) == 0)
    for save in range(1, 13):
        assert closed_at(save, questions, arguments) == all(closed[save - 1 :: save]), save


def test_a_checkpoint_within_a_batch_is_refused_once_the_questions_are_known(r3bench: Callable[..., Result]) -> None:
    batches = ("trainer.per_device_train_batch_size=8", "trainer.steps_per_generation=3", "data.limit=3")
    settings = (*batches, "trainer.gradient_accumulation_steps=2", "trainer.save_steps=3", "--quiet")
    found = r3bench("train", "quickstart", *settings)
    assert (found.exit_code, found.stderr.splitlines()[-1]) == (
        2,
        "r3bench: trainer.save_steps: got 3, but epochs of 3 questions end within an update, so some checkpoints "
        "would cut a sampled batch in two and couldn't be resumed exactly; nearest: 6",
    )


def test_checkpoints_without_the_optimizer_are_refused(r3bench: Callable[..., Result]) -> None:
    found = r3bench("train", "quickstart", "trainer.save_only_model=true", "--quiet")
    assert found.stderr.splitlines()[-1] == (
        "r3bench: trainer.save_only_model: got True, but a run resumes from its checkpoints, and can't without the "
        "optimizer"
    )


@pytest.mark.parametrize(("save", "fits"), [(24, True), (25, False), (0.5, False)])
def test_checkpoints_of_a_batch_given_in_rows_fall_on_its_end(tmp_path: Path, save: float, fits: bool) -> None:
    """128 rows sampled together last for two updates; where a share of the run ends is not known."""
    recipe = load_recipe("quickstart", ["trainer.generation_batch_size=128", f"trainer.save_steps={save}"])
    if fits:
        assert training_arguments(recipe, RunPaths(tmp_path)).steps_per_generation == 2
    else:
        with pytest.raises(ConfigError, match=f"save_steps: got {save}, expected a multiple of 2:"):
            training_arguments(recipe, RunPaths(tmp_path))


@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("node0", "--master: got 'node0', expected HOST:PORT, such as node0:29500"),
        ("node0:x", "--master: got 'node0:x', expected HOST:PORT"),
        ("node0:99999", "--master: got 'node0:99999', expected HOST:PORT"),
        ("nowhere.invalid:29500", "--master: got 'nowhere.invalid:29500', but 'nowhere.invalid' is not known here: "),
    ],
)
def test_an_address_that_can_not_be_one(r3bench: Callable[..., Result], master: str, message: str) -> None:
    found = r3bench("train", "quickstart", "--nodes", "2", "--master", master)
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert message in found.stderr


def test_nodes_that_do_not_find_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    def fail(*_: Any, **__: Any) -> None:
        raise RendezvousConnectionError("store")

    monkeypatch.setattr("torch.distributed.launcher.api.launch_agent", fail)
    with pytest.raises(R3BenchError, match="the nodes didn't find each other at localhost:29500"):
        launch(load_recipe("quickstart"), folder / "run", World(1, 2, "ddp", "localhost:29500"))
