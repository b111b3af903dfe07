"""Documents that take a table in, and what LaTeX says of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ARTICLE = r"\documentclass{article}\usepackage[textwidth=5.5in,textheight=9in]{geometry}"
LETTER = r"\documentclass{article}\usepackage[textwidth=5.5in]{geometry}"
TWO = r"\documentclass[twocolumn]{article}\usepackage[textwidth=6.75in,columnsep=0.25in]{geometry}"
LARGE = r"\documentclass[12pt]{article}\usepackage[textwidth=5.5in]{geometry}"
DOCUMENTS = {"article": ARTICLE, "default height": LETTER, "two columns": TWO, "12 pt": LARGE}


def compiled(folder: Path, tables: dict[str, str], document: str) -> list[str]:
    """Complaints of LaTeX about a document that inputs each of the tables (name -> text); skips without LaTeX."""
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: Debian's texlive-latex-extra and texlive-science have all it takes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.tex").write_text(text)
    body = "\n\\clearpage\n".join(f"\\input{{{name}}}" for name in tables)
    (folder / "paper.tex").write_text(
        document + r"\usepackage{booktabs,siunitx,threeparttable}\begin{document}" + f"\n{body}\n" + r"\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"],
        cwd=folder, capture_output=True, text=True, check=False, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    log = (folder / "paper.log").read_text(errors="replace")
    return re.findall(r"Overfull \\hbox.*|LaTeX Warning: Float too large.*|.*multiply defined.*", log)
