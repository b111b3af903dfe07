"""Error rates of graders on labelled answers, by kind. Prints one table; `--json` prints one JSON object.

python benchmarks/grading.py FILE... [--graders r3bench,math-verify,mathruler] [--errors] [--workers 1] [--json]

A line of a file has `answer` (gold), `response`, `expected` and `kind`, optionally `id` and `mode` ('any': an answer
without a box counts too). Graders beside r3bench, each through its package and as its package calls it:

math-verify   verify(parse("\\boxed{gold}"), parse(response)), its defaults
mathruler     grade_answer(extract_boxed_content(response), gold): the normaliser of PRM800K that PRIME and EasyR1 use
              (pip install mathruler pylatexenc)
hendrycks     is_equiv(boxed answer, gold) of lm-eval's hendrycks_math: the MATH repository's normaliser, which
              Qwen2.5-Math's harness grew from (that harness itself is no package)
"""

import argparse
import contextlib
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from r3bench.grading import Grader

Row = dict[str, Any]


def r3bench(rows: Sequence[Row], workers: int) -> list[bool]:
    """Ours, with each row's own rule of what counts as an answer."""
    verdicts: dict[int, bool] = {}
    for boxed in (True, False):
        places = [place for place, row in enumerate(rows) if (row.get("mode", "boxed") != "any") == boxed]
        with Grader(workers=workers, require_boxed=boxed) as grader:
            found = grader.grade(
                [rows[place]["response"] for place in places], [rows[place]["answer"] for place in places]
            )
        verdicts |= {place: verdict.correct for place, verdict in zip(places, found, strict=True)}
    return [verdicts[place] for place in range(len(rows))]


def math_verify(rows: Sequence[Row], workers: int) -> list[bool]:
    """math-verify with its defaults; what it raises is no answer."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    out = []
    for row in rows:
        right = False
        with contextlib.suppress(Exception):  # as its users call it: a failure is a wrong answer
            right = bool(verify(parse(rf"\boxed{{{row['answer']}}}"), parse(row["response"])))
        out.append(right)
    return out


def mathruler(rows: Sequence[Row], workers: int) -> list[bool]:
    """mathruler as EasyR1's reward calls it."""
    from mathruler.grader import extract_boxed_content, grade_answer

    out = []
    for row in rows:
        right = False
        with contextlib.suppress(Exception):  # a failure is a wrong answer
            right = bool(grade_answer(extract_boxed_content(row["response"]), row["answer"]))
        out.append(right)
    return out


def hendrycks(rows: Sequence[Row], workers: int) -> list[bool]:
    """The MATH repository's text normaliser as lm-eval ships it, from which Qwen2.5-Math's was made."""
    from lm_eval.tasks.hendrycks_math.utils import is_equiv, last_boxed_only_string, remove_boxed

    out = []
    for row in rows:
        right = False
        with contextlib.suppress(Exception):  # a failure is a wrong answer
            right = bool(is_equiv(remove_boxed(last_boxed_only_string(row["response"])), row["answer"]))
        out.append(right)
    return out


GRADERS: dict[str, Callable[[Sequence[Row], int], list[bool]]] = {
    "r3bench": r3bench,
    "math-verify": math_verify,
    "mathruler": mathruler,
    "hendrycks": hendrycks,
}


def counts(rows: Sequence[Row], verdicts: Sequence[bool]) -> dict[str, Counter[str]]:
    """True and false positives and negatives by kind, and of all rows."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row, right in zip(rows, verdicts, strict=True):
        cell = ("T" if right == row["expected"] else "F") + ("P" if right else "N")
        kind = f"{row['set']}: {row['kind']}" if "set" in row else row["kind"]
        found[kind][cell] += 1
        found["all"][cell] += 1
    return found


def table(found: dict[str, dict[str, Counter[str]]]) -> str:
    """By kind: right and wrong answers, and each grader's false negatives and false positives."""
    graders = list(found)
    kinds = sorted(found[graders[0]], key=lambda kind: (kind == "all", kind))
    head = ["kind", "right", "wrong", *(f"{name} {what}" for name in graders for what in ("FN", "FP"))]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for kind in kinds:
        first = found[graders[0]][kind]
        cells = [kind, str(first["TP"] + first["FN"]), str(first["TN"] + first["FP"])]
        cells += [str(found[name][kind][what]) for name in graders for what in ("FN", "FP")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Grade and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--graders", default="r3bench,math-verify", help=f"of {', '.join(GRADERS)}")
    parser.add_argument("--workers", type=int, default=1, help="processes of r3bench's grader")
    parser.add_argument("--errors", action="store_true", help="print the rows that r3bench gets wrong")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for path in options.files for line in path.read_text().splitlines() if line.strip()]
    found, seconds = {}, {}
    for name in options.graders.split(","):
        start = time.perf_counter()
        verdicts = GRADERS[name](rows, options.workers)
        seconds[name] = time.perf_counter() - start
        found[name] = counts(rows, verdicts)
        if options.errors and name == "r3bench":
            for row, right in zip(rows, verdicts, strict=True):
                if right != row["expected"]:
                    shown = json.dumps({key: row.get(key) for key in ("id", "answer", "response")}, ensure_ascii=False)
                    print("accepted" if right else "refused", shown[:300])
    if options.json:
        print(json.dumps({"rows": len(rows), "seconds": seconds, "counts": found}, indent=2))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
