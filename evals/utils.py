"""What the task files share: loading the questions, and scoring k responses to one of them.

Usable with lm-eval alone: `lm_eval --include_path evals --tasks amc23 --metadata '{"style": "boxed"}' ...`; scores then
come from `process_results`. `r3bench eval` stores every answer and computes the same figures from the stored ones.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r3bench.errors import DataError, Unreachable, nearest
from r3bench.evaluation.grading import current
from r3bench.evaluation.metrics import majority, pass_at_k
from r3bench.evaluation.scorer import COLUMN, THRESHOLD, Scorer, named_in
from r3bench.evaluation.task_file import FILES, beside, function_beside
from r3bench.grading import Verdict, last_boxed
from r3bench.prompts import Prompt, Style
from r3bench.training.questions.gym import gym_rows
from r3bench.training.questions.sources import local


def load(
    *,
    name: str = "",
    items: int | dict[str, int] | None = None,
    file: str | None = None,
    folder: str = "",
    hub: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    split: str = "test",
    problem: str = "problem",
    answer: str = "answer",
    id: str | None = None,
    columns: Sequence[str] = (),
    scorer: str | None = None,
    threshold: float = 1.0,
    style: Style = "boxed",
    template: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """The task's documents as a data set with columns id, problem, answer, prompt.

    Args:
        name: file stem in the folder $R3BENCH_DATA; a file there is used before the hub.
        items: how many questions there must be; by source ('file', 'hub') where they differ. None: any number.
        file: a .jsonl, .parquet, .csv or .tsv file instead, as seen from the task's file (`folder`, which
            r3bench gives; with lm-eval alone the working directory).
        hub, revision, subset, split: where the hub has it; without a revision the hub is not asked.
        problem, answer, id: its columns there; without `id` one is made from the text of the problem.
        columns: further columns of a `file`, for the scorer and the template.
        scorer: `./file.py:function`, as seen from the task's file, or `package.module:function`: judges answers in
            place of the comparison with the gold one, see `r3bench.evaluation.scorer`.
        threshold: the smallest number of the scorer's that is right.
        style: instruction put around the problem, see `r3bench.prompts`.
        template: a text with {problem} in place of the style's.

    Raises:
        DataError: it can't be found, or holds another number of questions, an empty problem or two equal ids.
    """
    import datasets

    named = {"problem": problem, "answer": answer, "id": id}
    if file is not None:
        rows, source = _own_rows(beside(file, Path(folder)), named, columns)
    else:
        rows, source = _rows(
            name=name, hub=hub, revision=revision, subset=subset, split=split, columns=named, keep=columns
        )
    wanted = items["file" if source.endswith(FILES) else "hub"] if isinstance(items, dict) else items
    if wanted is not None and len(rows) != wanted:
        raise DataError(f"{source}: {len(rows)} questions, expected {wanted}")
    for row in rows:
        if not row["problem"].strip() or not row["answer"].strip():
            raise DataError(f"{source}: question {row['id']} has an empty problem or answer")
    if not rows:
        raise DataError(f"{source}: no questions")
    prompt = Prompt(style, template=template, where="eval")
    for row in rows:
        row["prompt"] = prompt.text(row["problem"], {k: row[k] for k in columns if k in row})
    if len({row["id"] for row in rows}) != len(rows):
        raise DataError(f"{source}: question ids are not unique")
    if scorer is not None:
        judge = {COLUMN: function_beside(scorer, Path(folder)), THRESHOLD: float(threshold)}
        rows = [{**row, **judge} for row in rows]
    return {split: datasets.Dataset.from_list(rows)}


def _own_rows(path: Path, named: dict[str, str | None], columns: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The rows of the user's file, named columns first; a column that isn't there is an error."""
    found: list[dict[str, Any]] = []
    for where, row in local(path):
        if not found:
            for key, column in named.items():
                if column is not None and column not in row:
                    raise DataError(f"{where}: dataset_kwargs.{key}: no column '{column}'{nearest(column, row)}")
        for column in columns:
            if column not in row:
                raise DataError(f"{where}: dataset_kwargs.columns: no column '{column}'{nearest(column, row)}")
        for key, column in named.items():
            _check_cell(where, key, column, row)
        found.append(_row(row, named, columns))
    return found, str(path)


