"""The report: valid, self-contained, accessible, safe, and usable in a browser."""

import base64
import hashlib
import re
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from browser import chromium, opened
from synthetic import Spec, make_study

from r3bench.analysis import analyze, load_study, write_report
from r3bench.analysis.figures.effect_plots import forest
from r3bench.analysis.output.tables import study_tables
from r3bench.analysis.report.answers import visible
from r3bench.analysis.report.page import SCRIPT, render_report
from r3bench.analysis.statistics.curves import band, cell_curves, curve_notes, matched, run_curve, smooth
from r3bench.analysis.statistics.effects import effects
from r3bench.files import read_json, write_json
from r3bench.seals import sealed

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{ 7*7 }} \\input{/etc/pw}"
    " \u202egnisrever\u202c </pre></details><h1>out</h1>"
)
LEVEL = "\"'><b onclick=x>"


def hostile_problems(task, runs):
    """The questions' texts, as an evaluation finds them."""
    assert task == "amc" and len(runs) == 9 and all((run / "run.json").is_file() for run in runs)
    return {f"q{i:04d}": f"Question {i}: \"'</script>{HOSTILE}" for i in range(20)}


@pytest.fixture(scope="module")
def hostile_study(tmp_path_factory):
    spec = Spec(
        factors={"replay": ["off", "on"], "ranking": ["off", "on"], "reflection": ["off", LEVEL]}, metrics=True,
        diverged=[(1, 0)],
        benchmarks={"embedded": 30, "amc": 20}, response=HOSTILE + "x" * 1_000_000, samples=2, seeds=(0, 1),
        analysis={"question": "<b>Does it help?</b>"},
    )  # fmt: skip
    return make_study(tmp_path_factory.mktemp("runs") / "demo", spec)


@pytest.fixture(scope="module")
def report(hostile_study, tmp_path_factory):
    return write_report(hostile_study, tmp_path_factory.mktemp("report"), problems=hostile_problems)


@pytest.fixture(scope="module")
def text(report):
    return report.read_text(encoding="utf-8")


def test_it_is_valid_html_with_unique_ids(text):
    html5lib = pytest.importorskip("html5lib")
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    tree = parser.parse(text)
    ids = [e.get("id") for e in tree.iter() if e.get("id")]
    assert len(ids) == len(set(ids)) > 10
    anchors = [e.get("href") for e in tree.iter("a")]
    assert anchors and all(a.startswith("#") and a[1:] in ids for a in anchors)
    figures = list(tree.iter("figure"))
    assert len(figures) == 10
    drawn = [f.find("div") for f in figures]
    assert all(d.get("role") == "img" and len(d.get("aria-label")) > 40 for d in drawn)
    assert all(t.find("caption") is not None for t in tree.iter("table"))


def test_it_needs_nothing_but_itself(text):
    bare = re.sub(r'"[^"]*"', '""', text.partition("</style>")[2])  # attributes without their values
    assert not re.search(r"<link|<iframe|@import|@font-face", text) and not re.search(r"<[a-z][^<>]*\son\w+=", bare)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)  # one, and the only one that the page lets run
    assert script == SCRIPT and text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.search(r'default-src \'none\'; [^"]*; script-src \'sha256-' + re.escape(digest) + "'\"", text)
    assert not re.search(r"https?:|fetch|XMLHttp|import|eval|innerHTML|src=", script)
    loads = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(u.startswith(("#", "data:image/png;base64,")) for u in loads)
    assert "default-src 'none'" in text


def test_hostile_answers_are_text_and_cut(text):
    assert "&lt;script&gt;document.title" in text and "{{ 7*7 }}" in text
    assert "\u202e" not in text and len(text) < 1_500_000
    assert "more characters]" in text
    assert "&lt;b&gt;Does it help?&lt;/b&gt;" in text
    assert visible("a\u202eb\x1bc\nd\te") == "abc\nd\te"


