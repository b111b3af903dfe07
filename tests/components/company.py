"""Who may see whose rows: every component against what the others put into a batch or the history.

Rewrite the page after a change: `python tests/components/company.py`.
"""

import re
from pathlib import Path

import numpy as np
from component_tools import Memory, group, make, step, stored

PAGE = Path(__file__).parents[2] / "docs" / "components.md"
MARK = re.compile(r"<!-- company -->\n.*?<!-- end -->", re.DOTALL)
SETTINGS = {
    "ranking": {"scope": "failed", "peak_fraction": 0.1}, "reflection": {"warmup": 0.0, "max_share": 1.0},
    "replay": {"warmup": 0.0}, "repo": {"min_stored": 2, "window": 16}, "exgrpo": {"start": 0.0},
    "retrospective": {"value": "random", "quantile": 0.0, "share": 1.0, "retire": 0.9},
}  # fmt: skip
CHANNELS = {  # what another component does -> who does it
    "reflection groups": ("reflection",),
    "continuation groups": ("retrospective",),
    "stored reflection answers": ("reflection",),
    "stored continuation answers": ("retrospective",),
    "a ranking reward": ("ranking",),
    "a group mixed or planned before": ("exgrpo", "reflection", "replay", "repo", "rescue", "retrospective"),
}
TEXT = "An idea\n\nand another one\n\nthen a last try 7"


def batch(channel=None):
    """A batch of bare questions, with what `channel` adds to it, and the stored rows."""
    rows = [stored("q0", 1, True), stored("q0", 2, False), stored("q1", 3, False), stored("q1", 4, False)]
    groups = [
        group(0, [0] * 4, truncated=[1] * 4, texts=[TEXT] * 4), group(1, [0] * 4, truncated=[1] * 4, texts=[TEXT] * 4),
        group(2, [0, 1, 0, 1], texts=[TEXT] * 4),
    ]  # fmt: skip
    taken = frozenset()
    for kind in ("reflection", "continuation"):
        if channel == f"{kind} groups":
            groups.append(group(3, [0] * 4, question="q1", truncated=[1] * 4, texts=[TEXT] * 4, provenance=kind))
        if channel == f"stored {kind} answers":
            rows += [stored("q1", 5, True, provenance=kind), stored("q0", 6, False, provenance=kind)]
    if channel == "a ranking reward":
        for one in groups[:2]:
            one.rewards = one.task_rewards + np.array([0.5, 0.25, 0.25, 0.0])
    if channel == "a group mixed or planned before":
        taken = frozenset({0, 1})
    return step(groups, Memory(*rows), taken=taken)


def plain(value):
    """Something that compares and prints."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple | frozenset) else value


def moments(name, channel=None):
    """What a component decides at each moment of the batch."""
    component = make(name, SETTINGS.get(name))
    if name == "exgrpo":
        component._started, component.accuracy = True, {"q7": 0.5, "q8": 0.25}
    if name == "retrospective":
        component.observe(step(batch().groups, number=5))  # something to resume from
    at = batch(channel)
    found = {}
    if not channel or "ranking" not in channel or name != "ranking":
        planned = step(at.groups[:3], at.history, taken=at.taken)
        found["plans"] = plain([vars(plan) for plan in component.plan(planned)])
    if name == "exgrpo":
        component._planned = frozenset({"q0"})
    wanted = component.entropy_rows(at)
    for one in at.groups:
        one.completion_ids = [ids.copy() for ids in one.completion_ids]
    entropies = {row: np.array([0.1, 1.0 + row % 4, 3.0 - 1.4 * (row % 4)]) for row in wanted}
    entropies = {row: np.resize(values, len(TEXT)) for row, values in entropies.items()}
    found["rewards"] = plain(component.score(at, entropies) if component.shapes_reward else {})
    found["resampling"] = component.keep(at)[:3] if component.resamples else []
    mixtures = component.mix(at)
    found["mixing"] = plain([vars(one) for one in mixtures if one.group not in at.taken])
    found["weights"] = plain(component.rescale(at, frozenset()))
    component.observe(at)
    state = component.state_dict()
    found["memory"] = plain({k: v for k, v in state.items() if k not in ("failing",)})
    return found


def effects(name, channel):
    """The moments of `name` that `channel` changes, beyond decisions on the very groups that were added."""
    alone, company = moments(name), moments(name, channel)
    return [key for key in alone if key in company and alone[key] != company[key]]


def table():
    """The Markdown table."""
    from r3bench import catalog

    names = list(catalog.component_names())
    lines = ["| component | " + " | ".join(CHANNELS) + " |", "|:---|" + ":---|" * len(CHANNELS)]
    lines.append("| *(put there by)* | " + " | ".join(", ".join(who) for who in CHANNELS.values()) + " |")
    for name in names:
        cells = [", ".join(effects(name, channel)) or "-" for channel in CHANNELS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page):
    """`page` with the table rewritten."""
    return MARK.sub(lambda _: f"<!-- company -->\n{table()}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
