"""What a component is: a few named moments of a GRPO step, on NumPy arrays.

A component never sees a tensor, a process group or TRL. It sees the whole generation batch, the same on every rank, and
must decide the same on every rank: from its arguments, its own state and `facts.rng(...)`, never a global generator.
Importing this module loads neither torch nor TRL.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from r3bench.errors import ConfigError

Provenance = Literal["fresh", "replayed", "reflection", "continuation"]
Weight = Literal["decoupled", "ppo", "shaped", "none"]


@dataclass(frozen=True)
class Facts:
    """What a component may know about the trainer it runs in."""

    seed: int  # the run's seed
    num_generations: int  # G, rows per group
    groups: int  # groups per generation batch over all ranks, before any is added
    questions: int  # rows of the training set
    max_completion_length: int  # cap in tokens
    temperature: float  # sampling temperature
    scale_rewards: str  # 'group', 'batch' or 'none', as in GRPOConfig
    decode: Callable[[Sequence[int]], str]  # token ids -> text, special tokens left out
    encode: Callable[[str], list[int]]  # text -> token ids, no special tokens added
    stored_per_question: int = 32  # newest answers of a kind that the history keeps; older ones only for their verdict
    append_multiple: int = 1  # appended groups per batch must be a multiple of this; a surplus is dropped, last first

    def rng(self, step: int, tag: str, key: object = "") -> random.Random:
        """A generator that depends on (seed, step, tag, key) only: equal on every rank and after a resume."""
        return random.Random(f"{self.seed}-{step}-{tag}-{key}")


class Summary(NamedTuple):
    """A stored trajectory without its tokens. `(question, serial)` names it."""

    question: str  # question id
    serial: int  # per-question counter, never reused; larger is newer
    step: int  # optimiser step at which it was sampled
    epoch: int  # epoch at which it was sampled, from 0
    provenance: Provenance  # how its prompt was made
    correct: bool  # verdict of the task reward
    truncated: bool  # hit the length cap
    length: int  # completion tokens, a tool's or environment's left out
    reward: float  # total reward it got, components' columns included
    task_reward: float  # reward without the components' columns
    entropy_mean: float  # mean token entropy, NaN if never measured
    entropy_peak: float  # mean entropy of its top 20 % tokens, NaN if never measured
    tokens: int = 0  # completion tokens with a tool's or environment's; 0: as many as `length`
    asked: int = 0  # checksum of the prompt's tokens where an environment or rollout_func makes them, else 0


class Trajectory(NamedTuple):
    """A stored trajectory with its tokens."""

    summary: Summary
    completion_ids: np.ndarray  # (T,) int32
    logprobs: np.ndarray  # (T,) float32, behaviour policy, at sampling temperature; NaN where unknown
    prefix: int = 0  # leading tokens that were given, not sampled (continuations)
    mask: np.ndarray | None = None  # (T,) bool, False for a tool's or environment's tokens; None: there are none


class History(Protocol):
    """Read access to the stored trajectories of the questions in the current batch."""

    def summaries(self, question: str) -> Sequence[Summary]:
        """Stored trajectories of `question`, oldest first; empty for an unseen one."""
        ...

    def fetch(self, wanted: Sequence[Summary]) -> list[Trajectory]:
        """Tokens of the named trajectories, in order. Collective: every rank must ask for the same list."""
        ...


@dataclass
class Group:
    """G rows that share one prompt. Filled in as the step proceeds; `rows` are global row numbers."""

    index: int  # position in the generation batch
    question: str  # question id
    prompt: Any  # the data set's prompt (text or messages), not a rewritten one
    provenance: Provenance  # 'fresh', or what planned it
    rows: range  # global rows
    prefix: int = 0  # leading completion tokens that were given (continuations)
    columns: Mapping[str, Any] = field(default_factory=dict)  # the question's data set row
    correct: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # (G,) from `score` on; False if unjudged
    truncated: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # (G,) from `score` on
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (G,) tokens, from `score` on; a
    # tool's or environment's left out
    rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (G,) total reward; task part only in `score`
    task_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (G,) without the components' columns
    # (both NaN where every reward function abstained)
    completion_ids: list[np.ndarray] = field(default_factory=list)  # G arrays (T,), in `probe` and `observe`
    # (in `score` only those of the rows whose entropies were asked for, the others empty)
    texts: list[str] = field(
        default_factory=list
    )  # G answers as text, special tokens left out, from `score` on where a
    # component `reads_answers` (with the tokens of all rows)
    masks: list[np.ndarray] = field(default_factory=list)  # G arrays (T,) bool, False for a tool's or environment's
    # tokens, where `completion_ids` are; empty: there are none
    asked: list[int] = field(default_factory=list)  # G checksums of the prompt's tokens where those may differ
    logprobs: list[np.ndarray] = field(default_factory=list)  # G arrays (T,), in `observe`
    entropies: list[np.ndarray] = field(default_factory=list)  # G arrays (T,), in `observe`
    hidden: dict[int, np.ndarray] = field(default_factory=dict)  # place 0..G-1 -> (n, H) float32, in `observe`
    judged: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # (G,) from `score` on: has a verdict
    # A row that nobody judged is neither right nor wrong: leave it out of whatever is done. Not given: all were judged.

    def __post_init__(self) -> None:
        if len(self.judged) != len(self.correct):
            self.judged = np.ones(len(self.correct), bool)

    def written(self, place: int) -> np.ndarray:
        """(T,) bool: the tokens of a row that the policy wrote, neither given nor a tool's or environment's."""
        mask = self.masks[place].copy() if self.masks else np.ones(len(self.completion_ids[place]), bool)
        mask[: self.prefix] = False
        return mask

    @property
    def wrong(self) -> np.ndarray:
        """(G,) judged and not right."""
        return self.judged & ~self.correct

    @property
    def all_right(self) -> bool:
        """Somebody judged it, and every verdict is right."""
        return bool(self.correct.any() and not self.wrong.any())

    @property
    def all_wrong(self) -> bool:
        """Somebody judged it, and every verdict is wrong."""
        return bool(self.wrong.any() and not self.correct.any())

    @property
    def homogeneous(self) -> bool:
        """All right or all wrong, by correctness (never by the spread of the total reward). False if nobody judged."""
        return self.all_right or self.all_wrong

    @property
    def success(self) -> float:
        """Share of right answers among those that were judged; NaN if none was."""
        return float(self.correct[self.judged].mean()) if self.judged.any() else math.nan

    @property
    def shaped(self) -> bool:
        """Whether components gave its judged rows different rewards (beyond the rounding of float32 sums)."""
        rewards = self.rewards[self.judged]
        gained = rewards - self.task_rewards[self.judged]
        return bool(len(gained) and np.ptp(gained) > 1e-6 * (1 + np.abs(rewards).max()))


@dataclass(frozen=True)
class PlannedGroup:
    """A group that differs from the data set's: another question, a rewritten prompt, or a given prefix."""

    question: str  # question id; its row supplies answer and columns for the rewards
    provenance: Provenance  # 'reflection' or 'continuation'
    slot: int | None = None  # group index it takes the place of; None: appended
    prompt: Any | None = None  # what the policy sees instead of the data set's prompt (same type); None: unchanged
    prefix_ids: tuple[int, ...] = ()  # completion tokens given to the policy, masked from the loss
    prefix_in_loss: bool = False  # train the given tokens too, as if the policy had sampled them


