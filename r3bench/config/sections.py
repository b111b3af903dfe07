"""The sections of a recipe, one frozen dataclass each. Defaults are the quickstart's."""

from dataclasses import dataclass, field
from typing import Any, Literal

Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention"]
MOST_WORKERS = 1024  # grading processes
MOST_SAMPLES = 16_384  # answers per question; every one is a request in memory


@dataclass(frozen=True)
class LoraSection:
    """Low-rank adapters instead of full weights (peft)."""

    rank: int = 16  # rank of the update matrices
    alpha: int = 32  # scale; the update is multiplied by alpha / rank
    dropout: float = 0.0  # dropout on the adapter's input; anything above 0 makes the on-policy ratio noisy
    target_modules: str | tuple[str, ...] = "all-linear"  # module names that get an adapter
    merge: bool = True  # save whole weights with the adapters merged in, too; not part of the run's identity

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank: got {self.rank}, expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, expected a number in [0, 1)")


@dataclass(frozen=True)
class WarmupSection:
    """Further supervised steps of the embedded model before reinforcement learning: how rare its worked answers are."""

    steps: int = 60  # optimiser steps of 16 answers, the learning rate falling to zero
    direct: float = 0.8  # share of direct answers, the others are worked ones
    learning_rate: float = 1.0e-3  # AdamW's
    seed: int = 0  # of the questions drawn

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: got {self.steps}, expected at least 1")
        if not 0 <= self.direct <= 1:
            raise ValueError(f"direct: got {self.direct}, expected a share in [0, 1]")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate: got {self.learning_rate}, expected a number in (0, 1)")


@dataclass(frozen=True)
class ModelSection:
    """The policy at step 0."""

    name: str = "embedded"  # 'embedded', 'embedded-20', 'smollm2-135m', a local folder, or a hub id 'org/name'
    revision: str | None = None  # hub commit or tag; pin it for anything published
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = (
        "float32"  # dtype of the trained weights; float16: of all but those, which a loss scaler needs in float32
    )
    compensation: Literal["kahan"] | None = None  # kahan: AdamW that keeps what rounding drops from bfloat16 weights
    attention: Attention | None = None  # kernel of the policy's forward; null: what transformers chooses (sdpa)
    lora: LoraSection | None = None  # adapters; null trains all weights
    warmup: WarmupSection | None = None  # further supervised steps of 'embedded' or 'embedded-20'; null: none

    @property
    def saved_whole(self) -> bool:
        """Whether a finished run has whole weights, as vLLM needs them, and not adapters alone."""
        return self.lora is None or self.lora.merge


TAKEN = {  # columns of the data that the trainer or TRL fills, or takes for something else
    "prompt", "prompts", "question_id", "completion", "completions", "completion_ids", "trainer_state", "log_extra",
    "log_metric", "environment", "environments", "image", "images", "tools",
}  # fmt: skip


@dataclass(frozen=True)
class DataSection:
    """The training questions."""

    name: str = (
        "embedded"  # 'embedded', 'embedded-20', a known set ('gsm8k', ...), a .jsonl, .parquet, .csv or .tsv file (its
        # path as seen from the file that names it), a hub id, or 'reasoning-gym:GENERATOR'
    )
    split: str = "train"  # split of a hub data set
    revision: str | None = None  # hub commit or tag; known sets have a pinned one
    problem: str = "problem"  # column with the question
    answer: str = "answer"  # column with the gold answer
    solution: str | None = "solution"  # column with a worked solution, for components that use one; may be absent
    id: str | None = "id"  # column with a unique question id; null or an absent column: a hash of the problem
    limit: int | None = None  # keep the first N rows
    style: Literal["boxed", "r1", "plain"] = "boxed"  # instruction added to the problem: `r3bench prompts` prints it
    system: str | None = None  # system message: a text, or a .txt/.md file
    template: str | None = None  # in place of the style: a .txt/.md file with {problem}, or such a text
    columns: tuple[str, ...] = ()  # further columns that rewards, components and the template get, by name
    options: dict[str, Any] = field(default_factory=dict)  # arguments of a generator: seed, size, and its own

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: got {self.limit}, expected at least 1 or null")
        if self.template is not None and self.style != "boxed":
            raise ValueError(
                f"template: got one beside style '{self.style}', which it would replace; expected one of them"
            )
        taken = TAKEN & set(self.columns)
        if taken:
            raise ValueError(f"columns: got '{min(taken)}', which is a name of the trainer's; rename it in the data")


