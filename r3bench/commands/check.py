"""`check`: does a component keep what every component promises?"""

import dataclasses
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import Json, print_columns, print_json

SAID = {True: "ok", False: "FAULT", None: "-"}


def check(
    component: Annotated[
        str,
        typer.Argument(
            metavar="COMPONENT", help="A name that `list components` shows.", autocompletion=shell.components
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of its own, such as strength=0.3.")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", metavar="NAME", help="One of its presets.")] = None,
    as_json: Json = False,
) -> None:
    """Drive a component through made-up batches: valid answers, the same decisions in every process and after a resume,
    nothing global, evidence of what it did. Takes seconds and no model; exit code 1: a rule is broken."""
    from r3bench.config.load import apply_overrides, resolve_components
    from r3bench.contract.rules import examine
    from r3bench.errors import ConfigError
    from r3bench.sweep.preflight.patience import within

    if preset is not None and settings:
        raise ConfigError(f"--preset {preset}: got settings as well, expected one of the two")
    said = apply_overrides({}, settings or [])
    chosen = resolve_components({component: preset or said or True}, "command line")[component]
    with within(f"component '{component}'"):
        found = examine(component, chosen)
    broken = [one for one in found if one.kept is False]
    if as_json:
        print_json({"component": component, "settings": chosen, "ok": not broken,
                    "rules": [dataclasses.asdict(one) for one in found]}, "check")  # fmt: skip
    else:
        print_columns((f"{SAID[one.kept]:5}  {one.rule}", one.text) for one in found)
    if broken:
        raise typer.Exit(1)
