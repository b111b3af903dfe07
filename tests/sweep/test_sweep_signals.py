"""A signal ends a study or its tuning as an interruption, which the same command resumes from."""

import dataclasses
import os
import signal

import pytest
from toy import TOY, run_toy

from r3bench.commands.study import end
from r3bench.errors import Interrupted, StateError
from r3bench.files import read_jsonl, write_json
from r3bench.sweep.attempts import Failure, WorkerFailed
from r3bench.sweep.cell_run import run_job
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


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
        end(report)
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


def test_training_in_this_process_takes_the_signal_and_the_study_stops(home, grid_values):
    """`inline`: training saves and raises; the dispatcher never saw the signal."""
    grid = parse_grid(grid_values | {"retries": {"preempted": 5}}, "toy.yaml")

    def run(work):
        return run_job(work, dataclasses.replace(TOY, train=interrupted_train))

    report = ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=quiet)
    assert report.interrupted and len(report.left) == 8 and not report.failed
    events = [line["event"] for path in (home / "runs").rglob("attempts.jsonl") for line in read_jsonl(path)]
    assert events.count("stopped") == 1 and "failure" not in events
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete


def interrupted_train(recipe, paths, quiet=False):
    raise Interrupted("stopped at step 3 and saved")


def tuned(home, grid_values, search):
    grid_values["tuning"] = {"trials": 1, "space": {"trainer.learning_rate": [1e-5, 1e-4]}}
    grid = parse_grid(grid_values | {"retries": {"preempted": 2}}, "toy.yaml")
    return ablate(grid, home / "runs", run=run_toy, search=search, executor=InlineExecutor(), say=quiet)


def found(home, name):
    result = {"cell": name, "trials": [1], "params": {"trainer.learning_rate": 1e-4}}
    write_json(home / "runs" / "toy" / "tuning" / name / "tuning.json", result)
    return result


def test_a_search_in_this_process_takes_the_signal_and_tuning_is_interrupted(home, grid_values):
    searched = []

    def search(work):
        searched.append(work["recipe"]["name"])
        if len(searched) == 2:
            raise Interrupted("stopped at step 3 and saved")
        return found(home, searched[-1])

    with pytest.raises(Interrupted, match="resumes from there"):
        tuned(home, grid_values, search)
    assert len(searched) == 2
    assert tuned(home, grid_values, search).complete and len(searched) == 5


@pytest.mark.parametrize(("deaths", "completes"), [(2, True), (3, False)])
def test_a_search_that_is_killed_from_outside_goes_on_as_often_as_retries_allow(home, grid_values, deaths, completes):
    died = []

    def search(work):
        name = work["recipe"]["name"]
        if name == "replay" and len(died) < deaths:
            died.append(name)
            raise WorkerFailed(Failure("preempted", "killed by SIGKILL"))
        return found(home, name)

    if completes:
        assert tuned(home, grid_values, search).complete
    else:
        with pytest.raises(StateError, match="tuning failed for 1 cells; replay: killed by SIGKILL"):
            tuned(home, grid_values, search)
    assert len(died) == deaths
