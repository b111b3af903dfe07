"""The layout of docs/design.md holds: who imports whom, module sizes, what loads no torch, commented config fields."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"r3bench": ROOT / "r3bench", "r3bench.components": ROOT / "components", "r3bench.evals": ROOT / "evals"}

# area -> what of r3bench it may import; `None`: anything. An area is a package below r3bench or a module beside them.
BASE = {
    "devices", "errors", "exclusions", "files", "installation", "lock", "measured", "out_of_memory", "project",
    "record_types", "records", "seals", "secrets", "source", "streams",
}  # fmt: skip
ALLOWED: dict[str, set[str] | None] = {
    "errors": set(),
    "project": set(),
    "source": {"errors", "project"},
    "files": BASE,
    "records": BASE,
    "record_types": BASE,
    "seals": BASE,
    "measured": BASE,
    "exclusions": BASE,
    "devices": set(),
    "lock": {"errors", "files"},
    "secrets": set(),
    "out_of_memory": set(),
    "streams": {"files"},
    "threads": set(),
    "installation": set(),
    "prompts": BASE,
    "serving": {*BASE, "config", "serving"},
    "component": {"errors"},
    "catalog": {*BASE, "component"},
    "config": {*BASE, "catalog", "config", "prompts"},
    "grading": {*BASE, "config", "grading"},
    "readers": {*BASE, "config", "grading", "readers"},
    "evals": {*BASE, "config", "grading", "prompts", "evaluation", "training"},
    "components": {"component", "errors", "training"},
    "contract": {*BASE, "catalog", "component", "config", "training", "contract"},
    "training": {*BASE, "config", "catalog", "component", "grading", "prompts", "training"},
    "evaluation": {*BASE, "config", "catalog", "grading", "prompts", "evaluation", "training"},
    "analysis": {*BASE, "config", "catalog", "grading", "readers", "analysis"},
    "sweep": {
        *BASE,
        "config",
        "catalog",
        "component",
        "grading",
        "prompts",
        "training",
        "evaluation",
        "analysis",
        "serving",
        "sweep",
    },  # for plans
    "verification": {*BASE, "config", "grading", "training", "evaluation", "analysis", "sweep", "verification"},
    "api": {*BASE, "analysis", "sweep", "api"},
    "commands": None,
    "cli": None,
}
# The wings of an area, each of which imports of its area only what stands before it. '': the modules outside any wing.
WINGS = {
    "grading": ("spelling", ""),
    "training": ("questions", "toolkit", "step", "models", ""),
    "evaluation": ("backends", ""),
    "analysis": ("", "statistics", "reading", "comparing", "output", "figures", "report"),
    "sweep": ("preflight", "sharing", "", "executors", "planning", "dispatch"),
}
ROOMS = 20  # modules that a folder may hold
# The one core module that belongs to no area: the package itself, which hands out R3Config and R3Trainer on use.
MODULES = {
    path: ".".join([package, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__")
    for package, folder in PACKAGES.items()
    for path in sorted(folder.rglob("*.py"))
    if "__pycache__" not in path.parts
}


FACTS = {  # modules with facts about public sets of questions, looked up by their names
    "r3bench.training.questions.sources",  # where they are
    "r3bench.sweep.planning.cost",  # how many questions they hold
    "r3bench.sweep.planning.plan",  # how hard they are
    "r3bench.analysis.output.paper_layouts",  # the columns of the paper's tables
}


def imported(path: Path, module: str) -> list[tuple[str, bool]]:
    """(name inside r3bench, only for type checking) of every import of r3bench in a file, functions included."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [
            (name.removeprefix("r3bench").lstrip("."), id(node) in typing_only)
            for name in names
            if name.partition(".")[0] == "r3bench"
        ]
    return found


@pytest.mark.parametrize(("path", "module"), MODULES.items(), ids=MODULES.values())
def test_imports_follow_the_design(path: Path, module: str) -> None:
    area = module.removeprefix("r3bench").lstrip(".").partition(".")[0]
    if area == "":
        return
    allowed = ALLOWED[area]
    for name, typing_only in imported(path, module):
        if allowed is None or typing_only or name.partition(".")[0] in ("__version__", ""):
            continue
        assert any(name == ok or name.startswith(f"{ok}.") for ok in allowed), f"{module} imports r3bench.{name}"


def wing(name: str) -> tuple[str, str]:
    """(area, wing) of a module's name below r3bench."""
    area, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return area, first if first in WINGS.get(area, ()) else ""


