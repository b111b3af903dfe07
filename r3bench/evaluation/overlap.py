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


def _grams(tokens: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)}


def overlap(
    train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]], n: int = N, near: float = NEAR
) -> dict[str, Any]:
    """Questions of `test` that stand in `train`; both are sequences with `id` and `problem`.

    Returns:
        `questions`, `exact` and `near` (counts, near ones without the exact), and `pairs`: per such question its `test`
        id, the closest `train` id and the `share` of its n-grams found there (1.0 for the same text). A question of
        fewer than n words is only compared as a whole.
    """
    tests = [words(str(row["problem"])) for row in test]
    whole: dict[tuple[str, ...], list[int]] = {}
    grams: dict[tuple[str, ...], list[int]] = {}  # of the test questions: the training set may be large
    for index, tokens in enumerate(tests):
        whole.setdefault(tuple(tokens), []).append(index)
        for gram in _grams(tokens, n):
            grams.setdefault(gram, []).append(index)
    exact: dict[int, str] = {}
    closest: dict[int, tuple[int, str]] = {}  # test index -> most n-grams found in one training question, its id
    for row in train:
        tokens = words(str(row["problem"]))
        for index in whole.get(tuple(tokens), ()):
            exact.setdefault(index, str(row["id"]))
        hits: dict[int, int] = {}
        for gram in _grams(tokens, n) & grams.keys():
            for index in grams[gram]:
                hits[index] = hits.get(index, 0) + 1
        for index, count in hits.items():
            if count > closest.get(index, (0, ""))[0]:
                closest[index] = count, str(row["id"])
    pairs: list[dict[str, Any]] = []
    for index, row in enumerate(test):
        name = str(row["id"])
        if index in exact:
            pairs.append({"test": name, "train": exact[index], "share": 1.0, "exact": True})
        elif index in closest:
            count, found = closest[index]
            share = count / len(_grams(tests[index], n))
            if share >= near:
                pairs.append({"test": name, "train": found, "share": share, "exact": False})
    same = sum(pair["exact"] for pair in pairs)
    return {"questions": len(test), "exact": same, "near": len(pairs) - same, "pairs": pairs}


def overlap_with_tasks(train: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`overlap` of training questions (`id`, `problem`) with each evaluation task."""
    from r3bench.evaluation.tasks import load_task

    return {name: overlap(train, list(load_task(name).test_docs())) for name in tasks}


def training_overlap(section: DataSection, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`overlap` of a recipe's training questions with each evaluation task."""
    from r3bench.training.questions.load import load_questions

    rows = load_questions(section)
    train = [{"id": name, "problem": text} for name, text in zip(rows["question_id"], rows["problem"], strict=True)]
    return overlap_with_tasks(train, tasks)
