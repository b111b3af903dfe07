"""Answer extraction and grading, used by rewards and by evaluation."""

from r3bench.grading.extract import final_answer, last_boxed
from r3bench.grading.file import grade_file, grade_lines
from r3bench.grading.grader import ExactGrader, Grader, Verdict

__all__ = ["ExactGrader", "Grader", "Verdict", "final_answer", "grade_file", "grade_lines", "last_boxed"]
