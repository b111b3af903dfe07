"""Tables with one row per answer, from anywhere: which of their columns is what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r3bench.errors import DataError
from r3bench.readers.file import plain, read_table
from r3bench.readers.options import Options
from r3bench.readers.verdict import chosen, judged

SAME = {  # our name -> names that tables of answers use for it, the first that is there is taken
    "question": ("question_id", "problem_id", "problem_idx", "doc_id", "sample_id", "example_id", "qid", "id", "idx"),
    "correct": ("is_correct", "correctness", "acc", "exact_match", "score", "reward"),
    "benchmark": ("dataset", "task", "data_source", "eval_name", "competition"),
    "response": ("completion", "output", "generation", "prediction", "answer_text"),
    "gold": ("gold_answer", "ground_truth", "target", "reference_answer", "expected", "gts"),
    "tokens": ("output_tokens", "completion_tokens", "response_tokens", "num_tokens"),
    "sample": ("repeat", "sample_idx", "idx_answer", "attempt", "rollout", "sample_index"),
}
TEXTS = (  # columns that say something of an answer and are never factors
    "response", "gold", "sample", "problem", "prompt", "messages", "all_messages", "user_message", "extracted",
    "parsed_answer", "pred", "reason", "cost", "input_tokens", "timestamp", "created_at", "answer", "timed_out",
    "grader",
)  # fmt: skip


def read_rows(path: Path, options: Options) -> list[dict[str, Any]]:
    """The answers of a table."""
    keep = [options.metric] if options.metric else ()
    frame = read_table(path, options.rename, keep=keep)
    return from_frame(frame.rename(columns=dict(options.rename)), str(path), options)


def from_frame(frame: Any, where: str, options: Options) -> list[dict[str, Any]]:
    """One record per row, with our names for the columns that have another one; all other columns as they are.

    Raises:
        DataError: no column says which question a row is about, or whether it is right.
    """
    names = {str(c): str(c) for c in frame.columns}
    for ours, theirs in SAME.items():
        if ours not in names:
            found = next((t for t in theirs if t in names), None)
            if found is not None:
                names[found] = ours
    if options.metric is not None:
        chosen(dict.fromkeys(names), options.metric, where)
        names = {c: (c if n == "correct" else n) for c, n in names.items()} | {options.metric: "correct"}
    have = set(names.values())
    for needed in ("question", "correct") if options.verdicts else ("question",):
        if needed not in have and "samples" not in have:
            raise DataError(_lacks(needed, sorted(map(str, frame.columns)), where))
    columns = [names[str(c)] for c in frame.columns]
    records = []
    for i, values in enumerate(frame.itertuples(index=False, name=None)):
        record = {c: plain(v) for c, v in zip(columns, values, strict=True)}
        spot = f"{where}: row {i + 1}"
        record["where"] = spot
        if "samples" in record:
            records.append(record)
            continue
        verdicts = record.pop("correct", None)
        if isinstance(verdicts, list):  # all answers to the question in one row
            responses = record.pop("response", None)
            texts = responses if isinstance(responses, list) else [responses] * len(verdicts)
            if len(texts) != len(verdicts):
                raise DataError(f"{spot}: {len(texts)} responses and {len(verdicts)} verdicts")
            for value, text in zip(verdicts, texts, strict=True):
                records.append({**record, "response": text, "correct": judged(value, options, f"{spot}: correct")})
        else:
            records.append({**record, "correct": judged(verdicts, options, f"{spot}: correct")})
    return records


def _lacks(needed: str, columns: Sequence[str], where: str) -> str:
    from r3bench.readers.formats import nearest_format

    listed = f"'{needed}' (or {', '.join(SAME[needed])})"
    return (
        f"{where}: no column {listed} in a table with one row per answer; --rename OLD=NEW gives a column its name. "
        f"Found: {', '.join(columns[:12])}{nearest_format(columns)}"
    )
