"""How far a token's entropy depends on the batch it is scored in: the figures of docs/components.md."""

import numpy as np
import pytest
import torch
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from reference_components import by_context
from trainer_tools import arguments, questions

from r3bench.components.ranking import by_context as settled
from r3bench.components.ranking import peak_and_global
from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter

ASKED = ("What is 12 plus 30?", "3 + 4 = ?", "Solve 3x + 4 = 19.", "A farmer has 17 sheep and buys 8 more. How many?")
GROUP, CAP = 8, 24


def trainer_of(name, dtype, folder):
    from r3bench import R3Trainer
    from r3bench.training.models.load import model_folder

    try:
        source = model_folder(name)
    except ConfigError as error:
        pytest.skip(str(error))
    return R3Trainer(
        model=source, reward_funcs=len, train_dataset=questions(4),
        args=arguments(folder, num_generations=GROUP, model_init_kwargs={"dtype": dtype}),
    )  # fmt: skip


def answers(trainer):
    """(prompt, completion) token ids of `GROUP` answers to every question, drawn at temperature 1."""
    tokenizer, rows = trl_adapter.tokenizer(trainer), []
    torch.manual_seed(0)
    for question in ASKED:
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        ids = torch.tensor([prompt] * GROUP)
        drawn = trainer.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=CAP,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        for row in drawn[:, len(prompt) :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else CAP
            rows.append((prompt, row[:end]))
    return rows


def scored(trainer, rows):
    found = trl_adapter.score_tokens(trainer, [prompt for prompt, _ in rows], [row for _, row in rows])[1]
    return [values.numpy().astype(float) for values in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "least", "most"),
    [
        ("embedded-20", "float32", 0.0, 1e-5), ("embedded-20", "bfloat16", 3e-3, 3e-2),
        ("smollm2-135m", "float32", 0.0, 1e-5), ("smollm2-135m", "bfloat16", 1e-2, 1e-1),
    ],
)  # fmt: skip
def test_entropies_alone_and_in_a_padded_batch(tmp_path, name, dtype, least, most):
    trainer = trainer_of(name, dtype, tmp_path)
    rows = answers(trainer)
    order = np.random.default_rng(0).permutation(len(rows))
    together = dict(zip(order.tolist(), scored(trainer, [rows[i] for i in order]), strict=True))
    alone = [scored(trainer, [row])[0] for row in rows]
    noise = np.concatenate([together[i] - alone[i] for i in range(len(rows))])
    print(f"{name} {dtype}: standard deviation {noise.std():.1e}, largest {np.abs(noise).max():.1e} nats")
    assert least <= noise.std() <= most

    # Half of a group scored alone, half in the batch: contexts of one kind disagree by that noise, and then no more.
    for start in range(0, len(rows), GROUP):
        places = range(start, start + GROUP)
        mixture = [alone[i] if i % 2 else together[i] for i in places]
        tokens = [np.array(rows[i][1]) for i in places]
        one = settled(mixture, tokens)
        for got, want in zip(one, by_context(mixture, [row.tolist() for row in tokens]), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-12)
        assert len({row[0] for row in one}) == 1
    figures = np.array([peak_and_global(row, 0.2) for row in alone]).reshape(len(ASKED), GROUP, 2)
    assert figures.std(axis=1).mean() > 5 * noise.std(), "answers differ by far more than by noise"
