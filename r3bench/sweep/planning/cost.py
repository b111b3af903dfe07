"""What a run costs: generated tokens, device-hours and disk, from its recipe and stated assumptions. No torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from r3bench import catalog, project
from r3bench.config.precision import loaded_dtype, precision
from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.evaluation.task_file import beside
from r3bench.sweep.planning.memory import adapter_parameters, shape_of, state_bytes
from r3bench.sweep.task_values import task_values
from r3bench.training.questions.embedded import CAPS, SIZES

# questions of the known sets (docs/models-and-data.md has the same), where a file can't tell
TRAINING_SETS = {"gsm8k": 7473, "math": 7500, "deepscaler": 40309, "dapo": 17398, "aime": 968}
BANDWIDTH = {"A40": 0.70, "L40S": 0.86, "A100": 2.04, "H100": 3.35, "H200": 4.80}  # memory, TB/s; vendors' data sheets
H100_RATE = 13_000.0  # tokens/s of one H100 on a 1.78B model, sampled, scored and trained on (6.4 h for 307M tokens)
H100_SAMPLING = (
    10_000.0  # tokens/s of one H100 on a 1.78B model, sampling alone: a third to a half of the bandwidth bound
)
TRANSFORMERS_STEP = 0.03  # s for a token of every row in transformers: Python and kernel launches, about 1 ms a layer
REFERENCE_PARAMETERS = 1.78e9
EMBEDDED_PARAMETERS = 0.23e6
EMBEDDED_RATE = {"CPU core": 4_000.0}  # 50,000 sampled tokens in 12 to 13 s, two runs on two cores
# tokens/s of one core on a model of 135M parameters: 4,387 in 427 s on one thread of a busy machine (AMD EPYC), commit
# ec5eb27, `r3bench train smollm2_gsm8k`, results/smollm2_gsm8k/run.json
CORE_RATE, CORE_PARAMETERS = 10.0, 135e6
CORE_MOST = 0.5e9  # parameters above which nobody trains on a CPU
GPU_LEAST = 20e6  # ... below which a GPU is no faster by its bandwidth
HISTORY_BYTES = 8  # per stored token: its id and the log-prob it was sampled with
TEXT_BYTES = 2.0  # stored bytes per answer token, compressed


@dataclass(frozen=True)
class RunCost:
    """One run. Extra groups that a component appends are not in it; they are bounded by its own settings."""

    training_tokens: float | None  # completion tokens sampled; None when the number of steps can't be known
    evaluation_tokens: float
    device_hours: Mapping[str, float]  # device kind -> hours of one device, training and evaluation
    evaluation_hours: Mapping[str, float]  # those of the evaluation alone
    checkpoint_gb: float  # what training keeps at a time: two checkpoints
    kept_gb: float  # what stays: weights and answers


def run_cost(recipe: Recipe, *, mean_length: float = 0.5, processes: int = 1, rate: float | None = None) -> RunCost:
    """Cost of one run of `recipe`.

    Args:
        recipe: checked recipe.
        mean_length: mean response length as a share of the cap.
        processes: ranks in training.
        rate: measured tokens/s of one device, training included; the estimates per device kind otherwise.
    """
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    training = training_tokens(recipe, mean_length, processes)
    answers = sum((questions_of(task, recipe.eval.limit) or 0) * recipe.eval.samples for task in recipe.eval.tasks)
    evaluation = answers * mean_length * (recipe.eval.max_tokens or cap)
    size = parameters(recipe.model.name)
    weights = 4 if loaded_dtype(recipe.model) == "float32" else 2
    hours: dict[str, float] = {}
    measuring: dict[str, float] = {}
    if training is not None:
        kinds = {"given rate": rate} if rate else _rates(recipe.model.name, size)
        for kind, speed in kinds.items():
            sampling = evaluation_rate(recipe, speed * H100_SAMPLING / H100_RATE if not rate else speed)
            measuring[kind] = evaluation / sampling / 3600
            hours[kind] = training / speed / 3600 + measuring[kind]
    return RunCost(
        training_tokens=training,
        evaluation_tokens=evaluation,
        device_hours=hours,
        evaluation_hours=measuring,
        checkpoint_gb=2 * (_checkpoint_bytes(recipe, size or 0.0, weights) + history_bytes(recipe, training)) / 1e9,
        kept_gb=((size or 0.0) * weights + evaluation * TEXT_BYTES) / 1e9,
    )


def _checkpoint_bytes(recipe: Recipe, size: float, width: int) -> float:
    """A checkpoint's weights and optimiser states; with adapters (float32) those of the adapters alone."""
    found = shape_of(recipe.model.name) if recipe.model.lora is not None else None
    if found is not None and recipe.model.lora is not None:
        size, width = adapter_parameters(found, recipe.model.lora.rank), 4
    kept = width if precision(recipe).compensated and width < 4 else 0
    return size * (width + state_bytes(str(trainer_value(recipe.trainer, "optim")), width) + kept)


