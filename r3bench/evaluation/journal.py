"""Finished answers of shards that aren't: JSON lines in `eval/<task>/.<shard>.jsonl`, gone once the shard is written.

Only for backends whose answers stand by themselves; one that depends, in its rounding, on what was sampled with it is
sampled again with it. The lines are no record: they are read by the evaluation that goes on, and by nothing else.
"""

from pathlib import Path
from typing import Any

from r3bench.evaluation.backends.sampling import Completion, Draw
from r3bench.files import append_jsonl, read_jsonl

SETTINGS = "settings"  # key of the first line: what the answers below it were sampled under


class Journal:
    """The finished answers of a task folder that stand in no shard.

    Args:
        folder: `eval/<task>`.
        settings: what answers are sampled under now; lines written under others are removed.
        have: (question, repeat) pairs that shards hold.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], have: set[tuple[str, int]]) -> None:
        self._folder, self._settings = folder, settings
        self.answers: dict[tuple[str, int], Completion] = {}  # by question and repeat
        for path in sorted(folder.glob(".*.jsonl")):
            found = _read(path, settings)
            if found is None or found.keys() <= have:
                path.unlink()
            self.answers |= {key: answer for key, answer in (found or {}).items() if key not in have}

    def add(self, name: str, draw: Draw, answer: Completion) -> None:
        """Note an answer of shard `name`: it is in the file when this returns, though not yet on the disk."""
        path = self._folder / f".{name}.jsonl"
        if not path.exists():
            append_jsonl(path, {SETTINGS: self._settings})
        append_jsonl(path, {"question": draw.question, "repeat": draw.repeat, **vars(answer)})

    def done(self, name: str) -> None:
        """Shard `name` is written."""
        (self._folder / f".{name}.jsonl").unlink(missing_ok=True)


def _read(path: Path, settings: dict[str, Any]) -> dict[tuple[str, int], Completion] | None:
    """Answers of one file; None if they were sampled under other settings. Lines that aren't ours are passed over."""
    lines = read_jsonl(path)
    if not lines or lines[0].get(SETTINGS) != settings:
        return None
    found = {}
    for line in lines[1:]:
        match line:
            case {"question": str(q), "repeat": int(r), "text": str(text), "tokens": int(n), "truncated": bool(cut)}:
                found[q, r] = Completion(text, n, cut)
    return found
