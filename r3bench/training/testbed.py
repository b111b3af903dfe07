"""What counts as right on the testbed where an answer alone isn't enough: a reward and a task's judge in one."""

from collections.abc import Sequence
from typing import Any

ANSWER = "Answer:"  # between working and answer, as the embedded model writes them


def worked(completions: Sequence[Any], solution: Sequence[str], **_: Any) -> list[float]:
    """1 where an answer's working and its final answer are those of the worked solution, up to spaces, else 0.

    So nothing can be guessed: an answer without working is wrong whatever it says.

    Args:
        completions: (N,) chat messages or texts.
        solution: (N,) texts such as `7-1=6 6+5=11 Answer: \\boxed{11}`.
    """
    return [float(_parts(_text(said)) == _parts(gold)) for said, gold in zip(completions, solution, strict=True)]


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


def _parts(text: str) -> tuple[str, str] | None:
    """The working and the first box behind it, without spaces; None where one of them is missing."""
    working, _, rest = text.partition(ANSWER)
    _, box, inside = rest.partition("\\boxed{")
    answer, closed, _ = inside.partition("}")
    return ("".join(working.split()), answer.strip()) if box and closed and working.strip() else None
