"""What is imported is declared, what is declared is pinned, and the pins are what is installed here."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_INSTALLED_HERE = {"vllm": "vllm", "ray": "ray", "gguf": "gguf", "submitit": "submitit", "wandb": "wandb",
                      "optimi": "torch-optimi"}  # fmt: skip


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*groups: str) -> set[str]:
    """Names in `dependencies` and the given extras."""
    lines = list(PROJECT["dependencies"])
    for group in groups:
        lines += PROJECT["optional-dependencies"][group]
    return {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}  # type: ignore[index]


def pins() -> dict[str, str]:
    """constraints.txt as name -> version."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return {normal(name): pinned for name, _, pinned in (line.partition("==") for line in lines if line)}


def imports(folder: Path) -> dict[str, str]:
    """Top-level name -> one file that imports it, functions included."""
    found = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                found[name.partition(".")[0]] = str(path.relative_to(ROOT))
    return found


def test_every_import_is_a_declared_dependency() -> None:
    extras = PROJECT["optional-dependencies"].keys() - {"dev"}
    allowed = declared(*extras)
    distributions = packages_distributions()
    for folder in ("r3bench", "components", "evals"):
        for name, path in imports(ROOT / folder).items():
            if name in sys.stdlib_module_names or name in ("r3bench", "__future__"):
                continue
            known = {normal(d) for d in distributions.get(name, [NOT_INSTALLED_HERE.get(name, name)])}
            assert known & allowed, f"{path} imports {name}, which is not in pyproject.toml"


def test_everything_a_test_run_installs_is_pinned_and_installed_so() -> None:
    pinned = pins()
    missing = declared("dev") - pinned.keys()
    assert not missing
    wrong = {name: version(name) for name in declared("dev") if version(name).partition("+")[0] != pinned[name]}
    assert not wrong


def test_torch_is_named_alike_wherever_it_is_named() -> None:
    wanted = f"torch=={pins()['torch']}"
    for name in ("Makefile", "README.md"):
        assert wanted in (ROOT / name).read_text(), name
