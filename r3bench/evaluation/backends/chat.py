"""Prompts of a model whose tokenizer is at hand: chat template, token ids, room for the answer."""

from collections.abc import Iterable, Sequence
from typing import Any

from r3bench.errors import ConfigError
from r3bench.evaluation.backends.sampling import Sampling


class ChatModel:
    """What backends that tokenize in this process share."""

    tokenizer: Any
    context: int | None  # tokens of prompt and answer together; None: not known
    details: dict[str, str] = {}  # noqa: RUF012, replaced as a whole, never changed

    def plan(self, shards: int) -> int:
        """See `Backend.plan`: one after the other, in this thread."""
        return 1

    def close(self) -> None:
        """See `Backend.close`: nothing to do."""

    @property
    def template(self) -> str | None:
        """The tokenizer's chat template."""
        return getattr(self.tokenizer, "chat_template", None)

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Backend.chat`."""
        if self.template is None:
            return messages[-1]["content"]
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt; a chat template writes its special tokens itself."""
        return list(self.tokenizer(text=prompt, add_special_tokens=self.template is None)["input_ids"])

    def turn_ends(self) -> list[int]:
        """The special token, if any, with which the chat template ends an answer.

        Base models sold with a chat template often name only the end of a text as their end token; without this one
        they would go on and write the user's next turn.
        """
        from jinja2 import TemplateError

        if self.template is None:
            return []
        mark = "answer"
        chat = [{"role": "user", "content": mark}, {"role": "assistant", "content": mark}]
        try:
            text = str(self.tokenizer.apply_chat_template(chat, tokenize=False))
        except TemplateError:  # a template that takes no answers
            return []
        ids = self.tokenizer(text=text.rpartition(mark)[2].lstrip(), add_special_tokens=False)["input_ids"]
        special = {index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return [index for index in ids[:1] if index in special]

    def check(self, prompts: Iterable[str], sampling: Sampling) -> None:
        """See `Backend.check`."""
        self.check_length(max((len(self.encode(prompt)) for prompt in prompts), default=0), sampling)

    def check_length(self, longest: int, sampling: Sampling) -> None:
        """`ConfigError` if an answer at the cap after a prompt of `longest` tokens exceeds the context."""
        if self.context is not None and longest + sampling.max_tokens > self.context:
            raise ConfigError(
                f"eval.max_tokens: {sampling.max_tokens} tokens after a prompt of {longest} exceed the model's context "
                f"of {self.context}; expected at most {self.context - longest}"
            )
