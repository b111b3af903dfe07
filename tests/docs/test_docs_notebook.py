"""The notebook runs from top to bottom, and its figures and tables are there."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NUMBER = re.compile(r"-?\d+\.\d+")
DOCS = Path(__file__).parents[2] / "docs"


def run_again(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[list[dict]]:
    return [
        [dict(o["data"]) for o in c.outputs if o.output_type == "execute_result"]
        for c in notebook.cells
        if c.cell_type == "code"
    ]


def split(texts: list[list[str]]) -> tuple[list[str], list[float]]:
    """What is printed without its decimals, and these."""
    whole = "\n".join(text for cell in texts for text in cell)
    return NUMBER.sub("", whole).split(), [float(number) for number in NUMBER.findall(whole)]


def test_the_notebook_runs_and_its_stored_outputs_are_what_it_prints() -> None:
    stored = outputs(nbformat.read(DOCS / "notebook.ipynb", as_version=4))
    found = outputs(run_again(DOCS / "notebook.ipynb"))
    texts, before = (
        [[o["text/plain"] for o in cell if "image/png" not in o] for cell in one] for one in (found, stored)
    )
    words, numbers = split(texts)
    assert words == split(before)[0]
    assert numbers == pytest.approx(split(before)[1], abs=0.01), "run it and save it: jupyter execute --inplace"
    assert sum("image/png" in o for cell in found for o in cell) == 2
    assert sum("image/png" in o for cell in stored for o in cell) == 2
    assert any("estimate" in (text or "") for cell in texts for text in cell)
