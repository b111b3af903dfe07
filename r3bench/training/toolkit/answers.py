"""How a response's final answer is found, for components: the grader's own rules."""

from r3bench.grading.extract import last_boxed

__all__ = ["last_boxed"]
