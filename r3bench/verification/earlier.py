"""Tables as earlier versions set them: what they say can be right although it isn't set like this any more."""

import re
from collections.abc import Sequence
from pathlib import Path

from r3bench.analysis.output.frame import Entry, Table
from r3bench.analysis.output.render import LONGEST_NOTE, latex_text
from r3bench.analysis.output.tables import study_tables
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.statistics.effects import effects

OPENING = r"\begin{table}[ht]"  # of the LaTeX before tables were made to fit a page


def is_earlier(path: Path, text: str) -> bool:
    """Whether a file is LaTeX of the earlier form."""
    return path.name == "tables.tex" and text.startswith(f"{OPENING}\n")


def earlier_tables(study: Path) -> str:
    """`tables.tex` of a study in the earlier form."""
    results = load_study(study)
    found, notes = effects(results, draws=500)
    return "\n".join(_latex(table) for table in study_tables(results, None, found, notes))


def _latex(table: Table) -> str:
    """One `table` environment for booktabs, as wide as it comes out."""

    def row(entries: Sequence[Entry]) -> str:
        texts = [latex_text(e.text) for e in entries]
        return " & ".join(rf"\textbf{{{t}}}" if e.strong else t for t, e in zip(texts, entries, strict=True)) + r" \\"

    label = re.sub(r"[^a-z0-9]+", "-", table.key.lower()).strip("-") or "table"
    lines = [
        OPENING,
        r"\centering\small",
        rf"\caption{{{latex_text(table.title)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{''.join('r' if c.align == 'right' else 'l' for c in table.columns)}}}",
        r"\toprule",
        " & ".join(latex_text(c.name) for c in table.columns) + r" \\",
        r"\midrule",
        *(row(entries) for entries in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip\footnotesize {latex_text(note, LONGEST_NOTE)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
