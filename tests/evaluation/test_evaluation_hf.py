"""Our sampling loop against transformers' own and against the distribution it should have."""

import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from r3bench.errors import ConfigError, Diverged
from r3bench.evaluation.backends.fingerprint import of_model
from r3bench.evaluation.backends.hf import NUCLEUS, HFBackend, choose, end_tokens
from r3bench.evaluation.backends.sampling import Draw, Sampling, Stream, draw_seed
from r3bench.training.questions.embedded import questions

GREEDY, SAMPLED = Sampling(0.0, 1.0, 48), Sampling(1.0, 1.0, 48)


def draws(backend, count, repeats, seed=0):
    return [
        Draw(q["id"], r, draw_seed(seed, q["id"], r), backend.chat([{"role": "user", "content": q["problem"]}]))
        for q in questions("test", limit=count)
        for r in repeats
    ]


def ignore(_count):
    pass


@pytest.fixture
def backend(loaded):
    return HFBackend(*loaded, batch_size=64)


def test_greedy_text_is_that_of_generate(backend):
    wanted = draws(backend, 24, [0])
    got = backend.generate(wanted, GREEDY, ignore)
    for draw, completion in zip(wanted, got, strict=True):
        ids = backend.tokenizer(text=draw.prompt, add_special_tokens=False, return_tensors="pt")
        out = backend.model.generate(**ids, do_sample=False, max_new_tokens=48)[0, ids["input_ids"].shape[1] :]
        assert completion.text == backend.tokenizer.decode(out, skip_special_tokens=True)
        assert completion.tokens == len(out)
        assert not completion.truncated


def test_an_answer_does_not_depend_on_its_batch(loaded):
    backend = HFBackend(*loaded, batch_size=64)
    wanted = draws(backend, 20, range(4))
    together = backend.generate(wanted, SAMPLED, ignore)
    alone = HFBackend(*loaded, batch_size=1).generate(wanted, SAMPLED, ignore)
    shuffled = np.random.default_rng(0).permutation(len(wanted))
    mixed = HFBackend(*loaded, batch_size=7).generate([wanted[i] for i in shuffled], SAMPLED, ignore)
    assert together == alone
    assert [together[i] for i in shuffled] == mixed
    assert len({completion.text for completion in together}) > 20  # it does sample
    assert together == backend.generate(wanted, SAMPLED, ignore)


def test_a_model_whose_state_can_not_be_rearranged_is_refused(loaded):
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="model of type 'mamba' keeps a state"):
        HFBackend(model, loaded[1], batch_size=4)


def test_more_repeats_keep_the_first_ones(backend):
    def sample(repeats, seed=0):
        wanted = draws(backend, 10, range(repeats), seed)
        answers = backend.generate(wanted, SAMPLED, ignore)
        return {(draw.question, draw.repeat): answer for draw, answer in zip(wanted, answers, strict=True)}

    two, four = sample(2), sample(4)
    assert two == {key: four[key] for key in two}
    assert sample(2, seed=1) != two


def test_a_model_with_adapters_samples_alike_while_they_are_zero(loaded):
    import copy

    import peft

    model, tokenizer = loaded
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = HFBackend(peft.get_peft_model(copy.deepcopy(model), config), tokenizer, 16)
    plain = HFBackend(model, tokenizer, 16)
    wanted = draws(plain, 6, range(2))
    assert adapted.generate(wanted, SAMPLED, ignore) == plain.generate(wanted, SAMPLED, ignore)
    assert adapted.fingerprint != plain.fingerprint


def test_torn_weights_are_an_error_for_the_user(model_path, tmp_path):
    folder = tmp_path / "torn"
    shutil.copytree(model_path, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="torn': can't be loaded"):
        HFBackend.load(folder, 1)


def test_truncation_is_recorded(backend):
    wanted = draws(backend, 30, [0])
    full = backend.generate(wanted, SAMPLED, ignore)
    short = backend.generate(wanted, Sampling(1.0, 1.0, 8), ignore)
    assert {c.truncated for c in short} == {True, False}
    for long, cut in zip(full, short, strict=True):
        assert cut.truncated == (long.tokens > 8)
        assert cut.tokens == min(long.tokens, 8)
        assert long.text.startswith(cut.text)


