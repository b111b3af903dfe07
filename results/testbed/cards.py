"""Puts the cards that `r3bench calibrate` printed into docs/testbed.md: python results/testbed/cards.py

A card is kept in cards/NAME.txt as it was printed: r3bench calibrate NAME > results/testbed/cards/NAME.txt
"""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "testbed.md"
PLACE = re.compile(r"(<!-- card: (\w+) -->\n)```\n.*?```\n", re.S)


def with_cards(page: str) -> str:
    """The page with every marked block replaced by its card."""
    return PLACE.sub(
        lambda found: f"{found[1]}```\n{(HERE / 'cards' / f'{found[2]}.txt').read_text().strip()}\n```\n", page
    )


if __name__ == "__main__":
    PAGE.write_text(with_cards(PAGE.read_text()))
