"""Every sentence that is printed stands on docs/sentences.md; each appears where its condition holds, not elsewhere."""

import re
from functools import cache
from pathlib import Path

import pytest
from scenarios import SCENARIOS, sentences

PAGE = Path(__file__).parents[2] / "docs" / "sentences.md"
FREE = r"[a-z+-]+-s\d+-[0-9a-f]+: .+"  # notes of a run's own record


def forms():
    """The sentences of the page, as they stand there."""
    return re.findall(r"^\| `(.+?)` \|", PAGE.read_text(), re.M)


@cache
def pattern(form):
    parts = re.split(r"\{[^{}]*\}", form)
    return re.compile(".*?".join(map(re.escape, parts)), re.S)


def matches(form, text):
    plain = text[:1].lower() + text[1:].removesuffix(".") if text.endswith(".") else text
    return any(pattern(form).fullmatch(t) for t in (text, plain))


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """scenario -> every sentence printed."""
    found = {}
    for name, make in SCENARIOS.items():
        folder = tmp_path_factory.mktemp("scenario")
        results = make(folder)
        found[name] = sentences(results, folder / "s" if (folder / "s").is_dir() else None)
    return found


UNMATCHED = (
    "The training logs hold no accuracy over fresh groups in all runs, and components change the whole batch: what "
    "cells reach in training at equal cost is not compared."
)
FEW = "allowing for its having been picked out of {3}; so few seeds"
# beginning of a sentence on the page -> scenarios in which it must be printed, and in which it must not
CASES = {
    "accuracy in points, {95} %": (["study", "confidence 90 %", "worse"], ["one seed"]),
    "accuracy in points; ": (["one seed"], ["study", "worse"]),
    "reference, every factor": (["named levels", "named reference"], ["study", "better"]),
    "highest mean: {cell}, {gain} over {reference}, allowing":
        (["study", "interaction"], ["better", "all worse", "tie", "two seeds"]),
    f"highest mean: {{cell}}, {{gain}} over {{reference}}, {FEW}":
        (["two seeds"], ["study", "interaction", "two seeds, all worse"]),
    "highest mean: {cell}, {gain} over {reference}": (["better"], ["worse", "tie", "one seed"]),
    "the reference, {cell}, has the highest mean; of the other cells {cell}, {gain} over {reference}, allowing":
        (["all worse"], ["study", "worse", "better", "two seeds, all worse"]),
    f"the reference, {{cell}}, has the highest mean; of the other cells {{cell}}, {{gain}} over {{reference}}, {FEW}":
        (["two seeds, all worse"], ["all worse", "two seeds"]),
    "the reference, {cell}, has the highest mean; of the other cells {cell}, {gain} over {reference}":
        (["worse", "named levels"], ["better", "named reference", "tie"]),
    "the highest mean is shared: {cells}": (["tie"], ["all worse", "better", "study"]),
    "no cell is marked best": (["add one", "named levels"], ["better", "worse", "one cell", "untrained only"]),
    "no interval where noise": (["one seed, alike"], ["alike", "study", "one seed"]),
    "no interval where nothing": (["alike"], ["study", "one seed", "one seed, alike", "one question"]),
    "no interval on questions": (["one question"], ["study", "one seed", "alike"]),
    "~ interval over questions": (["one seed"], ["study", "alike", "four factors, one seed"]),
    "{component} was on and never acted": (["study"], ["better", "one cell"]),
    "micro-batch halved": (["halved"], ["study", "missing"]),
    "{run}: diverged": (["diverged", "diverged, drop"], ["study", "missing"]),
    "{run}: missing": (["missing"], ["study", "diverged", "pending"]),
    "{1} of {12} runs are missing ({kinds})": (["missing"], ["study", "diverged", "pending"]),
    "means over runs measured": (["study"], ["better"]),
    "points; {what": (["study", "one seed"], []),
    "bold: the highest mean": (["better", "worse"], ["add one", "alike", "one cell"]),
    "cells that share a letter": (["better", "worse"], ["add one", "alike", "one cell"]),
    "no cell is marked: none": (["add one", "alike"], ["better", "one cell", "untrained only"]),
    "reference: {cell}": (["named levels", "named reference"], ["study", "better"]),
    "gain, answers and tokens": (["macro"], ["study", "better"]),
    "p adjusted: by Holm": (["study", "better"], ["one cell", "untrained only"]),
    "effects that come out": (["better", "study"], ["four factors, one seed"]),
    "* assumes {what}": (["add one"], ["square", "better"]),
    "points, intervals on": (["macro", "macro of one"], ["study", "better"]),
    "{1} of {12} runs diverged: scored as": (["diverged"], ["diverged, zero", "diverged, drop", "diverged, no base"]),
    "{1} of {12} runs diverged: scored 0": (["diverged, zero"], ["diverged", "diverged, drop"]),
    "{1} of {12} runs diverged: left out": (["diverged, drop", "diverged, no base"], ["study", "missing"]),
    "{benchmark}: the untrained model was not": (["diverged, no base"], ["diverged", "diverged, zero", "study"]),
    "no factor:": (["untrained only"], ["study", "better"]),
    "partial grid:": (["add one", "aliased, as told"], ["square", "study"]),
    "unbalanced grid:": (["unbalanced", "missing"], ["square", "study"]),
    "not estimable": (["add one"], ["square", "study"]),
    "{benchmark}: every trained run": (["alike", "one seed, alike"], ["better", "study", "no difference"]),
    "{benchmark}: a benchmark of one": (["one question"], ["study", "alike"]),
    "{benchmark}: effects in which nothing": (["nothing varied"], ["alike", "one question", "study", "one seed"]),
    "one run per cell": (["one seed"], ["study", "four factors, one seed", "one run in a cell"]),
    "noise between runs is taken": (["four factors, one seed"], ["study", "one seed"]),
    "{benchmark}: seeds scatter": (["unequal noise", "pooled"], ["better", "study", "one seed"]),
    "two runs in {4} of": (["two seeds"], ["square", "unbalanced", "two seeds, all worse", "tie", "two seeds, pooled"]),
    "{benchmark}: one run only": (["one run in a cell"], ["unbalanced", "study", "one seed"]),
    "{benchmark}: runs that share a seed are compared": (["blocks"], ["square", "blocks of none"]),
    "{benchmark}: blocks were declared": (["blocks of none"], ["square", "blocks"]),
    "column '{name}' is no factor: it is": (["constant columns"], ["better", "named factors"]),
    "column '{name}' is no factor: it repeats the seed": (["constant columns"], ["better"]),
    "column '{name}' is no factor: it repeats the run": (["constant columns"], ["better"]),
    "column '{name}' was not read, as asked": (["ignored column"], ["named factors", "better"]),
    "column '{name}' was not read: it": (["named factors"], ["ignored column", "better"]),
    "column 'base' is a factor": (["base as a factor"], ["better", "stored"]),
    "columns '{a}' and": (["aliased, as told"], ["square", "base as a factor"]),
    "reference of {factor}: {level}, the first": (["named levels"], ["named reference", "better", "stored"]),
    "reference of {factor}: {level}, chosen": (["stored, other reference"], ["named reference", "stored", "study"]),
    "what is declared was given now": (["stored, declared now"], ["stored", "pooled"]),
    "runs {names} of one cell share": (["shared seed"], ["better", "alike runs"]),
    "runs {a} and {b} of one cell have": (["alike runs"], ["better", "shared seed", "alike"]),
    "{runs}: no answers for": (["a benchmark less"], ["better", "missing"]),
    "{benchmark}: {1} of {30} questions left out": (["a question less"], ["better", "a benchmark less"]),
    "{run}: answers to {0} of": (["other questions"], ["better", "a question less"]),
    "{1} of {12} planned runs have not": (["pending"], ["study", "missing"]),
    "no run has finished with": (["lost level"], ["study", "pending"]),
    "{run}: {what}; the run is left out": (["torn"], ["study", "missing"]),
    "{folder}: left out": (["copied"], ["study", "torn"]),
    "training questions found": (["overlap"], ["study"]),
    "runs trained with {what} are pooled": (["other processes"], ["study", "halved"]),
    "{run}: only {0.1} %": (["still"], ["study", "halved"]),
    "Accuracy on {where}, in points": (["study", "better"], ["one cell", "untrained only"]),
    "{effect} raises accuracy": (["study", "better"], ["worse", "alike"]),
    "{effect} lowers accuracy": (["worse", "all worse"], ["better", "alike"]),
    "{effect} makes no difference": (["no difference"], ["better", "named levels", "alike"]),
    "the effect of {effect} is not": (["named levels", "alike"], ["better", "no difference"]),
    "effects depend on each other": (["interaction"], ["square", "better"]),
    "training with everything off": (["study"], ["better", "diverged, no base", "one seed"]),
    "{cell} is shown to beat": (["better", "worse", "interaction"], ["add one", "named levels", "one cell"]),
    "no cell is shown": (["add one"], ["better", "worse", "one cell"]),
    "{cell} scores": (["better", "untrained only"], ["study", "square"]),
    "{1} of {12} runs diverged": (["diverged"], ["study", "missing"]),
    "{1} of {12} runs are missing": (["missing"], ["study", "diverged"]),
    "{4 cells}": (["study", "better"], []),
    "{benchmark}: {40 questions},": (["study", "better"], []),
    "smallest effect detected": (["study", "better"], ["untrained only"]),
    "{benchmark}: a tenth more compute": (["study"], ["better", "one seed"]),
    "{benchmark}: largest part": (["better"], ["study"]),
    "{benchmark}: F test": (["study", "square"], ["unbalanced", "missing", "one seed"]),
    "a component that was on": (["study"], ["better"]),
    "runs that diverged score as": (["diverged"], ["study", "diverged, zero"]),
    "runs that diverged score 0": (["diverged, zero"], ["study", "diverged"]),
    "runs that diverged are left out": (["diverged, drop"], ["study", "diverged"]),
    "No component was on": (["better", "one cell"], ["study"]),
    "No effect can be": (["one cell", "untrained only"], ["study", "better"]),
    "No run diverged": (["study", "better"], ["diverged", "missing"]),
    "No answers are stored": (["better"], ["study"]),
    "No training logs": (["better"], ["study", "fresh"]),
    UNMATCHED: (["along"], ["fresh", "better"]),
    f"{UNMATCHED} {{command}}": (["study"], ["fresh", "along", "better"]),
    "baseline: {cell}": (["fresh"], ["study", "better"]),
    "training accuracy over fresh": (["fresh"], ["study"]),
    "training accuracy over the whole": (["study"], ["fresh", "better"]),
    "left out: {1} of the runs that diverged": (["diverged"], ["study", "missing"]),
    "left out: {1} of the runs that are missing": (["missing"], ["study", "diverged"]),
    "left out: {1} finished runs": (["no log of one"], ["study", "missing"]),
    "{20} questions of {benchmark} that every": (["along"], ["study"]),
    "the budget is what": (["along"], ["study"]),
    "left out, no checkpoint": (["along"], ["study"]),
    "Accuracy of every cell.": (["study", "better"], []),
    "Bar: mean over runs; each dot below it: one run; line": (["study"], ["one seed"]),
    "Bar: mean over runs; each dot below it: one run.": (["one seed"], ["study"]),
    "Effects.": (["study"], ["one cell"]),
    "Thin line": (["study"], ["one seed", "alike"]),
    "Thick": (["study"], ["one seed", "alike"]),
    "Grey band": (["study", "one seed"], ["one cell"]),
    "Colour and mark": (["study", "one seed"], ["one cell"]),
    "Beyond the scale": (["one seed, logs"], ["study"]),
    "Not drawn, far away: {": (["one seed, logs"], ["study"]),
    "Two-way interactions": (["study", "interaction"], ["better"]),
    "* adjusted p <": (["interaction"], ["square", "better"]),
    "No adjusted p is below": (["square"], ["interaction", "better"]),
    "Learning curves against {unit}; bands": (["study"], ["one seed, logs", "better"]),
    "Learning curves against {unit}.": (["one seed, logs"], ["study", "better"]),
    "Questions solved so far against {unit}; bands": (["solved"], ["study", "solved, one seed"]),
    "Questions solved so far against {unit}.": (["solved, one seed"], ["one seed, logs", "solved"]),
    "Share of the training questions with": (["solved", "solved, one seed"], ["study"]),
    "pass@k: the chance that k answers hold a right one.": (["study", "better"], []),
    "maj@k: the chance that the most frequent of k answers is right.": (["study"], ["better"]),
    "Dots: single runs; {bands}": (["study", "better"], ["one seed"]),
    "Dots: single runs.": (["one seed"], ["study", "better"]),
    "Accuracy on {20} held-out": (["along"], ["study"]),
    "Dots and thin lines: single runs; bands": (["along"], ["along, one seed", "study"]),
    "Dots and thin lines: single runs.": (["along, one seed"], ["along"]),
    "Accuracy against response length": (["study"], ["better"]),
    "Over the {8} trained cells, length": (["three factors, one seed"], ["study", "longer is better"]),
    "Over the {8} trained cells, those": (["longer is better"], ["study", "three factors, one seed"]),
    "Where an effect comes from": (["study", "better"], ["one cell"]),
    "Half-normal plot": (["four factors, one seed"], ["square"]),
    "Noise alone lies": (["four factors, one seed"], ["square"]),
    "A picture, no test.": (["four factors, one seed"], ["square"]),
}  # fmt: skip
ELSEWHERE = {  # sentence -> the test that prints it, and holds it back
    "{run}: {what}; left out of this benchmark until": "test_analysis_study.py",
    "{run}: {2} files of answers": "test_analysis_study.py",
    "{1} combinations are the same": "test_sweep_cells.py",
    "{task}: runs were measured with different": "test_analysis_tables.py",
    "{file}: written by an older version": "test_analysis_study.py",
    "cell {cell}: the sampler correction": "test_scale_numbers.py",
    "left out, their first measured point": "test_analysis_heldout.py",
    "pass@k: the chance that k answers to": "test_analysis_at_k.py",
    "maj@k: the chance that the most frequent of k answers is the right": "test_analysis_at_k.py",
    "no {maj}@k: ": "test_analysis_at_k.py",
    "Not drawn, far away: the untrained model, {29.6} at k": "test_analysis_plot.py",
    "Arrows: beyond the scale": "test_analysis_plot.py",
    "{95} % intervals on questions like these (two-way: seeds and questions), each by itself": "test_analysis_at_k.py",
    "{benchmark}: {4 answers} to a question": "test_analysis_at_k.py",
}


