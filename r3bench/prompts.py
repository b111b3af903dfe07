"""The instruction put around a problem. Training and evaluation share it: a gain is never a change of prompt."""

from typing import Literal, get_args

from r3bench.errors import ConfigError, nearest

Style = Literal["boxed", "r1", "plain"]

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
R1 = (
    "Think about the problem first, with your reasoning between <think> and </think>. "
    "Then state the final answer within \\boxed{}."
)


def instruct(problem: str, style: Style = "boxed") -> str:
    """The user's text: `problem` stripped, then the instruction of `style`.

    Args:
        problem: the question as the data set has it.
        style: 'boxed' asks for steps and a \\boxed{} answer (the wording Qwen2.5-Math and DeepSeek-R1 recommend),
            'r1' also asks for <think> tags, 'plain' adds nothing.

    Raises:
        ConfigError: for another style.
    """
    problem = problem.strip()
    if style == "plain":
        return problem
    if style == "boxed":
        return f"{problem}\n{BOXED}"
    if style == "r1":
        return f"{problem}\n{R1}"
    raise ConfigError(
        f"data.style: got {style!r}, expected one of {get_args(Style)}{nearest(str(style), get_args(Style))}"
    )


def render(problem: str, style: Style = "boxed") -> list[dict[str, str]]:
    """`problem` as chat messages for a tokenizer's chat template: one user turn, no system turn of our own."""
    return [{"role": "user", "content": instruct(problem, style)}]
