"""In-context self-reflection (ISR) of R3: arXiv 2601.19620, section 3.2.2 and Algorithm 1 lines 3-5.

A question that keeps failing is asked again with one of the policy's own wrong answers and an instruction to reflect in
the prompt. Such groups are sampled, rewarded and trained like any other.

| paper | here |
|---|---|
| tau, hard iff the mean of the stored rewards is below it | `threshold`, on correctness |
| R_{q,j}, j = 1..n, the stored rewards | `window`, `min_attempts`; the newest `history.per_question` bare answers |
| o_h, a random historic wrong answer | `context`, `budget`, `truncated_exemplars`, `source` |
| exemplars per hard question | `exemplars`, within `max_share` of the batch |
| p_r, the reflection prompt | `template`, `template_hash` |
| D_b united with the exemplars | `placement: append`; `replace` takes the question's own slot |
| epoch > 1 | `warmup`, `warmup_unit` |
| gradient on the augmented prompt | `gradient: prompt` |

Left open by the paper: tau, n and the window, the number of exemplars per question, the text of p_r, how a long wrong
answer is cut, and whether a success is ever trained on the bare question. `gradient: reattach` does that in the manner
of Critique-GRPO (arXiv 2506.03106): when the question fails again on its own, a stored success of a reflection group
takes the place of one of its rows, as an off-policy row without a KL term. Its ratio compares two prompts, and runs
have collapsed from that mismatch, so it is off by default.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from r3bench.component import Component, Group, Mixture, PlannedGroup, Step, Summary, Weight
from r3bench.errors import ConfigError
from r3bench.training.step.rollout import Layout, append_multiple
from r3bench.training.toolkit.answers import last_boxed
from r3bench.training.toolkit.mixed_groups import not_outranked, still_free, uneven

Context = Literal["full", "tail", "answer"]


def template_path(name: str) -> Path:
    """The file of a template: a path ending in .txt, or a name in ./components/templates or among the shipped ones."""
    if name.endswith(".txt"):
        return Path(name)
    own = Path.cwd() / "components" / "templates" / f"{name}.txt"
    return own if own.is_file() else Path(str(files("r3bench.components"))) / "templates" / f"{name}.txt"


def fill_template(template: str, problem: str, attempt: str) -> str:
    """`template` with {problem} and {attempt} put in, in one pass: braces inside the texts stay as they are."""
    texts = {"{problem}": problem, "{attempt}": attempt}
    return re.sub(r"\{problem\}|\{attempt\}", lambda match: texts[match.group()], template.strip("\n"))


def defuse(text: str) -> str:
    """`text` with control tokens such as <|im_end|> and thinking tags broken up: it goes into a user turn."""
    text = re.sub(r"</?think>", "", text)
    return re.sub(r"<(?=[|｜/])", "< ", text).strip()


def hardness(
    stored: Sequence[Summary], epoch: int, window: Literal["last_epoch", "all"], newest: int = 10**9
) -> tuple[float, int]:
    """Mean correctness and number of a question's stored fresh attempts; NaN and 0 without any.

    Args:
        stored: the question's trajectories.
        epoch: the current epoch, from 0.
        window: attempts that count; `last_epoch` are those of this epoch and the one before.
        newest: at most so many, the newest. Older ones are stored for what they are (the last right answer, say), not
            as a sample of attempts.
    """
    fresh = [row for row in stored if row.provenance == "fresh"][-newest:]
    attempts = [row.correct for row in fresh if window == "all" or row.epoch >= epoch - 1]
    return (sum(attempts) / len(attempts) if attempts else math.nan), len(attempts)


def longest_attempt(config: "ReflectionConfig", cap: int) -> int:
    """Tokens of a wrong answer that are shown at most; `cap`: of the answers themselves."""
    return cap if config.context == "full" else min(config.budget, cap)


@dataclass(frozen=True)
class ReflectionConfig:
    """Settings of `reflection`."""

    threshold: float = 0.25  # tau; a question is hard when its mean correctness is below this
    window: Literal["last_epoch", "all"] = "all"  # stored attempts that count
    min_attempts: int = 1  # attempts a question needs before it can be hard
    exemplars: int = 1  # reflection groups per hard question, each with another wrong answer
    max_share: float = 0.25  # reflection groups per batch, at most this share of its prompt slots, rounded down
    placement: Literal["append", "replace"] = "append"  # extra groups (literal), or in the hard question's own slot
    context: Context = "tail"  # the whole wrong answer, its last tokens, or only its final answer
    budget: int = 512  # tokens shown at most, with `tail` and `answer`: the last ones, what follows the thinking first
    truncated_exemplars: bool = True  # answers that hit the cap may be shown
    source: Literal["own", "other"] = "own"  # 'other' is a control: a wrong answer to another question of the batch
    template: str = ""  # name or path of the prompt; empty: 'retry', or 'answer' with context answer
    template_hash: str = ""  # first 12 hex digits of its SHA-256, filled in; a file changed since is refused
    warmup: float = 1.0  # nothing is planned before this many epochs or steps
    warmup_unit: Literal["epochs", "steps"] = "epochs"  # unit of `warmup`
    gradient: Literal["prompt", "reattach"] = "prompt"  # literal, or successes also replayed on the bare question
    weight: Weight = "shaped"  # off-policy weight of re-attached rows

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold: got {self.threshold}, expected a number in (0, 1]")
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share: got {self.max_share}, expected a number in (0, 1]")
        for key in ("min_attempts", "exemplars", "budget"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: got {getattr(self, key)}, expected at least 1")
        if self.placement == "replace" and self.exemplars > 1:
            raise ValueError(
                f"exemplars: got {self.exemplars} with placement 'replace', expected 1: a slot holds one group"
            )
        if self.warmup < 0:
            raise ValueError(f"warmup: got {self.warmup}, expected 0 or above")
        template = self.template or ("answer" if self.context == "answer" else "retry")
        path = template_path(template)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ValueError(f"template: '{template}': no file {path}") from error
        for placeholder in (b"{problem}", b"{attempt}"):
            if placeholder not in content:
                raise ValueError(f"template: {path} has no {placeholder.decode()}")
        digest = hashlib.sha256(content).hexdigest()[:12]
        if self.template_hash not in ("", digest):
            raise ValueError(f"template_hash: got {self.template_hash}, but {path} has {digest}: the file has changed")
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "template_hash", digest)


class Reflection(Component):
    """Asks hard questions again with one of their own wrong answers in the prompt."""

    name = "reflection"
    Config = ReflectionConfig
    counters: ClassVar[Mapping[str, str]] = {
        "questions_hard": "questions that kept failing, summed over steps",
        "groups_surplus": "groups left out because added groups come in multiples",
        "groups_planned": "groups planned with a wrong answer in the prompt",
        "questions_without_exemplar": "hard questions without a stored wrong answer to show",
        "groups": "reflection groups trained on",
        "rows_correct": "right answers in them",
        "converted": "reflection groups with at least one right answer",
        "groups_with_gradient": "reflection groups with different rewards",
        "rows_reattached": "reflected successes trained on the bare question",
    }
    uses_history = True
    rewrites_prompts = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "other": {"source": "other"},  # control: the wrong answer belongs to another question
        "answer": {"context": "answer"},
        "replace": {"placement": "replace"},
        "reattach": {"gradient": "reattach"},
    }

    config: ReflectionConfig

    def __init__(self, config: ReflectionConfig, facts: Any) -> None:
        super().__init__(config, facts)
        self._template = template_path(config.template).read_text(encoding="utf-8")

    @classmethod
    def most_appended(cls, config: ReflectionConfig, groups: int, generations: int) -> int:
        return int(config.max_share * groups + 1e-9) * generations if config.placement == "append" else 0

    @classmethod
    def longest_prompt(cls, config: ReflectionConfig, prompt: int, cap: int, tokens: Callable[[str], int]) -> int:
        template = tokens(template_path(config.template).read_text(encoding="utf-8"))
        return prompt + template + longest_attempt(config, cap)

    @classmethod
    def check(cls, config: ReflectionConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        rows = trainer.get("generation_batch_size")
        if not rows:
            return  # depends on the number of processes; asked again when that is known
        size, parts = trainer["num_generations"], trainer.get("steps_per_generation")
        groups, multiple = rows // size, 1
        if config.placement == "append" and parts:
            local = trainer["per_device_train_batch_size"] * parts
            multiple = append_multiple(Layout(0, rows // local, local, size), parts)
        if int(config.max_share * groups + 1e-9) >= multiple:
            return
        least = math.ceil(1e4 * multiple / groups) / 1e4
        said = f"appended groups come in multiples of {multiple}" if multiple > 1 else "that is less than one group"
        near = f"at least {least}" if least <= 1 else "placement 'replace', or more groups"
        raise ConfigError(
            f"{where}.max_share: got {config.max_share} of {groups} groups a batch, but {said}, so nothing would ever "
            f"be planned; expected {near}"
        )

    def plan(self, step: Step) -> list[PlannedGroup]:
        now = step.epoch + 1e-6 if self.config.warmup_unit == "epochs" else step.step
        if now < self.config.warmup:
            return []
        hard = self._hard(step)
        self.count("questions_hard", len(hard))
        limit = int(self.config.max_share * len(step.groups) + 1e-9)
        chosen: list[tuple[Group, Summary]] = []
        for group in hard:
            chosen += [(group, shown) for shown in self._exemplars(group, step)]
        chosen = chosen[:limit]
        if self.config.placement == "append":
            surplus = len(chosen) % self.facts.append_multiple
            chosen = chosen[: len(chosen) - surplus]
            self.count("groups_surplus", surplus)
        if not chosen:
            return []
        fetched = step.history.fetch([shown for _, shown in chosen])
        planned = []
        for (group, _), trajectory in zip(chosen, fetched, strict=True):
            prompt = self._prompt(group.prompt, self._attempt(trajectory.completion_ids))
            slot = group.index if self.config.placement == "replace" else None
            planned.append(PlannedGroup(question=group.question, provenance="reflection", slot=slot, prompt=prompt))
        self.count("groups_planned", len(planned))
        return planned

    def _hard(self, step: Step) -> list[Group]:
        """Hard questions of the batch, hardest first, each once; equally hard ones in seeded order."""
        found = []
        seen = set()
        for group in step.groups:
            mean, attempts = hardness(
                step.history.summaries(group.question),
                int(step.epoch),
                self.config.window,
                self.facts.stored_per_question,
            )
            free = group.provenance == "fresh" and group.index not in step.taken and group.question not in seen
            if free and attempts >= self.config.min_attempts and mean < self.config.threshold:
                found.append((mean, group))
                seen.add(group.question)
        self.facts.rng(step.step, self.name, "order").shuffle(found)
        return [group for _, group in sorted(found, key=lambda pair: pair[0])]

    def _exemplars(self, group: Group, step: Step) -> list[Summary]:
        rng = self.facts.rng(step.step, self.name, group.question)
        asked = [group.question]
        if self.config.source == "other":
            asked = sorted({other.question for other in step.groups} - {group.question})
            rng.shuffle(asked)
        for question in asked:
            wrong = self._wrong(step.history.summaries(question))
            if wrong:
                return rng.sample(wrong, min(self.config.exemplars, len(wrong)))
        self.count("questions_without_exemplar")
        return []

    def _wrong(self, stored: Sequence[Summary]) -> list[Summary]:
        return [
            row
            for row in stored
            if not row.correct and row.length and row.provenance == "fresh"
            if self.config.truncated_exemplars or not row.truncated
        ]

    def _attempt(self, completion_ids: np.ndarray) -> str:
        """What is shown of a wrong answer, at most `longest_attempt` tokens of it."""
        limit = longest_attempt(self.config, self.facts.max_completion_length)
        text = self.facts.decode(completion_ids.tolist())
        if self.config.context == "answer":
            text = last_boxed(text) or "(none)"
        elif self.config.context == "tail":
            thinking, tag, answer = text.rpartition("</think>")
            if tag:  # the answer first; thinking gets what it leaves of the budget
                left = max(0, limit - len(self.facts.encode(answer)))
                ids = self.facts.encode(thinking)
                text = self.facts.decode(ids[len(ids) - min(left, len(ids)) :]) + answer
        return self._bounded(text, limit)

    def _bounded(self, text: str, limit: int) -> str:
        """The end of `text`, made harmless, in at most `limit` tokens as the tokenizer reads it again."""
        text = self._harmless(text)
        ids, keep = self.facts.encode(text), limit
        excess = len(ids) - limit
        while excess > 0:  # a cut through a character, or what makes it harmless, may add tokens
            text = self._harmless(self.facts.decode(ids[len(ids) - keep :]))
            excess = len(self.facts.encode(text)) - limit
            keep = max(0, keep - max(1, excess))
        return text

    def _harmless(self, text: str) -> str:
        """`text` without what the tokenizer would read as a special token, whatever its spelling: <start_of_turn>."""
        text = defuse(text)
        for _ in range(8):  # taking one away may join another
            read = self.facts.decode(self.facts.encode(text))
            if "".join(read.split()) == "".join(text.split()):
                break
            text = defuse(read)
        return text

    def _prompt(self, prompt: Any, attempt: str) -> Any:
        """The data set's prompt (text or messages) with its last user turn put into the template."""
        if isinstance(prompt, str):
            return fill_template(self._template, prompt, attempt)
        messages = [dict(message) for message in prompt]
        asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
        last = asked[-1] if asked else len(messages) - 1
        content = messages[last]["content"]
        if not isinstance(content, str):  # blocks; those with images are refused
            content = "".join(block.get("text") or "" for block in content)
        messages[last]["content"] = fill_template(self._template, content, attempt)
        return messages

    def mix(self, step: Step) -> list[Mixture]:
        for group in step.groups:
            if group.provenance == "reflection" and group.judged.any():
                self.count("groups")
                self.count("rows_correct", int(group.correct.sum()))
                self.count("converted", int(group.correct.any()))
                self.count("groups_with_gradient", int(uneven(group)))
        if self.config.gradient == "prompt":
            return []
        wanted = [group for group in step.groups if group.provenance == "fresh" and group.all_wrong]
        free = still_free(self, step, wanted)
        return [mixture for group in free if (mixture := self._reattached(group, step)) is not None]

    def _reattached(self, group: Group, step: Step) -> Mixture | None:
        stored = step.history.summaries(group.question)
        solved = [row for row in stored if row.provenance == "reflection" and row.correct]
        solved = not_outranked(self, group, solved)
        if not solved:
            return None
        rng = self.facts.rng(step.step, self.name, f"reattach-{group.question}")
        chosen, place = rng.choice(solved), rng.choice(np.flatnonzero(group.judged).tolist())
        rewards = np.array(group.rewards, float)
        rewards[place] = chosen.task_reward
        advantages = rewards - rewards[group.judged].mean()  # no division by the deviation, as Critique-GRPO
        self.count("rows_reattached")
        return Mixture(
            group=group.index,
            historic=(chosen,),
            replaced=(place,),
            fresh_advantages=np.where(np.arange(len(rewards)) == place, 0.0, advantages),
            historic_advantages=advantages[[place]],
            weight=self.config.weight,
            clip=(0.0, 2.0),
            kl=False,
        )

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("reflection/groups_with_gradient", 0) + totals.get("reflection/rows_reattached", 0) > 0