def with_transformers(recipe: Recipe) -> bool:
    """Whether a GPU run of `recipe` is measured with transformers, see `r3bench.evaluation.choose_backend.resolve`."""
    if recipe.model.name in CAPS:  # a CPU, whose rates are of transformers
        return False
    chosen = recipe.eval.backend
    return chosen == "hf" or (chosen == "auto" and not trainer_value(recipe.trainer, "use_vllm"))


def evaluation_rate(recipe: Recipe, sampling: float) -> float:
    """Tokens/s in evaluation on a device on which vLLM samples `sampling`.

    transformers samples a fixed batch, a token of every row at a time, and does that no faster on a better card.
    """
    return min(sampling, recipe.eval.batch_size / TRANSFORMERS_STEP) if with_transformers(recipe) else sampling


def history_bytes(recipe: Recipe, training: float | None) -> float:
    """Answers that components store, over all processes: at most what is sampled, 0 where none of them stores any."""
    if not any(catalog.component(name).uses_history for name in recipe.components):
        return 0.0
    bound = float(recipe.history.max_tokens)
    return HISTORY_BYTES * (bound if training is None else min(bound, training))


def _rates(name: str, size: float | None) -> dict[str, float]:
    if name in CAPS:
        return dict(EMBEDDED_RATE)
    if size is None:
        return {}
    core = {"CPU core": _core_rate(size)} if size <= CORE_MOST else {}
    if size < GPU_LEAST:
        return core
    scale = REFERENCE_PARAMETERS / size
    return {**core, **{kind: H100_RATE * scale * width / BANDWIDTH["H100"] for kind, width in BANDWIDTH.items()}}


def _core_rate(size: float) -> float:
    """Tokens/s of one CPU core: a fixed time a token and one in proportion to the parameters, through both measured."""
    small, large = 1 / EMBEDDED_RATE["CPU core"], 1 / CORE_RATE
    slope = (large - small) / (CORE_PARAMETERS - EMBEDDED_PARAMETERS)
    return 1 / (small + slope * (max(size, EMBEDDED_PARAMETERS) - EMBEDDED_PARAMETERS))


def parameters(name: str) -> float | None:
    """Parameters of a model: known for the embedded one, of a folder by its config.json, else read from its name
    (`...-1.5B`, `135m`), else None."""
    if name in CAPS:
        return EMBEDDED_PARAMETERS
    shape = shape_of(name) if project.located(name).is_dir() else None
    if shape is not None:
        return float(shape.parameters)
    if "R1-Distill-Qwen-1.5B" in name:
        return REFERENCE_PARAMETERS
    found = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])", name)
    if not found:
        return None
    number, unit = found[-1]
    return float(number) * (1e9 if unit in "Bb" else 1e6)


def training_tokens(recipe: Recipe, mean_length: float, processes: int) -> float | None:
    """Completion tokens sampled in training: steps x rows per update / updates per sampled batch x mean length."""
    if recipe.budget.generated_tokens is not None:
        return float(recipe.budget.generated_tokens)
    trainer = recipe.trainer
    rows = int(trainer_value(trainer, "per_device_train_batch_size")) * processes
    rows *= int(trainer_value(trainer, "gradient_accumulation_steps"))
    fresh = rows / int(trainer_value(trainer, "num_iterations"))
    steps = int(trainer_value(trainer, "max_steps"))
    if steps <= 0:
        questions = training_questions(recipe)
        if questions is None:
            return None
        groups = rows / int(trainer_value(trainer, "num_generations"))
        steps = int(questions / groups * float(trainer_value(trainer, "num_train_epochs")))
    return steps * fresh * mean_length * int(trainer_value(trainer, "max_completion_length"))


def training_questions(recipe: Recipe) -> int | None:
    """Rows of the training set; None where only loading it could tell."""
    name = recipe.data.name
    known: int | None = SIZES["train"] if name in CAPS else TRAINING_SETS.get(name)
    if known is None:
        known = _lines(project.located(name))
    if recipe.data.limit is not None:
        return min(recipe.data.limit, known or recipe.data.limit)
    return known


def _lines(file: Path) -> int | None:
    """Questions of a JSONL file; None of another, or where it isn't there."""
    if file.suffix != ".jsonl" or not file.is_file():
        return None
    with open(file, "rb") as lines:
        return sum(1 for line in lines if line.strip())


def questions_of(task: str, limit: int | None = None) -> int | None:
    """Questions of an evaluation task, from its file or its JSONL file of questions; None where these don't say."""
    details = task_values(task).get("dataset_kwargs") or {}
    count = details.get("items")
    if isinstance(count, Mapping):
        count = max(count.values())
    if count is None and "cap" in details:
        count = SIZES["validation" if details.get("split") == "validation" else "test"]
    if count is None and isinstance(details.get("file"), str):
        count = _lines(beside(details["file"], catalog.names("evals", ".yaml")[task].parent))
    if count is None:
        return limit
    return min(int(count), limit) if limit else int(count)
