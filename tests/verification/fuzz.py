"""Damages one file of a study at a time and looks at what every reader makes of it.

The kinds of outcome:
    same      every reader says what it said of the undamaged study
    named     what is said differs, and a line names the file or its run
    refused   one line names the file, and nothing is shown
    silent    a number differs and nothing is said: never to happen
    traceback any exception but our own: never to happen
"""

import dataclasses
import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

from r3bench.analysis import load_study, render_tables
from r3bench.analysis.output.provenance import trace_text
from r3bench.analysis.statistics.curves import cell_curves
from r3bench.errors import R3BenchError
from r3bench.evaluation.regrade import agreement
from r3bench.evaluation.tied import check_answers, check_weights
from r3bench.files import read_jsonl
from r3bench.records import RunPaths
from r3bench.sweep.status import status, status_data
from r3bench.training.checkpoint import newest_complete
from r3bench.verification.verify import verify

FIRST = "replay-s0"  # the run whose files are damaged
KINDS: dict[str, str] = {  # kind of file -> where it is in the study
    "shard": f"{FIRST}-*/eval/embedded/*.parquet",
    "run.json": f"{FIRST}-*/run.json",
    "train.json": f"{FIRST}-*/train.json",
    "config.json": f"{FIRST}-*/config.json",
    "metrics": f"{FIRST}-*/metrics.jsonl",
    "attempts": f"{FIRST}-*/attempts.jsonl",
    "attempts of a lost run": "learning_rate.1e-4-s0-*/attempts.jsonl",
    "environment": f"{FIRST}-*/environment.json",
    "study.json": "study.json",
    "overlap": "overlap.json",
    "tables": "tables/*",
    "weights": f"{FIRST}-*/model/weights",
    "checkpoint": f"{FIRST}-*/checkpoints/checkpoint-2/*",
    "journal": f"{FIRST}-*/eval/embedded/.*.jsonl",
}

INDEX = "index"  # the Optuna database, see `fuzz_index`
READERS = ("tables", "curves", "trace", "status", "weights", "answers", "resume", "journal", "verify")


@dataclass
class Counts:
    """Outcomes of the damages done to one kind of file."""

    found: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)  # what was silent or ended in a traceback, to be done again


