"""What the recipes `entropy_bonus` and `forking_tokens` train: loss and gradient against the equations, written anew.

On the first update the policy is the one that sampled, so a token's surrogate is its advantage times a ratio of 1.
"""

import numpy as np
import pytest
import torch
from trainer_tools import arguments, by_length, questions

from r3bench import R3Trainer


class Watched(R3Trainer):
    """Keeps the first update's batch, loss and gradient, and the gradient of a loss written here."""

    coefficient, kept = 0.0, 1.0  # of the entropy; share of the tokens that count

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not hasattr(self, "found"):
            weights = [p for p in model.parameters() if p.requires_grad]
            plain = self.plainly(model, inputs)
            pairs = [
                torch.cat([g.flatten() for g in torch.autograd.grad(value, weights, retain_graph=True)])
                for value in (loss, plain)
            ]
            self.found = float(loss.detach()), float(plain.detach()), *pairs
        return loss

    def plainly(self, model, inputs):
        """-(1/N) sum over counting tokens of r A, less the coefficient times the mean entropy of all tokens."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logits = model(input_ids=ids, attention_mask=attention).logits
        start = inputs["prompt_ids"].size(1)
        logp = torch.log_softmax(logits[:, start - 1 : -1], dim=-1)  # (B, T, vocabulary)
        entropy = -(logp.exp() * logp).sum(-1)
        chosen = logp.gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)
        real = inputs["completion_mask"].bool()
        bound = np.quantile(entropy[real].detach().numpy(), 1 - self.kept)
        counts = real & (entropy.detach() >= float(bound) - 1e-6)
        assert 0 < counts.sum() <= real.sum()
        ratio = (chosen - chosen.detach()).exp()
        policy = -(ratio * inputs["advantages"].unsqueeze(1))[counts].sum() / real.sum()
        return policy - self.coefficient * entropy[real].mean()


@pytest.mark.parametrize(
    "coefficient, kept", [(0.0, 1.0), (0.5, 1.0), (0.0, 0.2)], ids=["neither", "entropy_bonus", "forking_tokens"]
)
def test_loss_and_gradient_are_the_equations(tiny_model, tmp_path, coefficient, kept):
    changes = {"entropy_coef": coefficient, "top_entropy_quantile": kept, "loss_type": "dapo", "max_steps": 1}
    trainer = Watched(
        model=tiny_model, reward_funcs=by_length, args=arguments(tmp_path, **changes), train_dataset=questions(6)
    )
    trainer.coefficient, trainer.kept = coefficient, kept
    trainer.train()
    loss, plain, gradient, expected = trainer.found
    assert loss == pytest.approx(plain, abs=1e-5)
    assert expected.norm() > 1e-3
    assert torch.allclose(gradient, expected, atol=1e-5 * float(expected.norm() + 1))
