"""Resolve every extra against the constraints, for each Python, without downloading a package.

A pin that no extra of a GPU machine can live with is found here in seconds, and not by the first user who has one.
Needs uv and a package index. Exit code 1 names the extra, the Python and the resolver's own reason.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORM = "x86_64-manylinux_2_28"  # vLLM's and DeepSpeed's machines


def resolve(project: Path, constraints: Path, python: str, extras: list[str]) -> str:
    """Why the project with `extras` can't be installed under the constraints; empty if it can."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", str(project), "--constraint", str(constraints)]
    command += ["--python-version", python, "--python-platform", PLATFORM, "--output-file", "/dev/null"]
    command += [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"uv ended with exit code {done.returncode}"


def main() -> int:
    """Check all Pythons; 0 when everything resolves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=ROOT / "pyproject.toml")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--python", nargs="*", default=list(PYTHONS))
    parser.add_argument("--extra", nargs="*", help="only these (all)")
    options = parser.parse_args()
    declared = tomllib.loads(options.project.read_text())["project"]["optional-dependencies"]
    extras = sorted(options.extra or declared)
    failed = False
    for python in options.python:
        # What resolves with all extras together resolves with each of them; only a failure is looked into.
        if not resolve(options.project, options.constraints, python, extras):
            print(f"Python {python}: {', '.join(extras)} resolve together", flush=True)
            continue
        failed = True
        reasons = {extra: resolve(options.project, options.constraints, python, [extra]) for extra in extras}
        alone = {extra: reason for extra, reason in reasons.items() if reason}
        for extra, reason in alone.items():
            print(f"Python {python}: extra '{extra}' can't be installed with {options.constraints.name}:\n{reason}")
        if not alone:
            reason = resolve(options.project, options.constraints, python, extras)
            print(f"Python {python}: the extras resolve one by one, but not together:\n{reason}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
