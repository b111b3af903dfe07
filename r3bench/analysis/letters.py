"""Letters that a figure's font lacks: other fonts of this machine stand in, and what none has is named."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from functools import cache

OTHERS = (  # asked in this order, where they are installed
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Noto Sans Symbols2",
)  # fmt: skip
LACKING = re.compile(r"Glyph (\d+) .*missing from (?:current )?font")


@cache
def families() -> list[str]:
    """Fonts for a figure, the first that has a letter draws it."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in OTHERS if name in installed)]


@contextlib.contextmanager
def lacking() -> Iterator[set[str]]:
    """While drawing: the letters that no font has, instead of a warning for each; other warnings are passed on."""
    found: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    for warning in caught:
        if letter := LACKING.match(str(warning.message)):
            found.add(chr(int(letter[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def said(letters: set[str]) -> str:
    """One line on them."""
    return (
        f"no font of this machine has {' '.join(sorted(letters))}, drawn as boxes; a font for them helps "
        "(Debian's fonts-noto-cjk and fonts-noto-core, say)"
    )
