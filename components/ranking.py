"""Structural entropy ranking reward (SERR) of R3: arXiv 2601.19620, section 3.2.3 and Algorithm 1.

Rows of an all-wrong group that never reached a verdict (they hit the length cap) are ranked by the pattern of their
token entropies: high entropy at few tokens and low entropy overall is taken as exploring with structure.

| paper | here |
|---|---|
| p, share of tokens in K_i | `peak_fraction` |
| H(o_{i,t}) | natural logarithm, whole vocabulary; `entropy_temperature`: of the policy itself, whatever the sampling |
| L_i, tokens of a response | all sampled ones, the end of the turn included, a given prefix left out |
| K_i, k_i = max(1, floor(p L_i)); E_peak, E_glob | `peak_and_global` |
| i > j iff E_peak(i) > E_peak(j) and E_glob(i) < E_glob(j); S_i | `domination_scores` |
| R_(k) = R_max (1 - k / (N - 1)) | `ramp`, `max_reward`, k from 0 to N - 1 |
| truncated responses of an all-negative group | `scope` |
| the group: of any prompt of the batch, augmented ones too | `into_provenance`; by default bare questions only |
| ranking, then union, then Eq. 3 | `when: always` |

Tokens of the same context (rows that begin alike) have one entropy, `by_context`: what a forward pass measures there
differs by its rounding only.

Left open by the paper: p, R_max, ties, N = 1, and who is ranked (text and Algorithm 1: truncated; abstract: "truncated
or failed"). Here equal scores get equal rewards by default, because a plain sort turns row order into a reward whenever
no row dominates another; a lone row gets 0, because nothing was compared. The temperature of the entropies is open too.
By default they are those of the policy at temperature 1; `sampling` takes the distribution the tokens were drawn from.
Where the trainer scores its samples, that pass brings either; else they cost a forward pass over the ranked rows.

Algorithm 1 ranks augmented prompts like any other. Answers to a reflection prompt by a weak policy run to the cap, so
such groups are all wrong and all cut off: just what is ranked, and group scaling makes full-size advantages of it.
`literal` does that; by default only answers to the bare question are ranked.

Rows out of scope keep a reward of 0. So where only some rows of a group were cut off, these get R_max / 2 on average
and the finished wrong ones nothing, whether or not any row dominates another: the text's "truncated" favours running
into the cap over a wrong answer. `scope: failed` compares all. With `truncated_anywhere`, which ranks beside right
rows, no reward lifts a wrong row above a right one that a penalty pulled down; it is cut (`rows_capped`).

Group scaling cancels R_max where no row is right: an all-wrong group gets advantages of full size from this reward
alone. `unanchored_weight` multiplies the advantages of such groups when no historic row was mixed in; 1 is the paper.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from r3bench.component import Component, Facts, Group, Step
from r3bench.errors import ConfigError

Ties = Literal["average", "stable", "random"]
Asked = Literal["fresh", "reflection", "continuation"]  # how a group's prompt was made
Order = Literal["domination", "reversed", "shuffled", "random", "length"]

# Entropies closer than this (nats) are equal: float32 sums differ by rounding.
RESOLUTION = 1e-4


def by_context(entropies: Sequence[np.ndarray], completions: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Token entropies with one value per context: the mean over the rows that share all tokens so far.

    Rows of a group share the prompt, so all their first tokens come from one distribution, and so do the next ones of
    rows that begin alike. What is measured there differs by the rounding of the forward pass: in bfloat16 by up to
    0.1 nats where a group's rows are scored in batches of different shapes. In short answers such a token is the peak.

    Args:
        entropies: N arrays (L_i,) of one group.
        completions: N arrays (L_i,) of its tokens, given ones included.

    Returns:
        N new arrays (L_i,).
    """
    lengths = [len(row) for row in entropies]
    values, tokens = (np.zeros((len(lengths), max(lengths, default=0)), kind) for kind in (float, np.int64))
    for row, length in enumerate(lengths):
        values[row, :length], tokens[row, :length] = entropies[row], completions[row][:length]
    undecided = [(0, list(range(len(lengths))))]  # rows that share all tokens before this position
    while undecided:
        start, rows = undecided.pop()
        rows = [row for row in rows if lengths[row] > start]
        if len(rows) < 2:
            continue
        shared = tokens[rows, start : min(lengths[row] for row in rows)]
        different = (shared != shared[0]).any(axis=0)
        first = int(different.argmax())
        last = first if different[first] else len(different) - 1  # where they still have one context, from `start` on
        span = slice(start, start + last + 1)
        values[rows, span] = values[rows, span].mean(axis=0)
        alike: dict[int, list[int]] = {}
        for row, token in zip(rows, shared[:, last].tolist(), strict=True):
            alike.setdefault(token, []).append(row)
        undecided += [(start + last + 1, some) for some in alike.values() if len(some) > 1]
    return [values[row, :length] for row, length in enumerate(lengths)]


