"""Malformed recipes, each with its one-line error through `r3bench validate`, exit code 2 and no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from r3bench.config.yaml_file import read_yaml
from r3bench.errors import ConfigError

# id, the recipe's text, the whole of stderr after "r3bench: "
RECIPES = [
    # --- YAML itself
    ("not_a_mapping", "- 1\n- 2\n", "bad.yaml: got a list, expected a mapping of sections"),
    ("a_text", "hello\n", "bad.yaml: got a str, expected a mapping of sections"),
    ("duplicate_section", "seed: 1\nmodel: embedded\nseed: 2\n", "bad.yaml: line 3: key 'seed' is given twice"),
    (
        "duplicate_key_inside",
        "trainer:\n  max_steps: 1\n  beta: 0.0\n  max_steps: 2\n",
        "bad.yaml: line 4: key 'max_steps' is given twice",
    ),
    (
        "duplicate_key_in_braces",
        "reward: {timeout: 1, timeout: 2}\n",
        "bad.yaml: line 1: key 'timeout' is given twice",
    ),
    (
        "python_tag",
        "name: !!python/object/apply:os.system ['touch owned']\n",
        "bad.yaml: line 1: tag '!!python/object/apply:os.system' is not supported; write plain values",
    ),
    ("own_tag", "name: !secret x\n", "bad.yaml: line 1: tag '!secret' is not supported; write plain values"),
    (
        "binary_tag",
        "name: !!binary aGVsbG8=\n",
        "bad.yaml: line 1: tag '!!binary' is not supported; write plain values",
    ),
    (
        "bomb",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
        "bad.yaml: line 2: alias '*a' is not supported; write the value out",
    ),
    (
        "self_alias",
        "trainer: &t\n  model_init_kwargs: *t\n",
        "bad.yaml: line 2: alias '*t' is not supported; write the value out",
    ),
    ("deep", f"name: {'[' * 5000}\n", "bad.yaml: line 1: nested more than 20 levels deep"),
    ("list_key", "? [a, b]\n: 1\n", "bad.yaml: line 1: a key is a list or mapping, expected a text"),
    (
        "unclosed",
        "eval: {tasks: [embedded\n",
        "bad.yaml: line 2: not valid YAML: expected ',' or ']', but got '<stream end>'",
    ),
    ("two_documents", "seed: 1\n---\nseed: 2\n", "bad.yaml: line 2: not valid YAML: but found another document"),
    ("nan", "trainer:\n  beta: .nan\n", "bad.yaml: line 2: got .nan, expected a finite number"),
    ("infinity", "reward:\n  timeout: .inf\n", "bad.yaml: line 2: got .inf, expected a finite number"),
    # --- sections and keys
    (
        "unknown_section",
        "trianer:\n  max_steps: 1\n",
        "bad.yaml: trianer: unknown section; did you mean 'trainer'?",
    ),
    (
        "unknown_key",
        "model:\n  nam: embedded\n",
        "bad.yaml: model.nam: got 'embedded' for an unknown key; did you mean 'name'?",
    ),
    (
        "unknown_key_deep",
        "model:\n  lora:\n    rnk: 8\n",
        "bad.yaml: model.lora.rnk: got 8 for an unknown key; did you mean 'rank'?",
    ),
    (
        "unknown_trainer_field",
        "trainer:\n  num_generation: 8\n",
        "bad.yaml: trainer.num_generation: got 8 for an unknown GRPOConfig field; did you mean 'num_generations'?",
    ),
    (
        "reserved_trainer_field",
        "trainer:\n  seed: 3\n",
        "bad.yaml: trainer.seed: got 3, but it can't be set here; use the recipe's top-level 'seed'",
    ),
    (
        "remote_code",
        "trainer:\n  trust_remote_code: true\n",
        "bad.yaml: trainer.trust_remote_code: got True, but it can't be set here; "
        "code from a model repository is never run",
    ),
    # --- types
    ("section_is_a_number", "model: 5\n", "bad.yaml: model: got 5, expected a mapping"),
    ("text_for_number", "reward:\n  timeout: soon\n", "bad.yaml: reward.timeout: got 'soon', expected a number"),
    ("text_spelling_nan", "reward:\n  timeout: 'nan'\n", "bad.yaml: reward.timeout: got 'nan', expected a number"),
    ("float_for_integer", "eval:\n  samples: 2.5\n", "bad.yaml: eval.samples: got 2.5, expected an integer"),
    ("bool_for_integer", "seed: true\n", "bad.yaml: seed: got True, expected an integer"),
    (
        "text_for_bool",
        "reward:\n  length_bonus: maybe\n",
        "bad.yaml: reward.length_bonus: got 'maybe', expected true or false",
    ),
    (
        "text_for_list",
        "eval:\n  tasks: embedded\n",
        "bad.yaml: eval.tasks: got 'embedded', expected a list of texts",
    ),
    (
        "number_in_list",
        "eval:\n  tasks: [embedded, 24]\n",
        "bad.yaml: eval.tasks[1]: got 24, expected a text; quote it if it is meant as a text: '24'",
    ),
    (
        "text_for_trainer_integer",
        "trainer:\n  max_steps: many\n",
        "bad.yaml: trainer.max_steps: got 'many', expected an integer",
    ),
    (
        "list_for_trainer_number",
        "trainer:\n  learning_rate: [1, 2]\n",
        "bad.yaml: trainer.learning_rate: got [1, 2], expected a number",
    ),
    (
        "null_for_trainer_number",
        "trainer:\n  temperature:\n",
        "bad.yaml: trainer.temperature: got None, expected a number",
    ),
    ("null_in_section", "data:\n  name: null\n", "bad.yaml: data.name: got None, expected a text"),
    # --- values
    (
        "literal",
        "model:\n  dtype: bfloat\n",
        "bad.yaml: model.dtype: got 'bfloat', expected one of float32, bfloat16, float16, auto; did you mean "
        "'bfloat16'?",
    ),
    ("negative_seed", "seed: -1\n", "bad.yaml: seed: got -1, expected 0 to 4294967295"),
    ("zero_limit", "data:\n  limit: 0\n", "bad.yaml: data: limit: got 0, expected at least 1 or null"),
    (
        "zero_budget",
        "budget:\n  generated_tokens: 0\n",
        "bad.yaml: budget: generated_tokens: got 0, expected at least 1 or null",
    ),
    (
        "zero_rank",
        "model: {name: embedded, lora: {rank: 0}}\n",
        "bad.yaml: model.lora: rank: got 0, expected at least 1",
    ),
    (
        "loss_type",
        "trainer:\n  loss_type: drgrpo\n",
        "bad.yaml: trainer.loss_type: got 'drgrpo', expected one of grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, "
        "vespo; did you mean 'dr_grpo'?",
    ),
    (
        "scheduler",
        "trainer:\n  save_strategy: stepps\n",
        "bad.yaml: trainer.save_strategy: got 'stepps', expected one of no, steps, epoch, best; did you mean 'steps'?",
    ),
    (
        "greedy_training",
        "trainer:\n  temperature: 0\n",
        "bad.yaml: trainer.temperature: got 0.0, expected above 0 (a group sampled greedily is one answer G times)",
    ),
    (
        "group_of_one",
        "trainer:\n  num_generations: 1\n",
        "bad.yaml: trainer.num_generations: got 1, expected at least 2 (a group of one has no baseline)",
    ),
    (
        "unknown_task",
        "eval:\n  tasks: [embedded, amc32]\n",
        "bad.yaml: eval.tasks: no task 'amc32' in ./evals or among the shipped ones; did you mean 'amc23'?",
    ),
    # --- impossible together
    (
        "generation_batch",
        "trainer:\n  per_device_train_batch_size: 12\n  generation_batch_size: 32\n  num_generations: 8\n",
        "bad.yaml: trainer.generation_batch_size: got 32, expected a multiple of per_device_train_batch_size=12; "
        "nearest that works: 24",
    ),
    (
        "two_ways_to_size_a_batch",
        "trainer:\n  generation_batch_size: 16\n  steps_per_generation: 2\n",
        "bad.yaml: trainer: generation_batch_size and steps_per_generation exclude each other",
    ),
    (
        "two_precisions",
        "trainer:\n  bf16: true\n  fp16: true\n",
        "bad.yaml: trainer: bf16 and fp16 exclude each other; expected at most one to be true",
    ),
    (
        "loss_needs_level",
        "trainer:\n  loss_type: luspo\n",
        "bad.yaml: trainer.importance_sampling_level: got 'token', expected 'sequence' with loss_type 'luspo'",
    ),
    (
        "greedy_repeats",
        "eval:\n  temperature: 0\n  samples: 4\n",
        "bad.yaml: eval: samples: greedy decoding (temperature 0) gives the same answer each time, expected 1",
    ),
    # --- components
    (
        "components_as_list",
        "components: [replay]\n",
        "bad.yaml: components: got ['replay'], expected a mapping",
    ),
    (
        "unknown_component",
        "components:\n  replays: true\n",
        "bad.yaml: components.replays: no component 'replays' in ./components or among the shipped ones; "
        "did you mean 'replay'?",
    ),
    (
        "component_is_a_number",
        "components:\n  replay: 3\n",
        "bad.yaml: components.replay: got 3, expected a mapping",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in RECIPES], ids=[case[0] for case in RECIPES])
def test_a_malformed_recipe_is_one_line(r3bench: Callable[..., Result], folder: Path, text: str, message: str) -> None:
    (folder / "bad.yaml").write_text(text)
    result = r3bench("validate", "bad.yaml")
    assert result.stderr == f"r3bench: {message}\n"
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not (folder / "owned").exists()


OVERRIDES = [
    ("no_equals", ["seed"], "override 'seed': expected key=value, such as trainer.learning_rate=1e-5"),
    ("no_key", ["=3"], "override '=3': expected key=value, such as trainer.learning_rate=1e-5"),
    (
        "broken_value",
        ["seed=[1,"],
        "override 'seed=[1,': not valid YAML: expected the node content, but found '<stream end>'",
    ),
    (
        "tag",
        ["name=!!python/name:os.system"],
        "override 'name=!!python/name:os.system': tag '!!python/name:os.system' is not supported; write plain values",
    ),
    ("below_a_value", ["seed.x=1"], "override 'seed.x=1': 'seed' is 4, not a mapping"),
    ("unknown_section", ["sead=1"], "command line: sead: unknown section; did you mean 'seed'?"),
    (
        "unknown_key",
        ["trainer.max_step=1"],
        "command line: trainer.max_step: got 1 for an unknown GRPOConfig field; did you mean 'max_steps'?",
    ),
    ("empty_value", ["trainer.max_steps="], "command line: trainer.max_steps: got None, expected an integer"),
    (
        "together_with_the_file",
        ["trainer.generation_batch_size=12"],
        "command line: trainer.generation_batch_size: got 12, expected a multiple of per_device_train_batch_size=8; "
        "nearest that works: 8",
    ),
]


@pytest.mark.parametrize(("extra", "message"), [case[1:] for case in OVERRIDES], ids=[case[0] for case in OVERRIDES])
def test_a_bad_override_is_one_line(
    r3bench: Callable[..., Result], folder: Path, extra: list[str], message: str
) -> None:
    (folder / "good.yaml").write_text("seed: 4\ntrainer: {per_device_train_batch_size: 8, max_completion_length: 64}\n")
    assert r3bench("validate", "good.yaml").exit_code == 0
    result = r3bench("validate", "good.yaml", *extra)
    assert result.stderr == f"r3bench: {message}\n"
    assert result.exit_code == 2


def test_the_file_is_named_when_the_file_is_at_fault_and_not_the_override(
    r3bench: Callable[..., Result], folder: Path
) -> None:
    (folder / "bad.yaml").write_text("seed: x\ntrainer: {max_completion_length: 64}\n")
    assert r3bench("validate", "bad.yaml", "name=y").stderr == "r3bench: bad.yaml: seed: got 'x', expected an integer\n"
    assert r3bench("validate", "bad.yaml", "seed=1").exit_code == 0  # an override may mend it


def test_files_that_are_no_recipe(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "image.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    assert r3bench("validate", "image.yaml").stderr == (
        "r3bench: image.yaml: not UTF-8 text (invalid start byte at byte 0)\n"
    )
    (folder / "null.yaml").write_bytes(b"name: \x00\n")
    assert r3bench("validate", "null.yaml").stderr == (
        "r3bench: null.yaml: not valid YAML: unacceptable character #x0000: special characters are not allowed\n"
    )
    (folder / "big.yaml").write_text("#" * 1_000_001)
    assert r3bench("validate", "big.yaml").stderr == ("r3bench: big.yaml: 1000001 bytes, expected at most 1000000\n")
    (folder / "digits.yaml").write_text(f"seed: {'9' * 5000}\n")
    result = r3bench("validate", "digits.yaml")
    assert result.stderr.startswith("r3bench: digits.yaml: not valid YAML: Exceeds the limit (4300 digits)")
    assert result.stderr.count("\n") == 1
    (folder / "folder.yaml").mkdir()
    for name in ("folder.yaml", "missing.yaml", "missing/recipe"):
        result = r3bench("validate", name)
        assert result.stderr == f"r3bench: recipe '{name}': no such file\n"
        assert result.exit_code == 2


def test_an_unknown_recipe_names_the_nearest(r3bench: Callable[..., Result]) -> None:
    assert r3bench("validate", "quikstart").stderr == (
        "r3bench: recipe 'quikstart': not found in ./ablations/recipes or among the shipped ones; "
        "did you mean 'quickstart'?\n"
    )


def test_a_device_is_not_read(folder: Path) -> None:
    for path in (Path("/dev/zero"), folder):
        with pytest.raises(ConfigError, match=f"{path}: not a regular file"):
            read_yaml(path)


BIG = "9" * 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.yaml: empty, expected a mapping of sections"),
        ("# nothing but this\n", "bad.yaml: empty, expected a mapping of sections"),
        (f"trainer: {{max_steps: {BIG}}}\n",
         "bad.yaml: line 1: got a number of 400 digits, expected at most 9223372036854775807"),
        ("seed: 99999999999999999999\n",
         "bad.yaml: line 1: got 99999999999999999999, expected at most 9223372036854775807"),
        ("eval: {samples: 1000000000000}\n", "bad.yaml: eval: samples: got 1000000000000, expected at most 16384"),
        ("reward: {workers: 100000000}\n", "bad.yaml: reward: workers: got 100000000, expected 1 to 1024"),
    ],
    ids=["nothing", "comment", "steps", "seed", "samples", "workers"],
)  # fmt: skip
def test_a_file_of_nothing_and_numbers_without_bound(
    r3bench: Callable[..., Result], folder: Path, text: str, message: str
) -> None:
    """What would end in a traceback, a full memory or as many processes as the number says."""
    (folder / "bad.yaml").write_text(text)
    result = r3bench("validate", "bad.yaml")
    assert (result.stderr, result.exit_code) == (f"r3bench: {message}\n", 2)
