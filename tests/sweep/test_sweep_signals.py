"""A signal ends a study or its tuning as an interruption, which the same command goes on from."""

import os
import signal

import pytest
from toy import run_toy

from r3bench.commands.study import _end
from r3bench.errors import Interrupted
from r3bench.files import write_json
from r3bench.sweep.ablate import ablate
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.inline import InlineExecutor

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def quiet(line):
    pass


@pytest.fixture(autouse=True)
def handler():
    """Without our handling the test fails instead of ending pytest."""

    def unhandled(number, frame):
        raise AssertionError(f"{number} was not handled")

    before = {number: signal.signal(number, unhandled) for number in SIGNALS}
    yield unhandled
    for number, old in before.items():
        assert signal.getsignal(number) is unhandled
        signal.signal(number, old)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupted_study_says_try_again(home, grid_values, number):
    grid = parse_grid(grid_values, "toy.yaml")

    def run(work):
        os.kill(os.getpid(), number)
        return run_toy(work)

    report = ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=quiet)
    assert report.interrupted and len(report.left) == 8
    with pytest.raises(Interrupted) as caught:
        _end(report)
    assert caught.value.exit_code == 75
    again = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert again.complete and not again.interrupted


@pytest.mark.parametrize("number", SIGNALS)
def test_interrupted_tuning_goes_on_with_the_next_search(home, grid_values, number):
    grid_values["tuning"] = {"trials": 1, "space": {"trainer.learning_rate": [1e-5, 1e-4]}}
    grid = parse_grid(grid_values, "toy.yaml")
    searched = []

    def search(work):
        searched.append(work["recipe"]["name"])
        if len(searched) == 1:
            os.kill(os.getpid(), number)
        result = {"cell": searched[-1], "trials": [1], "params": {"trainer.learning_rate": 1e-4}}
        write_json(home / "runs" / "toy" / "tuning" / searched[-1] / "tuning.json", result)
        return result

    def go():
        return ablate(grid, home / "runs", run=run_toy, search=search, executor=InlineExecutor(), say=quiet)

    with pytest.raises(Interrupted, match="received during tuning"):
        go()
    assert len(searched) == 1
    assert go().complete and len(searched) == len(set(searched)) == 4