def peak_and_global(entropies: np.ndarray, peak_fraction: float) -> tuple[float, float]:
    """(E_peak, E_glob) of one response from its (L,) token entropies; NaN for an empty one."""
    length = len(entropies)
    if not length:
        return math.nan, math.nan
    k = max(1, math.floor(peak_fraction * length + 1e-9))  # 0.2 * 5 is not quite 1 in binary
    rising = np.sort(entropies)
    return float(rising[-k:].sum()) / k, float(rising.sum()) / length


def domination_scores(peak: np.ndarray, overall: np.ndarray) -> np.ndarray:
    """S_i, the number of rows that row i dominates, from (N,) peak and global entropies. NaN rows take no part."""
    above = (peak[:, None] - peak[None, :] > RESOLUTION) & (overall[None, :] - overall[:, None] > RESOLUTION)
    return above.sum(axis=1)


def ramp(scores: np.ndarray, *, max_reward: float, ties: Ties, rng: random.Random | None = None) -> np.ndarray:
    """Rewards that fall linearly from `max_reward` (best score) to 0 (worst), (N,) -> (N,).

    Args:
        scores: (N,) larger is better.
        max_reward: R_max.
        ties: equal scores get their `average` reward, are ordered by row (`stable`, literal), or at `random`.
        rng: generator for `random`; default: a fixed one.
    """
    count = len(scores)
    if count < 2:
        return np.zeros(count)
    places = list(range(count))
    if ties == "random":
        (rng or random.Random(0)).shuffle(places)
    order = sorted(places, key=lambda row: -scores[row])  # sorted() keeps the order of equal scores
    rewards = np.empty(count)
    rewards[order] = max_reward * (1 - np.arange(count) / (count - 1))
    if ties == "average":
        for score in np.unique(scores):
            rewards[scores == score] = rewards[scores == score].mean()
    return rewards


class Ranks(NamedTuple):
    """N responses ranked by their entropies."""

    rewards: np.ndarray  # (N,) in [0, max_reward]
    scores: np.ndarray  # (N,) what they are ranked by, larger is better; S_i unless a control changes the order
    dominations: np.ndarray  # (N,) S_i
    peak: np.ndarray  # (N,) E_peak, NaN for an empty response
    overall: np.ndarray  # (N,) E_glob, NaN for an empty response


def rank(
    entropies: Sequence[np.ndarray],
    completions: Sequence[np.ndarray] | None = None,
    written: Sequence[np.ndarray] | None = None,
    *,
    peak_fraction: float = 0.2,
    max_reward: float = 0.5,
    ties: Ties = "average",
    order: Literal["domination", "reversed", "shuffled"] = "domination",
    rng: random.Random | None = None,
) -> Ranks:
    """Rank N responses by their token entropies (section 3.2.3).

    Args:
        entropies: N arrays (L_i,) of token entropies, lengths may differ.
        completions: the tokens themselves, where entropies of the same context may differ by noise; see `by_context`.
        written: N masks (L_i,) of the tokens that the policy wrote; None: all of them.
        peak_fraction: p; the max(1, floor(p L_i)) highest entropies make E_peak.
        max_reward: R_max.
        ties: see `ramp`.
        order: `domination` as the paper has it; `reversed` and `shuffled` are controls.
        rng: generator for `shuffled` and for `ties='random'`; default: a fixed one.
    """
    rng = rng or random.Random(0)
    rows = entropies if completions is None else by_context(entropies, completions)
    if written is not None:
        rows = [row[mask] for row, mask in zip(rows, written, strict=True)]
    figures = np.array([peak_and_global(np.asarray(row, float), peak_fraction) for row in rows]).reshape(-1, 2)
    dominations = scores = domination_scores(figures[:, 0], figures[:, 1])
    if order == "reversed":
        scores = -scores
    elif order == "shuffled":
        scores = np.array(rng.sample(scores.tolist(), len(scores)))
    rewards = ramp(scores, max_reward=max_reward, ties=ties, rng=rng)
    return Ranks(rewards, scores, dominations, figures[:, 0], figures[:, 1])


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's correlation of two (N,) arrays, ties at their mean rank; NaN unless both have different values."""
    if len(first) < 2:
        return math.nan
    ranks = [
        (values[:, None] > values).sum(axis=1) + 0.5 * (values[:, None] == values).sum(axis=1)
        for values in (first, second)
    ]
    one, other = (values - (len(first) - 1) / 2 - 0.5 for values in ranks)  # ranks sum to the same, tied or not
    scale = math.sqrt(one @ one * (other @ other))
    return float(one @ other) / scale if scale > 0 else math.nan


