"""Retrospective replay (RRL): arXiv 2504.14363.

States of failed answers that looked promising when they were sampled are stored, and generation starts from them again
later: the prefix is given, the policy writes the rest, and only the rest is trained.

The paper's method section was not available to us. What is certain: a critic's value marks promising states explored
early, and they are replayed to keep exploring (its abstract; RLEP, arXiv 2507.07451, section 2), without
importance weights (ExGRPO, arXiv 2510.02245, section 2). The rest is a reading:

| method | here |
|---|---|
| state s_t, question and first t answer tokens | `cuts`, `spacing`, `max_cuts`, `max_fraction`, `source` |
| V(s_t), the critic | `value: value_head`, on the policy's detached hidden states; `gate_auc`, `learning_rate` |
| promising | `promising` with `quantile`, `threshold` or `rise`; the best cut of an answer; `outcome` |
| buffer | `per_question`, `max_states`, `max_age`, `keep`; states are scored again when drawn |
| replay over the whole run | `share`, `schedule`, `ramp_steps` |
| stop | `retire` |

Disclosed nowhere: thresholds, what counts as a state, buffer size, replay rate and schedule, whether only failures are
replayed, the loss on prefix tokens. GRPO has no critic. `value_head` trains one; `monte_carlo` does without: a state is
worth the success rate of its own continuations (at 0 and 1 it goes, others are drawn alike), and new states are tried
out with `explore` of the draws. Say which was used. `random` is the control: values are drawn, so cuts and states are
random; it waits for no critic. V(s_0) is the success rate of the group the answer is from. A state drawn is scored by
the critic of the day on the hidden state it had when it was stored; the better half of twice as many is taken. One of a
canonical solution has none and is worth the success rate of its continuations; how much of the solution is given
follows their success (`canonical_length`, `next_share`), down to nothing. States never go for their age alone unless
`max_age` says so: the method comes back to early ones. Advantages are those inside the group of continuations; rewards,
a length bonus too, see the whole text. Not offered: PPO with a critic as the baseline, a table of returns as the value,
groups pooled with the bare question's, a warm-up by steps, a reward on the rest alone.
"""

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from r3bench.component import Component, Facts, Group, PlannedGroup, Step
from r3bench.errors import ConfigError
from r3bench.training.toolkit.critic import ValueHead
from r3bench.training.toolkit.cuts import TokenTexts, cut_points, leaks, paragraph_cuts
from r3bench.training.toolkit.mixed_groups import uneven
from r3bench.training.toolkit.states import State, next_share, promising


