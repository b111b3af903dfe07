"""A run's stored answers: where they belong, what the scores made of them are, and the verdicts given anew."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from r3bench.analysis.reading.counts import PLACE
from r3bench.errors import StateError
from r3bench.evaluation import shards
from r3bench.evaluation.backends.sampling import draw_seed
from r3bench.evaluation.scorer import PREFIX
from r3bench.evaluation.settings import KEY
from r3bench.evaluation.summary import summarise
from r3bench.grading import ExactGrader, Grader, Verdict
from r3bench.records import SCHEMA, RunPaths, RunRecord
from r3bench.seals import weights_digest
from r3bench.verification.figures import close, short
from r3bench.verification.findings import Findings

Rows = list[tuple[Path, dict[str, Any]]]  # answers with the shard they are in
Golds = dict[tuple[str, str], tuple[str, str]]  # (task, question) -> (gold, the first run that has it)
DRAWN = ("temperature", "top_p", "max_tokens", "seed", "style")  # settings that a shard and a summary both have
TIMEOUT = 10.0  # seconds for an answer that hit the time-out here: twice what `Grader` gives
BATCH = 2000  # answers graded at a time


def read_answers(paths: RunPaths, record: RunRecord, task: str, found: Findings) -> Rows:
    """A task's answers, each (question, repeat) once, after the shards have been compared with each other."""
    folder = paths.evaluation / task
    files = shards.files(folder)
    if record.schema >= SCHEMA:
        files = [path for path in files if path.relative_to(paths.root).as_posix() in record.files]
    place = {path: int(m[1]) if (m := PLACE.search(path.name)) else 0 for path in files}
    rows: Rows = []
    seen: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(files, key=lambda p: (place[p], p.name)):
        try:
            shard, settings = shards.read_shard(path)
        except StateError as error:
            found.fault("answers", path, str(error).removeprefix(f"{path}: "))
            continue
        if shards.WEIGHTS in settings and settings[shards.WEIGHTS] != weights_digest(record.train.files):
            found.fault("answers", path, "its answers are of other weights than those that this run trained")
        _check_settings(path, settings, record.eval.get(task, {}), task, found)
        for row in shard:
            key = (row["question"], row["repeat"])
            if key in seen:
                if seen[key] != row:
                    found.fault(
                        "answers", path, f"question {key[0]}, repeat {key[1]} is in another shard, and different"
                    )
                continue
            seen[key] = row
            rows.append((path, row))
            seed = settings.get("seed")
            if isinstance(seed, int) and row["seed"] != draw_seed(seed, *key):
                found.fault("answers", path, f"question {key[0]}, repeat {key[1]}: its seed is that of another answer")
    found.looked("answers", len(rows))
    return rows


def _check_settings(
    path: Path, settings: Mapping[str, Any], summary: Mapping[str, Any], task: str, found: Findings
) -> None:
    drawn = summary.get(KEY)
    theirs = {key: settings[key] for key in DRAWN if key in settings}
    told = {key: drawn[key] for key in theirs if key in drawn} if isinstance(drawn, dict) else {}
    for key, other in (("version", "version"), ("questions", "digest"), ("backend", "backend")):
        if key in settings and other in summary:
            theirs[key], told[key] = settings[key], summary[other]
    if "task" in settings:
        theirs["task"], told["task"] = settings["task"], task
    for key, value in told.items():
        if value != theirs[key]:
            found.fault("answers", path, f"was sampled with {key} {theirs[key]!r}; run.json says {value!r}")


def check_scores(paths: RunPaths, record: RunRecord, task: str, rows: Rows, found: Findings) -> None:
    """Every figure of a task's summary against the same figure made anew from the answers."""
    summary = record.eval[task]
    asked, samples = summary.get("questions"), summary.get("samples")
    order = list(dict.fromkeys(row["question"] for _, row in rows))
    if asked is None or samples is None:
        found.note(f"{paths.record}: eval.{task} has no questions or samples, so that its scores can't be compared")
        return
    wanted = set(order[:asked])
    try:
        if len(wanted) < asked:
            raise StateError(f"answers to {len(wanted)} of {asked} questions are stored")
        anew = summarise([row for _, row in rows if row["question"] in wanted], samples)
    except StateError as error:
        found.fault("answers", paths.record, f"eval.{task}: {error}")
        return
    for key, value in anew.items():
        found.looked("answers")
        if key in summary and not close(summary[key], value):
            found.fault(
                "answers",
                paths.record,
                f"eval.{task}: {key} is {short(summary[key])}, the answers give {short(value)}",
            )