def form_of(start):
    """The sentence on the page that begins so: the whole one, else the shortest."""
    found = [f for f in forms() if f == start] or [f for f in forms() if f.startswith(start)]
    assert found, start
    return min(found, key=len)


def test_every_sentence_that_is_printed_stands_on_the_page(printed):
    every = forms()
    lost = {text: name for name, texts in printed.items() for text in texts
            if not any(matches(f, text) for f in every) and not re.fullmatch(FREE, text)}  # fmt: skip
    assert not lost, "\n".join(f"{name}: {text}" for text, name in lost.items())


def test_every_sentence_of_the_page_has_its_test():
    named = [form_of(start) for start in (*CASES, *ELSEWHERE)]
    assert sorted(named) == sorted(forms()), set(forms()) ^ set(named)


@pytest.mark.parametrize("start", list(CASES))
def test_a_sentence_is_printed_where_its_condition_holds_and_not_elsewhere(printed, start):
    form, (there, not_there) = form_of(start), CASES[start]
    longer = [f for f in forms() if f != form and f.startswith(form.rstrip("."))]  # a longer one is another sentence
    for name in (*there, *not_there):
        found = [t for t in printed[name] if matches(form, t) and not any(matches(f, t) for f in longer)]
        assert bool(found) == (name in there), (name, found)