@pytest.mark.parametrize("area", WINGS)
def test_wings_import_in_one_direction(area: str) -> None:
    order = WINGS[area]
    assert {path.parent.name for path in (ROOT / "r3bench" / area).glob("*/__init__.py")} == {*order} - {""}
    up = []
    for path, module in MODULES.items():
        own = wing(module.removeprefix("r3bench."))
        if own[0] != area or path.name == "__init__.py":
            continue
        for name, typing_only in imported(path, module):
            other = wing(name)
            if other[0] == area and not typing_only and order.index(other[1]) > order.index(own[1]):
                up.append(f"{module} imports {name}")
    assert not up


def test_no_folder_is_a_corridor() -> None:
    folders = {path.parent for folder in PACKAGES.values() for path in folder.rglob("*.py")}
    rooms = {folder: len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) for folder in folders}
    assert not {str(folder): count for folder, count in rooms.items() if count > ROOMS}


def test_components_do_not_import_each_other() -> None:
    """A file with a leading underscore is no component but something several of them use."""
    names = {path.stem for path in PACKAGES["r3bench.components"].glob("[!_]*.py")}
    for path, module in MODULES.items():
        if not module.startswith("r3bench.components."):
            continue
        others = {name.split(".")[1] for name, _ in imported(path, module) if name.startswith("components.")}
        assert not others & names, f"{module} imports {others & names}"


def test_the_library_names_no_component_grid_or_task() -> None:
    """It finds them by name; `embedded...` is also the default model and data, `reflection` a row's provenance."""
    named = {path.stem for path in (ROOT / "components").glob("[!_]*.py")} - {"reflection"}
    named |= {path.stem for path in (ROOT / "evals").glob("[!_]*.yaml") if not path.stem.startswith("embedded")}
    named |= {path.stem for path in (ROOT / "ablations").glob("*.yaml")} - {"quickstart"}  # the command of that name
    sources = {"gsm8k", "math500", "minerva", "aime24", "aime25", "aime26", "amc23", "amc_2022_2023", "olympiadbench"}
    for path, module in MODULES.items():
        if not module.startswith(("r3bench.components", "r3bench.evals")):
            allowed = sources if module in FACTS else set()
            texts = {
                node.value
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not texts & (named - allowed), f"{module} names {texts & (named - allowed)}"


def test_no_module_is_above_500_lines() -> None:
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts]
    benchmarks = list((ROOT / "benchmarks").glob("*.py"))
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in [*MODULES, *tests, *benchmarks]
    }
    assert not {name: size for name, size in sizes.items() if size > 500}


def test_every_field_of_a_configuration_dataclass_has_a_comment() -> None:
    """Frozen dataclasses named *Section, *Config, Recipe or Grid: a comment on the field's lines or beside them."""
    seen = 0
    bare = []
    for path, module in MODULES.items():
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ClassDef) and node.name.endswith(("Section", "Config", "Recipe", "Grid"))):
                continue
            if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                continue
            for item in node.body:
                if isinstance(item, ast.AnnAssign):
                    seen += 1
                    own = "\n".join(lines[item.lineno - 1 : item.end_lineno])
                    beside = (lines[item.lineno - 2].strip(), "".join(lines[item.end_lineno or 0 :][:1]).strip())
                    said = " # " in own or '"help"' in own or any(line.startswith("#") for line in beside)
                    if not said:
                        bare.append(f"{module}.{node.name}.{ast.unparse(item.target)}")
    assert seen > 50
    assert not bare


LIGHT = {
    "r3bench": "import r3bench\nr3bench.Grid, r3bench.load, r3bench.analyze, r3bench.ConfigError",
    "cli": "import r3bench.cli",
    "config": "import r3bench.config.load, r3bench.catalog",
    "analysis": (
        "import importlib, pkgutil, r3bench.analysis as a\n"
        "for m in pkgutil.walk_packages(a.__path__, 'r3bench.analysis.'): importlib.import_module(m.name)"
    ),
    "components": "from r3bench import catalog\nfor name in catalog.component_names(): catalog.component(name)",
    "sweep": "import r3bench.sweep.grid, r3bench.sweep.cells, r3bench.sweep.study",
    "shipped grids": (
        "from r3bench import catalog\nfrom r3bench.sweep.cells import enumerate_cells\n"
        "from r3bench.sweep.grid import load_grid\n"
        "for entry in catalog.entries('grids'): enumerate_cells(load_grid(entry.name))"
    ),
}


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT)
def test_these_load_neither_torch_nor_trl(code: str, tmp_path: Path) -> None:
    heavy = "{'torch', 'trl', 'transformers', 'datasets', 'lm_eval'} & set(sys.modules)"
    check = f"{code}\nimport sys\nprint(sorted({heavy}))"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_help_loads_none_of_the_numerical_stack(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom r3bench.cli import app\n"
        "assert 'quickstart' in CliRunner().invoke(app, ['--help']).stdout\n"
        "print(sorted({'numpy', 'scipy', 'pandas', 'torch', 'trl', 'yaml', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