@dataclass(frozen=True)
class Step:
    """One generation batch as the moments see it."""

    step: int  # optimiser steps done
    epoch: float  # epochs done, fractional; below 1 in the first epoch
    groups: Sequence[Group]  # every group of the batch; in `plan` one per prompt slot, before any is added
    history: History  # trajectories stored before this batch, of the questions in it (planned ones too, from `mix` on)
    taken: frozenset[int] = frozenset()  # group indices earlier components planned (in `plan`) or mixed (in `mix`)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One group mixed with historic rows. The trainer writes it into the batch."""

    group: int  # group index
    historic: tuple[Summary, ...]  # k stored trajectories to add
    replaced: tuple[int, ...]  # places 0..G-1 inside the group that give way, k of them; empty: the group grows
    fresh_advantages: np.ndarray  # (G,) for the group's own rows; replaced places and unjudged rows ignored
    historic_advantages: np.ndarray  # (k,)
    weight: Weight  # off-policy weight of the historic rows
    clip: tuple[float, float]  # bounds of the current/behaviour ratio in `decoupled`
    kl: bool = True  # whether the KL term (beta > 0) covers the historic rows, too


INFERRED = {
    "shapes_reward": "score",
    "resamples": "keep",
    "probes_hidden": "probe",
}  # flag -> the moment it follows from


