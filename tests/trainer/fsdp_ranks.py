"""FSDP2 on two CPU ranks: all four components, a checkpoint, a resume and the saved model. Run by `two_ranks.py`."""

import os
from pathlib import Path

from accelerate import DistributedType, PartialState
from trainer_tools import Recorder, arguments, questions

from r3bench import R3Trainer
from r3bench.training.checkpoint import is_complete
from r3bench.training.run import save_model

COMPONENTS = {
    "ranking": {"scope": "failed"},
    "reflection": {"template": "short", "max_share": 1.0},
    "replay": {"truncated_negatives": True},
    "retrospective": {"cuts": "grid", "spacing": 2, "quantile": 0.0, "gate_auc": 0.0, "retire": 1.0, "share": 0.5},
}


def shard(args):
    """Make the next trainer split its model with FSDP2, which accelerate offers to accelerators only: everything behind
    that check works on CPU as well."""
    assert args.device.type == "cpu"  # asking sets the process group up
    os.environ |= {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_RESHARD_AFTER_FORWARD": "true", "ACCELERATE_MIXED_PRECISION": "no",
    }  # fmt: skip
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def scripted(completion_ids, question_id, trainer_state, **_):
    """Two questions in six are hopeless, two have right and wrong answers, two turn with the epoch."""
    epoch = int((trainer_state.epoch or 0) + 1e-6)
    rewards = []
    for ids, question in zip(completion_ids, question_id, strict=True):
        number = int(question[1:])
        rewards.append(float((number >= 2 and sum(ids) % 2 == 0) if number < 4 else (number + epoch) % 2))
    return rewards


def build(model, folder):
    values = {"per_device_train_batch_size": 12, "max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    args = arguments(folder, components=COMPONENTS, **values)
    shard(args)
    return R3Trainer(model=model, reward_funcs=Recorder(scripted), train_dataset=questions(6), args=args)


def sharded_runs(model, folder):
    """What this rank has to report of a whole run and of one resumed from its checkpoint."""
    whole = build(model, f"{folder}/whole")
    whole.train()
    save_model(whole, Path(folder, "model"))
    cut = build(model, f"{folder}/cut")
    cut.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-4")
    keys = ("loss", "grad_norm", "reward", "entropy")
    lines = [[line for line in trainer.state.log_history if "loss" in line] for trainer in (whole, cut)]
    return {
        "sharded": any(type(p).__name__ == "DTensor" for p in whole.model.parameters()),
        "streams": [[{key: line[key] for key in keys} for line in each] for each in lines],
        "evidence": [trainer.evidence for trainer in (whole, cut)],
        "digest": [trainer.history.digest() for trainer in (whole, cut)],
        "critic": [trainer.components[-1].critic.arrays["weights"].tolist() for trainer in (whole, cut)],
        "complete": is_complete(Path(folder, "whole", "checkpoint-4")),
    }
