"""Runs that someone has left out of a study's analysis, with the reason: `exclusions.jsonl` in the study's folder.

Every line is an event, an exclusion or its being taken back, so that the history stays. The file is part of the study:
archives carry it, tables print it, `verify` looks at it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from r3bench.errors import ConfigError, StateError, nearest
from r3bench.files import append_jsonl, expect, read_jsonl
from r3bench.records import read_study

FILE = "exclusions.jsonl"
EVENTS = ("exclude", "include")  # include: taken back
LONGEST = 1000  # characters of a reason


@dataclass(frozen=True)
class Exclusion:
    """One run that is left out."""

    run: str  # run id
    reason: str  # as it was given
    time: str  # when, ISO 8601, UTC

    def note(self) -> str:
        """For a table's notes."""
        return f"{self.run}: left out, excluded by hand on {self.time[:10]}: {self.reason}"


def exclusions(study: Path) -> dict[str, Exclusion]:
    """What is left out of the study in the folder `study`: run id -> exclusion, in the order of the runs' ids.

    Raises:
        StateError: the file is damaged: which runs count can't be told.
    """
    found: dict[str, Exclusion] = {}
    for event in _events(study):
        found.pop(event["run"], None)
        if event["event"] == "exclude":
            found[event["run"]] = Exclusion(event["run"], event["reason"], event["time"])
    return dict(sorted(found.items()))


def exclude(study: Path, run: str, reason: str) -> Exclusion:
    """Leave a run out of the analysis from now on, or give another reason for it.

    Raises:
        ConfigError: no such run in the study, or no reason that could be printed.
    """
    _known(study, run)
    said = " ".join(reason.split())
    if not said or not said.isprintable() or len(said) > LONGEST:
        raise ConfigError(f"--reason: got {reason[:40]!r}, expected a printable text of up to {LONGEST} characters")
    made = Exclusion(run, said, datetime.now(UTC).isoformat("T", "seconds"))
    exclusions(study)  # a damaged file is not grown
    append_jsonl(study / FILE, {"event": "exclude", "run": run, "reason": said, "time": made.time})
    return made


def include(study: Path, run: str) -> Exclusion:
    """Take an exclusion back; returns it.

    Raises:
        ConfigError: the run isn't excluded.
    """
    _known(study, run)
    found = exclusions(study)
    if run not in found:
        raise ConfigError(f"{run}: not excluded, nothing to undo{nearest(run, found) if found else ''}")
    now = datetime.now(UTC).isoformat("T", "seconds")
    append_jsonl(study / FILE, {"event": "include", "run": run, "reason": found[run].reason, "time": now})
    return found[run]


def _known(study: Path, run: str) -> None:
    runs = [cell["run_id"] for cell in read_study(study / "study.json")["cells"]]
    if run not in runs:
        raise ConfigError(f"{study}: no run '{run}' in this study{nearest(run, runs)}")


def _events(study: Path) -> list[dict[str, str]]:
    file = study / FILE
    torn: list[int] = []
    events = read_jsonl(file, torn)
    if torn:
        raise StateError(
            f"{file}: line {torn[0]} is torn or damaged, so which runs are excluded can't be told; remove that line, "
            "and give the exclusion again with r3bench exclude"
        )
    for number, event in enumerate(events, 1):
        expect(event, f"{file}: event {number}", event=str, run=str, reason=str, time=str)
        if event["event"] not in EVENTS:
            raise StateError(f"{file}: event {number}: got '{event['event']}', expected {' or '.join(EVENTS)}")
    return events
