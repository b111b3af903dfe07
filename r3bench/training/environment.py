"""What a run was made with: commit, changes, packages, device."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import r3bench
from r3bench.secrets import masked

PACKAGES = (
    "r3bench", "torch", "trl", "transformers", "accelerate", "peft", "vllm", "lm-eval", "math-verify", "datasets",
    "optuna", "numpy", "pandas", "tokenizers", "safetensors",
)  # fmt: skip
MAX_DIFF = 200_000  # characters of the uncommitted changes that are kept


def git(*arguments: str) -> str | None:
    """Output of git in the source checkout; None outside one or without git."""
    folder = Path(r3bench.__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@cache
def source() -> dict[str, Any]:
    """Commit of the source checkout, whether tracked files differ from it, and how, when this process first asked."""
    root = Path(r3bench.__file__).parents[1]
    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != root.resolve():  # installed, not a checkout
        return {"commit": None, "dirty": False, "diff": ""}
    diff = masked(git("diff", "HEAD") or "")
    commit = git("rev-parse", "HEAD")
    return {"commit": commit.strip() if commit else None, "dirty": bool(diff), "diff": diff[:MAX_DIFF]}


@cache
def packages() -> dict[str, str | None]:
    """Installed versions of what a result depends on; None for what is absent."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def device() -> dict[str, Any]:
    """Name and number of accelerators (or the CPU), and threads. Imports torch."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "device": gpus[0] if gpus else _cpu_name(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    """The processor's name where the system tells it (Linux), else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """All of it, JSON-ready; `environment.json` of a run."""
    return {
        **source(),
        **device(),
        "packages": dict(packages()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