@dataclass(frozen=True)
class BudgetSection:
    """Where training stops besides `trainer.max_steps`; whichever comes first."""

    generated_tokens: int | None = None  # completion tokens sampled on all ranks, extra groups included; null: none

    def __post_init__(self) -> None:
        if self.generated_tokens is not None and self.generated_tokens < 1:
            raise ValueError(f"generated_tokens: got {self.generated_tokens}, expected at least 1 or null")


@dataclass(frozen=True)
class HistoryBounds:
    """How many answers components can reuse; the oldest goes first.

    Each kind has the bounds for itself: answers to the bare question, to reflection prompts, after given prefixes. The
    newest right and the newest wrong answer to the bare question (finished and cut off apart) stay whatever
    `per_question` is, and go last under `max_tokens`.
    """

    per_question: int = 32  # newest trajectories per question and kind
    max_tokens: int = 500_000_000  # completion tokens of a kind over all ranks, about 8 bytes each
    max_age: int | None = None  # optimiser steps after which a trajectory is dropped; null: never

    def __post_init__(self) -> None:
        if self.per_question < 1:
            raise ValueError(f"per_question: got {self.per_question}, expected at least 1")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: got {self.max_tokens}, expected at least 1")
        if self.max_age is not None and self.max_age < 1:
            raise ValueError(f"max_age: got {self.max_age}, expected at least 1 step or null")


BUILT_IN = {"accuracy": "correctness", "correctness": "correctness", "reasoning_gym": "reasoning_gym"}  # reward -> log


def function_name(name: str) -> str:
    """What a reward function is logged as: a built-in one's own name, or the last part of `./file.py:name`."""
    return BUILT_IN.get(name) or name.rpartition(":")[2]


@dataclass(frozen=True)
class RewardSection:
    """The reward functions, correctness of the final answer unless others are named, and R3's length bonus (arXiv
    2601.19620, section 4.1.3)."""

    functions: tuple[str, ...] = ()  # 'accuracy', 'reasoning_gym', ./file.py:function, package.module:function; empty:
    # accuracy (of a generator: its own scorer)
    weights: tuple[float, ...] = ()  # one per function, in the total; empty: 1 each
    correctness: tuple[str, ...] = ()  # functions that decide right and wrong, by name; empty: accuracy, else the first
    threshold: float = 1.0  # smallest reward of theirs that is right
    timeout: float = 5.0  # seconds a single answer may take to grade; a hang costs this, counts as wrong and is logged
    workers: int = 2  # grading processes, started only when an answer needs more than a text comparison
    require_boxed: bool = True  # only a \boxed{} answer counts; false: the last number does as well
    length_bonus: bool = False  # correct rows get max(0, 1 - length / length_max) on top
    length_max: int = 32768  # L_max in tokens
    thinking: Literal["required", "ignored"] = "ignored"  # required: without a closed <think> there is no answer

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise ValueError(f"timeout: got {self.timeout}, expected seconds above 0")
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ValueError(f"workers: got {self.workers}, expected 1 to {MOST_WORKERS}")
        if self.length_max < 1:
            raise ValueError(f"length_max: got {self.length_max}, expected at least 1 token")
        if self.weights and len(self.weights) != max(len(self.functions), 1):
            raise ValueError(f"weights: got {len(self.weights)} numbers for {max(len(self.functions), 1)} functions")
        names = [function_name(name) for name in self.used]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(
                f"functions: got '{twice[0]}' twice; every function needs a name of its own, by which it is logged"
            )
        for name in self.used:
            if name not in BUILT_IN and ":" not in name:
                raise ValueError(
                    f"functions: got '{name}', expected {', '.join(BUILT_IN)}, ./file.py:function or "
                    "package.module:function"
                )
        for name in self.correctness:
            if name not in names and function_name(name) not in names:
                raise ValueError(f"correctness: got '{name}', expected one of the functions: {', '.join(names)}")
        if self.length_bonus and "correctness" not in names:
            raise ValueError("length_bonus: it is for right answers by 'accuracy', which isn't among the functions")

    @property
    def used(self) -> tuple[str, ...]:
        """The functions, the default one included."""
        return self.functions or ("accuracy",)

    @property
    def deciding(self) -> tuple[str, ...]:
        """Logged names of the functions that decide right and wrong: accuracy where it is one, else the first."""
        names = [function_name(name) for name in self.used]
        if not self.correctness:
            return ("correctness",) if "accuracy" in self.used else (names[0],)
        return tuple(name if name in names else function_name(name) for name in self.correctness)

    @property
    def all_weights(self) -> list[float]:
        """One weight per function, the length bonus's (1) last."""
        return [*(self.weights or [1.0] * len(self.used)), *([1.0] if self.length_bonus else [])]

    @property
    def lowest_right(self) -> float:
        """The smallest total reward of a right answer whose other rewards are 0."""
        weights = dict(zip((function_name(name) for name in self.used), self.all_weights, strict=False))
        return self.threshold * min(weights[name] for name in self.deciding)