def test_progress_counts_every_answer(backend):
    counts = []
    HFBackend(backend.model, backend.tokenizer, 16).generate(draws(backend, 25, range(2)), GREEDY, counts.append)
    assert sum(counts) == 50 and len(counts) > 4  # as they end, not batch by batch


def test_training_flags_and_random_state_are_left_alone(loaded):
    model, tokenizer = loaded
    backend = HFBackend(model, tokenizer, 8)
    model.train()
    model.model.layers[0].eval()  # a module of its own mind
    flags = [module.training for module in model.modules()]
    before = torch.get_rng_state()
    try:
        backend.generate(draws(backend, 3, [0]), SAMPLED, ignore)
        assert [module.training for module in model.modules()] == flags
        assert torch.equal(before, torch.get_rng_state())
        assert torch.is_grad_enabled()
        loss = model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
        loss.backward()  # nothing of the evaluation is left in the graph
    finally:
        model.zero_grad()
        model.eval()


def test_a_context_that_is_too_short_is_said_with_the_numbers(backend):
    with pytest.raises(
        ConfigError, match=r"eval\.max_tokens: 5000 tokens after a prompt of \d+ exceed .*; expected at most \d+"
    ):
        backend.generate(draws(backend, 1, [0]), Sampling(1.0, 1.0, 5000), ignore)


def test_too_little_memory_halves_the_batch(backend, monkeypatch):
    wanted = draws(backend, 10, [0])
    normal = backend.generate(wanted, SAMPLED, ignore)
    forward, sizes, counts = HFBackend._forward, [], []

    def tight(self, ids, mask, positions, cache):
        sizes.append(len(ids))
        if len(ids) > 3 or (len(sizes) == 12 and ids.shape[1] == 1):  # also in the middle of an answer
            raise torch.OutOfMemoryError
        return forward(self, ids, mask, positions, cache)

    monkeypatch.setattr(HFBackend, "_forward", tight)
    small = HFBackend(backend.model, backend.tokenizer, 8)
    assert small.generate(wanted, SAMPLED, counts.append) == normal
    assert sizes[:3] == [8, 4, 2] and max(sizes[3:]) <= 2 and sum(counts) == 10
    monkeypatch.setattr(HFBackend, "_forward", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        small.generate(wanted, SAMPLED, ignore)


def test_answers_that_end_make_room_for_others(loaded, monkeypatch):
    """The batch stays full until the last answers, and no wider than its longest row."""
    backend = HFBackend(*loaded, batch_size=16)
    wanted = draws(backend, 16, range(4))
    longest = max(len(backend.encode(draw.prompt)) for draw in wanted)
    forward, steps = HFBackend._forward, []

    def seen(self, ids, mask, positions, cache):
        if ids.shape[1] == 1:
            steps.append(mask.shape)
        return forward(self, ids, mask, positions, cache)

    monkeypatch.setattr(HFBackend, "_forward", seen)
    together = backend.generate(wanted, SAMPLED, ignore)
    rows, columns = zip(*steps, strict=True)
    most = max(answer.tokens for answer in together)
    full = [count for count in rows[: len(rows) - most] if count > 12]  # before the last answers have begun
    assert max(rows) == 16 and len(full) >= len(rows) - most > 0
    assert max(columns) <= longest + most
    assert len(rows) - most < 1.4 * sum(answer.tokens for answer in together) / 16
    assert together == HFBackend(*loaded, batch_size=64).generate(wanted, SAMPLED, ignore)


def test_layers_that_forget_are_sampled_batch_by_batch(loaded):
    """A sliding window keeps the last columns only: rows can't join, and the answers are the same anyway."""
    from transformers import MistralConfig, MistralForCausalLM

    _, tokenizer = loaded
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    alone = HFBackend(model, tokenizer, 1)
    wanted = draws(alone, 5, range(3))
    short = Sampling(1.0, 1.0, 20)
    assert HFBackend(model, tokenizer, 4).generate(wanted, short, ignore) == alone.generate(wanted, short, ignore)


def test_the_fingerprint_follows_the_weights(loaded):
    model, _ = loaded
    before = of_model(model)
    assert before == of_model(model)
    weight = next(model.parameters())
    with torch.no_grad():
        weight[0, 0] += 1
    try:
        assert of_model(model) != before
    finally:
        with torch.no_grad():
            weight[0, 0] -= 1


def test_a_model_without_end_token_is_refused(loaded):
    class Bare:
        eos_token_id = None
        generation_config = None

    with pytest.raises(ConfigError, match="no end token"):
        end_tokens(Bare, Bare)


TURNS = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|over|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def test_the_end_of_a_turn_ends_an_answer(loaded):
    """A base model's tokenizer: a chat template, and an end token that is another one than the template's."""
    import copy

    model, tokenizer = loaded
    base = copy.deepcopy(tokenizer)
    assert HFBackend(model, base, 1).ends == end_tokens(model, base)  # ours names the same token twice
    base.add_special_tokens({"additional_special_tokens": ["<|turn|>", "<|over|>"]})
    base.chat_template = TURNS
    end = base.convert_tokens_to_ids("<|over|>")
    assert HFBackend(model, base, 1).ends == [*end_tokens(model, base), end]
    for template in (
        "{{ raise_exception('no assistant here') }}",
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}",
        None,
    ):
        base.chat_template = template
        assert HFBackend(model, base, 1).ends == end_tokens(model, base)


