"""How much of a benchmark stands in the training set: same text, or a large share of its word n-grams."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from r3bench.config.sections import DataSection

N = 8  # words in an n-gram
NEAR = 0.5  # share of a question's n-grams found in one training question from which it counts as near

_WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d]")
_DRESS = re.compile(r"\\(?:left|right|displaystyle|text|mathrm|dfrac|tfrac|frac|[,;:! ])|[${}]")


def words(text: str) -> list[str]:
    """A problem as lower-case words, numbers and signs, LaTeX dressing dropped."""
    return _WORD.findall(_DRESS.sub(" ", text.lower()))


def overlap(
    train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]], n: int = N, near: float = NEAR
) -> dict[str, Any]:
    """Questions of `test` that stand in `train`; both are sequences with `id` and `problem`.

    Returns:
        `questions`, `exact` and `near` (counts, near ones without the exact), and `pairs`: per such question its `test`
        id, the closest `train` id and the `share` of its n-grams found there (1.0 for the same text). A question of
        fewer than n words is only compared as a whole.
    """
    exact: dict[tuple[str, ...], str] = {}
    grams: dict[tuple[str, ...], set[int]] = {}
    for index, row in enumerate(train):
        tokens = words(str(row["problem"]))
        exact.setdefault(tuple(tokens), str(row["id"]))
        for start in range(len(tokens) - n + 1):
            grams.setdefault(tuple(tokens[start : start + n]), set()).add(index)
    pairs: list[dict[str, Any]] = []
    for row in test:
        tokens = words(str(row["problem"]))
        if tuple(tokens) in exact:
            pairs.append({"test": str(row["id"]), "train": exact[tuple(tokens)], "share": 1.0, "exact": True})
            continue
        own = {tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)}
        hits: dict[int, int] = {}
        for gram in own:
            for index in grams.get(gram, ()):
                hits[index] = hits.get(index, 0) + 1
        if hits:
            best = max(hits, key=lambda index: (hits[index], -index))
            share = hits[best] / len(own)
            if share >= near:
                pairs.append({"test": str(row["id"]), "train": str(train[best]["id"]), "share": share, "exact": False})
    same = sum(pair["exact"] for pair in pairs)
    return {"questions": len(test), "exact": same, "near": len(pairs) - same, "pairs": pairs}


def overlap_with_tasks(train: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`overlap` of training questions (`id`, `problem`) with each evaluation task."""
    from r3bench.evaluation.tasks import load_task

    return {name: overlap(train, list(load_task(name).test_docs())) for name in tasks}


def training_overlap(section: DataSection, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`overlap` of a recipe's training questions with each evaluation task."""
    from r3bench.training.data import load_questions

    rows = load_questions(section)
    train = [{"id": name, "problem": text} for name, text in zip(rows["question_id"], rows["problem"], strict=True)]
    return overlap_with_tasks(train, tasks)
