"""The Optuna index: what it shows, and what happens when it is lost, torn, or on a server."""

import getpass
import json
import os
import shutil
import socket
import subprocess
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from toy import run_toy

from r3bench.errors import ConfigError
from r3bench.sweep.ablate import ablate, open_study
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.inline import InlineExecutor


@pytest.fixture
def grid(home, grid_values):
    return parse_grid(grid_values | {"seeds": [0]}, "toy.yaml")


def run(home, grid, lines=None, storage=None):
    say = (lines if lines is not None else []).append
    return ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), storage=storage, say=say)


def trials(url, name="toy"):
    """As optuna-dashboard reads them."""
    return optuna.load_study(study_name=name, storage=url).trials


def url(home):
    return f"sqlite:///{home / 'runs' / 'toy' / 'optuna.db'}"


def check(report, found):
    """One trial per cell, with its factors and its accuracy."""
    assert sorted(t.user_attrs["run_id"] for t in found) == sorted(report.finished)
    for trial in found:
        record = report.finished[trial.user_attrs["run_id"]]
        assert trial.params == {**record.factors, "seed": record.seed}
        if record.train.outcome == "finished":
            assert trial.state.name == "COMPLETE" and trial.values == [record.eval["embedded"]["avg@2"]]
        else:
            assert trial.state.name == "FAIL" and trial.user_attrs["record"]["outcome"] == "diverged"


def test_one_trial_per_cell_also_when_run_again(home, grid):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("diverged")
    report = run(home, grid)
    check(report, trials(url(home)))
    run(home, grid)
    check(report, trials(url(home)))


def test_a_failed_cell_is_a_failed_trial_and_its_repetition_a_new_one(home, grid):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("bug bug")
    run(home, grid)
    states = [t.state.name for t in trials(url(home)) if t.user_attrs["run_id"] == cell.run_id]
    assert states == ["FAIL"]
    run(home, grid)
    states = [t.state.name for t in trials(url(home)) if t.user_attrs["run_id"] == cell.run_id]
    assert states == ["FAIL", "COMPLETE"]


@pytest.mark.parametrize("harm", ["deleted", "torn", "garbage", "empty"])
def test_a_lost_or_broken_index_is_made_again(home, grid, harm):
    report = run(home, grid)
    file = home / "runs" / "toy" / "optuna.db"
    content = file.read_bytes()
    file.unlink()
    if harm == "torn":
        file.write_bytes(content[: len(content) // 2])
    if harm == "garbage":
        file.write_bytes(b"not a database" * 1000)
    if harm == "empty":
        file.write_bytes(b"")
    lines = []
    run(home, grid, lines)
    check(report, trials(url(home)))
    if harm in ("torn", "garbage"):
        assert any("set aside and made again" in line for line in lines) and file.with_suffix(".db.torn").exists()


def test_a_storage_that_can_not_be_opened_is_a_plain_error(home, grid):
    with pytest.raises(ConfigError, match="can't be opened"):
        run(home, grid, storage=f"sqlite:///{home}/absent/optuna.db")


def asked(application, path):
    """A GET request to a WSGI application: its status and its body."""
    status = []

    def start(line, _headers, _trouble=None):
        status.append(int(line.split()[0]))

    environment = {"QUERY_STRING": "limit=1000"}
    setup_testing_defaults(environment)
    body = b"".join(application(environment | {"PATH_INFO": path, "REQUEST_METHOD": "GET"}, start))
    return status[0], body


def test_optuna_dashboard_shows_the_study(home, grid):
    """Every cell with its levels and its accuracy, also one that failed."""
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("bug bug")
    report = run(home, grid)
    application = dashboard.wsgi(url(home))
    status, page = asked(application, "/dashboard")
    assert status == 200 and b"<html" in page.lower()
    status, body = asked(application, "/api/studies")
    (study,) = json.loads(body)["study_summaries"]
    assert status == 200 and study["study_name"] == "toy"
    status, body = asked(application, f"/api/studies/{study['study_id']}")
    detail = json.loads(body)
    assert status == 200 and detail["objective_names"] == ["embedded accuracy"]
    shown = {}
    for trial in detail["trials"]:
        attributes = {item["key"]: item["value"] for item in trial["user_attrs"]}
        levels = {item["name"]: item["param_external_value"] for item in trial["params"]}
        shown[attributes["run_id"]] = (trial["state"], trial.get("values"), levels)
    assert set(shown) == {c.run_id for c in open_study(grid, home / "runs").cells}
    assert shown[cell.run_id][:2] == ("Fail", None)
    for run_id, record in report.finished.items():
        levels = {**record.factors, "seed": str(record.seed)}
        assert shown[run_id] == ("Complete", [record.eval["embedded"]["avg@2"]], levels)


@pytest.fixture
def postgres(tmp_path):
    """A PostgreSQL server of our own on a free port; skipped with a reason where there is none."""
    pytest.importorskip("psycopg2", reason="no PostgreSQL driver (psycopg2) installed")
    found = shutil.which("initdb") or next(iter(sorted(map(str, _globbed("/usr/lib/postgresql/*/bin/initdb")))), None)
    if found is None:
        pytest.skip("no PostgreSQL server (initdb) installed")
    folder = os.path.dirname(os.path.realpath(found))
    data, user = tmp_path / "pg", getpass.getuser()
    as_user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        user = "postgres"
        if subprocess.run(["id", user], capture_output=True, check=False).returncode:
            pytest.skip("running as root without a 'postgres' user")
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        data = _root_folder(user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    subprocess.run([*as_user, found, "-D", data, "-A", "trust", "-U", "r3"], check=True, capture_output=True)
    options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1"
    control = [*as_user, f"{folder}/pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-o", options, "-l", f"{data}/log", "start"], check=True, stdout=subprocess.DEVNULL)
    yield f"postgresql+psycopg2://r3@127.0.0.1:{port}/postgres"
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(data, ignore_errors=True)


def _globbed(pattern):
    from glob import glob

    return glob(pattern)


def _root_folder(user):
    import tempfile

    folder = tempfile.mkdtemp(prefix="r3bench-pg-")
    shutil.chown(folder, user)
    return folder


def test_the_index_on_postgresql(home, grid, postgres):
    report = run(home, grid, storage=postgres)
    check(report, trials(postgres))
    assert not (home / "runs" / "toy" / "optuna.db").exists()
    run(home, grid, storage=postgres)
    check(report, trials(postgres))
