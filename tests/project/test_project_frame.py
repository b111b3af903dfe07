"""The files around the code say what is true: versions, targets, folders and files that they name."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import r3bench

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md"]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_one_version() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert citation["version"] == project["version"] == r3bench.__version__
    assert citation["license"] == project["license"]


def test_papers_that_are_cited_are_those_of_the_components() -> None:
    for reference in yaml.safe_load(text("CITATION.cff"))["references"]:
        assert reference["url"] in text("README.md")
        assert all(author["given-names"] and author["family-names"] for author in reference["authors"])


@pytest.mark.parametrize("page", PAGES)
def test_targets_and_files_that_a_page_names_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.M))
    assert (
        set(re.findall(r"\bmake ([a-z]+)\b(?=[` \n])", "\n".join(re.findall(r"^make .*|`[^`]*`", text(page), re.M))))
        <= targets
    )
    named = [
        *re.findall(r"`([\w./]+/[\w.]*|[\w/]+\.(?:py|toml|txt|md|cff))`", text(page)),
        *re.findall(r"\]\((?!http)([^)#]+)", text(page)),
    ]
    assert [name for name in named if not (ROOT / name).exists() and name not in (".venv", "r3bench/__init__.py")] == []


def test_the_workflow_runs_what_a_merge_needs() -> None:
    (job,) = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"].values()
    assert any(step.get("run") == ".ci/run" for step in job["steps"])


def test_templates_ask_for_what_the_program_prints() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 4
    for form in forms:
        values = yaml.safe_load(form.read_text())
        if form.stem != "config":
            assert values["name"] and values["description"] and values["body"], form.name
            assert all(field["attributes"]["label"] for field in values["body"]), form.name