def test_questions_stand_with_right_and_wrong_answers_of_every_cell(text):
    answers = text.partition('<section id="answers">')[2].partition("</section>")[0]
    cells = re.findall(r'<option value="(\d+)">([^<]*)</option>', answers)
    assert [place for place, _ in cells] == [str(i) for i in range(9)]
    assert cells[0][1] == "untrained model" and any("&#34;&#39;&gt;&lt;b onclick=x&gt;" in name for _, name in cells)
    articles = re.findall(r'<article class="asked">(.*?)</article>', answers, re.S)
    assert len(articles) == 6 and all("Question " in a and "&#34;&#39;&lt;/script&gt;" in a for a in articles)
    shown = [re.findall(r'data-cell="(\d+)" data-verdict="(right|wrong)"', a) for a in articles]
    assert {pair for pairs in shown for pair in pairs} == {(str(i), v) for i in range(9) for v in ("right", "wrong")}
    assert all(len(pairs) == len(set(pairs)) for pairs in shown)  # one of each
    shares = [int(r) / int(n) for r, n in re.findall(r"; (\d+) of (\d+) answers are right", answers)]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1


def test_it_answers_with_the_numbers_of_the_analysis(hostile_study, text):
    found, _ = effects(load_study(hostile_study))
    main = next(e for e in found if e.kind == "main" and e.term == "replay")
    assert f"{100 * main.estimate:+.1f} points" in text
    assert "1 of 16 runs diverged" in text and "loss is nan at step 3" in text
    assert "ranking NEVER" in text and "smallest effect detected" in text


def test_figures_are_saved_as_pdf_and_png(report):
    names = sorted(p.name for p in (report.parent / "figures").iterdir())
    stems = {
        "accuracy",
        "curves-seconds",
        "curves-tokens",
        "effects",
        "half-normal",
        "interactions",
        "length",
        "maj-at-k",
        "pass-at-k",
        "questions",
    }
    assert names == sorted(f"{s}.{x}" for s in stems for x in ("pdf", "png"))
    assert (report.parent / "figures" / "effects.pdf").read_bytes().startswith(b"%PDF")
    assert (report.parent / "figures" / "effects.png").read_bytes().startswith(b"\x89PNG")


def test_same_study_gives_the_same_bytes(hostile_study, report, tmp_path):
    again = write_report(hostile_study, tmp_path / "again.html", figures=False, problems=hostile_problems)
    assert again.read_bytes() == report.read_bytes()
    assert list(tmp_path.iterdir()) == [again]


FILTERS = [  # field, what is chosen, what every answer then shown must be
    ("cell", "1", "d.dataset.cell === '1'"),
    ("verdict", "wrong", "d.dataset.cell === '1' && d.dataset.verdict === 'wrong'"),
    ("words", "owned", "d.textContent.includes('owned')"),
    ("words", "nowhere to be found", "false"),
]


