"""The promises of a component, each with what shows that it is kept."""

import copy
import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from r3bench import catalog
from r3bench.component import Component, check_declared
from r3bench.config.strict import build
from r3bench.contract import batches
from r3bench.contract.drive import Broken, Drive, plain
from r3bench.errors import ConfigError, first_line
from r3bench.training.state_values import join, split

Decisions = list[dict[str, Any]]
RULES = (  # in the order they are looked at and shown
    "settings",
    "what moments give",
    "what it is shown",
    "a run repeated",
    "nothing global",
    "every process alike",
    "state",
    "evidence",
)
CUTS = (1, batches.BATCHES // 3, batches.BATCHES - 1)  # batches after which a run is resumed


@dataclass(frozen=True)
class Finding:
    """What came of one rule."""

    rule: str  # one of RULES
    kept: bool | None  # None: it could not be looked at, because an earlier one is broken or nothing happened
    text: str  # what was seen


def examine(name: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Every rule with what came of it, for the component `name` with `settings`.

    Raises:
        ConfigError: no such component, or settings that it refuses.
    """
    kind = catalog.component(name)
    found: dict[str, Finding] = {}

    def note(rule: str, fault: str | None, fine: str) -> None:
        found[rule] = Finding(rule, fault is None, fine if fault is None else fault)

    note("settings", _settings(name, kind), "defaults and presets fit")
    try:
        drive = Drive(made(name, settings))
        decisions, stray = _untouched(lambda: drive.run(batches.BATCHES))
    except Broken as error:
        found[error.rule] = Finding(error.rule, False, str(error))
    else:
        note("what moments give", None, f"{batches.BATCHES} made-up batches")
        note("what it is shown", None, "left as it was")
        note("nothing global", stray, "no generator, no variable of the environment")
        for rule, look in (
            ("a run repeated", lambda: _repeated(name, settings, decisions)),
            ("every process alike", lambda: _elsewhere(name, settings, decisions)),
            ("state", lambda: _resumed(name, settings, decisions)),
        ):
            note(rule, _guarded(look), FINE[rule])
        found["evidence"] = _evidence(drive)
    return [found.get(rule) or Finding(rule, None, "not looked at") for rule in RULES]


FINE = {
    "a run repeated": "the same decisions from a second instance",
    "every process alike": "the same decisions in another process",
    "state": f"resumed after {', '.join(map(str, CUTS))} batches, the same decisions",
}


def made(name: str, settings: Mapping[str, Any]) -> Component:
    """A new instance.

    Raises:
        ConfigError: settings that it refuses.
        Broken: its constructor raises.
    """
    kind = catalog.component(name)
    config: Any = build(kind.Config, dict(settings), f"components.{name}")
    try:
        instance: Component = kind(config, batches.facts())
    except Exception as error:  # whatever the component raises
        raise Broken("what moments give", f"it can't be made: {type(error).__name__}: {first_line(error)}") from error
    try:
        check_declared(instance)
    except ConfigError as error:
        raise Broken("what moments give", str(error)) from error
    return instance


def decisions_of(name: str, settings: Mapping[str, Any]) -> Decisions:
    """What a new instance decides in all batches."""
    return Drive(made(name, settings)).run(batches.BATCHES)


def _settings(name: str, kind: type[Component]) -> str | None:
    config: type[Any] = kind.Config
    if not dataclasses.is_dataclass(config) or not getattr(config, "__dataclass_params__").frozen:  # noqa: B009
        return f"{config.__name__} is no frozen dataclass"
    lacking = [
        field.name
        for field in dataclasses.fields(config)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if lacking:
        return f"{lacking[0]} has no default, so that `{name}=on` can't be written"
    for preset, values in kind.presets.items():
        try:
            build(config, dict(values), f"preset '{preset}'")
        except ConfigError as error:
            return str(error)
    return None


def _untouched(call: Callable[[], Decisions]) -> tuple[Decisions, str | None]:
    """What `call` gives, and what it changed that belongs to everybody; None: nothing."""
    before = random.getstate(), plain(np.random.get_state()), dict(os.environ)
    given = call()
    after = random.getstate(), plain(np.random.get_state()), dict(os.environ)
    names = ("the generator of `random`", "the generator of `numpy.random`", "variables of the environment")
    moved = [name for name, was, now in zip(names, before, after, strict=True) if was != now]
    return given, f"it uses or changes {moved[0]}; draw from self.facts.rng(...)" if moved else None


def _guarded(look: Callable[[], str | None]) -> str | None:
    try:
        return look()
    except Broken as error:
        return str(error)


def _repeated(name: str, settings: Mapping[str, Any], decisions: Decisions) -> str | None:
    fault = _difference(decisions, decisions_of(name, settings))
    return fault and f"a second instance decides otherwise, {fault}: is something kept in the class or the module?"


def _elsewhere(name: str, settings: Mapping[str, Any], decisions: Decisions) -> str | None:
    """The same in a process with other hashes of texts and other states of the global generators."""
    command = [sys.executable, "-m", "r3bench.contract", name, json.dumps(dict(settings))]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "1234"}, check=False
    )
    if done.returncode:
        return f"it fails in another process: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    fault = _difference(decisions, json.loads(done.stdout.strip().splitlines()[-1]))
    return fault and f"another process decides otherwise, {fault}: chance, time, or the order of a set?"


def _resumed(name: str, settings: Mapping[str, Any], decisions: Decisions) -> str | None:
    """The same after a checkpoint was written and read."""
    for cut in CUTS:
        first = Drive(made(name, settings))
        first.run(cut)
        arrays: dict[str, np.ndarray] = {}
        try:
            text = json.dumps(split(first.component.state_dict(), "", arrays))
        except Exception as error:  # noqa: BLE001, whatever the component raises, and values that JSON doesn't know
            return f"state_dict() after batch {cut - 1}: {type(error).__name__}: {first_line(error)}"
        other = made(name, settings)
        try:
            other.load_state_dict(join(json.loads(text), copy.deepcopy(arrays)))
        except Exception as error:  # noqa: BLE001, whatever the component raises
            return f"load_state_dict() after batch {cut - 1} raised {type(error).__name__}: {first_line(error)}"
        second = Drive(other, first.history, number=cut)
        fault = _difference(decisions[cut:], second.run(len(decisions) - cut), cut)
        if fault:
            return f"resumed after batch {cut - 1} it decides otherwise, {fault}: is something missing in state_dict()?"
    return None


def _evidence(drive: Drive) -> Finding:
    """Whether counters tell of what it changed."""

    def fault(text: str) -> Finding:
        return Finding("evidence", False, text)

    acted = drive.component.acted(drive.totals)
    if drive.changed and not acted:
        return fault(f"it changed {drive.changed} batches, but tables would say that it never acted; see count()")
    if acted and not drive.changed:
        return fault("it changed nothing, but its counters say that it acted; see acted()")
    unsaid = [key for key in drive.totals if type(drive.component).counted(key.partition("/")[2]) is None]
    if unsaid:
        return fault(f"counters: no words for {', '.join(repr(key.partition('/')[2]) for key in unsaid)}")
    if not drive.changed:
        return Finding("evidence", None, "it did nothing in these batches, so this can't be said")
    return Finding("evidence", True, "counters tell of it")


def _difference(one: Decisions, other: Decisions, first: int = 0) -> str | None:
    """Where two runs part; None: nowhere."""
    other = json.loads(json.dumps(other))
    for number, (a, b) in enumerate(zip(json.loads(json.dumps(one)), other, strict=True)):
        for moment in a:
            if json.dumps(a[moment]) != json.dumps(b.get(moment)):
                name = {"counts": "count()", "figures": "measure()"}.get(moment, f"{moment}()")
                return f"{name} of batch {first + number}"
    return None
