"""One stored answer and why it got its verdict."""

from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, nearest
from r3bench.evaluation.regrade import second_opinion
from r3bench.evaluation.runs import answers, task_names
from r3bench.grading.document import rule_named
from r3bench.grading.extract import final_answer
from r3bench.grading.spelling.normalise import canonical


def explain(run: Path, question: str, *, task: str | None = None, repeat: int | None = None) -> list[dict[str, Any]]:
    """Everything that is known about the stored answers to one question, one dict per answer, by task and repeat.

    Each has the stored columns plus `task`, `form` (how the answer was marked), `rule` (what decided), `canonical` and
    `canonical_gold` (the spellings compared first) and `exact` (the second grader's verdict).

    Args:
        run: a run directory or a folder of answers.
        question: question id.
        task: where to look; None: everywhere.
        repeat: one repeat; None: all.

    Raises:
        ConfigError: no such question or repeat among the stored answers.
    """
    found, known = [], set()
    for name in task_names(run, (task,) if task else None):
        for row in answers(run, name):
            known.add(row["question"])
            if row["question"] != question or (repeat is not None and row["repeat"] != repeat):
                continue
            rule = rule_named(row["reason"])
            answer = final_answer(row["response"], require_boxed=not row["grader"].endswith("/last"))
            found.append(
                {
                    "task": name,
                    **row,
                    "form": answer.form,
                    "rule": rule.says if rule else None,
                    "canonical": None if row["extracted"] is None else canonical(row["extracted"]),
                    "canonical_gold": canonical(row["gold"]),
                    "exact": second_opinion(row),
                }
            )
    if not found:
        if question in known:
            raise ConfigError(f"{run}: question '{question}' has no repeat {repeat}")
        raise ConfigError(f"{run}: no stored answer to question '{question}'{nearest(question, known)}")
    return found
