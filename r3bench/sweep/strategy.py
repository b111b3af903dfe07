"""How a model is spread over processes: the shipped accelerate configurations, as environment variables."""

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from r3bench import catalog
from r3bench.config.attention import attention_problem
from r3bench.config.load import check_recipe_components
from r3bench.config.precision import check_strategy_precision
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.world import check_whole_groups, check_world
from r3bench.config.yaml_file import read_yaml
from r3bench.devices import gpu_ids
from r3bench.errors import ConfigError, nearest
from r3bench.training.models.names import check_names

Strategy = Literal["ddp", "fsdp2", "zero2", "zero3"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
FOLDER = Path(__file__).with_name("strategies")
IRREGULAR = {  # accelerate's variable where it isn't the upper-case name of the setting
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
}


def variables(strategy: Strategy) -> dict[str, str]:
    """The environment variables `accelerate launch --config_file` would set for a shipped configuration."""
    values = read_yaml(FOLDER / f"{strategy}.yaml")
    found: dict[str, str] = {}
    for section, switch, prefix in (
        ("fsdp_config", "ACCELERATE_USE_FSDP", ""),
        ("deepspeed_config", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_"),
    ):
        if section in values:
            found[switch] = "true"
        for key, value in values.get(section, {}).items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[IRREGULAR.get(key, f"{prefix}{key.upper()}")] = text
    return found


def check_launch(recipe: Recipe, gpus: int, nodes: int, strategy: str, master: str | None) -> None:
    """Refuse what can't run, before any process is started.

    Raises:
        ConfigError: naming the option and what works.
    """
    check_names(recipe)
    ranks, local = (int(os.environ.get(key, "1")) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if gpus * nodes == 1 and ranks > 1 and strategy == "ddp":  # started by a launcher of the user's own
        check_numbers(recipe, local, max(1, ranks // local), strategy)
        return
    check_numbers(recipe, gpus, nodes, strategy)
    if nodes > 1 and not master:
        raise ConfigError("--master: missing, expected HOST:PORT of one of the nodes, the same on all of them")
    if nodes > 1:
        check_address(str(master))
    here = len(gpu_ids())
    if here and gpus > here:
        raise ConfigError(f"--gpus: got {gpus}, but this machine offers {here}; nearest that works: --gpus {here}")
    problem = attention_problem(recipe, here)
    if problem is not None:
        raise ConfigError(problem)
    if strategy == "ddp":
        return
    if not here:
        raise ConfigError(f"--strategy {strategy}: needs GPUs and none is visible; on CPU only ddp works")
    if strategy.startswith("zero") and find_spec("deepspeed") is None:
        raise ConfigError(f"--strategy {strategy}: needs the package deepspeed (pip install deepspeed), or use fsdp2")


def check_address(master: str) -> None:
    """Refuse a `--master` that isn't HOST:PORT, or whose host nobody knows: the nodes would look for it for minutes.

    Raises:
        ConfigError: saying which.
    """
    host, _, port = master.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--master: got '{master}', expected HOST:PORT, such as node0:29500")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--master: got '{master}', but '{host}' is not known here: {error}") from error


def check_numbers(recipe: Recipe, gpus: int, nodes: int, strategy: str, where: str = "trainer") -> None:
    """The part of `check_launch` that is about the recipe, whatever this machine has; `where` goes before a message.

    Raises:
        ConfigError: naming the option and what works.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"--strategy: got '{strategy}'{nearest(strategy, STRATEGIES)}")
    for option, value in (("--gpus", gpus), ("--nodes", nodes)):
        if value < 1:
            raise ConfigError(f"{option}: got {value}, expected at least 1")
    check_world(recipe.trainer, gpus, nodes, where)
    for name, settings in recipe.components.items() if gpus * nodes > 1 else ():
        component = catalog.component(name)
        if component.appends(build(component.Config, settings, f"components.{name}")):
            check_whole_groups(recipe.trainer, gpus * nodes, f"{where}: component '{name}' adds to groups")
    place = where.removesuffix("trainer").removesuffix(": ") or recipe.name
    check_recipe_components(recipe, place, gpus * nodes)
    if strategy != "ddp" and gpus * nodes == 1:
        raise ConfigError(f"--strategy {strategy}: splits a model over processes, expected --gpus 2 or more")
    check_strategy_precision(recipe, strategy, place)
    if recipe.model.lora is not None and strategy in ("fsdp2", "zero3"):
        raise ConfigError(
            f"--strategy {strategy}: adapters are merged by one process that needs the whole model; use ddp or zero2"
        )


def rank_environment(strategy: Strategy) -> dict[str, str]:
    """Variables for every process: the strategy's, one thread unless told otherwise, no telemetry."""
    return {**variables(strategy), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
