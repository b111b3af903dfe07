"""What `plan` says an evaluation costs follows what samples it."""

import pytest

from r3bench.config.load import load_recipe
from r3bench.sweep.grid import load_grid, parse_grid
from r3bench.sweep.planning.cost import run_cost
from r3bench.sweep.planning.plan import plan


def hours(*overrides):
    cost = run_cost(load_recipe("r3_1.5b", list(overrides)), mean_length=0.5, processes=8)
    return cost.device_hours, cost.training_tokens, cost.evaluation_tokens


def test_evaluation_with_transformers_is_not_costed_at_the_rate_of_vllm():
    vllm, training, evaluation = hours("eval.backend=vllm")
    assert vllm == hours("eval.backend=auto")[0]  # training samples with vLLM
    assert vllm["H100"] == pytest.approx((training / 13_000 + evaluation / 10_000) / 3600)
    hf, *_ = hours("eval.backend=hf", "eval.batch_size=60")
    assert hf["H100"] == pytest.approx((training / 13_000 + evaluation / 2_000) / 3600)  # 60 rows, 0.03 s a token
    assert hours("eval.backend=auto", "eval.batch_size=60", "trainer.use_vllm=false")[0] == hf
    more = hours("eval.backend=hf", "eval.batch_size=240")[0]
    assert vllm["H100"] < more["H100"] < hf["H100"]
    assert hours("eval.backend=hf", "eval.batch_size=4096")[0] == vllm  # no faster than the card


def test_plan_says_what_it_takes_the_evaluation_for():
    def warned(backend):
        grid = parse_grid(
            {"name": "g", "recipe": "r3_1.5b", "factors": {"replay": ["off", "on"]}, "seeds": [0],
             "set": {"eval.backend": backend}}, "g.yaml",
        )  # fmt: skip
        return [w for w in plan(grid, tokens_per_second=5000.0).warnings if "transformers" in w]

    (said,) = warned("hf")
    assert "eval.backend: hf" in said and "2,133 tokens a second" in said
    assert not warned("auto")
    assert not [w for w in plan(load_grid("quickstart")).warnings if "transformers" in w]  # a CPU's rates are of it
