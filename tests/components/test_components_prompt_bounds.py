"""No reflection prompt is longer than the settings say, as the policy's own tokenizer and chat template count it."""

import random

import numpy as np
import pytest
from component_tools import Memory, facts, group, step, stored
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from r3bench.components.reflection import Reflection, ReflectionConfig, longest_attempt

SPECIAL = ["<|end▁of▁sentence|>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<|im_end|>"]
R1_LIKE = (  # adds the opening tag, strips the thoughts of earlier answers
    "{% for m in messages %}{% if m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% else %}<｜Assistant｜>{{ m['content'].split('</think>')[-1] }}<|end▁of▁sentence|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
CAP = 8192


@pytest.fixture(scope="module", params=["bytes", "merged"])
def tokenizer(request):
    """Byte-level: without merges (every byte is a token), or with a few hundred merges."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(alphabet) + (0 if request.param == "bytes" else 300)
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    plain.train_from_iterator(["Wait, the answer is \\boxed{27}. So it is 27. 再想一想 🙂🙂 "] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:])
    fast.chat_template = R1_LIKE
    return fast


def count(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return len(tokenizer.encode(text, add_special_tokens=False))


class Stored(Memory):
    """One stored answer, given as a text that the tokenizer reads, special tokens and all."""

    def __init__(self, tokenizer, text):
        super().__init__(stored("q0", 0, False))
        self.ids = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)

    def fetch(self, wanted):
        return [row._replace(completion_ids=self.ids) for row in super().fetch(wanted)]


def reflected(tokenizer, text, **settings):
    """The prompt that is planned after this wrong answer, and the component's settings."""
    config = ReflectionConfig(max_share=1.0, **settings)
    component = Reflection(config, facts(
        max_completion_length=CAP, decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
    ))  # fmt: skip
    asked = group(0, [0] * 4)
    (plan,) = component.plan(step([asked], Stored(tokenizer, text)))
    return asked.prompt, plan.prompt, config


LOOP = "So it is 27. Wait, the answer is 27. "
ANSWERS = {
    "loops after thinking": "Let me see." * 10 + "</think>" + LOOP * 300,
    "thinks, then loops in the box": "hm</think>\\boxed{" + "1+" * 4000 + "1}",
    "never ends its thought": LOOP * 300,
    "no thought at all": "</think>" * 50 + "27",
    "long thought, short answer": LOOP * 200 + "</think>The answer is \\boxed{26}.",
    "cut through characters": "🙂再想" * 1500,
    "spells special tokens": "<|im_end|><｜User｜> < |im_end|>" * 800,
    "joins special tokens": "<｜Us<think>er｜><|im_<|im_end|>end|>" * 500,
    "empty": "",
}


@pytest.mark.parametrize("context", ["tail", "answer", "full"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_reflection_prompt_keeps_to_its_budget(tokenizer, name, context):
    for budget in (1, 64, 512):
        bare, prompt, config = reflected(tokenizer, ANSWERS[name], context=context, budget=budget)
        bound = Reflection.longest_prompt(
            config, count(tokenizer, bare), CAP, lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        )
        assert count(tokenizer, prompt) <= bound
        limit = CAP if context == "full" else budget
        assert longest_attempt(config, CAP) == limit


def test_random_answers_keep_to_the_budget(tokenizer):
    rng = random.Random(5)
    pieces = [*SPECIAL, "</think>", "\\boxed{", "}", "🙂", "再", "27 ", "<", "|", "a" * 40, "\n", "�", "</thi", "nk>"]
    for _ in range(60):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(400)))
        budget = rng.choice([3, 20, 100])
        prompt = reflected(tokenizer, text, budget=budget)[1]
        template = count(tokenizer, reflected(tokenizer, "", budget=budget)[1])
        # Beside the template and the question only the attempt is left; one token may join at each of its two ends.
        assert count(tokenizer, prompt) <= template + budget + 2, text


def test_what_follows_the_thought_comes_before_the_thought(tokenizer):
    _, prompt, _ = reflected(tokenizer, "a thought " * 300 + "</think>The answer is \\boxed{26}.", budget=128)
    shown = prompt[0]["content"]
    assert "The answer is \\boxed{26}." in shown
    assert "a thought" in shown  # with what the answer leaves of the budget


def test_the_bound_would_notice_an_unbounded_answer(tokenizer, monkeypatch):
    monkeypatch.setattr(Reflection, "_bounded", lambda self, text, limit: text)
    bare, prompt, config = reflected(tokenizer, ANSWERS["loops after thinking"])
    bound = Reflection.longest_prompt(
        config, count(tokenizer, bare), CAP, lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    )
    assert count(tokenizer, prompt) > bound + 1000
