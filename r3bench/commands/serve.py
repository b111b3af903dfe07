"""`serve`: a vLLM server for evaluation, or for training in TRL's server mode."""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import RUNS, Json, Quiet, Runs, print_json, progress, run_folder


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL", help="A run, checkpoint, model folder or hub id.", autocompletion=shell.runs
        ),
    ],
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTION", help="Further options of `vllm serve`.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="For TRL's server mode: opens endpoints that change the weights.")
    ] = False,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs over which the model is spread.")] = 1,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Default: a free one.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take to start.")] = 1800.0,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run vLLM until Ctrl-C: waits until it answers, prints its address, takes all its processes with it at the end.

    Evaluate the address: `r3bench eval http://127.0.0.1:PORT/v1`. Recipes with vllm_mode: server start one themselves.
    """
    from r3bench.records import RunPaths
    from r3bench.serving.server import Server, Serving
    from r3bench.training.models.load import model_folder

    directory = run_folder(model, runs)
    name = str(RunPaths(directory).model) if directory is not None else model_folder(model, None)
    serving = Serving(
        model=name,
        training=training,
        tensor_parallel=gpus,
        host=host,
        port=port,
        timeout=timeout,
        extra=tuple(extra or ()),
    )

    def stop(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    log = runs / "serve" / f"{Path(name).name}-{os.getpid()}.log"
    try:
        with Server(serving, log, progress(quiet)) as server:
            if as_json:
                print_json({"url": f"{server.url}/v1", "model": name, "pid": server.pid, "log": str(log)}, "serve")
            else:
                typer.echo(f"{server.url}/v1")
            server.wait()
    except KeyboardInterrupt:
        progress(quiet)("server: stopped")
