"""The wheel: all that is shipped is in it, nothing generic, and it works in an environment of its own."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {"r3bench": "r3bench", "components": "r3bench/components", "ablations": "r3bench/ablations",
           "evals": "r3bench/evals"}  # fmt: skip
DEPENDENCIES = Path(numpy.__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "R3BENCH"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, source: Path) -> Path:
    """Built from a copy, so that nothing is left in the checkout and nothing left in it is built."""
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (archive,) = (source / "dist").iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel. The dependencies are lent by this one, which is not installed in it."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    assert not list(packages.iterdir())
    run(sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python", "install", "--quiet", "--no-deps",
        "--no-index", wheel, cwd=folder)  # fmt: skip
    # A path below a .pth file is not searched for further .pth files: the checkout, installed editable, stays out.
    (packages / "lent.pth").write_text(f"{DEPENDENCIES}\n")
    (folder / "empty").mkdir()
    return folder


def test_every_shipped_file_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in SHIPPED.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not any(p == "__pycache__" or p.startswith(".") for p in path.relative_to(ROOT).parts)
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {name for name in found if name.endswith(".yaml")}
    assert {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        "r3bench", f"{wheel.name.rpartition('-py3')[0]}.dist-info"
    }  # fmt: skip


def test_nothing_generic_is_left_in_site_packages(installed: Path) -> None:
    (packages,) = (installed / "env" / "lib").glob("python*/site-packages")
    assert all(path.name.startswith("r3bench") or path.name == "lent.pth" for path in packages.iterdir())
    assert [path.name for path in (installed / "env" / "bin").glob("r3*")] == ["r3bench"]


VALIDATE_ALL = """
import sys
from typer.testing import CliRunner
from r3bench.cli import app

for file in sys.argv[1:]:  # in one process: each would import torch
    result = CliRunner().invoke(app, ["validate", file])
    assert result.exit_code == 0, (file, result.output)
"""


def test_it_runs_from_an_empty_directory(installed: Path) -> None:
    program, empty = installed / "env" / "bin" / "r3bench", installed / "empty"
    where = run(installed / "env" / "bin" / "python", "-c", "import r3bench; print(r3bench.__file__)", cwd=empty)
    assert str(installed) in where, "the checkout was imported instead of the wheel"
    assert "quickstart" in run(program, "--help", cwd=empty)
    listed = json.loads(run(program, "list", "--json", cwd=empty))
    for kind, folder in (("components", "components"), ("grids", "ablations"), ("tasks", "evals")):
        suffix = ".py" if kind == "components" else ".yaml"
        assert {e["name"] for e in listed[kind]} == {p.stem for p in (ROOT / folder).glob(f"[!_]*{suffix}")}
        assert all(e["shipped"] and str(installed) in e["path"] for e in listed[kind])
    files = [entry["path"] for entry in listed["grids"] + listed["recipes"]]
    run(installed / "env" / "bin" / "python", "-c", VALIDATE_ALL, *files, cwd=empty)
    assert run(program, "copy", "replay", cwd=empty).strip() == "components/replay.py"
    mine = json.loads(run(program, "list", "components", "--json", cwd=empty))["components"]
    assert [e["name"] for e in mine if not e["shipped"]] == ["replay"]
    assert list(empty.iterdir()) == [empty / "components"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_plain_install_into_an_empty_environment(kind: str, tmp_path: Path) -> None:
    """As a user would, dependencies included (torch by the version in the constraints, which has a CPU build here)."""
    (tmp_path / "source").mkdir()
    archive = built(kind, tmp_path / "source")
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    pip = [tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    run(*pip, "torch==2.13.0", cwd=tmp_path)
    run(*pip, archive, cwd=tmp_path)
    program = tmp_path / "env" / "bin" / "r3bench"
    run(program, "train", "quickstart", "trainer.max_steps=2", "eval.limit=8", "--quiet", cwd=tmp_path)
    assert list(tmp_path.glob("runs/quickstart-s0-*/run.json"))
