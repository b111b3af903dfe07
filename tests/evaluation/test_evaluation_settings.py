"""What scores are kept with: settings, task version, questions; and records that were edited."""

import re

import pytest

from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation import shards
from r3bench.evaluation.backends.hf import HFBackend
from r3bench.evaluation.driver import evaluate
from r3bench.evaluation.settings import KEY, measured, settings

SECTION = EvalSection(tasks=("embedded",), samples=2, limit=4)
TOLD = {"samples": 2, KEY: settings(SECTION, 32)}


def test_a_record_as_written_is_measured():
    assert measured({"embedded": TOLD}, SECTION, 32)


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        ({KEY: TOLD[KEY]}, "samples: missing"),
        ({**TOLD, "samples": "2"}, "samples: got '2'"),
        ({**TOLD, KEY: "all"}, "settings: got 'all', expected a mapping"),
        ({**TOLD, KEY: {**TOLD[KEY], "limit": "four"}}, "limit: got 'four', expected an integer"),
    ],
)
def test_an_edited_summary_is_said(edited, said):
    with pytest.raises(StateError, match=rf"run\.json: eval\.embedded.*{said}"):
        measured({"embedded": edited}, SECTION, 32)


def test_settings_with_a_key_taken_out_count_as_others():
    for key in TOLD[KEY]:
        if TOLD[KEY][key] is not None and key != "limit":  # without it all questions count as measured
            less = {name: value for name, value in TOLD[KEY].items() if name != key}
            assert not measured({"embedded": {**TOLD, KEY: less}}, SECTION, 32)


def test_the_summary_names_the_version_and_the_questions(loaded, tmp_path):
    summary = evaluate(loaded, SECTION, tmp_path, default_max_tokens=8, quiet=True)["embedded"]
    stored = shards.read_shard(shards.files(tmp_path / "embedded")[0])[1]
    assert summary["version"] == stored["version"] == "1.0"
    assert summary["digest"] == stored["questions"] and re.fullmatch(r"[0-9a-f]{12}", summary["digest"])


def test_a_prompt_that_does_not_fit_is_said_before_the_first_shard(loaded, tmp_path, monkeypatch):
    """The longest prompt may stand in the last shard."""
    model, tokenizer = loaded
    prompts = [len(row) for row in _prompts(tokenizer)]
    longest = max(prompts[4:])
    assert longest > max(prompts[:4])
    monkeypatch.setattr(shards, "QUESTIONS", 4)
    monkeypatch.setattr(HFBackend, "generate", lambda *_: pytest.fail("sampled in vain"))
    monkeypatch.setattr(model.config, "max_position_embeddings", longest + 31)
    with pytest.raises(ConfigError, match=rf"32 tokens after a prompt of {longest} exceed .* expected at most 31"):
        evaluate(loaded, EvalSection(samples=1), tmp_path, default_max_tokens=32, quiet=True)
    assert not list(tmp_path.rglob("*.parquet"))


def _prompts(tokenizer):
    from r3bench.evaluation.tasks import load_task

    for doc in load_task("embedded").test_docs():
        chat = [{"role": "user", "content": doc["prompt"]}]
        yield tokenizer(
            text=tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
            add_special_tokens=False,
        )["input_ids"]
