"""Answer extraction and grading, used by rewards and by evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r3bench.grading.extract import final_answer, last_boxed
    from r3bench.grading.file import grade_file, grade_lines
    from r3bench.grading.grader import ExactGrader, Grader, Verdict

__all__ = ["ExactGrader", "Grader", "Verdict", "final_answer", "grade_file", "grade_lines", "last_boxed"]

_PLACES = {  # loaded on use: a plan asks for the last box and for no grader
    "ExactGrader": "grader", "Grader": "grader", "Verdict": "grader", "final_answer": "extract",
    "last_boxed": "extract", "grade_file": "file", "grade_lines": "file",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
