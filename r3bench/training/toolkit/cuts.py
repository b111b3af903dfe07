"""Where an answer may be cut into a given prefix and a rest to be sampled."""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np


class TokenTexts:
    """The text of tokens, each decoded once."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._texts = np.empty(0, object)  # by token id; None until met
        self._lengths = np.zeros(0, np.int64)  # characters

    def read(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """The text of (T,) token ids, and (T,) how many characters of it there are up to the end of each token."""
        return self.read_all([ids])[0]

    def read_all(self, rows: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        """`read` of several rows; at once, which pays for short ones."""
        ids = np.concatenate(rows)
        try:
            return self._known(ids, rows)
        except (IndexError, TypeError):  # a token not met before
            self._learn(ids)
            return self._known(ids, rows)

    def _known(self, ids: np.ndarray, rows: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        texts, lengths = self._texts[ids].tolist(), self._lengths[ids]
        found, start = [], 0
        for row in rows:
            end = start + len(row)
            found.append(("".join(texts[start:end]), lengths[start:end].cumsum()))
            start = end
        return found

    def _learn(self, ids: np.ndarray) -> None:
        missing = int(ids.max()) + 1 - len(self._texts)
        if missing > 0:
            self._texts = np.concatenate([self._texts, np.full(missing, None)])
            self._lengths = np.concatenate([self._lengths, np.zeros(missing, np.int64)])
        for token in np.unique(ids).tolist():
            if self._texts[token] is None:
                self._texts[token] = self._decode([token])
                self._lengths[token] = len(self._texts[token])


def paragraph_cuts(text: str, ends: np.ndarray) -> list[int]:
    """Prefix lengths that end in a paragraph break, ascending.

    Args:
        text: of an answer.
        ends: (T,) its characters up to the end of each token.
    """
    after, place = [], text.find("\n\n")
    while place >= 0:
        after.append(place + 2)
        place = text.find("\n\n", place + 1)
    return sorted(set((np.searchsorted(ends, after) + 1).tolist())) if after else []


def cut_points(
    length: int, breaks: Sequence[int], *, spacing: int | None, max_fraction: float, max_cuts: int, before: int
) -> list[int]:
    """Prefix lengths at which an answer may be cut, ascending.

    Args:
        length: answer tokens.
        breaks: preferred prefix lengths; where none fits, a grid.
        spacing: tokens between cuts of the grid; None: an eighth of the answer.
        max_fraction: longest prefix as a share of the answer.
        max_cuts: at most this many, evenly chosen.
        before: prefixes must be shorter than this (place of the final answer).
    """
    last = min(math.floor(max_fraction * length), before - 1, length - 1)
    cuts = sorted({cut for cut in breaks if 1 <= cut <= last})
    if not cuts:
        stride = spacing or max(1, length // 8)
        cuts = list(range(stride, last + 1, stride))
    if len(cuts) <= max_cuts:
        return cuts
    return [cuts[place] for place in _even(len(cuts), max_cuts)]


@lru_cache(maxsize=4096)
def _even(count: int, chosen: int) -> tuple[int, ...]:
    """`chosen` of `count` places, evenly spread."""
    return tuple(np.linspace(0, count - 1, chosen).round().astype(int).tolist())


def leaks(text: str, answer: str | None) -> bool:
    r"""Whether a prefix gives the answer away: a \boxed{}, or `answer` standing by itself in the text."""
    if "\\boxed" in text:
        return True
    return bool(answer) and re.search(rf"(?<![\w.]){re.escape(str(answer))}(?![\w.]*\w)", text) is not None