@dataclass(frozen=True)
class RetrospectiveConfig:
    """Settings of `retrospective`."""

    value: Literal["value_head", "monte_carlo", "random"] = "value_head"  # where a state's value comes from
    source: Literal["own", "canonical", "both"] = "own"  # prefixes of own answers, or of the data's 'solution' column
    outcome: Literal["failed", "any"] = "failed"  # answers that states are taken from
    cuts: Literal["paragraphs", "grid", "entropy"] = (
        "paragraphs"  # where an answer is cut; paragraphs fall back to grid
    )
    spacing: int | None = None  # tokens between cuts of the grid; null: an eighth of the answer
    max_cuts: int = 8  # cuts looked at per answer
    max_fraction: float = 0.7  # longest prefix as a share of the answer
    promising: Literal["quantile", "absolute", "rise"] = "quantile"  # what makes the best cut of an answer promising
    quantile: float = 0.75  # V is at least this quantile of the batch's best cuts
    threshold: float = 0.5  # V is at least this (absolute)
    rise: float = 0.1  # V exceeds V(s_0) by at least this
    share: float = 0.25  # rho, share of prompt slots that continue a stored state
    schedule: Literal["constant", "ramp", "failing"] = (
        "constant"  # rho as is, growing to it, or times the all-wrong share
    )
    ramp_steps: int = 100  # optimiser steps of the ramp
    explore: float = 0.5  # share of the draws for states without a value yet (monte_carlo, canonical)
    per_question: int = 4  # states kept per question
    max_states: int | None = None  # states kept in all; null: `per_question` times the questions
    keep: Literal["value", "reservoir"] = (
        "value"  # which stay: the best (untried ones count 0.5, equal ones by lot), or a uniform draw of all seen
    )
    canonical_length: Literal["success", "random"] = (
        "success"  # of a solution's prefix: shorter after success, or any cut
    )
    max_age: int | None = None  # optimiser steps a state is kept; null: no limit, reaching far back is the idea
    retire: float = 0.5  # a question's states go when its success rate without a prefix reaches this
    gate_auc: float = 0.6  # the critic's running AUC must reach this before states are collected
    learning_rate: float = 0.05  # of the critic
    prefix_loss: bool = False  # train the given tokens too, without any importance weight

    def __post_init__(self) -> None:
        if self.spacing is not None and self.spacing < 1:
            raise ValueError(f"spacing: got {self.spacing}, expected at least 1 token or null")
        for key in ("max_cuts", "ramp_steps", "per_question"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: got {getattr(self, key)}, expected at least 1")
        if self.max_states is not None and self.max_states < 1:
            raise ValueError(f"max_states: got {self.max_states}, expected at least 1 or null")
        for key in ("max_fraction", "share", "retire"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"{key}: got {getattr(self, key)}, expected a number in (0, 1]")
        for key in ("quantile", "threshold", "explore", "gate_auc"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: got {getattr(self, key)}, expected a number in [0, 1]")
        if self.max_age is not None and self.max_age < 1:
            raise ValueError(f"max_age: got {self.max_age}, expected at least 1 step or null")
        if self.value == "value_head" and self.cuts == "entropy":
            raise ValueError("cuts: got 'entropy' with value 'value_head', expected paragraphs or grid")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate: got {self.learning_rate}, expected a number above 0")


class Retrospective(Component):
    """Restarts generation from promising states of earlier failed answers."""

    name = "retrospective"
    Config = RetrospectiveConfig
    counters: ClassVar[Mapping[str, str]] = {
        "states_retired": "stored states let go because their question is solved",
        "states_collected": "states stored and still there after the batch",
        "groups": "groups continued from a stored state",
        "tokens_given": "prefix tokens given to them, not sampled",
        "converted": "continued groups with at least one right answer",
        "groups_with_gradient": "continued groups with different rewards",
        "rows_correct": "right answers in continued groups",
        "steps_gate_closed": "steps in which the critic was not good enough to collect states",
        "questions_without_solution": "questions without a worked solution to cut",
        "questions_weaned": "questions that need no prefix any more",
    }
    observes_tokens = True
    gives_prefixes = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "monte_carlo": {"value": "monte_carlo"},  # critic-free
        "random": {"value": "random"},  # control: random cuts, random states
        "canonical": {"source": "canonical"},
    }
    config: RetrospectiveConfig

    def __init__(self, config: RetrospectiveConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.probes_hidden = config.value == "value_head"
        self.states: dict[str, list[State]] = {}
        self.critic = ValueHead(config.learning_rate)
        self._failing = 0.0  # share of all-wrong groups in the last batch
        self._texts = TokenTexts(facts.decode)
        self._probed: dict[int, list[int]] = {}  # global row -> cuts found in `probe`
        self._new: list[State] = []  # stored in this batch
        self._given: dict[str, float] = {}  # question -> share of the longest prefix of its solution to give next
        self._usual = 1.0  # running mean of those, where a question begins
        if config.max_states is not None and config.max_states < facts.questions:
            warnings.warn(
                f"components.retrospective.max_states: {config.max_states} is fewer than the {facts.questions} "
                "training questions, so most of them have no state to come back to; expected null, or more",
                stacklevel=2,
            )

    @classmethod
    def check(cls, config: RetrospectiveConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        cap = trainer["max_completion_length"]
        if (
            cap is not None
            and config.spacing is not None
            and config.spacing >= cap * config.max_fraction
            and config.cuts == "grid"
        ):
            raise ConfigError(
                f"{where}.spacing: got {config.spacing}, expected below {config.max_fraction} x max_completion_length="
                f"{cap}: no answer would be cut"
            )

    # ------------------------------------------------------------------ replay

    def plan(self, step: Step) -> list[PlannedGroup]:
        if self.config.source != "own" and not any("solution" in group.columns for group in step.groups):
            raise ConfigError(
                f"components.retrospective.source: got '{self.config.source}', but the training questions have no "
                "column 'solution': name the column with worked solutions in data.solution, or set source to 'own'"
            )
        self._expire(step.step)
        rng = self.facts.rng(step.step, self.name, "plan")
        slots = [group.index for group in step.groups if group.provenance == "fresh"]
        slots = [slot for slot in slots if slot not in step.taken]
        wanted = self._rate(step.step) * len(step.groups)
        count = min(int(wanted) + (rng.random() < wanted % 1), len(slots))
        states = self._draw(count, rng)
        return [
            PlannedGroup(
                state.question, "continuation", slot,
                prefix_ids=tuple(int(t) for t in state.prefix), prefix_in_loss=self.config.prefix_loss,
            )
            for slot, state in zip(sorted(rng.sample(slots, len(states))), states, strict=True)
        ]  # fmt: skip

    def _everything(self) -> list[State]:
        """All states, by question."""
        return [state for question in sorted(self.states) for state in self.states[question]]

    def _rate(self, step: int) -> float:
        """rho_n."""
        if self.config.schedule == "ramp":
            return self.config.share * min(1.0, step / self.config.ramp_steps)
        return self.config.share * (self._failing if self.config.schedule == "failing" else 1.0)

    def _draw(self, count: int, rng: random.Random) -> list[State]:
        """At most `count` states of different questions."""
        chosen: list[State] = []
        everything = self._everything()
        rng.shuffle(everything)
        unknown = [state for state in everything if math.isnan(state.value)]
        known = [state for state in everything if not math.isnan(state.value)]
        if self.config.value == "value_head":
            known = self._rescored(known[: 2 * count])
        tries = sum(rng.random() < self.config.explore for _ in range(count)) if known else count
        for pool, limit in ((unknown, tries), (known, count), (unknown, count)):
            for state in pool:
                if len(chosen) < limit and all(state.question != other.question for other in chosen):
                    chosen.append(state)
        return chosen

    def _rescored(self, states: list[State]) -> list[State]:
        """The states by their value under the current critic, best first."""
        seen = [state for state in states if state.features is not None]
        if seen:
            features = np.stack([state.features for state in seen if state.features is not None])
            for state, value in zip(seen, self.critic.value(features).tolist(), strict=True):
                state.value = value
        return sorted(states, key=lambda state: -state.value)

    # ------------------------------------------------------------------ collection

    def probe(self, step: Step) -> dict[int, Sequence[int]]:
        self._probed = {}  # what an interrupted batch left
        self._probed = {group.rows[place]: cuts for group, place, cuts in self._cut_rows(step.groups)}
        return {row: [cut - 1 for cut in cuts] for row, cuts in self._probed.items()}

    def _cut_rows(self, groups: Sequence[Group]) -> list[tuple[Group, int, list[int]]]:
        """(group, place, prefix lengths) of the answers to bare questions that can be cut."""
        rows = []
        for group in sorted(groups, key=lambda group: group.question):  # an order that no rank layout changes
            if group.provenance == "fresh":
                found = [self._probed.get(row, []) for row in group.rows] if self._probed else self._cuts(group)
                rows += [(group, place, cuts) for place, cuts in enumerate(found) if cuts and group.judged[place]]
        return rows

    def observe(self, step: Step) -> None:
        fresh = [group for group in step.groups if group.provenance == "fresh"]
        judged = [group for group in fresh if group.judged.any()]
        if judged:
            self._failing = float(np.mean([group.all_wrong for group in judged]))
        self._new.clear()
        self._credit(step)
        for group in judged:
            if group.success >= self.config.retire:
                self.count("states_retired", len(self.states.pop(group.question, [])))
        self._collect(step)
        self._trim()
        kept = [any(state is other for other in self.states.get(state.question, [])) for state in self._new]
        self.count("states_collected", sum(kept))  # and not evicted at once
        self.measure("states", sum(map(len, self.states.values())))

    def _credit(self, step: Step) -> None:
        """Book the continuations against the states they started from."""
        for group in step.groups:
            if group.provenance != "continuation" or not group.judged.any():
                continue
            success = group.success
            self.count("groups")
            self.count("tokens_given", group.prefix)
            self.count("converted", int(group.correct.any()))
            self.count("groups_with_gradient", int(uneven(group)))
            self.count("rows_correct", int(group.correct.sum()))
            stored = self.states.get(group.question, [])
            prefix = group.completion_ids[0][: group.prefix] if group.completion_ids else np.zeros(0)
            for state in [s for s in stored if np.array_equal(s.prefix, prefix)]:
                state.uses += 1
                if self.config.value == "monte_carlo" or math.isnan(state.value):
                    state.value = success
                if state.canonical and self.config.canonical_length == "success":
                    stored.remove(state)
                    self._move(group.question, success)
                    self._canonical(group, step)
                elif success == 1 or (self.config.value == "monte_carlo" and success == 0):
                    stored.remove(state)  # nothing left to learn from it, or hopeless

    def _collect(self, step: Step) -> None:
        config = self.config
        rows = self._cut_rows(step.groups)
        self._probed = {}
        for group in step.groups:
            if group.provenance == "fresh" and group.success < config.retire and config.source != "own":
                self._canonical(group, step)
        critical = config.value == "value_head" and bool(rows)
        features = np.concatenate([group.hidden[place] for group, place, _ in rows]) if critical else None
        values = self._values(rows, features, step)
        if config.value == "value_head" and self.critic.auc < config.gate_auc:
            self.count("steps_gate_closed")
        elif config.source != "canonical":
            rates = {id(group): group.success for group in step.groups}
            self._collect_own(
                [
                    (group, place, cuts, found)
                    for (group, place, cuts), found in zip(rows, values, strict=True)
                    if rates[id(group)] < config.retire and (not group.correct[place] or config.outcome == "any")
                ],
                rates,
                step,
            )
        if features is not None:  # last: a value must not know the outcome of its own answer
            right = np.array([group.correct[place] for group, place, _ in rows], float)
            returns = np.repeat(right, [len(cuts) for *_, cuts in rows])
            self.critic.learn(features, returns, np.concatenate(values))
            self.measure("value_auc", self.critic.auc)

    def _collect_own(
        self, rows: list[tuple[Group, int, list[int], np.ndarray]], rates: Mapping[int, float], step: Step
    ) -> None:
        """Store the best cut of each answer where it is promising."""
        config = self.config
        # The best cut of each answer: (group, place, its number among the answer's cuts, prefix length, value).
        best = []
        for group, place, cuts, values in rows:
            at = int(values.argmax())
            best.append((group, place, at, cuts[at], float(values[at])))
        if config.value == "monte_carlo":
            keep = [True] * len(best)  # the cut was random; its continuations will tell what it is worth
        else:
            keep = promising(
                np.array([value for *_, value in best]), np.array([rates[id(group)] for group, *_ in best]),
                rule=config.promising, quantile=config.quantile, threshold=config.threshold, rise=config.rise,
            ).tolist()  # fmt: skip
        for (group, place, at, cut, value), kept in zip(best, keep, strict=True):
            if not kept:
                continue
            features = group.hidden.get(place)
            self._store(
                State(
                    question=group.question,
                    prefix=np.asarray(group.completion_ids[place][:cut], np.int32),
                    step=step.step,
                    value=math.nan if config.value == "monte_carlo" else value,
                    features=None if features is None else features[at].astype(np.float32),
                ),
                step,
            )

    def _values(
        self, rows: list[tuple[Group, int, list[int]]], features: np.ndarray | None, step: Step
    ) -> list[np.ndarray]:
        """V at the cuts of each answer: the critic's on (n, H) hidden states of all, or random numbers."""
        if features is not None:
            return np.split(self.critic.value(features), np.cumsum([len(cuts) for _, _, cuts in rows])[:-1])
        rngs = [self.facts.rng(step.step, self.name, f"{group.question}-{place}") for group, place, _ in rows]
        return [np.array([rng.random() for _ in cuts]) for rng, (_, _, cuts) in zip(rngs, rows, strict=True)]

    def _cuts(self, group: Group) -> list[list[int]]:
        """Prefix lengths of each answer of a group."""
        found = []
        for place, (text, ends) in enumerate(self._texts.read_all(group.completion_ids)):
            breaks: list[int] = []
            if self.config.cuts == "paragraphs":
                breaks = paragraph_cuts(text, ends)
            elif self.config.cuts == "entropy":
                highest = np.argsort(-group.entropies[place], kind="stable")[: 2 * self.config.max_cuts]
                breaks = highest.tolist()
            foreign = np.flatnonzero(~group.masks[place]) if group.masks else np.zeros(0, int)
            turn = int(foreign[0]) if len(foreign) else len(ends)  # a cut lies in the first turn, before its end
            found.append(self._cut_points(text, ends, breaks, before=turn if len(foreign) else turn + 1))
        return found

    def _cut_points(self, text: str, ends: np.ndarray, breaks: Sequence[int], before: int | None = None) -> list[int]:
        answer = text.find("\\boxed")
        boxed = len(ends) if answer < 0 else int(np.searchsorted(ends, answer, "right")) + 1
        # A solution of the data may be longer than any answer can be: a prefix leaves room for the rest.
        room = math.floor(self.config.max_fraction * self.facts.max_completion_length)
        spacing = self.config.spacing
        if spacing is None and len(ends) > self.facts.max_completion_length:
            spacing = max(1, room // 8)
        return cut_points(
            len(ends),
            breaks,
            spacing=spacing,
            max_fraction=self.config.max_fraction,
            max_cuts=self.config.max_cuts,
            before=min(boxed, room + 1, len(ends) if before is None else before),
        )

    def _move(self, question: str, success: float) -> None:
        """Give more or less of the question's solution next time, after answers of that success rate."""
        share = next_share(self._given.get(question, self._usual), success)
        self._given[question] = share
        self._usual += 0.1 * (share - self._usual)

    def _canonical(self, group: Group, step: Step) -> None:
        """Store a prefix of the data's own solution, if there is one that does not give the answer away."""
        solution = group.columns.get("solution")
        if not solution:
            if group.provenance == "fresh":
                self.count("questions_without_solution")
            return
        ids = np.array(self.facts.encode(str(solution)), np.int32)
        text, ends = self._texts.read(ids)
        answer = group.columns.get("answer")
        cuts = [
            cut
            for cut in self._cut_points(text, ends, paragraph_cuts(text, ends))
            if not leaks(text[: ends[cut - 1]], answer)
        ]
        if not cuts:
            return
        if self.config.canonical_length == "random":
            cut = self.facts.rng(step.step, self.name, f"canonical-{group.question}").choice(cuts)
            self._store(State(group.question, ids[:cut], step.step, math.nan), step)
            return
        if any(state.canonical for state in self.states.get(group.question, [])):
            return
        if group.provenance == "fresh" and self._short_enough(group.question, cuts) and group.all_wrong:
            self._move(group.question, 0.0)  # weaned, and failing on its own
        if self._short_enough(group.question, cuts):
            self.count("questions_weaned", int(group.provenance != "fresh"))
            return
        share = self._given.setdefault(group.question, self._usual)
        cut = max(cut for cut in cuts if cut <= max(share * cuts[-1], cuts[0]))
        self._store(State(group.question, ids[:cut], step.step, math.nan, canonical=True), step)

    def _short_enough(self, question: str, cuts: Sequence[int]) -> bool:
        """Whether the share to give is less than the first cut: the bare question is what comes next."""
        return question in self._given and self._given[question] * cuts[-1] < cuts[0]

    def _store(self, state: State, step: Step) -> None:
        stored = self.states.setdefault(state.question, [])
        if any(np.array_equal(state.prefix, other.prefix) for other in stored):
            return
        state.lot = self.facts.rng(
            step.step, self.name, f"lot-{state.question}-{state.prefix.tobytes().hex()}"
        ).random()
        stored.append(state)
        self._new.append(state)
        stored.sort(key=self._worth, reverse=True)
        del stored[self.config.per_question :]

    def _worth(self, state: State) -> tuple[float, float]:
        """Larger stays longer. Equal values go by lot, not by age: the newest would push out the early ones."""
        if self.config.keep == "reservoir":
            return (0.0, state.lot)
        return (0.5 if math.isnan(state.value) else state.value, state.lot)

    def _trim(self) -> None:
        self.states = {question: stored for question, stored in self.states.items() if stored}
        limit = self.config.max_states
        surplus = sum(map(len, self.states.values())) - limit if limit is not None else 0
        if surplus <= 0:
            return
        gone = sorted(self._everything(), key=self._worth)[:surplus]
        names = {id(state) for state in gone}
        for question in {state.question for state in gone}:
            self.states[question] = [state for state in self.states[question] if id(state) not in names]
        self.states = {question: stored for question, stored in self.states.items() if stored}

    def _expire(self, step: int) -> None:
        if self.config.max_age is not None:
            limit = step - self.config.max_age
            for question, stored in self.states.items():
                self.states[question] = [state for state in stored if state.step >= limit]

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("retrospective/groups_with_gradient", 0) > 0

    # ------------------------------------------------------------------ checkpoint

    def state_dict(self) -> dict[str, Any]:
        states = self._everything()
        features = [state.features for state in states if state.features is not None]
        return {
            "rows": [
                [
                    state.question, state.step, None if math.isnan(state.value) else state.value, state.uses,
                    len(state.prefix), state.features is not None, state.lot, state.canonical,
                ]
                for state in states
            ],
            "prefixes": np.concatenate([np.zeros(0, np.int32), *[state.prefix for state in states]]),
            "features": np.stack(features) if features else np.zeros((0, 0), np.float32),
            "failing": self._failing,
            "given": [dict(sorted(self._given.items())), self._usual],
            "critic": [self.critic.updates, self.critic.auc],
            "critic_bias": self.critic.bias,
            **{f"critic_{key}": value for key, value in self.critic.arrays.items()},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.states = {}
        start = used = 0
        for question, step, value, uses, length, has_features, lot, canonical in state["rows"]:
            prefix = np.asarray(state["prefixes"][start : start + length], np.int32)
            features = np.asarray(state["features"][used], np.float32) if has_features else None
            start, used = start + length, used + bool(has_features)
            self.states.setdefault(question, []).append(
                State(question, prefix, step, math.nan if value is None else value, uses, features, lot, canonical)
            )
        self._failing = float(state["failing"])
        self._given = {question: float(share) for question, share in state["given"][0].items()}
        self._usual = float(state["given"][1])
        self.critic.updates, self.critic.auc = int(state["critic"][0]), float(state["critic"][1])
        self.critic.bias = np.asarray(state["critic_bias"], float)
        self.critic.arrays = {key: np.asarray(state[f"critic_{key}"], float) for key in self.critic.arrays}