def check_golds(
    task: str, run: str, rows: Rows, golds: dict[tuple[str, str], tuple[str, str]], found: Findings
) -> None:
    """One gold per question in all runs; `golds` collects them."""
    told = set()
    for path, row in rows:
        key = (task, row["question"])
        gold, first = golds.setdefault(key, (row["gold"], run))
        if row["gold"] != gold and key not in told:
            told.add(key)
            found.fault("golds", path, f"question {key[1]} has gold {row['gold']!r}, {gold!r} in {first}")
    found.looked("golds", len({row["question"] for _, row in rows}))


class Regrader:
    """Gives verdicts anew, by the rule each answer was graded by, and compares. Writes nothing.

    Args:
        sample: answers of each run and task that are graded, drawn at random but always the same; None: all.
        found: takes what is found.
        progress: called with the answers that were graded.
    """

    def __init__(self, sample: int | None, found: Findings, progress: Callable[[int], None] = lambda n: None) -> None:
        self._sample, self._found, self._progress = sample, found, progress
        self._judges: dict[tuple[str, bool], Grader | ExactGrader] = {}

    def __enter__(self) -> "Regrader":
        return self

    def __exit__(self, *_: object) -> None:
        for judge in self._judges.values():
            judge.close()

    def _judge(self, grader: str) -> Grader | ExactGrader:
        kind, boxed = ("exact" if "/exact/" in grader else "math"), not grader.endswith("/last")
        if (kind, boxed) not in self._judges:
            self._judges[kind, boxed] = ExactGrader(boxed) if kind == "exact" else Grader(require_boxed=boxed)
        return self._judges[kind, boxed]

    def check(self, rows: Rows) -> None:
        """Grade a run's answers to one task."""
        if self._sample is not None and len(rows) > self._sample:
            rows = random.Random(0).sample(rows, self._sample)
        by_rule: dict[str, Rows] = {}
        for path, row in rows:
            by_rule.setdefault(row["grader"], []).append((path, row))
        for grader, group in sorted(by_rule.items()):
            if grader.startswith(PREFIX):
                self._found.note(
                    f"{len(group)} answers were graded by a function of the task's ({grader}); not graded anew"
                )
                continue
            judge = self._judge(grader)
            if judge.name != grader:
                self._found.note(f"answers graded by '{grader}' were graded anew by '{judge.name}'")
            for start in range(0, len(group), BATCH):
                self._compare(group[start : start + BATCH], judge)

    def _compare(self, group: Rows, judge: Grader | ExactGrader) -> None:
        verdicts = judge.grade([row["response"] for _, row in group], [row["gold"] for _, row in group])
        for (path, row), verdict in zip(group, verdicts, strict=True):
            where = f"question {row['question']}, repeat {row['repeat']}"
            if verdict.timed_out and not row["timed_out"]:  # a busy machine? Once more, alone
                verdict = self._alone(judge, row)
            if row["timed_out"] and row["correct"]:
                self._found.fault("grading", path, f"{where}: stored as timed out and as right; a time-out is wrong")
            elif verdict.timed_out:
                if row["correct"]:
                    self._found.fault("grading", path, f"{where}: stored as right; grading it hits the time-out here")
                elif not row["timed_out"]:
                    self._found.note(
                        f"{path}: {where}: grading it hits the time-out here; stored as wrong all the same"
                    )
            elif row["timed_out"] and not verdict.correct:
                self._found.note(f"{path}: {where}: stored as timed out, graded in time here; wrong all the same")
            elif verdict.correct != row["correct"]:
                said = {True: "right", False: "wrong"}
                late = ", in time (stored as timed out)" if row["timed_out"] else ""
                self._found.fault(
                    "grading", path,
                    f"{where}: stored as {said[row['correct']]}, graded anew {said[verdict.correct]}{late} "
                    f"(answer {short(verdict.extracted)}, gold {short(row['gold'])})",
                )  # fmt: skip
            if verdict.extracted != row["extracted"] and judge.name == row["grader"]:
                self._found.fault(
                    "grading", path,
                    f"{where}: stored answer {short(row['extracted'])}, found now {short(verdict.extracted)}",
                )  # fmt: skip
        self._found.looked("grading", len(group))
        self._progress(len(group))

    def _alone(self, judge: Grader | ExactGrader, row: Mapping[str, Any]) -> Verdict:
        """One answer graded with nothing beside it and more time than it ever had."""
        boxed = not judge.name.endswith("/last")
        key = ("patient", boxed)
        if key not in self._judges:
            self._judges[key] = Grader(timeout=TIMEOUT, workers=1, require_boxed=boxed)
        return self._judges[key].grade([row["response"]], [row["gold"]])[0]
