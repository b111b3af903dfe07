"""New verdicts for stored answers. No text is generated and no response is touched."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from r3bench.errors import ConfigError
from r3bench.evaluation import shards
from r3bench.evaluation.runs import answer_folder, answers, task_names
from r3bench.evaluation.scorer import PREFIX, Scorer
from r3bench.evaluation.settings import KEY
from r3bench.evaluation.summary import summarise
from r3bench.evaluation.tied import check_answers, note_rewrite
from r3bench.grading import ExactGrader, Grader, final_answer
from r3bench.grading.spelling.normalise import same_spelling
from r3bench.lock import exclusive
from r3bench.records import RunPaths, read_record, write_record

KEPT = (KEY, "backend", "version", "digest")  # of a task's summary, not about its verdicts
GraderName = Literal["math-verify", "exact"]


def make_grader(name: GraderName, require_boxed: bool) -> Grader | ExactGrader:
    """The grader called `name`."""
    return Grader(require_boxed=require_boxed) if name == "math-verify" else ExactGrader(require_boxed)


def regrade_shard(
    path: Path, judge: Grader | ExactGrader | Scorer, docs: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[int, int, int]:
    """Replace the verdicts of one shard, atomically; how many answers it has, and how many became right and wrong.

    `docs`: question -> document, for a task's own judge.
    """
    rows, settings = shards.read_shard(path)
    if isinstance(judge, Scorer):
        assert docs is not None
        known = [docs[row["question"]] for row in rows]
        verdicts = judge.grade_docs([row["response"] for row in rows], known)
    else:
        verdicts = judge.grade([row["response"] for row in rows], [row["gold"] for row in rows])
    to_right = sum(verdict.correct and not row["correct"] for row, verdict in zip(rows, verdicts, strict=True))
    to_wrong = sum(row["correct"] and not verdict.correct for row, verdict in zip(rows, verdicts, strict=True))
    for row, verdict in zip(rows, verdicts, strict=True):
        row.update(
            extracted=verdict.extracted,
            reason=verdict.reason,
            correct=verdict.correct,
            timed_out=verdict.timed_out,
            grader=judge.name,
        )
    shards.write(path.parent, path.stem, rows, settings, note_rewrite)
    return len(rows), to_right, to_wrong


def regrade(
    run: Path, *, grader: GraderName = "math-verify", require_boxed: bool = True, tasks: tuple[str, ...] | None = None
) -> dict[str, dict[str, Any]]:
    """Replace the verdicts in every shard of a run, each shard atomically, and the scores in its `run.json`.

    Args:
        run: a run directory or a folder of answers.
        grader: which grader gives the verdicts.
        require_boxed: see `r3bench.grading.Grader`.
        tasks: the tasks to do; None: all that have answers.

    Returns:
        Task -> `answers`, `to_right`, `to_wrong` (verdicts that changed), `grader`, `summary` (the new one).

    Raises:
        StateError: an evaluation is writing there, or the answers are not those that the record sums up.
    """
    folder = answer_folder(run)
    judge = make_grader(grader, require_boxed)
    try:
        with exclusive(folder / ".lock", means="an evaluation is writing there"):
            return _regrade(run, folder, judge, require_boxed, tasks)
    finally:
        judge.close()


def _regrade(
    run: Path, folder: Path, judge: Grader | ExactGrader, require_boxed: bool, tasks: tuple[str, ...] | None
) -> dict[str, dict[str, Any]]:
    report: dict[str, dict[str, Any]] = {}
    check_answers(RunPaths(folder.parent))
    for task in task_names(run, tasks):
        own = {row["grader"] for row in answers(run, task) if row["grader"].startswith(PREFIX)}
        if own:
            if tasks is None:
                continue
            raise ConfigError(
                f"{run}: task '{task}' has a judge of its own ({min(own)}); `r3bench eval` grades its answers anew "
                "where the function has changed"
            )
        changes = [regrade_shard(path, judge) for path in shards.files(folder / task)]
        report[task] = {
            "answers": sum(answered for answered, _, _ in changes),
            "to_right": sum(to_right for _, to_right, _ in changes),
            "to_wrong": sum(to_wrong for _, _, to_wrong in changes),
            "grader": judge.name,
            "summary": summarise(answers(run, task)),
        }
    paths = RunPaths(folder.parent)
    if paths.record.exists():
        record = read_record(paths)
        scores = {}
        for task, old in record.eval.items():
            kept = {key: value for key, value in old.items() if key in KEPT}
            if kept.get(KEY):
                kept[KEY] = {**kept[KEY], "require_boxed": require_boxed}
            scores[task] = kept | report[task]["summary"] if task in report else old
        write_record(replace(record, eval=scores), paths)
    return report


def second_opinion(row: Mapping[str, Any]) -> bool:
    """What equal spelling says of a stored answer, found afresh in its response."""
    if row["grader"].startswith(PREFIX):
        return same_spelling(row["extracted"], row["gold"])
    answer = final_answer(row["response"], require_boxed=not row["grader"].endswith("/last"))
    return same_spelling(answer.text, row["gold"])


def agreement(run: Path, tasks: tuple[str, ...] | None = None) -> dict[str, dict[str, Any]]:
    """How often the second grader, looking at the responses by the rule they were graded by, gives the stored verdict.

    Returns:
        Task -> `answers`, `agreement` (share), and `differ`, the answers about which the two disagree: question,
        repeat, gold, extracted, reason, both verdicts.
    """
    report = {}
    for task in task_names(run, tasks):
        rows = answers(run, task)
        differ = [
            {key: row[key] for key in ("question", "repeat", "gold", "extracted", "reason")}
            | {"stored": row["correct"], "exact": exact}
            for row in rows
            if row["correct"] != (exact := second_opinion(row))
        ]
        report[task] = {"answers": len(rows), "agreement": 1 - len(differ) / len(rows), "differ": differ}
    return report
