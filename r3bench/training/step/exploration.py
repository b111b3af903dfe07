"""How much a run explores: questions solved for the first time, different answers, groups with a right answer.

Counted over the answers to bare questions that the policy sampled, whichever components are on, and before stored
answers are mixed in. Only the log gets anything: nothing here touches the batch or draws a random number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from r3bench.training.questions.identity import question_id
from r3bench.training.step import trl_adapter
from r3bench.training.step.rollout import Rollout


@dataclass(frozen=True)
class Sampled:
    """The answers of one sampled batch, N rows over all ranks."""

    questions: Sequence[str]  # (N,) question ids, G consecutive rows of a group alike
    correct: np.ndarray  # (N,) bool
    judged: np.ndarray  # (N,) bool; rows without a verdict count nowhere but among the different answers
    answers: Sequence[int]  # (N,) a number for each answer's tokens, the same for the same tokens
    bare: np.ndarray  # (N,) bool: to the bare question, without a rewritten prompt or a given prefix


class Exploration:
    """Counts over a run, kept in its checkpoints.

    Args:
        group_rows: G, answers of a group.
    """

    def __init__(self, group_rows: int) -> None:
        self._group_rows = group_rows
        self._solved: set[str] = set()

    def watch(
        self,
        trainer: Any,
        rollout: Rollout | None,
        inputs: Sequence[Mapping[str, Any]],
        ids: Sequence[Sequence[int]],
        correct: torch.Tensor,
        judged: torch.Tensor,
    ) -> None:
        """Put the figures of a sampled batch into the log. Collective.

        Without components, rows without `question_id` are left alone: stock TRL takes rows that no hash could name.

        Args:
            trainer: whose batch it is.
            rollout: its groups; None where no component is on.
            inputs: this rank's rows, B.
            ids: tokens of their answers, B.
            correct, judged: verdicts of all ranks, two (N,) bool tensors.
        """
        if rollout is None and not all(isinstance(row.get("question_id"), str) for row in inputs):
            return
        local = [(question_id(dict(row)), hash(tuple(answer))) for row, answer in zip(inputs, ids, strict=True)]
        rows = trl_adapter.gather_list(local)
        bare = np.ones(len(rows), bool)
        for group in rollout.groups if rollout is not None else ():
            bare[group.rows.start : group.rows.stop] = group.provenance == "fresh"
        verdicts = correct.cpu().numpy(), judged.cpu().numpy()
        sampled = Sampled([row[0] for row in rows], *verdicts, [row[1] for row in rows], bare)
        data = trainer.train_dataset
        known = len(data) if isinstance(data, Dataset) else None
        for name, value in self.observe(sampled, known, trainer.generated_tokens).items():
            trl_adapter.log_metric(trainer, name, value)

    def observe(self, sampled: Sampled, questions: int | None, tokens: int) -> dict[str, float]:
        """Figures for the log, by name.

        - `exploration/newly_solved`: questions that got their first right answer of the run in this batch
        - `exploration/solved`: share of all questions with a right answer so far
        - `exploration/solved_per_million`: those questions, per million tokens sampled so far
        - `exploration/pass`: share of groups with a right answer, pass@G of the batch
        - `exploration/dead`: share of groups whose answers are all right or all wrong
        - `exploration/distinct`: mean share of different answers in a group, from 1/G to 1

        Args:
            sampled: the batch.
            questions: how many there are; None where that is unknown.
            tokens: completion tokens sampled in the run so far, this batch included.
        """
        size, found = self._group_rows, {}
        solved, dead, distinct = [], [], []
        before = len(self._solved)
        for first in range(0, len(sampled.questions), size):
            rows = slice(first, first + size)
            if not sampled.bare[rows].all():
                continue
            distinct.append(len(set(sampled.answers[rows])) / size)
            verdicts = sampled.correct[rows][sampled.judged[rows]]
            if not len(verdicts):
                continue
            solved.append(bool(verdicts.any()))
            dead.append(bool(verdicts.all() or not verdicts.any()))
            if solved[-1]:
                self._solved.add(sampled.questions[first])
        if solved:
            found["newly_solved"] = float(len(self._solved) - before)
            found |= {"pass": float(np.mean(solved)), "dead": float(np.mean(dead))}
            if questions:
                found["solved"] = len(self._solved) / questions
            if tokens:
                found["solved_per_million"] = len(self._solved) / tokens * 1e6
        if distinct:
            found["distinct"] = float(np.mean(distinct))
        return {f"exploration/{name}": value for name, value in found.items()}

    def state(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"solved": sorted(self._solved)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `state`."""
        self._solved = set(state.get("solved", ()))
