"""Which optional packages are installed, and what of all that is installed can't work together. Loads no torch."""

import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# The oldest Linux driver that runs programs of a CUDA release (NVIDIA, "CUDA Compatibility", minor versions).
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
NVIDIA = Path("/proc/driver/nvidia/version")
SHADOWED = ("torch", "trl", "transformers", "vllm", "peft", "datasets")  # a folder of such a name hides the package


def installed(name: str) -> Version | None:
    """A distribution's version; None if it is absent."""
    try:
        return Version(version(name))
    except PackageNotFoundError:
        return None


def requirements(extra: str = "", of: str = "r3bench") -> "list[Requirement]":
    """What a distribution asks for on this Python and platform; with `extra`, only what that extra adds."""
    from packaging.requirements import Requirement  # a parser, which plans need not load

    lines = [Requirement(line) for line in requires(of) or []]
    plain = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    if not extra:
        return plain
    return [line for line in lines if line not in plain and line.marker and line.marker.evaluate({"extra": extra})]


def install_line(extra: str) -> str:
    """The command that adds an extra's packages to this environment, in the versions r3bench works with."""
    return "pip install " + " ".join(f"'{line.name}{line.specifier}'" for line in requirements(extra))


def extras() -> dict[str, dict[str, str | None]]:
    """Extra -> its packages and their installed versions (None: absent); those for development left out."""
    names = {m for line in requires("r3bench") or [] for m in re.findall(r"extra == ['\"]([\w-]+)['\"]", line)}
    found = {}
    for name in sorted(names - {"dev", "docs"}):
        versions = {line.name: installed(line.name) for line in requirements(name)}
        found[name] = {package: str(v) if v else None for package, v in versions.items()}
    return found


def driver() -> str | None:
    """The NVIDIA driver's version; None without one."""
    try:
        found = re.search(r"Kernel Module(?: for \w+)?\s+([\d.]+)", NVIDIA.read_text())
    except OSError:
        return None
    return found[1] if found else None


def conflicts() -> list[str]:
    """Installed packages outside the range that r3bench, or another of the packages it uses, asks for."""
    base = requirements()
    ours = base + [line for extra in extras() for line in requirements(extra)]
    used = {canonicalize_name(line.name) for line in ours if installed(line.name)} - {"r3bench"}
    asked = [("r3bench", line) for line in ours]
    for name in sorted(used):
        asked += [(name, line) for line in requirements(of=name) if canonicalize_name(line.name) in used]
    found = []
    for owner, line in asked:
        present = installed(line.name)
        needs = f"{owner if owner == 'r3bench' else f'{owner} {installed(owner)}'} needs {line.name}{line.specifier}"
        if present is None and line in base:
            found.append(f"{line.name} is missing, {needs}")
        elif present is not None and not line.specifier.contains(present, prereleases=True):
            found.append(f"{line.name} {present} is installed, {needs}")
    return list(dict.fromkeys(found))


def accelerator_problems(cuda: str | None, gpus: int, seen_driver: str | None) -> list[str]:
    """What keeps the GPUs of this machine from being used.

    Args:
        cuda: the CUDA version torch was built for; None for a CPU build.
        gpus: how many GPUs torch can use.
        seen_driver: the NVIDIA driver's version; None without one.
    """
    if seen_driver is None:
        return []
    if cuda is None:
        return ["torch is a CPU build, but this machine has an NVIDIA driver; install torch from the package index"]
    oldest = OLDEST_DRIVER.get(int(cuda.partition(".")[0]))
    if oldest and Version(seen_driver) < Version(oldest):
        return [f"torch is built for CUDA {cuda}, which needs driver {oldest} or newer; this machine has {seen_driver}"]
    return [] if gpus else ["torch sees none of this machine's GPUs (CUDA_VISIBLE_DEVICES? permissions?)"]


def shadows(folder: Path) -> list[str]:
    """Folders in `folder` that Python would import instead of the package of their name."""
    return [
        f"{name}/ in the current folder hides the package '{name}' from Python; rename it or start elsewhere"
        for name in SHADOWED
        if (folder / name).is_dir() and not (folder / name / "__init__.py").is_file()
    ]


def problems(device: dict[str, Any]) -> list[str]:
    """Everything above, one sentence each; `device` as `environment.device()` returns it."""
    return [*conflicts(), *accelerator_problems(device["cuda"], len(device["gpus"]), driver()), *shadows(Path.cwd())]
