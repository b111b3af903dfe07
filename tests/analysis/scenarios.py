"""Studies and tables, each with a case that makes the analysis say something, and every sentence that it prints."""

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from synthetic import Spec, make_study

from r3bench.analysis.comparing.heldout import held_out
from r3bench.analysis.declared import Declared
from r3bench.analysis.figures.plots import Picture
from r3bench.analysis.output.choices import Choices
from r3bench.analysis.output.external import analysis, load_any
from r3bench.analysis.output.main_table import main_table
from r3bench.analysis.output.tables import study_tables, write_tables
from r3bench.analysis.reading.columns import Reading
from r3bench.analysis.report.page import render_report
from r3bench.analysis.report.tables import held_out_table
from r3bench.analysis.results import Results
from r3bench.records import RunPaths, read_record, write_record


def table(path, cells, *, seeds=3, questions=30, samples=8, noise=None, extra=None, seed=0, benchmarks=("b",)):
    """A long table; cells: mapping of factor columns -> share right; noise: SD over seeds in points, by place."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, (levels, share) in enumerate(cells):
        count = seeds[i] if isinstance(seeds, list) else seeds
        for s in range(count):
            sd = (noise[i] if isinstance(noise, list) else noise or 0.0) / 100
            shift = rng.normal(0, sd) if sd else 0.0
            for benchmark in benchmarks:
                for q in range(questions):
                    p = min(max(share + shift, 0.0), 1.0)
                    right = int(rng.binomial(samples, p)) if sd else round(samples * p)
                    row = {"run": f"r{i}-{s}", "seed": s, **levels, "benchmark": benchmark, "question": f"q{q:03d}"}
                    rows.append({**row, "samples": samples, "correct": right})
    frame = pd.DataFrame(rows)
    if extra is not None:
        frame = extra(frame)
    frame.to_csv(path, index=False)
    return path


TWO = [({"replay": "off"}, 0.3), ({"replay": "on"}, 0.5)]
WORSE = [({"replay": "off"}, 0.5), ({"replay": "on"}, 0.3)]
SQUARE = [({"a": x, "b": y}, 0.3 + 0.1 * (x == "on")) for x in ("off", "on") for y in ("off", "on")]
CROSSED = [({"a": x, "b": y}, 0.3 + 0.3 * (x == y == "on")) for x in ("off", "on") for y in ("off", "on")]
ADD_ONE = [({"a": x, "b": y}, 0.4) for x, y in (("off", "off"), ("on", "off"), ("off", "on"), ("on", "on"))][:3]
CUBE = [({"a": x, "b": y, "c": z, "d": w}, 0.4) for x in ("off", "on") for y in ("off", "on") for z in ("off", "on")
        for w in ("off", "on")]  # fmt: skip


def _recorded(**changes: object) -> Callable[[Path], Results]:
    """A study in which a run's training record says something else."""

    def make(folder: Path) -> Results:
        root = make_study(folder / "s", Spec())
        paths = RunPaths(next(root.glob("replay-s1-*")))
        record = read_record(paths)
        write_record(dataclasses.replace(record, train=dataclasses.replace(record.train, **changes)), paths)
        return load_any(root, metrics=True)

    return make


def _spoilt(change: Callable[[Path], object], **spec: object) -> Callable[[Path], Results]:
    """A study whose folder was changed afterwards."""

    def make(folder: Path) -> Results:
        root = make_study(folder / "s", Spec(**spec))
        change(root)
        return load_any(root, metrics=True)

    return make


def _stored_again(folder: Path, reading: Reading | None = None, declared: Declared | None = None) -> Results:
    write_tables(make_study(folder / "x", Spec()), folder / "out")
    return load_any(folder / "out" / "questions.parquet", declared, reading)


def _tear(root: Path) -> None:
    next(root.glob("replay-s1-*/eval/embedded/*.parquet")).write_bytes(b"torn")


def _overlap(root: Path) -> None:
    (root / "overlap.json").write_text('{"embedded": {"exact": 1, "near": 2, "questions": 40}}')


def _along(root: Path) -> None:
    for shard in sorted(root.glob("*/eval/embedded/*.parquet")):
        run = shard.parents[2]
        if "base-model" in run.name or run.name.startswith("replay-s1"):
            continue
        to = run / "checkpoint-eval" / "30" / "embedded"
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(shard, to / shard.name)


def _lengths(frame: pd.DataFrame) -> pd.DataFrame:
    """Longer answers where more are right."""
    return frame.assign(tokens=100.0 + 500 * frame.groupby("m")["correct"].transform("mean"))


def _study(**spec: object) -> Callable[[Path], Results]:
    return lambda folder: load_any(make_study(folder / "s", Spec(**spec)), metrics=True)


def _table(cells, *, reading=None, declared=None, **how) -> Callable[[Path], Results]:
    return lambda folder: load_any(table(folder / "t.csv", cells, **how), declared, reading)


