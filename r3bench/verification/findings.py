"""What a verification looked at, and what it found."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CHECKS = {  # name -> what is compared; in the order they are shown
    "study": "study.json with its own digest, its run ids and its grid",
    "records": "run.json and train.json with their own digests, the run ids and study.json",
    "configurations": "config.json with the hash in the run id, its levels with the factors in the record",
    "files": "answers, logs, environments and weights with the digests in the records",
    "checkpoints": "checkpoints, and what was measured of them, with their own checksums",
    "answers": "every answer's seed, place and settings, and the scores in run.json made anew from the answers",
    "golds": "one gold answer to a question in all runs",
    "grading": "verdicts given anew from the responses",
    "tables": "tables made anew from the answers with those in the folder",
    "archive": "files of the archive with its manifest",
}
SHOWN = 20  # faults of one check that are printed; --json has them all


@dataclass
class Findings:
    """Counts of what was checked, faults, and what could not be checked."""

    checked: dict[str, int] = field(default_factory=dict)  # check -> things looked at
    faults: list[tuple[str, str, str]] = field(default_factory=list)  # (check, file or run, what is wrong)
    notes: list[str] = field(default_factory=list)  # what can't be told here, or is not finished

    def looked(self, check: str, count: int = 1) -> None:
        """`count` more things were compared."""
        self.checked[check] = self.checked.get(check, 0) + count

    def fault(self, check: str, where: object, wrong: str) -> None:
        """Something is not what it should be."""
        self.checked.setdefault(check, 0)
        self.faults.append((check, str(where), wrong))

    def note(self, text: str) -> None:
        """Something to be told that is no fault; once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "faults": [{"check": check, "where": where, "what": wrong} for check, where, wrong in self.faults],
            "notes": self.notes,
        }

    def lines(self) -> Iterable[str]:
        """For a terminal: one line per check, one per fault, one per note."""
        for check, about in CHECKS.items():
            if check not in self.checked:
                continue
            found = [(where, wrong) for name, where, wrong in self.faults if name == check]
            state = f"{len(found)} wrong" if found else "ok"
            yield f"{check}: {state} ({self.checked[check]} compared: {about})"
            yield from (f"  {where}: {wrong}" for where, wrong in found[:SHOWN])
            if len(found) > SHOWN:
                yield f"  and {len(found) - SHOWN} more (--json has all)"
        yield from (f"note: {text}" for text in self.notes)
