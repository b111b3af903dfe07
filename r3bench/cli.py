"""The `r3bench` program. This module loads nothing heavy: `r3bench --help` must answer at once."""

import errno
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from r3bench import project
from r3bench.commands import (
    answers,
    calibrate,
    check,
    exclude,
    find,
    measure,
    plot,
    result,
    run,
    serve,
    share,
    study,
    verdicts,
    verification,
)
from r3bench.commands.options import printable
from r3bench.commands.shell import Command, without_flag_types
from r3bench.errors import R3BenchError, StateError
from r3bench.files import NO_ROOM
from r3bench.out_of_memory import out_of_memory
from r3bench.secrets import masked
from r3bench.streams import steady
from r3bench.threads import wait_asleep

NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, *NO_ROOM}  # the machine's state, not a bug
LESS_MEMORY = (
    "a smaller trainer.per_device_train_batch_size with more trainer.gradient_accumulation_steps needs less, "
    "in evaluation a smaller eval.batch_size; see docs/troubleshooting.md"
)


class _Group(TyperGroup):
    """Turns errors meant for the user into one line on stderr and an exit code, wherever they were raised."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_flag_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except R3BenchError as error:
            _fail(str(error), error.exit_code)
        except OSError as error:
            if out_of_memory(error):
                _no_memory(error)
            if error.filename is None and error.errno not in NOT_OURS:
                raise
            where = f"{error.filename}: " if error.filename is not None else ""
            _fail(where + (error.strerror or type(error).__name__), _code(error))
        except Exception as error:  # whatever kind says that memory ran out; all others are raised again
            if not out_of_memory(error):
                raise
            _no_memory(error)


def _no_memory(error: BaseException) -> NoReturn:
    said = str(error).partition("\n")[0]
    _fail(f"out of memory{': ' if said else ''}{said}; {LESS_MEMORY}", R3BenchError.exit_code)


def _code(error: OSError) -> int:
    return StateError.exit_code if error.errno in NOT_OURS else R3BenchError.exit_code


def _fail(message: str, exit_code: int) -> NoReturn:
    typer.echo("r3bench: " + printable(masked(" ".join(message.split("\n")))), err=True)
    raise typer.Exit(exit_code) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Does a change to GRPO help on maths, by how much, at what cost, how sure are we, and did it actually act?",
)

PANELS: dict[str, dict[str, Callable[..., None]]] = {  # shown in this order
    "Run": {
        "quickstart": study.quickstart,
        "train": run.train,
        "plan": study.plan,
        "ablate": study.ablate,
        "calibrate": calibrate.calibrate,
        "status": study.status,
        "exclude": exclude.exclude,
    },
    "Look": {
        "list": find.list_,
        "copy": find.copy,
        "validate": find.validate,
        "check": check.check,
        "prompts": find.prompts,
        "env": find.env,
    },
    "Measure": {
        "eval": measure.eval_,
        "grade": verdicts.grade,
        "answers": answers.answers,
        "compare": verdicts.compare,
        "serve": serve.serve,
    },
    "Results": {
        "tables": result.tables,
        "report": result.report,
        "plot": plot.plot,
        "trace": result.trace,
        "analyze": result.analyze,
        "convert": result.convert,
        "verify": verification.verify,
        "export": share.export,
        "import": share.import_,
        "merge": share.merge,
        "push": share.push,
    },
}
for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_panel)(_command)


def _version(wanted: bool) -> None:
    if wanted:
        from r3bench import __version__

        typer.echo(f"r3bench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    project.enter(None)  # until a grid or recipe is named
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # not about the user's code


def main() -> None:
    """Entry point of the console script."""
    wait_asleep()
    steady()
    try:
        app()
    except Exception as error:  # noqa: BLE001, a bug: its traceback goes into reports, so without what is secret in it
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
        sys.exit(1)


if __name__ == "__main__":
    main()
