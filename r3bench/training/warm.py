"""What the first run of a process pays for once: done before processes are forked, it is paid for all of them."""

import tempfile

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from r3bench.training.environment import environment

TOKENS = 8  # vocabulary of the model that is thrown away


def warm() -> None:
    """Save, load and sample from a model of a few dozen weights, and look up what `environment.json` holds.

    Transformers compiles a thousand patterns for old checkpoint names on the first load, and imports what loading and
    sampling need as it goes. Draws nothing from the caller's generators and leaves no thread behind.
    """
    threads, bars = torch.get_num_threads(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)  # a pool of OpenMP threads would not survive a fork
    try:
        with tempfile.TemporaryDirectory(prefix="r3bench-") as folder, torch.random.fork_rng(devices=[]):
            config = LlamaConfig(
                vocab_size=TOKENS, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                num_key_value_heads=1, max_position_embeddings=TOKENS, bos_token_id=None, eos_token_id=1,
                pad_token_id=0,
            )  # fmt: skip
            LlamaForCausalLM(config).save_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
            prompt = torch.full((2, 2), 2)
            sampling = GenerationConfig(max_new_tokens=2, do_sample=True, pad_token_id=0, eos_token_id=1)
            model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=sampling)
    finally:
        torch.set_num_threads(threads)
        if bars:
            transformers_logging.enable_progress_bar()
    environment()