@dataclass(frozen=True)
class EvalSection:
    """What a finished run is measured on. Not part of the run's identity: more can be added without retraining."""

    tasks: tuple[str, ...] = ("embedded",)  # names in evals/ (shipped or ./evals)
    samples: int = 4  # k, answers per question
    temperature: float = 1.0  # sampling temperature; 0 is greedy and needs samples = 1
    top_p: float = 1.0  # nucleus mass
    max_tokens: int | None = None  # response cap; null: the training cap
    limit: int | None = None  # first N questions of each task
    batch_size: int = 64  # rows generated together
    seed: int = 0  # seed of the draws; each (question, repeat) has its own stream
    style: Literal["boxed", "r1", "plain"] = "boxed"  # as data.style; not given: the training prompt's
    system: str | None = None  # as data.system; null: the training prompt's
    template: str | None = None  # as data.template; null: the training prompt's
    require_boxed: bool = True  # only a boxed answer counts; false: "the answer is ..." and the last number do too
    backend: Literal["auto", "hf", "vllm"] = "auto"  # what samples; auto: vllm where training used it on a GPU, else hf
    engine: dict[str, Any] = field(default_factory=dict)  # arguments of vLLM's engine: max_model_len, dtype, ...

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples: got {self.samples}, expected at least 1")
        if self.samples > MOST_SAMPLES:
            raise ValueError(f"samples: got {self.samples}, expected at most {MOST_SAMPLES}")
        if self.temperature < 0:
            raise ValueError(f"temperature: got {self.temperature}, expected 0 or above")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("samples: greedy decoding (temperature 0) gives the same answer each time, expected 1")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: got {self.top_p}, expected a number in (0, 1]")
        if self.batch_size < 1:
            raise ValueError(f"batch_size: got {self.batch_size}, expected at least 1")
        for name in ("max_tokens", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1 or null")
        if self.template is not None and self.style != "boxed":
            raise ValueError(
                f"template: got one beside style '{self.style}', which it would replace; expected one of them"
            )
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise ValueError(f"tasks: got {list(self.tasks)}, expected a list of distinct names")


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a run. `trainer` holds GRPOConfig fields, `components` name -> settings."""

    model: ModelSection = field(default_factory=ModelSection)  # the policy
    data: DataSection = field(default_factory=DataSection)  # the training questions
    trainer: dict[str, Any] = field(default_factory=dict)  # TRL GRPOConfig fields, checked by name and type
    budget: BudgetSection = field(default_factory=BudgetSection)  # where training stops besides max_steps
    reward: RewardSection = field(default_factory=RewardSection)  # correctness and length bonus
    components: dict[str, Any] = field(
        default_factory=dict
    )  # name -> true | preset name | settings; absent or false: off
    history: HistoryBounds = field(default_factory=HistoryBounds)  # stored answers that components reuse
    eval: EvalSection = field(default_factory=EvalSection)  # measurements after training
    seed: int = 0  # seeds data order, sampling and components
    name: str = "run"  # readable part of the run id
    sources: dict[str, str] = field(
        default_factory=dict
    )  # hash of each component's, reward's and prompt's file that is not shipped; filled in: other code is another run

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: got {self.seed}, expected 0 to {2**32 - 1}")
