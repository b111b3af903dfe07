"""Stock lm-eval's scoring against ours on the same stored answers, item by item. Prints one JSON object.

R3BENCH_DATA=... r3bench eval smollm2-135m --tasks math500 --samples 4 limit=20 --out answers
python benchmarks/stock_scoring.py answers

Stock is `hendrycks_math` of lm-eval: it takes all between the first and the last dollar sign of a response (the whole
response without two of them), never looks for a box, and compares spelling.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from r3bench.evaluation.runs import answers, task_names


def stock_answer(response: str) -> str:
    """What stock scoring takes for the answer."""
    first, last = response.find("$"), response.rfind("$")
    return response[first + 1 : last] if 0 <= first < last else response


def cause(row: dict[str, Any], stock: bool) -> str:
    """Why stock's verdict on a stored answer is another one than ours."""
    taken, extracted = stock_answer(row["response"]), row["extracted"]
    if stock:
        if extracted is None:
            return "stock takes a formula in dollar signs or a bare answer; ours finds no answer of the form demanded"
        return "stock takes a formula in dollar signs; ours takes the box, phrase or number that comes last"
    if extracted is not None and taken.strip() == extracted.strip():
        return "stock compares spelling; ours compares mathematics"
    if taken == row["response"]:
        return "stock compares the whole response; ours finds the answer in it"
    return "stock takes all between the first and the last dollar sign; ours takes the answer alone"


def compare(folder: Path, task: str) -> dict[str, Any]:
    """Counts, and every answer about which the two disagree, with the cause."""
    from lm_eval.tasks.hendrycks_math.utils import process_results

    table = {"both right": 0, "both wrong": 0, "only ours right": 0, "only stock right": 0}
    items = []
    for row in answers(folder, task):
        stock = bool(process_results({"solution": rf"\boxed{{{row['gold']}}}"}, [row["response"]])["exact_match"])
        ours = bool(row["correct"])
        who = "both" if stock == ours else "only ours" if ours else "only stock"
        table[f"{who} {'right' if ours or stock else 'wrong'}"] += 1
        if stock != ours:
            items.append(
                {key: row[key] for key in ("question", "repeat", "gold", "extracted", "reason", "truncated")}
                | {"ours": ours, "stock": stock, "cause": cause(row, stock)}
            )
    return {"answers": sum(table.values()), **table, "disagreements": items}


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a run, or a folder of stored answers")
    parser.add_argument("--tasks", help="A,B; default: all with answers")
    options = parser.parse_args()
    names = task_names(options.folder, tuple(options.tasks.split(",")) if options.tasks else None)
    print(json.dumps({name: compare(options.folder, name) for name in names}, indent=2))


if __name__ == "__main__":
    main()
