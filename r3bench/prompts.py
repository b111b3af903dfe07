"""The instruction put around a problem. Training and evaluation share it: a gain is never a change of prompt."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from r3bench import project
from r3bench.errors import ConfigError, nearest

Style = Literal["boxed", "r1", "plain"]

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
R1 = (
    "Think about the problem first, with your reasoning between <think> and </think>. "
    "Then state the final answer within \\boxed{}."
)
STYLES: dict[str, str] = {"boxed": f"{{problem}}\n{BOXED}", "r1": f"{{problem}}\n{R1}", "plain": "{problem}"}
ABOUT = {
    "boxed": "asks for steps and a \\boxed{} answer, in the wording that Qwen2.5-Math and DeepSeek-R1 recommend",
    "r1": "also asks for <think> tags",
    "plain": "adds nothing",
}
FILES = (".txt", ".md", ".jinja")  # of a prompt
MAX_BYTES = 100_000
_LOOSE = re.compile(r"\{([^{}\\]{1,80})\}")  # what stands in single braces
_HOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")  # `{{` and `}}` are braces; `{}` stays as it is


def instruct(problem: str, style: Style = "boxed") -> str:
    """The user's text: `problem` stripped, then the instruction of `style`.

    Args:
        problem: the question as the data set has it.
        style: 'boxed' asks for steps and a \\boxed{} answer (the wording Qwen2.5-Math and DeepSeek-R1 recommend),
            'r1' also asks for <think> tags, 'plain' adds nothing.

    Raises:
        ConfigError: for another style.
    """
    problem = problem.strip()
    if style == "plain":
        return problem
    if style == "boxed":
        return f"{problem}\n{BOXED}"
    if style == "r1":
        return f"{problem}\n{R1}"
    raise ConfigError(
        f"data.style: got {style!r}, expected one of {get_args(Style)}{nearest(str(style), get_args(Style))}"
    )


def render(problem: str, style: Style = "boxed") -> list[dict[str, str]]:
    """`problem` as chat messages for a tokenizer's chat template: one user turn, no system turn of our own."""
    return [{"role": "user", "content": instruct(problem, style)}]


def fill(template: str, values: Mapping[str, Any], where: str) -> str:
    """`template` with every `{name}` replaced by `values[name]`; braces are doubled where a name stands in them.

    Raises:
        ConfigError: a name without a value.
    """

    for inner in _LOOSE.findall(template.replace("{{", "").replace("}}", "")):
        name = inner.strip()
        stem = re.split(r"[^A-Za-z0-9_]", name)[0]
        if name in values and not name.isidentifier():
            raise ConfigError(
                f"{where}: {{{inner}}} is not filled in: its name isn't of letters, digits and _; rename the column"
            )
        if (stem in values and name not in values) or (inner != name and name in values):
            raise ConfigError(
                f"{where}: {{{inner}}} is not filled in; expected {{{stem}}} alone (for the text itself, double the "
                "braces)"
            )
    key = "data.columns" if where.endswith("data.template") else "the task's dataset_kwargs.columns"

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in values:
            raise ConfigError(
                f"{where}: {{{name}}} has no column '{name}' to be filled from{nearest(name, values)} (further columns "
                f"are named in {key}; {{{{{name}}}}} is the text {{{name}}})"
            )
        return str(values[name])

    return _HOLDER.sub(value, template)


def is_file(value: str) -> bool:
    """Whether a prompt is given as a file's name."""
    return "\n" not in value and value.strip().endswith(FILES)


def text_of(value: str, where: str) -> str:
    """A prompt given as a text or as a file's name.

    Raises:
        ConfigError: no such file, or one that holds no text.
    """
    if not is_file(value):
        return value
    path = project.located(value)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{where}: {path}: expected at most {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig").strip()
    except FileNotFoundError:
        known = [other.name for other in path.parent.glob("*") if other.suffix in FILES] if path.parent.is_dir() else []
        raise ConfigError(f"{where}: {path}: no such file{nearest(path.name, known) if known else ''}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {path}: can't be read as text ({error})") from error
    if not text:
        raise ConfigError(f"{where}: {path}: empty")
    return text


@dataclass(frozen=True)
class Prompt:
    """How a question becomes messages."""

    style: Style = "boxed"
    system: str | None = None  # text
    template: str | None = None  # text with {problem}, in place of the style
    where: str = "data"  # for messages: the section that says so

    def text(self, problem: str, row: Mapping[str, Any] | None = None) -> str:
        """The user's turn.

        Raises:
            ConfigError: the template names what `row` doesn't have.
        """
        if self.template is None:
            return instruct(problem, self.style)
        return fill(self.template, {**(row or {}), "problem": problem.strip()}, f"{self.where}.template")

    def messages(self, problem: str, row: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
        """The chat: a system turn where there is one, and the user's."""
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        return [*system, {"role": "user", "content": self.text(problem, row)}]

    @property
    def digest(self) -> str | None:
        """12 hex digits of the texts that replace a style's; None without any."""
        if self.system is None and self.template is None:
            return None
        return hashlib.sha256(f"{self.system}\0{self.template}".encode()).hexdigest()[:12]


def prompt_of(section: Any, where: str = "data") -> Prompt:
    """The prompt of a recipe's `data` or `eval` section, its files read.

    Raises:
        ConfigError: a file that can't be read, or a template without `{problem}` or with the answer in it.
    """
    system, template = section.system, section.template
    if system is not None:
        system = text_of(system, f"{where}.system")
    if template is not None:
        said, template = template, text_of(template, f"{where}.template")
        named = {found[1] for found in _HOLDER.finditer(template)}
        if "problem" not in named:
            missing = "it" if not is_file(said) else str(project.located(said))
            raise ConfigError(f"{where}.template: {missing} has no {{problem}}, where the question goes")
        for gold in ("answer", "solution"):
            if gold in named:
                raise ConfigError(
                    f"{where}.template: {{{gold}}} would tell the model the answer; write {{{{{gold}}}}} for the text"
                )
        if is_file(said):
            where = f"{project.located(said)}: {where}"
    return Prompt(section.style, system, template, where)