@dataclass(frozen=True)
class RankingConfig:
    """Settings of `ranking`."""

    peak_fraction: float = 0.2  # p; 0.2 is the main setting of the forking-token paper (arXiv 2506.01939)
    max_reward: float = 0.5  # R_max; must stay below the smallest reward of a correct row
    ties: Ties = "average"  # equal scores: equal rewards, row order (literal), or random order
    scope: Literal["truncated", "failed", "truncated_anywhere"] = "truncated"
    # truncated rows of all-wrong groups (Algorithm 1); all their rows (abstract); truncated wrong rows of any group
    into_provenance: tuple[Asked, ...] = ("fresh",)  # groups that are ranked, by how their prompt was made
    entropy_temperature: Literal["one", "sampling"] = "one"  # of H: the policy's own distribution, or the one sampled
    order: Order = "domination"
    # what is ranked; controls: the reverse, the very rewards at random rows, a whole ramp at random rows, shorter first
    when: Literal["always", "no_history"] = (
        "always"  # literal, or only where no correct answer to the question is stored
    )
    unanchored_weight: float = 1.0  # factor on the advantages of all-wrong groups without a historic row

    def __post_init__(self) -> None:
        if not 0 < self.peak_fraction <= 1:
            raise ValueError(f"peak_fraction: got {self.peak_fraction}, expected a number in (0, 1]")
        if self.max_reward <= 0:
            raise ValueError(f"max_reward: got {self.max_reward}, expected a number above 0")
        if self.unanchored_weight < 0:
            raise ValueError(f"unanchored_weight: got {self.unanchored_weight}, expected 0 or above")
        if not self.into_provenance:
            raise ValueError(
                "into_provenance: got an empty list, expected at least one of fresh, reflection, continuation"
            )


