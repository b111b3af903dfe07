"""The notebook runs from top to bottom, and its figures and tables are there."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

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


def test_the_notebook_runs_and_its_stored_outputs_are_what_it_prints() -> None:
    stored = outputs(nbformat.read(DOCS / "notebook.ipynb", as_version=4))
    found = outputs(run_again(DOCS / "notebook.ipynb"))
    texts = [[o.get("text/plain") for o in cell if "image/png" not in o] for cell in found]
    assert texts == [[o.get("text/plain") for o in cell if "image/png" not in o] for cell in stored]
    assert sum("image/png" in o for cell in found for o in cell) == 2
    assert sum("image/png" in o for cell in stored for o in cell) == 2
    assert any("estimate" in (text or "") for cell in texts for text in cell)
