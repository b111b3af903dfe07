"""How commands show themselves in a shell: their help and usage, and what the Tab key offers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

RUNS = Path("runs")


def without_flag_types(parameters: list[Any]) -> list[Any]:
    """Parameters of a command; flags take no value, so no type stands after them in its help."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose usage has brackets around what may be left out, and nothing else."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `without_flag_types`."""
        return without_flag_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:-1] if piece[:1] == "{" and piece[-1:] == "}" else piece for piece in pieces]


# ------------------------------------------------------------------------------------------------ what Tab offers


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in dict.fromkeys(names) if name.startswith(incomplete))


def _named(kinds: Iterable[str], incomplete: str) -> list[str]:
    from r3bench import catalog
    from r3bench.errors import R3BenchError

    try:
        return _starting((entry.name for kind in kinds for entry in catalog.entries(kind)), incomplete)
    except R3BenchError:  # a broken file is said by the command, not while it is typed
        return []


def grids(incomplete: str) -> list[str]:
    """Names of grids."""
    return _named(("grids",), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Names of recipes."""
    return _named(("recipes",), incomplete)


def grids_and_recipes(incomplete: str) -> list[str]:
    """Names of both."""
    return _named(("grids", "recipes"), incomplete)


def components(incomplete: str) -> list[str]:
    """Names of components."""
    return _named(("components",), incomplete)


def everything(incomplete: str) -> list[str]:
    """Names of all that can be copied."""
    return _named(("recipes", "grids", "components", "tasks"), incomplete)


def tasks(incomplete: str) -> list[str]:
    """The last of several task names with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _named(("tasks",), last)]


def _runs(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("runs") or RUNS)


def studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of studies below --runs."""
    return _starting((path.parent.name for path in _runs(ctx).glob("*/study.json")), incomplete)


def figures(incomplete: str) -> list[str]:
    """Kinds of figures."""
    from r3bench.analysis.figures.kinds import KINDS

    return _starting(KINDS, incomplete)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs below --runs."""
    found = (path.parent.name for pattern in ("*/config.json", "*/*/config.json") for path in _runs(ctx).glob(pattern))
    return _starting((name for name in found if name != "model"), incomplete)


def studies_and_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Both."""
    return [*studies(ctx, incomplete), *runs(ctx, incomplete)]