def test_what_every_report_says_is_of_this_study_and_no_other(printed):
    """The sentences without a condition: each as it must read here, and no other reading of it."""
    every = "12 of 12 planned runs"
    told = {  # scenario -> what they say; with several benchmarks the average, or the one that was declared
        "study": ("embedded", {"embedded: 40 questions, 4 answers each"}, "4 cells", every, "3 seeds"),
        "better": ("b", {"b: 30 questions, 8 answers each"}, "2 cells", "6 runs", "3 seeds"),
        "macro": ("the macro average", {"x: 30 questions, 4 answers each", "y: 20 questions, 4 answers each"},
                  "4 cells", every, "3 seeds"),
        "one seed": ("embedded", {"embedded: 40 questions, 4 answers each"}, "4 cells", "4 of 4 planned runs",
                     "1 seed"),
        "answers of several numbers": ("b", {"b: 30 questions, 8 or 9 or 10 answers each"}, "2 cells", "6 runs",
                                       "3 seeds"),
        "missing": ("embedded", {"embedded: 40 questions, 4 answers each"}, "4 cells", "11 of 12 planned runs",
                    "3 seeds"),
    }  # fmt: skip
    for name, (where, asked, cells, runs, seeds) in told.items():
        found = printed[name]
        assert {t.partition(", in points:")[0] for t in found if t.startswith("Accuracy on ")} == {
            f"Accuracy on {where}"
        }, name
        assert {t for t in found if re.search(r" questions?, .*answers? each$", t) and "accuracy" not in t} == asked
        (design,) = (t for t in found if re.match(r"\d+ cells? \(", t))
        assert design.startswith(f"{cells} (") and f"), {runs}" in design and design.endswith(f", {seeds}"), design
    for name in ("one cell", "untrained only"):
        assert "Accuracy of every cell." in printed[name]  # there is always one, and it is the only picture of cells
    assert not any(t.startswith("Effects.") for t in printed["one cell"])


def test_numbers_in_sentences_are_the_declared_ones(printed):
    """No other confidence, threshold or margin than the declared one is in any sentence."""
    for name, percent, alpha in (("confidence 90 %", "90", "0.1"), ("study", "95", "0.05")):
        told = [p for t in printed[name] for p in re.findall(r"([0-9.]+) % interval", t)]
        assert told and set(told) == {percent}
        told = [p.rstrip(".") for t in printed[name] for p in re.findall(r"(?<!spread: )p (?:is )?below ([0-9.]+)", t)]
        assert told and set(told) == {alpha}


def test_what_is_said_of_seeds_and_of_weights_is_so(printed):
    """Seeds are spoken of only where there are several; every cell counts the same only without a model that weighs."""
    assert any("seeds included" in t for t in printed["alike"])
    assert not any("seeds included" in t for t in printed["one seed, alike"])
    assert any("but in effects marked *" in t for t in printed["unbalanced, add one"])
    assert not any("but in effects marked *" in t for t in printed["unbalanced"])