def _without(pattern: str, **spec: object) -> Callable[[Path], Results]:
    def make(folder: Path) -> Results:
        root = make_study(folder / "s", Spec(**spec))
        for path in root.glob(pattern):
            path.unlink()
        return load_any(root, metrics=True)

    return make


def _fresh(folder: Path) -> Results:
    results = _study(metrics=True)(folder)
    logs = {run: [{**line, "fresh/correct": 0.25} for line in log] for run, log in results.metrics.items()}
    return dataclasses.replace(results, metrics=logs)


def count_solved(root: Path) -> None:
    """Adds to every log, on disk, the share of questions solved so far: step / 100."""
    for path in root.glob("*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**x, "exploration/solved": x["step"] / 100}) + "\n" for x in lines))


def sentences(results: Results, folder: Path | None = None) -> set[str]:
    """Every sentence of tables, JSON and report: notes, captions, the answer, the design, advice."""
    tables = [*study_tables(results), main_table(results), main_table(results, None, Choices(mark="letters"))]
    found = {note for t in tables for note in t.notes}
    found |= set(analysis(results)["notes"])
    with mock.patch.object(Picture, "svg", lambda picture: ""):  # drawn elsewhere: half of the time
        page, pictures = render_report(results, folder)
    for note in re.findall(r'<ul class="notes">(.*?)</ul>', page, re.S):
        found |= {html.unescape(line) for line in re.findall(r"<li>(.*?)</li>", note)}
    lists = re.findall(r'<ul class="(?:soft|words)">(.*?)</ul>', page, re.S)
    found |= {html.unescape(line) for part in lists for line in re.findall(r"<li>(.*?)</li>", part)}
    for picture in pictures:
        found |= {f"{part.strip()}." for part in re.split(r"\. (?=[A-Z*])", picture.caption.rstrip("."))}
    answer = html.unescape(re.search(r'<p class="answer">(.*?)</p>', page, re.S)[1])
    plain_sentences = answer.removesuffix(".").split(". ")
    for sentence in plain_sentences:
        effect = sentence.startswith("Accuracy on ")
        found |= {sentence} if effect else {t.replace("No cell is", "no cell is") for t in sentence.split("; ")}
    found |= {html.unescape(p) for p in re.findall(r"<p>(.*?)</p>", page)[1:] if not p.startswith("Made by")}
    along = held_out(folder, results) if folder is not None else None
    if along is not None:
        found |= set(held_out_table(along, "seconds", results.declared.confidence).notes)
    return found


SCENARIOS: dict[str, Callable[[Path], Results]] = {
    "study": _study(metrics=True),
    "confidence 90 %": _study(metrics=True, analysis={"confidence": 0.9}),
    "macro": _study(benchmarks={"x": 30, "y": 20}, metrics=True),
    "macro of one": _study(benchmarks={"x": 30, "y": 20}, analysis={"macro": ["y"]}),
    "diverged": _study(diverged=[(1, 0)], metrics=True),
    "diverged, zero": _study(diverged=[(1, 0)], analysis={"failed_score": "zero"}),
    "diverged, drop": _study(diverged=[(1, 0)], analysis={"failed_score": "drop"}),
    "diverged, no base": _study(diverged=[(1, 0)], base_model=False),
    "missing": _study(gave_up=[(2, 1)], metrics=True),
    "pending": _without("replay-s1-*/run.json"),
    "one seed": _study(seeds=(0,), base_model=False),
    "untrained only": _study(seeds=()),
    "one cell": _study(factors={"replay": ["off"]}, base_model=False),
    "fresh": _fresh,
    "three factors, one seed": _study(factors={f: ["off", "on"] for f in "abc"}, seeds=(0,)),
    "four factors, one seed": _table(CUBE, seeds=1, noise=3.0),
    "worse": _table(WORSE, noise=2.0),
    "better": _table(TWO, noise=2.0),
    "alike": _table([({"replay": "off"}, 0.5), ({"replay": "on"}, 0.5)]),
    "no difference": _table([({"replay": "off"}, 0.5), ({"replay": "on"}, 0.5)], noise=0.01, questions=3000, seeds=6),
    "all worse": _table([({"m": "off"}, 0.6), ({"m": "x"}, 0.4), ({"m": "y"}, 0.3)], noise=2.0),
    "tie": _table([({"m": "off"}, 0.25), ({"m": "x"}, 0.5), ({"m": "y"}, 0.5)], seeds=2, samples=4,
                  extra=lambda f: f.assign(correct=f["correct"] + (f["seed"] * (f["question"] == "q001")))),
    "square": _table(SQUARE, noise=1.0),
    "two seeds": _table([*SQUARE[:3], ({"a": "on", "b": "on"}, 0.7)], noise=1.0, seeds=2),
    "two seeds, all worse": _table([({"m": "off"}, 0.6), ({"m": "x"}, 0.4), ({"m": "y"}, 0.3)], noise=2.0, seeds=2),
    "two seeds, pooled": _table(SQUARE, noise=1.0, seeds=2, declared=Declared(variance="pooled")),
    "one question": _table(TWO, noise=2.0, questions=1),
    "nothing varied": _table(TWO),
    "interaction": _table(CROSSED, noise=1.0),
    "add one": _table(ADD_ONE, noise=2.0),
    "unbalanced": _table(SQUARE, noise=2.0, seeds=[5, 3, 3, 2]),
    "unequal noise": _table(TWO, noise=[0.3, 12.0], seeds=8, questions=200),
    "one run in a cell": _table(SQUARE, noise=2.0, seeds=[4, 4, 4, 1]),
    "named levels": _table([({"m": "grpo"}, 0.4), ({"m": "dapo"}, 0.45)], noise=2.0),
    "named reference": _table([({"m": "grpo"}, 0.4), ({"m": "dapo"}, 0.45)], noise=2.0,
                              reading=Reading(reference={"m": "grpo"})),
    "constant columns": _table(TWO, noise=2.0, extra=lambda f: f.assign(split="test", copy=f["seed"], id=f["run"])),
    "ignored column": _table(TWO, noise=2.0, extra=lambda f: f.assign(when=f["run"]),
                             reading=Reading(ignore=("when",))),
    "named factors": _table(TWO, noise=2.0, extra=lambda f: f.assign(when=f["run"]),
                            reading=Reading(factors=("replay",))),
    "aliased, as told": _table(TWO, noise=2.0, extra=lambda f: f.assign(when=f["replay"]),
                               reading=Reading(factors=("replay", "when"))),
    "base as a factor": _table([({"base": "llama", "replay": x}, 0.4) for x in ("off", "on")]
                               + [({"base": "qwen", "replay": x}, 0.5) for x in ("off", "on")], noise=2.0),
    "a question less": _table(TWO, noise=2.0, extra=lambda f: f.drop(index=5)),
    "a benchmark less": _table(TWO, noise=2.0, benchmarks=("b", "c"),
                               extra=lambda f: f[~((f["run"] == "r0-1") & (f["benchmark"] == "c"))]),
    "shared seed": _table(TWO, noise=2.0, extra=lambda f: f.assign(seed=f["seed"].where(f["run"] != "r0-1", 0))),
    "alike runs": _table(TWO, noise=2.0, extra=lambda f: pd.concat(
        [f, f[f["run"] == "r0-1"].assign(run="again", seed=9)])),
    "answers of several numbers": _table(TWO, noise=2.0, extra=lambda f: f.assign(samples=f["samples"] + f["seed"])),
    "halved": _recorded(halvings=1),
    "other processes": _recorded(processes=4),
    "still": _recorded(weights_changed=0.01),
    "torn": _spoilt(_tear),
    "copied": _spoilt(lambda root: shutil.copytree(next(root.glob("replay-s1-*")), root / "backup")),
    "overlap": _spoilt(_overlap),
    "along": _spoilt(_along, metrics=True),
    "along, one seed": _spoilt(_along, seeds=(0,), metrics=True),
    "lost level": _spoilt(lambda root: [p.unlink() for p in root.glob("*ranking*/run.json")]),
    "no log of one": _spoilt(lambda root: next(root.glob("replay-s1-*/metrics.jsonl")).unlink(), metrics=True),
    "solved": _spoilt(count_solved, metrics=True),
    "solved, one seed": _spoilt(count_solved, seeds=(0,), metrics=True),
    "one seed, logs": _study(seeds=(0,), metrics=True),
    "other settings": _spoilt(lambda root: None, settings={"temperature": 1.0}),
    "pooled": _table(TWO, noise=[0.3, 12.0], seeds=8, questions=200, declared=Declared(variance="pooled")),
    "blocks": _table(SQUARE, noise=2.0, declared=Declared(blocks="seed")),
    "blocks of none": _table(TWO, noise=2.0, extra=lambda f: f.assign(seed=f["seed"] + 10 * (f["replay"] == "on")),
                             declared=Declared(blocks="seed")),
    "stored": _stored_again,
    "stored, other reference": lambda folder: _stored_again(folder, Reading(reference={"replay": "on"})),
    "stored, declared now": lambda folder: _stored_again(folder, declared=Declared(margin=0.2)),
    "other questions": _table(TWO, noise=2.0, extra=lambda f: f.assign(
        question=f["question"].where(f["run"] != "r0-1", "other " + f["question"]))),
    "longer is better": _table([({"m": v}, 0.2 + 0.05 * i) for i, v in enumerate("abcdefgh")], noise=0.5,
                               extra=_lengths),
    "one seed, alike": _table([({"replay": "off"}, 0.5), ({"replay": "on"}, 0.5)], seeds=1),
    "unbalanced, add one": _table(ADD_ONE, noise=2.0, seeds=[4, 3, 2]),
}  # fmt: skip
