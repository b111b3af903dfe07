"""The sampler correction through `train()`: an engine with scripted log-probs, fresh and replayed rows, loss, gradient.

The engine samples random tokens and claims log-probs that differ from the policy's by known amounts, so every weight is
known from those amounts alone.
"""

import math

import numpy as np
import pytest
import torch
from reference_grpo import grpo_loss, token_logprobs
from trainer_tools import arguments, questions, spy_on
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer import grpo_trainer

from r3bench import R3Trainer
from r3bench.training.step import trl_adapter
from r3bench.training.step.correction import length_bin, row_weights

CAP = 3.0  # TRL's default upper bound of a ratio
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


class ScriptedEngine:
    """Stands where TRL starts vLLM; `gaps[tokens]` is how far below its own log-probs an answer's tokens were."""

    def __init__(self, **_):
        self.random = np.random.default_rng(0)
        self.gaps, self.trainer = {}, None

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations, profiler):
        answers, logprobs = [], []
        for prompt in prompts:
            answer = self.random.integers(5, 250, self.random.integers(3, 9)).tolist()
            gap = self.random.normal(0.3, 0.7, len(answer))
            with torch.no_grad():
                own = token_logprobs(self.trainer.model, prompt, answer).numpy()
            self.gaps[tuple(answer)] = gap
            answers.append(answer)
            logprobs.append([[float(value)] for value in own + gap])
        return prompts, answers, logprobs, None


def factors(gap, mode):
    """The factor on each token's loss: ratio of policy to engine, by token or over the answer, bounded or dropped."""
    logs = -gap if mode.startswith("token") else np.full(len(gap), -gap.sum())
    ratio = np.exp(logs)
    return np.minimum(ratio, CAP) if mode.endswith("truncate") else np.where(ratio > CAP, 0.0, ratio)


def scripted(completion_ids, question_id, trainer_state, **_):
    """Epoch 1: q0 and q1 all right, the rest all wrong. Later q0, q1 and q2 are all wrong, the others all right."""
    first = trainer_state.epoch is None or trainer_state.epoch < 1
    right = {"q0", "q1"} if first else {"q3", "q4", "q5"}
    return [float(q in right) for q in question_id]


def run(model, folder, monkeypatch, mode, replay=None, **changes):
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", ScriptedEngine)
    components = {} if replay is None else {"replay": {"truncated_negatives": True, **replay}}
    settings = {"vllm_importance_sampling_correction": mode is not None}
    if mode is not None:
        settings["vllm_importance_sampling_mode"] = mode
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=scripted, train_dataset=questions(6),
        args=arguments(folder, components=components, max_steps=6, max_grad_norm=0.0, use_vllm=True,
                       vllm_mode="colocate", **settings, **changes),
    )  # fmt: skip
    trainer.vllm_generation.trainer = trainer
    trainer.train()
    return trainer


def rows_of(batch):
    """(prompt, answer, advantages, factors that reach the loss, whether it was sampled now) of each row in a batch."""
    found = []
    for i, mask in enumerate(batch["completion_mask"].bool()):
        if mask.any():
            prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
            ratio = batch["importance_sampling_ratio"][i].expand(len(mask))[mask]
            advantages = batch["advantages"][i]
            advantages = (advantages.expand(len(mask)) if advantages.ndim == 0 else advantages[mask])[: mask.sum()]
            fresh = int(batch["r3_row"][i]) >= 0
            found.append((prompt, batch["completion_ids"][i][mask].tolist(), advantages.tolist(), ratio.numpy(), fresh))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("replay", [{"mode": "replace", "rows": 1}, {"mode": "append", "rows": 2}], ids=str)