def test_a_base_model_without_chat_template_reads_the_bare_prompt(loaded, tmp_path):
    import copy

    from r3bench.config.sections import EvalSection
    from r3bench.evaluation import shards
    from r3bench.evaluation.driver import evaluate

    model, tokenizer = loaded
    base = copy.deepcopy(tokenizer)
    base.chat_template = None
    backend = HFBackend(model, base, 4)
    assert backend.chat([{"role": "user", "content": "1 + 1 ="}]) == "1 + 1 ="
    for style in ("boxed", "r1", "plain"):
        section = EvalSection(samples=1, limit=2, style=style)
        evaluate((model, base), section, tmp_path / style, default_max_tokens=8, quiet=True)
        (_, told) = shards.read_shard(shards.files(tmp_path / style / "embedded")[0])
        assert told["style"] == style


LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -30.0])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5])
def test_choose_has_the_right_distribution(temperature, top_p):
    n = 20_000
    u = torch.from_numpy(np.random.default_rng(0).random(n))
    got = np.bincount(choose(LOGITS.expand(n, -1), u, temperature, top_p), minlength=5)
    p = torch.softmax(LOGITS.double() / temperature, -1).numpy()
    order = np.argsort(-p)
    size = int(np.searchsorted(np.cumsum(p[order]), top_p - 1e-9)) + 1 if top_p < 1 else 5
    kept = np.zeros(5)
    kept[order[:size]] = p[order[:size]]
    kept /= kept.sum()
    assert got[kept == 0].sum() == 0
    likely = kept * n > 5
    if likely.sum() > 1:
        expected = kept[likely] / kept[likely].sum() * got[likely].sum()
        assert stats.chisquare(got[likely], expected).pvalue > 1e-4


def test_choose_at_the_ends_of_the_unit_interval():
    u = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    rows = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]]).expand(2, -1)
    assert choose(rows, u, 1.0, 1.0).tolist() == [1, 2]
    assert choose(rows, u, 1.0, 0.99).tolist() == [2, 1]  # by falling probability
    assert choose(rows, u, 0.0, 1.0).tolist() == [2, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_not_sampled_from(temperature):
    with pytest.raises(Diverged, match="not numbers"):
        choose(torch.tensor([[0.0, torch.nan]]), torch.tensor([0.5]), temperature, 1.0)


def test_a_flat_distribution_looks_beyond_the_first_tokens():
    logits = -torch.arange(4 * NUCLEUS).double().expand(3, -1) / (100 * NUCLEUS)  # nearly flat, falling
    picked = choose(logits, torch.tensor([0.1, 0.5, 0.9]), 1.0, 0.95)
    wanted = torch.softmax(logits[0], -1).cumsum(-1)
    kept = wanted[int((wanted < 0.95).sum())]
    assert (wanted[picked] - torch.tensor([0.1, 0.5, 0.9]) * kept).abs().max() < 1e-3


def test_streams_are_uniform_and_their_own():
    a, b, again = Stream(draw_seed(0, "q", 0)), Stream(draw_seed(0, "q", 1)), Stream(draw_seed(0, "q", 0))
    first, other = [a.next() for _ in range(3000)], [b.next() for _ in range(3000)]
    assert [again.next() for _ in range(3000)] == first
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.06
    assert len({draw_seed(s, q, r) for s in range(3) for q in "abc" for r in range(3)}) == 27
