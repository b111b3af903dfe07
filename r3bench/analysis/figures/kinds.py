"""The kinds of figures by name. This module loads no plotting."""

from r3bench.errors import ConfigError, nearest

KINDS = {  # name -> what it shows
    "effects": "every effect with both intervals: a forest plot",
    "accuracy": "accuracy of every cell with its interval, a dot per run",
    "interactions": "two-way interactions",
    "pass-at-k": "pass@k of every cell against k, with intervals",
    "maj-at-k": "maj@k of every cell against k, with intervals",
    "heldout-tokens": "accuracy on held-out questions against generated tokens, at measured checkpoints",
    "heldout-seconds": "the same against device seconds",
    "curves-tokens": "accuracy in training against generated tokens",
    "curves-seconds": "the same against device seconds",
    "solved-tokens": "share of the training questions solved so far, against generated tokens",
    "length": "accuracy against response length",
    "questions": "main effects on every question, sorted",
    "half-normal": "all effects of a complete two-level grid against half-normal quantiles",
}
OTHER_NAMES = {"forest": "effects", "cells": "accuracy", "pass@k": "pass-at-k", "maj@k": "maj-at-k"}
NEEDS = {  # name -> what a study must have for it
    "effects": "a factor with two levels that were run",
    "accuracy": "a measured run",
    "interactions": "two factors of which combinations were run",
    "pass-at-k": "several answers to a question",
    "maj-at-k": "several answers to a question, and their texts",
    "heldout-tokens": "measured checkpoints (r3bench eval STUDY --checkpoints N)",
    "heldout-seconds": "measured checkpoints (r3bench eval STUDY --checkpoints N)",
    "curves-tokens": "training logs",
    "curves-seconds": "training logs",
    "solved-tokens": "training logs that count solved questions",
    "length": "two measured cells with lengths of their answers",
    "questions": "a main effect",
    "half-normal": "a complete grid of three or more factors with two levels",
}


def kind_of(name: str) -> str:
    """The kind that is called so.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in KINDS and name not in OTHER_NAMES:
        raise ConfigError(f"figure: got '{name}'{nearest(name, (*KINDS, *OTHER_NAMES))}")
    return OTHER_NAMES.get(name, name)
