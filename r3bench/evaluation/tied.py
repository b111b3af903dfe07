"""Are a run's answers and weights what its records say? Checked before anything is added to them or made from them."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.errors import StateError, first_line
from r3bench.evaluation.shards import DAMAGED
from r3bench.files import append_jsonl, read_jsonl
from r3bench.records import RunPaths, read_record, read_train, rewritten_file
from r3bench.seals import bytes_digest, changed, file_digest, weights_digest


def note_rewrite(path: Path, content: Path) -> None:
    """Note that a shard is about to be replaced by `content`, until `run.json` is written anew.

    A kill between the two would otherwise leave answers that the record calls damaged.
    """
    task = path.parent
    append_jsonl(rewritten_file(RunPaths(task.parent.parent)), {
        "shard": f"{task.parent.name}/{task.name}/{path.name}", **file_digest(content)})  # fmt: skip


def corrupt_shards(paths: RunPaths) -> dict[Path, str]:
    """The shards of a run that can't be read, or differ from what `run.json` says; shard -> what is wrong.

    A shard that no record knows is one of a measurement that goes on: it only has to be readable.
    """
    known = read_record(paths).files if paths.record.exists() else {}
    rewritten = {line.get("shard"): line for line in read_jsonl(rewritten_file(paths))}
    found: dict[Path, str] = {}
    for path in paths.shards():
        name = path.relative_to(paths.root).as_posix()
        try:
            content = path.read_bytes()
            pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
        except DAMAGED as error:
            found[path] = f"not readable as parquet ({first_line(error)})"
            continue
        digest = bytes_digest(content)
        line = rewritten.get(name, {})
        if name in known and digest not in (known[name], {key: line.get(key) for key in digest}):
            found[path] = "has other content than run.json says"
    return found


def set_aside_corrupt(paths: RunPaths) -> dict[Path, str]:
    """Rename corrupt shards, so that their answers are drawn again; new name -> what was wrong."""
    moved = {}
    for path, wrong in corrupt_shards(paths).items():
        target = path.with_name(f"{path.name}.torn")
        os.replace(path, target)
        moved[target] = wrong
    return moved


def check_answers(paths: RunPaths) -> None:
    """Refuse to resume from answers that are not what the record says.

    Raises:
        StateError: names the first such file and what is wrong with it.
    """
    for path, wrong in corrupt_shards(paths).items():
        raise StateError(f"{path}: {wrong}; remove it and measure again (r3bench eval, r3bench ablate)")


def check_weights(paths: RunPaths) -> None:
    """Refuse to measure weights that are not what training saved. Runs of older versions have no digests to compare.

    Raises:
        StateError: a file of `model/` is missing, added or changed; names it.
    """
    if not paths.model.is_dir():
        return
    for name, wrong in weight_faults(paths).items():
        raise StateError(
            f"{paths.root / name}: {wrong}; these are not the weights that were trained: remove {paths.root} to train "
            "the run again"
        )


def trained_weights(model: object) -> str | None:
    """The digest, from `train.json`, of the weights of a run's own `model/`; None of any other model.

    Answers carry it, so that those of another run are told apart whatever sampled them.
    """
    if not isinstance(model, str | Path):
        return None
    folder = Path(str(model).removeprefix("vllm:"))
    paths = RunPaths(folder.parent)
    if folder.name != paths.model.name or not paths.train.is_file():
        return None
    try:
        return weights_digest(read_train(paths).files)
    except StateError:  # a folder of somebody else's; a run's own is checked before it is measured
        return None


def weight_faults(paths: RunPaths) -> dict[str, str]:
    """What is wrong with the files of `model/`: name below the run -> why. Nothing where training noted none."""
    top = f"{paths.model.name}/"
    if paths.train.exists():
        files = read_train(paths).files
    elif paths.record.exists():  # which holds what train.json held
        files = read_record(paths).train.files
    else:
        return {}
    known = {name: digest for name, digest in files.items() if name.startswith(top)}
    if not known:
        return {}
    found = changed(paths.root, known)
    for path in paths.weights():
        name = path.relative_to(paths.root).as_posix()
        if name not in known:
            found[name] = "was not there when training ended"
    return found
