"""Every extra can be installed with the constraints, and `env` says what of an installation can't work together."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from r3bench import installation
from r3bench.config import trl_versions
from r3bench.config.trainer_fields import FIELDS_FILE

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = re.compile(r"failed to fetch|error sending request|network|dns error|could not connect", re.IGNORECASE)


def check(folder: Path, pins: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """The resolution check with some pins changed; skips where there is no package index."""
    text = (ROOT / "constraints.txt").read_text()
    for name, version in pins.items():
        text, changed = re.subn(rf"(?m)^{re.escape(name)}==.*$", f"{name}=={version}", text)
        assert changed == 1, name
    constraints = folder / "constraints.txt"
    constraints.write_text(text)
    command = [sys.executable, str(ROOT / ".ci/resolve.py"), "--constraints", str(constraints), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if OFFLINE.search(done.stdout + done.stderr):
        pytest.skip("no package index can be reached")
    return done


@pytest.mark.slow
def test_a_pin_that_breaks_an_extra_is_found_and_named(tmp_path: Path) -> None:
    done = check(tmp_path, {"numpy": "2.4.6"}, "--python", "3.12", "--extra", "vllm")
    assert done.returncode == 1, done.stdout
    assert "Python 3.12: extra 'vllm' can't be installed with constraints.txt" in done.stdout
    assert "numpy==2.4.6" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("pin", [{"setuptools": "84.2.1"}, {"transformers": "5.17.0"}, {"torch": "2.12.0"}])
def test_other_pins_that_break_an_extra_are_found(tmp_path: Path, pin: dict[str, str]) -> None:
    done = check(tmp_path, pin, "--python", "3.12")
    assert done.returncode == 1 and "can't be installed" in done.stdout
    assert next(iter(pin)) in done.stdout


@pytest.mark.slow
def test_the_constraints_as_they_are_pass(tmp_path: Path) -> None:
    done = check(tmp_path, {})  # `make resolve`, which CI runs by itself
    assert done.returncode == 0, done.stdout + done.stderr


class Distributions:
    """Made-up installed distributions: name -> (version, lines of Requires-Dist)."""

    def __init__(self, **known: tuple[str, list[str]]) -> None:
        self.known = {name.replace("_", "-"): value for name, value in known.items()}

    def installed(self, name: str) -> Version | None:
        return Version(self.known[name][0]) if name in self.known else None

    def requires(self, name: str) -> list[str]:
        return self.known[name][1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    """Lay a made-up set of installed packages over the real one."""

    def lay(**known: tuple[str, list[str]]) -> list[str]:
        distributions = Distributions(**known)
        monkeypatch.setattr(installation, "installed", distributions.installed)
        monkeypatch.setattr(installation, "requires", distributions.requires)
        return installation.conflicts()

    return lay


OURS = ["torch>=2.9", "transformers>=5.20,<6", 'vllm<0.31,>=0.27; extra == "vllm"', 'ray>=2.50; extra == "ray"']


def test_env_names_what_does_not_go_together(world) -> None:
    good = {"torch": ("2.13.0+cpu", []), "transformers": ("5.24.0", ["torch>=2.4"])}
    assert world(r3bench=("0.1", OURS), **good) == []
    assert world(r3bench=("0.1", OURS), torch=("2.13.0", [])) == [
        "transformers is missing, r3bench needs transformers<6,>=5.20"
    ]
    assert world(r3bench=("0.1", OURS), torch=("2.8.0", []), transformers=("5.24.0", ["torch>=2.4"])) == [
        "torch 2.8.0 is installed, r3bench needs torch>=2.9"
    ]
    other = ("0.31.0", ["torch==2.13.0", "transformers<5.18", "pillow>=99"])  # pillow is none of ours
    assert world(r3bench=("0.1", OURS), **good, vllm=other) == [
        "vllm 0.31.0 is installed, r3bench needs vllm<0.31,>=0.27",
        "transformers 5.24.0 is installed, vllm 0.31.0 needs transformers<5.18",
    ]
    markers = ["torch==1.0; python_version < '3.0'", 'torch==1.1; extra == "old"']
    assert world(r3bench=("0.1", OURS), **good, ray=("2.60", markers)) == []


@pytest.mark.parametrize(
    ("cuda", "gpus", "driver", "said"),
    [
        ("13.0", 8, "580.95.05", None),
        ("13.0", 0, "550.54.15", "torch is built for CUDA 13.0, which needs driver 580.65.06 or newer"),
        ("12.8", 1, "550.54.15", None),
        ("12.8", 1, "470.10", "needs driver 525.60.13"),
        (None, 0, "580.95.05", "torch is a CPU build"),
        (None, 0, None, None),
        ("13.0", 0, None, None),  # a GPU build on a machine without one is no fault
        ("13.0", 0, "590.10", "sees none of this machine's GPUs"),
    ],
)
def test_driver_and_cuda(cuda: str | None, gpus: int, driver: str | None, said: str | None) -> None:
    found = installation.accelerator_problems(cuda, gpus, driver)
    assert (said is None) == (not found)
    assert said is None or said in found[0]


def test_a_folder_that_hides_a_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "r3bench.cli", "env", "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert any("vllm/ in the current folder hides" in line for line in found["problems"])
    assert set(found["extras"]) >= {"vllm", "deepspeed", "ray", "slurm", "smollm"}
    assert "dev" not in found["extras"]


def test_the_line_that_installs_an_extra_is_what_the_project_declares() -> None:
    line = installation.install_line("vllm")
    quoted = re.fullmatch(r"pip install '(.+)'", line)
    assert quoted and Requirement(quoted[1]).name == "vllm"
    assert str(Requirement(quoted[1]).specifier) in ("<0.31,>=0.27", ">=0.27,<0.31")


def test_older_versions_of_trl_have_their_own_fields() -> None:
    newest = json.loads(FIELDS_FILE.read_text())
    assert trl_versions.adapted(newest, Version("1.16.0")) == newest
    older = trl_versions.adapted(newest, Version("1.15.0"))
    assert older["pad_to_multiple_of"] == {"default": None, "types": ["None", "int"]}
    assert older.keys() == newest.keys()
    assert [trl_versions.supported(Version(v)) for v in ("1.14.2", "1.15.0", "1.16.3", "1.17.0")] == [
        False, True, True, False,
    ]  # fmt: skip
