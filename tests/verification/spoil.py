"""Edits of a study as somebody makes them who knows about its digests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

from r3bench.evaluation import shards
from r3bench.evaluation.summary import summarise
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, read_record, write_record
from r3bench.seals import sealed

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]


def run_of(study: Path, start: str) -> Path:
    (found,) = [path for path in study.glob(f"{start}-s*") if path.is_dir()]
    return found


def reseal(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a sealed document as somebody would who knows about its digest."""
    values = read_json(file)
    change(values)
    write_json(file, sealed(values), sort_keys=False)


def rescore(run: Path, rows: dict[Path, list[dict[str, Any]]]) -> None:
    """Write answers, and a record with the scores and digests that belong to them."""
    for path, found in rows.items():
        shards.write(path.parent, path.stem, found, shards.read_shard(path)[1])
    paths = RunPaths(run)
    record = read_record(paths)
    record.eval["embedded"].update(summarise(shards.read(paths.evaluation / "embedded"), 2))
    write_record(record, paths)


def rows_of(run: Path) -> dict[Path, list[dict[str, Any]]]:
    return {path: shards.read_shard(path)[0] for path in RunPaths(run).shards()}


def faults(r3bench: Run, *arguments: str) -> list[tuple[str, str, str]]:
    result = r3bench("verify", *arguments, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["ok"] else 3)
    assert found["ok"] == (not found["faults"])
    return [(fault["check"], fault["where"], fault["what"]) for fault in found["faults"]]