def test_it_opens_and_can_be_clicked_through_in_chromium(report, tmp_path):
    if chromium() is None:
        pytest.skip("no chromium")
    with opened(report, tmp_path / "profile") as page:
        assert page.evaluate("document.title") == "demo"
        sections = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
        assert len(sections) == 10
        for section in sections:
            page.click(f"nav a[href='{section}']")
            assert page.evaluate("location.hash") == section
            top = page.evaluate(f"document.querySelector('{section}').getBoundingClientRect().top")
            assert -50 < top < page.evaluate("innerHeight")
        shown = "[...document.querySelectorAll('#answers details')].filter(d => d.checkVisibility()).length"
        everything = page.evaluate(shown)
        assert everything > 20
        for field, value, fits in FILTERS:
            page.evaluate(f"document.querySelector('#filter').elements.{field}.value = {value!r}")
            page.evaluate("document.querySelector('#filter').dispatchEvent(new Event('input', {bubbles: true}))")
            assert 0 < page.evaluate(shown) < everything or field == "words"
            visible = "[...document.querySelectorAll('#answers details')].filter(d => d.checkVisibility())"
            assert page.evaluate(f"{visible}.every(d => {fits})")
            assert page.evaluate("document.querySelector('#shown').textContent").startswith(str(page.evaluate(shown)))
        assert page.evaluate(shown) == 0  # no answer has these words
        page.evaluate("document.querySelector('#filter').reset()")
        page.evaluate("document.querySelector('#filter').dispatchEvent(new Event('input', {bubbles: true}))")
        assert page.evaluate(shown) == everything
        assert not page.evaluate("document.querySelector('#answers details').open")
        page.click("#answers details summary")
        assert page.evaluate("document.querySelector('#answers details').open")
        assert "<script>" in page.evaluate("document.querySelector('#answers details pre').textContent")
        page.click("#provenance details summary")
        assert page.evaluate("document.querySelectorAll('#provenance tbody tr').length") == 17
        for width in (1200, 390):  # a phone: no sideways scrolling of the page, figures fit
            page.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
            )
            wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.table, svg') &&"
            wide += " e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 200))"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, page.evaluate(wide)
            assert (
                page.evaluate("Math.max(...[...document.querySelectorAll('figure svg')].map(s => s.clientWidth))")
                <= width
            )
        colours = []
        for scheme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            drawn = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
            assert drawn == page.evaluate("getComputedStyle(document.body).color")
        assert colours[0] != colours[1]
        assert page.evaluate("document.title") == "demo"  # no script ran
        requested = [
            e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"
        ]
        assert all(u.startswith(("file://", "data:")) for u in requested)
        problems = [e for e in page.events if e.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
        assert not problems, problems
        assert len(page.call("Page.printToPDF")["data"]) > 10_000


def test_one_seed_and_one_cell_and_a_plain_table_also_get_a_report(tmp_path):
    one = make_study(tmp_path / "one", Spec(factors={"replay": ["off", "on"]}, seeds=(0,), base_model=False))
    page = write_report(one, tmp_path / "one.html", figures=False).read_text()
    assert "can&#39;t be estimated" in page and "No training logs" in page
    table = tmp_path / "t.csv"
    rows = [f"r{i},{i},{['off', 'on'][i % 2]},b,q{j},4,{(i * j) % 5}" for i in range(4) for j in range(6)]
    table.write_text("run,seed,trick,benchmark,question,samples,correct\n" + "\n".join(rows) + "\n")
    page = write_report(table, tmp_path / "t.html", figures=False).read_text()
    assert "No answers are stored" in page and "trick" in page
    assert len(analyze(table)["cells"]) == 2
    base = make_study(tmp_path / "base", Spec(seeds=()))
    assert "untrained model scores" in write_report(base, tmp_path / "c.html", figures=False).read_text()
    bare = make_study(tmp_path / "bare", Spec(factors={"replay": ["off"]}, seeds=(0,), base_model=False))
    assert "No effect can be estimated" in write_report(bare, tmp_path / "b.html", figures=False).read_text()


def test_a_single_run_is_a_study_of_one_cell(study, tmp_path):
    run = study / "replay-s0-000000000003"
    page = write_report(run, tmp_path / "r.html", figures=False).read_text()
    assert '<th scope="row">replay=on</th>' in page
    assert "trl 1.16.0" in page
    shown = re.findall(r'<details class="sample" data-cell="0" data-verdict="(\w+)">', page)
    assert {"right", "wrong"} == set(shown) and page.count("<details") == 2 + len(shown)  # notes, runs


def test_names_with_separators_in_them(tmp_path):
    rows = [
        f"r{i}{j}{s},{s},{i},{j},b,q{q},4,{(i + 2 * j + q + s) % 5}"
        for i in range(2) for j in range(2) for s in range(2) for q in range(5)
    ]  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("run,seed,a:b=c,<d|e>,benchmark,question,samples,correct\n" + "\n".join(rows) + "\n")
    page = write_report(path, tmp_path / "t.html", figures=False).read_text()
    assert "a:b=c" in page and "&lt;d|e&gt;" in page and "<d|e>" not in page


def test_nothing_of_the_trainer_is_imported(hostile_study, tmp_path):
    code = (
        "import sys; from pathlib import Path; from r3bench.analysis import write_report;"
        f"write_report(Path({str(hostile_study)!r}), Path({str(tmp_path)!r}), figures=False);"
        "print([m for m in ('torch', 'trl', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_curves_are_matched_on_generated_tokens(study):
    curves = cell_curves(load_study(study, metrics=True))
    assert list(curves) == ["all off", "ranking", "replay", "replay + ranking"]
    assert [len(v) for v in curves.values()] == [3] * 4
    found, budget = matched(curves, "tokens", "all off")
    assert budget == 60 * 1700
    for cell in found:
        grid = np.linspace(0, budget, 60)
        areas = [np.interp(grid, c.tokens, c.accuracy).mean() for c in curves[cell.label]]
        assert cell.area == pytest.approx(np.mean(areas))
        half = 4.302652729749464 * np.std(areas, ddof=1) / 3**0.5
        assert cell.area_high - cell.area == pytest.approx(half)
    replay = next(m for m in found if m.label == "replay")
    level = band("", curves["all off"], "tokens").mean.max()
    first = [c.tokens[np.argmax(c.accuracy >= level)] for c in curves["replay"]]
    assert replay.reached == 3 and abs(replay.to_peak - np.mean(first)) <= 1700
    assert replay.to_peak_low < replay.to_peak < replay.to_peak_high
    slow, *others = curves["replay"]
    slow = replace(slow, accuracy=np.minimum(slow.accuracy, level / 2))
    (replay,) = (
        m for m in matched({**curves, "replay": [slow, *others]}, "tokens", "all off")[0] if m.label == "replay"
    )
    assert (replay.reached, replay.to_peak_low, replay.to_peak_high) == (2, None, None)  # one may still have come


def test_logs_as_trl_writes_them_are_scaled_to_generated_tokens():
    log = [
        {"step": i, "elapsed": 2.0 * i, "num_tokens": 100.0 * i, "rewards/correctness/mean": i / 10}
        for i in range(1, 11)
    ]
    log.insert(3, {"step": 3, "elapsed": 6.0, "loss": 0.0})  # a line without an accuracy
    curve = run_curve(log, generated=500, seconds=99.0)
    assert curve.tokens[-1] == 500 and curve.tokens[0] == 50 and curve.seconds[-1] == 20
    assert curve.measure == "rewards/correctness/mean"
    np.testing.assert_allclose(smooth(np.array([1.0, 2, 3, 4]), 0.5), [1, 1.5, 2.5, 3.5])
    assert run_curve([{"step": 1, "loss": 1.0}], 10, 1.0) is None


def test_curves_say_what_they_are_of_and_what_they_leave_out(hostile_study, tmp_path):
    results = load_study(hostile_study, metrics=True)
    curves = cell_curves(results)
    changed, lost = curve_notes(results, curves)
    assert "whole batch" in changed and "components change by construction" in changed
    assert lost.startswith("left out: 1 of the runs that diverged (1 of ")
    page = write_report(hostile_study, tmp_path, figures=False).read_text()
    assert (
        page.count("left out: 1 of the runs") == 0 and page.count("Left out: 1 of the runs") == 2
    )  # figures; no table compares them
    fresh = {run: [{**line, "fresh/correct": 0.5} for line in log] for run, log in results.metrics.items()}
    page, _ = render_report(replace(results, metrics=fresh), hostile_study)
    assert page.count("left out: 1 of the runs") == 3 and page.count("Left out: 1 of the runs") == 2


def test_fresh_accuracy_is_used_where_every_run_logs_it(study):
    results = load_study(study, metrics=True)
    fresh = {run: [{**line, "fresh/correct": 0.25} for line in log] for run, log in results.metrics.items()}
    curves = cell_curves(replace(results, metrics=fresh))
    assert {c.measure for runs in curves.values() for c in runs} == {"fresh/correct"}
    assert curves["replay"][0].accuracy.tolist() == pytest.approx([0.25] * len(curves["replay"][0].accuracy))
    assert "fresh groups only" in curve_notes(results, curves)[0]
    one = next(run for run in fresh if run.startswith("replay"))
    curves = cell_curves(replace(results, metrics={**fresh, one: results.metrics[one]}))
    assert len({c.measure for runs in curves.values() for c in runs}) == 1  # never compared across measures
    assert curves["replay"][0].measure != "fresh/correct"


def test_halved_batches_are_told_in_the_tables(tmp_path):
    study = make_study(tmp_path / "demo")
    results = load_study(study)
    target = next(r for r in results.runs if r.run.startswith("replay-s1"))
    values = read_json(study / target.run / "run.json")
    values["train"]["halvings"] = 1
    write_json(study / target.run / "run.json", sealed(values))
    (note,) = [n for t in study_tables(load_study(study)) for n in t.notes if "micro-batch halved" in n]
    assert note.endswith(f": {target.run}")
    assert not [n for t in study_tables(results) for n in t.notes if "micro-batch halved" in n]


def test_pooled_numbers_of_processes_are_told_in_the_tables(tmp_path):
    study = make_study(tmp_path / "demo")
    results = load_study(study)
    assert not [n for n in results.notes if "processes" in n]
    target = next(r for r in results.runs if r.run.startswith("replay-s1"))
    values = read_json(study / target.run / "run.json")
    values["train"]["processes"] = 4
    values["train"]["notes"] = ["resumed from checkpoint-2 of 2 processes on 4"]
    write_json(study / target.run / "run.json", sealed(values))
    told = load_study(study)
    (note,) = [n for n in told.notes if "different numbers of processes are pooled" in n]
    assert note.endswith(f"; 4: 1 runs ({target.run})")
    shown = set(study_tables(told)[0].notes)
    assert {note, f"{target.run}: resumed from checkpoint-2 of 2 processes on 4"} <= shown


def test_a_full_disk_under_the_figures_is_an_error_of_the_disk(hostile_study, tmp_path):
    """matplotlib's PDF writer fails with an AttributeError when its file can't grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    results = load_study(hostile_study)
    picture = forest(effects(results, draws=0)[0], results.declared.margin)
    assert picture is not None
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            picture.save(tmp_path / "figures")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "figures" / f"{picture.name}.pdf")
    assert not list((tmp_path / "figures").iterdir())


@pytest.mark.parametrize("content", [b"", b"[1]", b"\0" * 500], ids=["empty", "short", "zeros"])
def test_a_torn_file_of_answers_leaves_a_report(tmp_path, content):
    study = make_study(tmp_path / "demo", Spec(seeds=(0, 1)))
    torn = sorted(study.glob("base-s0-*/eval/*/*.parquet"))[0]
    torn.write_bytes(content)
    page = write_report(study, tmp_path, figures=False).read_text(encoding="utf-8")
    assert (
        torn.name in page and "has other content than run.json says" in page
    )  # said, and the other run of the cell is shown


@pytest.mark.parametrize("key", ["commit", "config_hash", "started", "ended"])
def test_a_record_that_was_edited_is_named(tmp_path, key):
    study = make_study(tmp_path / "demo", Spec(seeds=(0, 1)))
    file = sorted(study.glob("base-s0-*/run.json"))[0]
    write_json(file, sealed({**read_json(file), key: 7}))
    page = write_report(study, tmp_path, figures=False).read_text(encoding="utf-8")
    assert f"run.json: {key}: got 7, expected a text" in page
    assert file.parent.name not in [run.run for run in load_study(study).runs]


def test_the_answer_is_short_and_every_effect_follows_in_words(hostile_study, text):
    answer = re.search(r'<p class="answer">(.*?)</p>', text, re.S)[1]
    assert len(answer.split(". ")) <= 3
    found, _ = effects(load_study(hostile_study))
    tested = [e for e in found if e.benchmark == found[0].benchmark and e.family == "primary"]
    words = re.search(r'<ul class="words">(.*?)</ul>', text, re.S)[1]
    assert len(tested) >= 2 and all(f"{100 * e.estimate:+.1f} points" in words for e in tested)
    undecided = sum(e.verdict(0.05) == "unresolved" for e in tested)
    assert (f"undecided for {undecided} of {len(tested)} effects" in answer) == bool(undecided)
    for effect in tested:
        assert (f"({100 * effect.estimate:+.1f})" in answer) or effect.verdict(0.05) == "unresolved"


def test_acted_stands_right_after_the_cell(text):
    head = next(h for h in re.findall(r"<thead><tr>(.*?)</tr>", text, re.S) if ">acted<" in h)
    assert re.findall(r">([^<>]+)</th>", head)[1] == "acted"
