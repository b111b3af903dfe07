"""Run what hangs on TRL against another version of it, and print what broke.

The other version is put in front of the installed one on PYTHONPATH; nothing else changes, so what it needs beyond
the environment is named and not installed. Needs a package index for the first try of a version.

Below 1.16 TRL's log-probs come from a Triton kernel. Without a GPU it runs in Triton's interpreter, for which Triton is
put beside TRL where torch came without it.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import PathDistribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from r3bench.config.trl_versions import CPU_HEAD
from r3bench.devices import gpu_ids

ROOT = Path(__file__).resolve().parents[1]
TESTS = (  # contract, configuration, off is stock, moments, replay, component references
    "tests/trainer/test_trainer_contract.py",
    "tests/config/test_config_trl_drift.py",
    "tests/trainer/test_trainer_off_is_stock.py",
    "tests/trainer/test_trainer_moments.py",
    "tests/trainer/test_trainer_replay.py",
    "tests/components/test_components_loss.py",
    "tests/components/test_components_replay.py",
    "tests/components/test_components_ranking.py",
    "tests/components/test_components_reflection.py",
    "tests/components/test_components_retrospective.py",
)


def overlay(wanted: str) -> Path:
    """A folder with this version of TRL alone, installed at the first call."""
    folder = ROOT / "build" / f"trl-{wanted}"
    wheels = [] if (folder / "trl").is_dir() else [f"trl=={wanted}"]
    if needs_interpreter(wanted) and not (folder / "triton").is_dir() and importlib.util.find_spec("triton") is None:
        wheels.append("triton")
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, *wheels], check=True)
    return folder


def needs_interpreter(wanted: str) -> bool:
    """Whether this TRL runs here in Triton's interpreter only."""
    return Version(wanted) < Version(CPU_HEAD) and not gpu_ids()


def unmet(folder: Path) -> list[str]:
    """What the overlaid TRL needs and the environment lacks, e.g. "transformers>=6 (5.24.0 is installed)"."""
    found = []
    for line in PathDistribution(next(folder.glob("trl-*.dist-info"))).requires or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        if not needed.specifier.contains(version(needed.name), prereleases=True):
            found.append(f"{needed.name}{needed.specifier} ({version(needed.name)} is installed)")
    return found


def main() -> int:
    """0 when everything passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="of TRL, as x.y.z")
    parser.add_argument("tests", nargs="*", default=list(TESTS))
    options = parser.parse_args()
    folder = overlay(options.version)
    for line in unmet(folder):
        print(f"trl {options.version} needs {line}")
    path = os.pathsep.join(part for part in (str(folder), os.environ.get("PYTHONPATH")) if part)
    environment = {**os.environ, "PYTHONPATH": path} | (
        {"TRITON_INTERPRET": "1"} if needs_interpreter(options.version) else {}
    )
    command = [sys.executable, "-m", "pytest", "-rfE", "--tb=short", "-W", "ignore", *options.tests]
    log = folder.with_name(f"{folder.name}.log")
    with log.open("w") as stream:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, check=False)
    lines = log.read_text().splitlines()
    broken = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    for line in broken:
        print(line)
    print(f"trl {options.version}: {lines[-1] if lines else 'no output'}")
    if done.returncode:
        print(f"see {log.relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
