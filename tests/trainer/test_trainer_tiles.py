"""Narrow tiles of TRL's fused head: the same numbers, bit for bit, and nothing left changed."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.trainer import utils as trl_utils
from trl.trainer.utils import add_fused_lm_head

from r3bench.training.step import trl_adapter


@pytest.fixture
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def test_the_constant_is_still_there():
    assert getattr(trl_utils, trl_adapter.TILE) > 1024


def test_narrow_inside_and_as_before_outside(model):
    before = getattr(trl_utils, trl_adapter.TILE)
    with pytest.raises(ZeroDivisionError), trl_adapter.narrow_tiles(model):
        inside = getattr(trl_utils, trl_adapter.TILE)
        assert model.get_output_embeddings().weight.shape[0] <= inside < before
        _ = 1 / 0
    assert getattr(trl_utils, trl_adapter.TILE) == before


def test_a_large_vocabulary_keeps_trls_tiles(model):
    before = getattr(trl_utils, trl_adapter.TILE)
    model.config.vocab_size = before
    with trl_adapter.narrow_tiles(model):
        assert getattr(trl_utils, trl_adapter.TILE) == before


def test_log_probs_entropies_and_gradients_are_the_same_bits(model):
    add_fused_lm_head(model, temperature=0.9, outputs=("log_probs", "entropy"))
    rows = torch.randint(0, model.config.vocab_size, (4, 40), generator=torch.Generator().manual_seed(0))

    def forward():
        model.zero_grad()
        out = model(input_ids=rows, labels=rows, fused_lm_head=True)
        (out.log_probs.sum() + out.entropy.sum()).backward()
        return out.log_probs.detach(), out.entropy.detach(), [p.grad.clone() for p in model.parameters()]

    wide = forward()
    with trl_adapter.narrow_tiles(model):
        narrow = forward()
    assert torch.equal(wide[0], narrow[0]) and torch.equal(wide[1], narrow[1])
    assert all(torch.equal(a, b) for a, b in zip(wide[2], narrow[2], strict=True))
