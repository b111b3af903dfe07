"""The tokenizer of the embedded model: byte-level BPE made in a moment from generated questions."""

import itertools

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from r3bench.prompts import BOXED, R1
from r3bench.training.questions.embedded import CAPS, chains

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
ANSWER = "Answer:"
VOCABULARY = 312  # bytes, three special tokens and the merges; the whole-text tokens come on top
TEXTS = 2000  # generated exchanges it is trained on
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """The tokenizer, ready to use (padding on the left). Any text can be encoded and decodes back to itself.

    Digits stand alone; merges may cross spaces, so that ", subtract " is one token. "Answer:" and the instructions of
    `r3bench.prompts` are whole tokens: the model is too small to spend its context on spelling them.

    Args:
        context: the model's context length in tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    drawn = itertools.islice(chains("train", max(CAPS.values())), TEXTS)
    pieces = [part for chain in drawn for part in ("user\n", f"{chain.problem}\n", "assistant\n", f"{chain.working} ")]
    boxes = [f" \\boxed{{{number}}}" for number in range(10)] * (TEXTS // 10)
    tokenizer.train_from_iterator(pieces + boxes, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (ANSWER, BOXED, R1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