class Ranking(Component):
    """Rewards truncated answers of all-wrong groups by the rank of their entropy pattern."""

    name = "ranking"
    Config = RankingConfig
    counters: ClassVar[Mapping[str, str]] = {
        "groups": "groups in which answers were ranked",
        "groups_fresh": "ranked groups that answer the bare question",
        "groups_reflection": "ranked groups that answer a reflection prompt",
        "groups_continuation": "ranked groups that continue a stored state",
        "rows": "ranked answers",
        "reward": "reward handed out, summed",
        "groups_with_spread": "groups whose rewards the ranking made unequal, for whatever reason",
        "groups_ordered": "groups in which what is ranked told answers apart",
        "groups_spread_by_scope": "groups in which only being ranked paid, not the rank",
        "rows_capped": "answers whose reward was held below that of a right one",
        "dominations": "pairs of answers of which one dominates the other",
        "groups_without_domination": "groups in which no answer dominates another",
        "groups_rescaled": "all-wrong groups whose advantages were shrunk",
    }
    shapes_reward = True
    later = ("entropy_temperature",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "literal": {"ties": "stable", "into_provenance": ("fresh", "reflection", "continuation")},
        "failed": {"scope": "failed"},
        "shuffled": {"order": "shuffled"},  # control: as many groups with the very same rewards, at random rows
        "random": {"order": "random"},  # control: the whole ramp at random rows, in every group
        "reversed": {"order": "reversed"},  # control: the dominated rows are rewarded
        "length": {"order": "length", "scope": "failed"},  # control: truncated rows all have the same length
    }

    config: RankingConfig

    def __init__(self, config: RankingConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.uses_history = config.when == "no_history"
        self.entropy_temperature = 1.0 if config.entropy_temperature == "one" else None

    @classmethod
    def check(cls, config: RankingConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        if config.max_reward >= lowest_correct:
            raise ConfigError(
                f"{where}.max_reward: got {config.max_reward}, expected below {lowest_correct}, the smallest reward of "
                "a correct answer: otherwise a failure can outrank a success"
            )
        if trainer.get("mask_truncated_completions"):
            raise ConfigError(
                f"{where}: trainer.mask_truncated_completions=true removes the truncated rows from the loss, so "
                "ranking them has no effect; set it to false or switch ranking off"
            )

    def _rows(self, group: Group, step: Step) -> list[int]:
        """Places in the group that are ranked."""
        if group.provenance not in self.config.into_provenance:
            return []
        if self.config.scope != "truncated_anywhere" and not group.all_wrong:
            return []
        if self.config.when == "no_history" and self._solved_before(group.question, step):
            return []
        wanted = group.wrong & (group.truncated if self.config.scope != "failed" else True)
        return [int(place) for place in np.flatnonzero(wanted)]

    @staticmethod
    def _solved_before(question: str, step: Step) -> bool:
        stored = step.history.summaries(question)
        return any(row.correct and row.provenance == "fresh" for row in stored)

    def entropy_rows(self, step: Step) -> list[int]:
        if self.config.order in ("random", "length"):
            return []
        return [group.rows[place] for group in step.groups for place in self._rows(group, step)]

    def score(self, step: Step, entropies: Mapping[int, np.ndarray]) -> dict[int, float]:
        rewards: dict[int, float] = {}
        for group in step.groups:
            places = self._rows(group, step)
            if not places:
                continue
            rewarded, ordered = self._rewards(group, places, entropies, step)
            rewarded = self._below_right(group, places, rewarded)
            ordered = ordered and bool(np.ptp(rewarded) > 0)
            rewards.update(zip((group.rows[place] for place in places), rewarded.tolist(), strict=True))
            self.count("groups")
            self.count(f"groups_{group.provenance}")
            self.count("rows", len(places))
            self.count("reward", float(rewarded.sum()))
            whole = np.zeros(len(group.correct))
            whole[places] = rewarded
            spread = np.ptp(whole[group.judged]) > 0
            self.count("groups_with_spread", int(spread))
            self.count("groups_ordered", int(ordered))
            self.count("groups_spread_by_scope", int(spread and np.ptp(rewarded) == 0))
        return rewards

    def _below_right(self, group: Group, places: list[int], rewarded: np.ndarray) -> np.ndarray:
        """The rewards, no larger than what lifts a wrong row to the lowest right one: that may have a penalty."""
        if not group.correct.any():
            return rewarded
        room = group.rewards[group.correct].min() - group.rewards[places]
        capped: np.ndarray = np.minimum(rewarded, np.maximum(room, 0.0))
        self.count("rows_capped", int((capped < rewarded).sum()))
        return capped

    def _rewards(
        self, group: Group, places: list[int], entropies: Mapping[int, np.ndarray], step: Step
    ) -> tuple[np.ndarray, bool]:
        """Rewards of the rows at `places`, (n,), and whether what is ranked told any two of them apart."""
        config = self.config
        rng = self.facts.rng(step.step, self.name, f"{group.provenance}-{group.question}")
        if config.order == "random":
            scores = np.array(rng.sample(range(len(places)), len(places)))
            rewards = ramp(scores, max_reward=config.max_reward, ties=config.ties, rng=rng)
        elif config.order == "length":
            scores = -np.asarray(group.lengths)[places]
            rewards = ramp(scores, max_reward=config.max_reward, ties=config.ties, rng=rng)
        else:
            ranks = rank(
                [entropies[group.rows[place]] for place in places],
                [group.completion_ids[place] for place in places],
                [group.written(place) for place in places],
                peak_fraction=config.peak_fraction,
                max_reward=config.max_reward,
                ties=config.ties,
                order=config.order,
                rng=rng,
            )
            rewards, scores = ranks.rewards, ranks.scores
            self.count("dominations", int(ranks.dominations.sum()))
            self.count("groups_without_domination", int(not ranks.dominations.any()))
            correlation = rank_correlation(ranks.peak, ranks.overall)
            if not math.isnan(correlation):
                self.measure("entropy_correlation", correlation)
        return rewards, bool(np.ptp(scores) > 0)

    def rescale(self, step: Step, mixed: frozenset[int]) -> dict[int, float]:
        if self.config.unanchored_weight == 1:
            return {}
        unanchored = [
            group.index for group in step.groups if group.index not in mixed and group.all_wrong and group.shaped
        ]
        self.count("groups_rescaled", len(unanchored))
        return dict.fromkeys(unanchored, self.config.unanchored_weight)

    def acted(self, totals: Mapping[str, float]) -> bool:
        silenced = totals.get("ranking/groups_rescaled", 0) if self.config.unanchored_weight == 0 else 0
        return totals.get("ranking/groups_ordered", 0) > silenced