def check_declared(component: "Component") -> None:
    """Raise `ConfigError` when a component would never be asked for what it offers, or lacks what a moment needs."""
    name = component.name
    kind = type(component)
    for flag, moment in INFERRED.items():
        if vars(kind).get(flag) is False and moment in vars(kind):
            raise ConfigError(f"component '{name}': it has {moment}() and {flag} = False, so it would never be asked")
    if component.resamples and not hasattr(component.config, "max_rounds"):
        raise ConfigError(f"component '{name}': it has keep(), which needs a field max_rounds in its Config")


# Counters that what components share adds to.
SHARED_COUNTERS = {
    "groups_taken": "groups an earlier component had already mixed",
    "rows_outranked": "stored answers left out, since mixed in they would turn the order of right and wrong round",
    "groups_outranked": "groups that no stored answer was left for because of that",
    "groups_unjudged": "groups left alone because answers of theirs have no verdict",
}


class Component:
    """Base class; override the moments you need. One component is one file, its class `name`d like the file."""

    name: ClassVar[str] = ""
    Config: ClassVar[type]  # frozen dataclass, a comment on every field
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named levels a grid can refer to, such as a control
    counters: ClassVar[Mapping[str, str]] = {}  # what each counter counts, in words: a report shows them
    later: ClassVar[tuple[str, ...]] = ()  # settings newer than some runs: their default is no part of an identity
    # These follow from the moments that a class overrides; an instance may turn the last two off in __init__.
    shapes_reward: ClassVar[bool] = False  # gets a reward column of its own: there is `score`
    resamples: bool = False  # `keep` is asked
    probes_hidden: bool = False  # `probe` is asked and `observe` gets hidden states
    # The flags below may be set on the instance in __init__ when they depend on the settings.
    uses_history: bool = False  # trajectories are stored and summaries fetched
    reads_answers: bool = (
        False  # from `score` on groups have every answer's text (`texts`) and tokens (`completion_ids`)
    )
    observes_tokens: bool = False  # `observe` gets completion_ids, logprobs and entropies
    entropy_temperature: float | None = None  # of the entropies `score` gets; None: the sampling temperature
    rewrites_prompts: bool = False  # `plan` gives prompts of its own
    gives_prefixes: bool = False  # `plan` gives first tokens of answers

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for flag, moment in INFERRED.items():
            if moment in vars(cls) and flag not in vars(cls):
                setattr(cls, flag, True)

    def __init__(self, config: Any, facts: Facts) -> None:
        self.config = config
        self.facts = facts
        self._counts: dict[str, float] = {}
        self._figures: dict[str, list[float]] = {}

    @classmethod
    def check(cls, config: Any, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        """Raise `ConfigError` when the settings contradict the trainer's.

        Args:
            config: an instance of `Config`.
            trainer: GRPOConfig fields, defaults included.
            lowest_correct: smallest total task reward a correct row can get.
            where: prefix for the message (file and key).
        """

    @classmethod
    def appends(cls, config: Any) -> bool:
        """Whether it adds groups or rows to a batch, for which each process must hold whole groups."""
        return "append" in (getattr(config, "mode", None), getattr(config, "placement", None))

    @classmethod
    def most_appended(cls, config: Any, groups: int, generations: int) -> int:
        """Rows it adds at most to a batch of `groups` prompts with `generations` answers each, for the memory plan."""
        return 0

    @classmethod
    def longest_prompt(cls, config: Any, prompt: int, cap: int, tokens: Callable[[str], int]) -> int:
        """Tokens of the longest prompt it may plan; bounds the sampling engine's context and the memory plan.

        Args:
            config: an instance of `Config`.
            prompt: tokens of the longest prompt of the data.
            cap: tokens of the longest answer.
            tokens: a text's tokens, or an upper bound where no tokenizer is at hand.
        """
        return prompt

    def plan(self, step: Step) -> list[PlannedGroup]:
        """Before generation: groups to add or to put in a slot."""
        return []

    def entropy_rows(self, step: Step) -> list[int]:
        """Before `score`: global rows whose per-token entropies it needs (each costs a share of a forward pass).

        `score` also finds the tokens of these rows in their groups' `completion_ids`.
        """
        return []

    def score(self, step: Step, entropies: Mapping[int, np.ndarray]) -> dict[int, float]:
        """After the task rewards: global row -> this component's reward (column of its own, added to the total).

        A reward for a row that nobody judged is left out.
        """
        return {}

    def keep(self, step: Step) -> list[bool]:
        """After `score`, (groups,) verdicts: which groups are worth training on.

        The slots of the others are sampled again, with other questions, for up to `config.max_rounds` more rounds;
        what is still not kept then stays in the batch.
        """
        return [True] * len(step.groups)

    def probe(self, step: Step) -> dict[int, Sequence[int]]:
        """Before `mix`: global row -> completion positions whose hidden state `observe` needs (LM head input there).

        Only called when `observes_tokens` and `probes_hidden`; costs a no-grad forward over the rows named.
        """
        return {}

    def mix(self, step: Step) -> list[Mixture]:
        """After the advantages: groups to mix with stored trajectories.

        Groups in `step.taken` got rows from an earlier component: a mixture for one of them is dropped.
        """
        return []

    def rescale(self, step: Step, mixed: frozenset[int]) -> dict[int, float]:
        """After `mix`: group index -> factor on the advantages of its judged fresh rows. `mixed`: groups that got
        historic rows."""
        return {}

    def observe(self, step: Step) -> None:
        """After the batch's log-probs are known; tokens, log-probs and entropies of every group are filled in."""

    def count(self, key: str, amount: float = 1.0) -> None:
        """Add to an evidence counter of this step; it is logged as `<name>/<key>` and summed over the run."""
        self._counts[key] = self._counts.get(key, 0.0) + amount

    def measure(self, key: str, value: float) -> None:
        """Log a figure of this step, as `<name>/<key>`; averaged, never summed, not evidence of acting."""
        self._figures.setdefault(key, []).append(value)

    @classmethod
    def counted(cls, key: str) -> str | None:
        """What a counter counts, in words; None where nothing is said of it."""
        return cls.counters.get(key) or SHARED_COUNTERS.get(key)

    def take_figures(self) -> dict[str, float]:
        """This step's figures, as `<name>/<key>`, and start the next step with none."""
        figures = {f"{self.name}/{key}": float(np.mean(values)) for key, values in self._figures.items()}
        self._figures = {}
        return figures

    def take_counts(self) -> dict[str, float]:
        """This step's evidence, as `<name>/<key>`, and start the next step at zero."""
        counts = {f"{self.name}/{key}": value for key, value in self._counts.items()}
        self._counts = {}
        return counts

    def acted(self, totals: Mapping[str, float]) -> bool:
        """Whether the run's totals show that the component changed anything."""
        return any(value > 0 for key, value in totals.items() if key.startswith(f"{self.name}/"))

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint: JSON values and NumPy arrays by name. Equal on every rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
