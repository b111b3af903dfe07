"""Which effects are tests of their own, and which are tested together.

A factor is tested once per benchmark, by its main effect; where that rests on the assumption of no interaction at all
and the design has the single step (only this one on, or all on but this one), by the step, which assumes nothing.
Interactions have families of their own, so that true main effects can't make them significant. Shapley values,
leave-one-out, add-one and main effects that are not tested restate a tested effect and are in no family. A single
benchmark is looked into where the macro average shows the effect: all benchmarks together then err as one does.
"""

from collections.abc import Collection, Sequence

import numpy as np

from r3bench.analysis.statistics.lattice import MODELS, Contrast

PRIMARY = "primary"  # tested effects of the declared factors on the macro average or only benchmark
OTHER = "other factors and benchmarks"  # all other tested effects
INTERACTIONS = "interactions"  # and additivity, on the macro average or only benchmark
OTHER_INTERACTIONS = "interactions on other benchmarks"
RESTATES = ""  # in no family
STEPS = ("add_one", "leave_one_out")


def families(effects: Sequence[tuple[str, Contrast]], headline: str, declared: Collection[str]) -> list[str]:
    """The family of each effect.

    Args:
        effects: benchmark and contrast of each.
        headline: the benchmark (or macro average) of the primary family.
        declared: factors of the primary family.
    """
    found = []
    tested = {name: tested_kinds([c for b, c in effects if b == name]) for name in dict.fromkeys(b for b, _ in effects)}
    for benchmark, contrast in effects:
        first = benchmark == headline
        if contrast.kind in ("interaction", "additivity"):
            found.append(INTERACTIONS if first else OTHER_INTERACTIONS)
        elif tested[benchmark].get(contrast.parts) != contrast.kind:
            found.append(RESTATES)
        else:
            found.append(PRIMARY if first and contrast.factors[0] in declared else OTHER)
    return found


def behind_headline(
    effects: Sequence[tuple[str, Contrast]], family: Sequence[str], headline: str, adjusted: np.ndarray
) -> np.ndarray:
    """(E,) adjusted p values, on other benchmarks at least that of the same effect on the headline."""
    first = {
        (contrast.kind, contrast.parts): p
        for (benchmark, contrast), name, p in zip(effects, family, adjusted, strict=True)
        if benchmark == headline and name != RESTATES
    }
    found = adjusted.copy()
    for i, (benchmark, contrast) in enumerate(effects):
        if benchmark != headline and family[i] != RESTATES and not np.isnan(adjusted[i]):
            found[i] = np.fmax(adjusted[i], first.get((contrast.kind, contrast.parts), 0.0))
    return found


def tested_kinds(contrasts: Sequence[Contrast]) -> dict[tuple[str, ...], str]:
    """Part -> kind of effect that tests it."""
    found: dict[tuple[str, ...], str] = {}
    for contrast in contrasts:
        if contrast.kind == "main":
            found[contrast.parts] = contrast.kind
    for kind in STEPS:
        for contrast in contrasts:
            if contrast.kind == kind and contrast.parts not in found:
                found[contrast.parts] = kind
    rough = {c.parts for c in contrasts if c.kind == "main" and c.assumes == MODELS[1]}
    for kind in reversed(STEPS):
        found |= {c.parts: kind for c in contrasts if c.kind == kind and c.parts in rough}
    return found


def first_alike(effects: Sequence[tuple[str, Contrast]], family: Sequence[str]) -> list[str | None]:
    """Kind of the effect on the same benchmark with the same contrast that is shown in its place, or None.

    Of several alike the tested one is shown, else the first.
    """
    found: list[str | None] = [None] * len(effects)
    order = sorted(range(len(effects)), key=lambda i: (family[i] == RESTATES, i))
    shown: list[int] = []
    for i in order:
        benchmark, contrast = effects[i]
        for j in shown:
            other, first = effects[j]
            if other == benchmark and first.parts == contrast.parts and np.allclose(first.weights, contrast.weights):
                found[i] = first.kind
                break
        else:
            shown.append(i)
    return found
