"""What a reader may be told: which score decides, from where on an answer is right, what else to look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """Of all files, or of the files of one entry of a map."""

    format: str | None = None  # name of the layout; None: found out from each file
    metric: str | None = None  # score that decides; None: the only one
    filter: str | None = None  # of lm-eval's answers; None: the only one
    right: float | None = None  # score from which on an answer is right; None: 1 is right, 0 and -1 are wrong
    missing: str = "refuse"  # answers without a verdict: 'refuse', 'wrong' or 'drop'
    measured_again: str = "newest"  # two measurements of a run in one folder: the 'newest', or 'all' of their answers
    step: int | None = None  # training step of a dump; None: the last for validation, all for completions
    rename: Mapping[str, str] = field(default_factory=dict)  # column of a table of answers -> what it is called
    verdicts: bool = True  # whether stored verdicts are wanted; False where answers are graded anew