def test_weights_that_reach_the_loss_are_the_references(tiny_model, tmp_path, monkeypatch, mode, replay):
    trainer = run(tiny_model, tmp_path, monkeypatch, mode, replay)
    gaps, replayed, weighed = trainer.vllm_generation.gaps, 0, []
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for record in trainer.records:
        (batch,) = record["parts"]
        rows = rows_of(batch)
        expected = {tuple(answer): factors(gaps[tuple(answer)], mode) for _, answer, *_, fresh in rows if fresh}
        weighted = []
        for prompt, answer, advantages, ratio, fresh in rows:
            if fresh:
                wanted = expected[tuple(answer)]
            else:  # the mean weight of the fresh rows beside it
                group = [a for p, a, *_, f in rows if f and p == prompt]
                wanted = np.full(len(answer), np.mean([expected[tuple(a)].mean() for a in group]))
                replayed += 1
                weighed.append(wanted[0])
            np.testing.assert_allclose(ratio, wanted, rtol=2e-4)
            weighted.append((prompt, answer, np.array(advantages) * wanted, None))
        model.load_state_dict(record["weights"])
        model.zero_grad()
        loss = grpo_loss(model, weighted, "dapo")
        loss.backward()
        assert sum(record["losses"]) == pytest.approx(float(loss.detach()), abs=2e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(record["grads"][0][name], parameter.grad, atol=3e-5, rtol=1e-3)
    assert replayed > 3
    assert max(abs(w - 1) for w in weighed) > 0.05, "a weight of 1 would have passed"


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_the_log_and_the_totals_are_of_the_sampled_rows(tiny_model, tmp_path, monkeypatch, mode):
    monkeypatch.setattr("r3bench.training.step.correction.EDGES", (4, 6))
    trainer = run(tiny_model, tmp_path, monkeypatch, mode, {"rows": 1})
    weights = {}
    for answer, gap in trainer.vllm_generation.gaps.items():
        weights.setdefault(length_bin(len(answer)), []).append(factors(gap, mode).mean())
    record = trainer.correction.record()
    assert record.keys() == weights.keys() == {"1-4", "5-6", "7-"}
    for name, values in weights.items():
        found = record[name]
        assert found["rows"] == len(values)
        assert found["weight"] == pytest.approx(np.mean(values), rel=1e-3)
        assert found["below_half"] == pytest.approx(np.mean(np.array(values) < 0.5), abs=1e-5)
    first = list(trainer.vllm_generation.gaps.items())[:8]
    logged = next(line for line in trainer.state.log_history if line.get("step") == 1)
    for name in weights:
        here = [factors(gap, mode).mean() for answer, gap in first if length_bin(len(answer)) == name]
        key = f"correction/{name}_tokens/median"
        assert (key in logged) == bool(here)
        assert not here or logged[key] == pytest.approx(np.median(here), rel=1e-3)


def test_the_totals_go_on_from_a_checkpoint(tiny_model, tmp_path, monkeypatch):
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole = run(tiny_model, tmp_path, monkeypatch, "token_truncate", {"rows": 1}, **saving)
    assert sum(found["rows"] for found in whole.correction.record().values()) == 6 * 8
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", ScriptedEngine)
    args = arguments(tmp_path, components={"replay": {"truncated_negatives": True, "rows": 1}}, max_steps=6,
                     use_vllm=True, vllm_mode="colocate", vllm_importance_sampling_mode="token_truncate",
                     max_grad_norm=0.0, **saving)  # fmt: skip
    again = R3Trainer(model=tiny_model, reward_funcs=scripted, train_dataset=questions(6), args=args)
    again.vllm_generation.trainer = again
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert sum(found["rows"] for found in again.correction.record().values()) == 6 * 8


def test_without_a_correction_there_is_nothing_to_say(tiny_model, tmp_path, monkeypatch):
    trainer = run(tiny_model, tmp_path, monkeypatch, None, {"rows": 1})
    assert trainer.correction.record() == {}
    assert not [key for line in trainer.state.log_history for key in line if key.startswith("correction/")]
    assert "importance_sampling_ratio" not in trainer.records[0]["parts"][0]


def test_an_answers_weight_is_over_its_trained_tokens():
    ratio, mask = torch.tensor([[0.5, 1.5, 9.0], [2.0, 4.0, 1.0]]), torch.tensor([[1, 1, 0], [0, 0, 0]])
    found = row_weights(ratio, mask)
    assert found[0] == 1.0 and math.isnan(found[1])
    assert row_weights(torch.tensor([[0.25], [1.0]]), mask)[0] == 0.25
    assert [length_bin(n) for n in (1, 512, 513, 8192, 8193)] == ["1-512", "1-512", "513-2048", "2049-8192", "8193-"]


def test_an_engine_is_started_in_trainings_dtype_and_revision(monkeypatch):
    made = []
    monkeypatch.setattr(trl_adapter.vllm_generation, "LLM", lambda **given: made.append(given), raising=False)
    with trl_adapter.engine_arguments(dtype="bfloat16", revision="abc"):
        trl_adapter.vllm_generation.LLM(model="m")
    trl_adapter.vllm_generation.LLM(model="m")
    assert made == [{"dtype": "bfloat16", "revision": "abc", "model": "m"}, {"model": "m"}]


def test_the_reference_of_the_kl_term_is_of_the_policys_revision(tiny_model, tmp_path, monkeypatch, caplog):
    loaded = []
    real = grpo_trainer.create_model_from_path

    def create(name, **given):
        loaded.append(given.pop("revision", None))
        return real(name, **given)

    monkeypatch.setattr(grpo_trainer, "create_model_from_path", create)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    for revision in ("abc", None):
        args = arguments(tmp_path, beta=0.1, max_steps=1)
        with trl_adapter.reference_revision(args, revision):
            R3Trainer(model=model, reward_funcs=scripted, train_dataset=questions(6), args=args,
                      processing_class=AutoTokenizer.from_pretrained(tiny_model))  # fmt: skip
        assert args.model_init_kwargs is None
    assert loaded == ["abc", None]
    assert "will be ignored" not in caplog.text