def _check_cell(where: str, key: str, column: str | None, row: dict[str, Any]) -> None:
    """Refuse what is no question, gold answer or id; a gold answer may be a number, or a list."""
    if column is None:
        return
    value = row.get(column)
    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        raise DataError(f"{where}: column '{column}' is empty (dataset_kwargs.{key})")
    kinds = {"problem": (str,), "id": (str, int), "answer": (str, int, float, list)}[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        expected = "a text" if key == "problem" else "a text or number"
        raise DataError(f"{where}: column '{column}' holds {value!r:.60}, expected {expected} (dataset_kwargs.{key})")


def load_reasoning_gym(
    *,
    generator: str,
    options: dict[str, Any] | None = None,
    split: str = "test",
    style: Style = "boxed",
    template: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Questions of a generator of Reasoning Gym's, judged by its own scorer (1 is right); columns as in `load`.

    Args:
        generator: its name, such as 'word_sorting'.
        options: size, seed (another one than the training's), and its own settings.
        split, style, template: as in `load`.
    """
    import datasets

    prompt = Prompt(style, template=template, where="eval")
    judge = {COLUMN: "r3bench.training.questions.gym:score", THRESHOLD: 1.0}
    rows = [
        {**row, "prompt": prompt.text(row["problem"], row), **judge}
        for _, row in gym_rows(generator, options or {}, "dataset_kwargs.options")
    ]
    return {split: datasets.Dataset.from_list(rows)}


def load_embedded(
    cap: int,
    split: str = "test",
    operations: Sequence[int] = (1, 4),
    worked: bool = False,
    style: Style = "boxed",
    template: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """The generated arithmetic questions of `r3bench.training.questions.embedded`, columns as in `load`.

    Args:
        cap, split, operations: as `questions` there takes them.
        worked: an answer is right only with the right working (`r3bench.training.testbed`).
        style, template: as in `load`.
    """
    import datasets

    from r3bench.training.questions.embedded import questions
    from r3bench.training.questions.sources import worked_solution

    prompt = Prompt(style, template=template, where="eval")
    least, most = operations
    drawn = questions(split, cap, operations=(least, most))  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = [{**row, "prompt": prompt.text(row["problem"])} for row in drawn]
    if worked:
        judge = {COLUMN: "r3bench.training.testbed:worked", THRESHOLD: 1.0}
        rows = [{**row, **judge, "answer": (gold := worked_solution(row)), "solution": gold} for row in rows]
    return {split: datasets.Dataset.from_list(rows)}


def _rows(
    *,
    name: str,
    hub: str | None,
    revision: str | None,
    subset: str | None,
    split: str,
    columns: dict[str, str | None],
    keep: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], str]:
    folder = os.environ.get("R3BENCH_DATA")
    path = Path(folder) / f"{name}.jsonl" if folder else None
    if path is not None and path.is_file():
        raw = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [_row(row, {"problem": "problem", "answer": "answer", "id": "id"}, keep) for row in raw], str(path)
    tried = f"{path} does not exist" if path is not None else "R3BENCH_DATA is not set"
    if hub is None:
        raise DataError(f"task {name}: no hub data set is known and {tried}")
    if not revision:  # what is measured must not change under a score
        raise DataError(
            f"task {name}: {tried}, and its file pins no commit of hub data set {hub}; add 'revision: <commit>' to its "
            "dataset_kwargs ('main' for whatever is newest)"
        )
    import datasets

    try:
        table = datasets.load_dataset(hub, subset, split=split, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        offline = isinstance(error, ConnectionError) or "offline" in reason.lower() or "reach" in reason.lower()
        kind = Unreachable if offline else DataError
        raise kind(f"task {name}: {tried}, and hub data set {hub} can't be loaded: {reason}") from error
    missing = {column for column in (*columns.values(), *keep) if column} - set(table.column_names)
    if missing:
        raise DataError(f"hub data set {hub}: no column {sorted(missing)}; it has {table.column_names}")
    return [_row(row, columns, keep) for row in table], f"{hub}@{revision}"


def _row(row: dict[str, Any], columns: dict[str, str | None], keep: Sequence[str] = ()) -> dict[str, Any]:
    problem = str(row[columns["problem"] or "problem"])
    key = columns["id"]
    name = str(row[key]) if key and row.get(key) is not None else hashlib.sha256(problem.encode()).hexdigest()[:12]
    kept = {column: row[column] for column in keep if column in row}
    return {**kept, "id": name, "problem": problem, "answer": gold(row[columns["answer"] or "answer"])}


def gold(value: Any) -> str:
    r"""An answer column's value as a plain gold answer: a list's elements, 27.0 as 27, the part after ####, the box."""
    if isinstance(value, (list, tuple)):
        return ", ".join(gold(part) for part in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    if "####" in text:
        return text.rpartition("####")[2].strip().replace(",", "")
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    return text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1] else text


def keep_all(responses: Any, docs: Any) -> Any:
    """An lm-eval filter that keeps all repeats; its default keeps the first and drops the rest."""
    return responses


def process_results(doc: dict[str, Any], results: list[Any]) -> dict[str, float]:
    """Scores of one question from its k responses: avg@k, pass@k, maj@k, and the rates of no answer and time-outs."""
    responses = list(results[0]) if isinstance(results[0], (list, tuple)) else list(results)
    judge = current()
    if doc.get(COLUMN) and not isinstance(judge, Scorer):  # lm-eval on its own
        judge = named_in([doc], "task") or judge
    if isinstance(judge, Scorer):
        return scores(judge.grade_docs(responses, [doc] * len(responses)))
    return scores(judge.grade(responses, [doc["answer"]] * len(responses)))


def scores(verdicts: list[Verdict]) -> dict[str, float]:
    """The figures of one question from its verdicts."""
    k, right = len(verdicts), sum(verdict.correct for verdict in verdicts)
    return {
        "avg@k": right / k,
        "pass@k": pass_at_k(k, right, k),
        "maj@k": majority([(verdict.extracted, verdict.correct) for verdict in verdicts]),
        "no_answer": sum(verdict.extracted is None for verdict in verdicts) / k,
        "timeouts": sum(verdict.timed_out for verdict in verdicts) / k,
    }
