"""The drift canary: what R3Trainer relies on in TRL, checked against the installed one."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from trainer_tools import arguments, by_length, questions
from trl import GRPOConfig, GRPOTrainer

from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter


@pytest.mark.parametrize("name", trl_adapter.CONTRACT)
def test_method_and_parameters(name):
    method = getattr(GRPOTrainer, name, None)
    assert method is not None, f"GRPOTrainer.{name} is gone"
    parameters = list(inspect.signature(method).parameters)[1:]
    wanted = list(trl_adapter.CONTRACT[name])
    assert parameters[: len(wanted)] == wanted, f"GRPOTrainer.{name}{tuple(parameters)}"


def test_batch_and_attributes(tiny_model, tmp_path):
    seen = {}

    class Watching(GRPOTrainer):
        def _generate(self, prompts):
            outputs = super()._generate(prompts)
            seen["generate"] = outputs
            return outputs

        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            seen["batch"] = batch
            return batch

    trainer = Watching(
        model=tiny_model, reward_funcs=by_length, train_dataset=questions(4),
        args=arguments(tmp_path, GRPOConfig, max_steps=1),
    )  # fmt: skip
    trainer.train()
    assert len(seen["generate"]) == trl_adapter.GENERATE_ARITY
    prompts, completions = (
        seen["generate"][i] for i in (trl_adapter.GENERATE_PROMPT_IDS, trl_adapter.GENERATE_COMPLETION_IDS)
    )
    assert all(isinstance(ids, list) for ids in [*prompts, *completions])
    assert seen["generate"][trl_adapter.GENERATE_TOOL_MASK] is None
    assert tuple(seen["batch"]) == trl_adapter.OUTPUT_KEYS
    assert seen["batch"]["advantages"].shape == (8,)
    assert seen["batch"]["num_items_in_batch"].ndim == 0
    missing = [name for name in trl_adapter.ATTRIBUTES if not hasattr(trainer, name)]
    assert not missing
    assert "completions/mean_length" in trainer.state.log_history[0]


def test_scores_are_plain_log_softmax(tiny_model, tmp_path):
    trainer = GRPOTrainer(
        model=tiny_model, reward_funcs=by_length, train_dataset=questions(4), args=arguments(tmp_path, GRPOConfig)
    )
    prompts, completions = [[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14]]
    logps, entropies = trl_adapter.score_tokens(trainer, prompts, completions)
    hidden = trl_adapter.hidden_states(trainer, prompts, completions, [[0, 1], [2]])
    for row in range(2):
        ids = torch.tensor([prompts[row] + completions[row]])
        output = trainer.model(input_ids=ids, output_hidden_states=True)
        scores = torch.log_softmax(output.logits[0].float(), -1)
        for t, token in enumerate(completions[row]):
            place = len(prompts[row]) + t
            assert torch.isclose(logps[row][t], scores[place - 1, token], atol=1e-5)
            expected = -(scores[place - 1].exp() * scores[place - 1]).sum()
            assert torch.isclose(entropies[row][t], expected, atol=1e-5)
    last = output.hidden_states[-1][0, 2 + 2]
    assert torch.allclose(torch.from_numpy(hidden[1][0]), last, atol=1e-5)
    assert hidden[0].shape == (2, 32)


def test_unsupported_trl_is_refused(monkeypatch):
    monkeypatch.setattr(trl_adapter, "version", lambda _: "1.17.0")
    with pytest.raises(ConfigError, match=r"trl 1\.17\.0 is installed; R3Trainer needs trl>=1\.15,<1\.17"):
        trl_adapter.check_trl()


def test_private_parts_are_used_in_one_module_only():
    """`self._x` and `trainer._x` of TRL's appear in trl_adapter.py, beside the overrides' own names."""
    private = re.compile(r"(?:self|trainer|_trainer)\._(step|metrics|logs|buffered_inputs|tokenizer)\b")
    folder = Path(trl_adapter.__file__).parent
    found = [
        f"{path.name}: {match.group()}"
        for path in folder.glob("*.py") if path.name != "trl_adapter.py"
        for match in private.finditer(path.read_text())
    ]  # fmt: skip
    assert not found


def test_a_colocated_engine_is_made_where_we_hand_it_arguments():
    """`engine_arguments` replaces this name; the arguments it gives must not be TRL's own already."""
    source = inspect.getsource(trl_adapter.vllm_generation)
    (call,) = re.findall(r"self\.llm = LLM\((.*?)\n            \)", source, re.DOTALL)
    assert not re.search(r"\b(dtype|revision|tokenizer_revision)=", call)
    client = inspect.getsource(trl_adapter.vllm_generation.VLLMClient)
    assert "def get_server_info" in client or ("def _get(" in client and "self.base_url =" in client)