def damages(content: bytes, rng: random.Random, flips: int | None) -> Iterator[tuple[str, bytes]]:
    """(what was done, damaged content): single bits, truncations, foreign bytes.

    Args:
        content: of the file.
        rng: picks what is not done everywhere.
        flips: bits that are flipped, of all; None: one in every byte.
    """
    places = range(len(content)) if flips is None else sorted(rng.sample(range(len(content)), min(flips, len(content))))
    for place in places:
        bit = rng.randrange(8)
        yield f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    cuts = sorted({0, 1, len(content) // 2, len(content) - 1, *(rng.randrange(len(content) + 1) for _ in range(4))})
    for cut in cuts:
        yield f"cut at {cut}", content[:cut]
    foreign = {"zeros": bytes(len(content)), "[]": b"[]", "deep": b"[" * 100_000, "text": b"\xff\xfehello"}
    yield from foreign.items()
    place = rng.randrange(len(content) + 1)
    yield f"a block lost at {place}", content[:place] + content[place + 64 :]
    yield f"a block written over at {place}", content[:place] + rng.randbytes(64) + content[place + 64 :]


def _rows(text: str) -> list[str]:
    """The numbers of tables, without their notes."""
    return [line for line in text.splitlines() if line.startswith("|")]


def readers(study: Path) -> dict[str, Callable[[], tuple[object, str]]]:
    """Name -> reader of a study; each gives (what it shows as numbers, what it says in words)."""
    run = RunPaths(next(study.glob(f"{FIRST}-*")))

    def tables() -> tuple[object, str]:
        text = render_tables(study)
        return _rows(text), text

    def curves() -> tuple[object, str]:
        results = load_study(study, metrics=True)
        found = {k: [(c.tokens.tolist(), c.accuracy.tolist()) for c in v] for k, v in cell_curves(results).items()}
        return found, " ".join(results.notes)

    def trace() -> tuple[object, str]:
        text = trace_text(study, "replay")
        return text, text + " ".join(load_study(study).notes)

    def state() -> tuple[object, str]:
        data = status_data(status(study))
        return data, str(data)

    def weights() -> tuple[object, str]:
        check_weights(run)
        return None, ""

    def answers() -> tuple[object, str]:
        check_answers(run)
        return agreement(run.root), ""

    def resume() -> tuple[object, str]:
        newest, bad = newest_complete(run.checkpoints, contents=True)
        return newest, " ".join(f"{path}: {wrong}" for path, wrong in bad.items())

    def journal() -> tuple[object, str]:
        lines = [read_jsonl(path) for path in sorted((run.evaluation / "embedded").glob(".*.jsonl"))]
        whole = [{k: v for k, v in line.items() if k in JOURNAL} for found in lines for line in found]
        return None if all(line in JOURNAL_LINES for line in whole) else whole, ""  # a line less is sampled again

    def verified() -> tuple[object, str]:
        found = verify(study, grade=0)
        return found.data()["faults"], "\n".join(found.lines())

    return {
        "tables": tables, "curves": curves, "trace": trace, "status": state, "weights": weights, "answers": answers,
        "resume": resume, "journal": journal, "verify": verified,
    }  # fmt: skip


JOURNAL = ("question", "repeat", "text", "tokens", "truncated", "settings")
JOURNAL_LINES: list[dict[str, object]] = [{"settings": {"model": "m"}}] + [
    {"question": f"q{i}", "repeat": 9, "text": f"it is {i}", "tokens": 3, "truncated": False} for i in range(3)
]


def outcome(reader: Callable[[], tuple[object, str]], before: object, path: Path, study: Path) -> tuple[str, str]:
    """What one reader makes of a damaged file."""
    run = path.relative_to(study).parts[0]
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            shown, words = reader()
    except R3BenchError as error:
        text = str(error)
        named = path.name in text or (run != path.name and run in text)
        return ("refused" if named and "\n" not in text else "silent"), text
    except Exception as error:  # noqa: BLE001  # what is being looked for
        return "traceback", repr(error)
    if shown == before:
        return "same", ""
    words += said.getvalue()
    named = path.name in words or (run != path.name and run in words)
    return ("named" if named else "silent"), words[-300:]


WORST = ("traceback", "silent", "refused", "named", "same")


def fuzz(
    study: Path, kind: str, rng: random.Random, flips: int | None = None, only: Collection[str] = READERS
) -> Counts:
    """Damage the files of one kind in every way; the worst outcome over all readers counts.

    Args:
        study: a finished study; left as it was.
        kind: of `KINDS`.
        rng: picks the bits.
        flips: see `damages`.
        only: readers to use.
    """
    counts = Counts()
    names = {name: reader for name, reader in readers(study).items() if name in only}
    before = {name: reader()[0] for name, reader in names.items()}
    for path in sorted(p for p in study.glob(KINDS[kind]) if p.is_file()):
        whole = path.read_bytes()
        about = path.stat()
        for done, content in damages(whole, rng, flips):
            if content == whole:
                continue
            path.write_bytes(content)
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
            found = {name: outcome(reader, before[name], path, study) for name, reader in names.items()}
            worst = min((kind for kind, _ in found.values()), key=WORST.index)
            counts.found[worst] += 1
            if worst in ("traceback", "silent"):
                which = next(name for name, (kind, _) in found.items() if kind == worst)
                counts.bad.append(f"{path.relative_to(study)}: {done}: {which}: {worst}: {found[which][1]}")
        path.write_bytes(whole)
    return counts


def fuzz_index(study: Path, rng: random.Random, flips: int) -> Counts:
    """Damage the Optuna index of a finished study that lacks nothing, and run `ablate` again: it has to go through.

    The numbers don't rest on the index: the run directories are the truth.
    """
    from toy import run_honest

    from r3bench.records import read_study
    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.executors.inline import InlineExecutor
    from r3bench.sweep.grid import parse_grid

    counts = Counts()
    grid = parse_grid(read_study(study / "study.json")["grid"], "study.json")
    file = study / "optuna.db"
    whole, before = file.read_bytes(), _rows(render_tables(study))
    for done, content in damages(whole, rng, flips):
        for rest in study.glob("optuna.db*"):
            rest.unlink()
        file.write_bytes(content)
        lines: list[str] = []
        try:
            report = ablate(grid, study.parent, run=run_honest, executor=InlineExecutor(), say=lines.append)
            fine = report.complete and _rows(render_tables(study)) == before
            said = any("optuna" in line.lower() for line in lines)
            kind = "silent" if not fine else "named" if said else "same"
        except R3BenchError as error:
            kind = "refused" if "optuna.db" in str(error) else "silent"
        except Exception as error:  # noqa: BLE001  # what is being looked for
            kind, lines = "traceback", [repr(error)]
        counts.found[kind] += 1
        if kind in ("silent", "traceback"):
            counts.bad.append(f"optuna.db: {done}: {kind}: {lines[-1:]}")
    for rest in study.glob("optuna.db*"):
        rest.unlink()
    file.write_bytes(whole)
    return counts


def prepare(study: Path) -> Path:
    """Give a study the files that its toy cells don't write: a whole checkpoint, a journal, a lost run, an overlap."""
    from r3bench.files import append_jsonl, json_line, write_json
    from r3bench.records import read_record, write_record, write_train
    from r3bench.seals import sealed
    from r3bench.training.checkpoint import mark_complete

    for path in study.glob("*/run.json"):
        one = RunPaths(path.parent)
        record = read_record(one)
        if record.train.steps:
            lines = [
                {"step": i, "elapsed": 2.0 * i, "generated_tokens": 50 * i, "correct": 0.1 * i} for i in range(1, 5)
            ]
            one.metrics.write_bytes(b"".join(map(json_line, lines)))
            write_record(dataclasses.replace(record, train=write_train(record.train, one)), one)
    run = next(study.glob(f"{FIRST}-*"))
    mark_complete(run / "checkpoints" / "checkpoint-2")
    for line in JOURNAL_LINES:
        append_jsonl(run / "eval" / "embedded" / ".r0009-0009.q00000-00002.jsonl", line)
    lost = next(study.glob("learning_rate.1e-4-s0-*"))
    shutil.rmtree(lost / "eval")
    (lost / "run.json").unlink()
    append_jsonl(lost / "attempts.jsonl", {"event": "failure", "kind": "diverged", "message": "loss is nan"})
    append_jsonl(lost / "attempts.jsonl", {"event": "gave_up"})
    write_json(study / "overlap.json", sealed({"embedded": {"questions": 6, "exact": 1, "near": 2}}))
    from r3bench.analysis import write_tables

    write_tables(study, study / "tables")
    return study
