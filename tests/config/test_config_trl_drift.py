"""`grpo_fields.json` is what the installed TRL has, and the texts in `CHOICES` are those its trainer compares with."""

import inspect

from r3bench.config.trainer_fields import CHOICES, RANGES, RESERVED, describe_grpo_config, grpo_fields, trainer_fields


def test_the_field_list_equals_the_installed_trl() -> None:
    import trl

    installed = describe_grpo_config()
    changed = {
        key: (grpo_fields().get(key), installed.get(key))
        for key in grpo_fields().keys() | installed.keys()
        if grpo_fields().get(key) != installed.get(key)
    }
    assert not changed, f"trl {trl.__version__}: (ours, installed) {changed}; python -m r3bench.config.trainer_fields"


def test_named_fields_exist() -> None:
    assert not (CHOICES.keys() | RANGES.keys() | RESERVED.keys()) - trainer_fields().keys()


def test_choices_are_the_trainers() -> None:
    from trl.trainer import grpo_config, grpo_trainer

    source = inspect.getsource(grpo_trainer) + inspect.getsource(grpo_config)
    for key, choices in CHOICES.items():
        assert grpo_fields()[key]["default"] in choices
        for choice in choices:
            assert f'"{choice}"' in source, f"{key}: TRL no longer names '{choice}'"


def test_defaults_pass_our_own_checks() -> None:
    from r3bench.config.trainer_fields import check_trainer

    defaults = {key: field["default"] for key, field in grpo_fields().items() if key not in RESERVED}
    assert check_trainer(defaults, "defaults: trainer").keys() == defaults.keys()


def test_what_trl_reads_only_to_load_a_model_is_refused() -> None:
    """The trainer is given a loaded model, so TRL ignores these without a word, or with one in its log."""
    import ast
    import inspect

    from trl import GRPOTrainer

    from r3bench.config.trainer_fields import RESERVED

    source = inspect.getsource(GRPOTrainer.__init__)
    tree = ast.parse("class C:\n" + source)

    def fields(nodes: list[ast.stmt]) -> set[str]:
        walked = [n for node in nodes for n in ast.walk(node)]
        return {n.attr for n in walked if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
                and n.value.id == "args"}  # fmt: skip

    loading = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "isinstance(model, str)"]
    found = set().union(*(fields(n.body) for n in loading)) - {"distributed_state"}
    assert {"model_init_kwargs", "trust_remote_code"} <= found
    assert found <= RESERVED.keys()
