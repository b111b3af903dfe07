"""How a report looks in a browser, by width and colour scheme: nothing cut off, nothing shifted, nothing inaccessible.

Slow: `pytest -m slow tests/analysis/test_analysis_look.py`, with Chromium. The check of accessibility also needs
axe-core: `npm install --no-save axe-core` here or in a folder above, or AXE=/path/to/axe.min.js.
"""

import base64
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, chromium, opened
from PIL import Image
from synthetic import Spec, make_study

from r3bench.analysis import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no chromium: apt-get install chromium"),
]
WIDTHS, SCHEMES = (1440, 1280, 390), ("light", "dark")
BASE = {"light": (255, 255, 255), "dark": (21, 24, 27)}  # colour of the page


def axe() -> Path | None:
    """axe-core's script, if it is somewhere here."""
    named = os.environ.get("AXE")
    places = [Path(named)] if named else []
    folders = [Path.cwd(), *Path.cwd().parents]
    places += [folder / "node_modules" / "axe-core" / "axe.min.js" for folder in folders]
    return next((place for place in places if place.is_file()), None)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The report of a study of eight cells on two benchmarks, opened."""
    spec = Spec(
        factors={f: ["off", "on"] for f in ("replay", "ranking", "reflection")}, metrics=True, diverged=[(1, 0)],
        benchmarks={"embedded": 30, "amc": 20}, samples=2, seeds=(0, 1, 2),
    )  # fmt: skip
    study = make_study(tmp_path_factory.mktemp("runs") / "demo", spec)
    texts = {f"q{i:04d}": f"What is {i} + {i}?" for i in range(30)}
    path = write_report(study, tmp_path_factory.mktemp("report"), figures=False, problems=lambda task, runs: texts)
    with opened(path, tmp_path_factory.mktemp("profile")) as found:
        yield found


def show(page: Page, width: int, scheme: str) -> None:
    """The page at a width, in a colour scheme."""
    page.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call("Emulation.setScrollbarsHidden", hidden=True)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)


def picture(page: Page) -> Image.Image:
    """The whole page, as it is drawn."""
    size = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    shot = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_everything_is_inside_and_in_its_place(page: Page, width: int, scheme: str) -> None:
    show(page, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && !e.closest('.table, svg'))
      .filter(e => { const b = e.getBoundingClientRect(); return b.left < -1 || b.right > innerWidth + 1; })
      .map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []
    acted = """[...document.querySelectorAll('#tables th')].filter(e => e.textContent === 'acted')
      .map(e => e.getBoundingClientRect()).map(b => b.left >= 0 && b.right <= innerWidth)"""
    assert page.evaluate(acted) == [True] * 3  # of the average and of both benchmarks, without scrolling
    answer = page.evaluate("document.querySelector('.answer').getBoundingClientRect().bottom + scrollY")
    assert answer < 900, "the answer isn't on the first screen"
    tops = page.evaluate("[...document.querySelectorAll('#effects figure')].map(e => e.getBoundingClientRect().top)")
    assert (len(set(tops)) < len(tops)) == (width > 1000), "figures: side by side where there is room"
    cued = """[...document.querySelectorAll('.table')].map(e =>
      [e.scrollWidth > e.clientWidth + 1, getComputedStyle(e, '::before').content.includes('goes on')])"""
    cues = page.evaluate(cued)
    assert cues and all(scrolls == told for scrolls, told in cues)
    assert any(scrolls for scrolls, _ in cues) or width > 1000


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_drawn_in_its_colours_and_the_same_each_time(page: Page, width: int, scheme: str) -> None:
    show(page, width, scheme)
    first, again = picture(page), picture(page)
    assert first.size == again.size and first.size[0] == width
    assert sum(a != b for a, b in zip(first.tobytes(), again.tobytes(), strict=True)) < 0.001 * len(first.tobytes())
    colours = first.getcolors(1 << 24)
    assert colours is not None and max(colours)[1] == BASE[scheme]
    ground = max(colours)[0] / (first.size[0] * first.size[1])
    assert 0.6 < ground < 0.97, "an empty page, or one covered by something"
    drawn = {colour for _, colour in colours}
    cells = [(0, 114, 178), (213, 94, 0), (0, 158, 115)]  # the first three of the key
    assert all(any(max(abs(a - b) for a, b in zip(c, d, strict=True)) < 4 for d in drawn) for c in cells)


def test_colours_of_a_cell_are_those_of_the_key_in_every_figure(page: Page) -> None:
    show(page, 1280, "light")
    keys = page.evaluate("[...document.querySelectorAll('.key li')].map(e => e.textContent.trim())")
    assert len(keys) == len(set(keys)) == 9
    fills = page.evaluate("[...document.querySelectorAll('.key polygon')].map(e => e.getAttribute('fill'))")
    figures = page.evaluate("[...document.querySelectorAll('figure')].map(e => e.outerHTML.toLowerCase())")
    of_cells = [f for f in figures if "accuracy in points" in f or "training accuracy against" in f]
    assert len(of_cells) == 3
    for figure in of_cells:
        assert all(fill.lower() in figure for fill in fills[1:7])
        assert "legend" not in figure  # one key for all


def test_it_prints_whole(page: Page, tmp_path: Path) -> None:
    show(page, 1280, "light")
    page.call("Emulation.setEmulatedMedia", media="print")
    folds = """[...document.querySelectorAll('details:not(.sample)')].map(d =>
      d.lastElementChild.getBoundingClientRect().height > 0)"""
    found = page.evaluate(folds)
    assert found and all(found), "what is folded up isn't printed"
    assert not page.evaluate("document.querySelector('#filter').checkVisibility()")
    assert not page.evaluate("document.querySelector('nav').checkVisibility()")
    data = page.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
    page.call("Emulation.setEmulatedMedia", media="")
    (tmp_path / "r.pdf").write_bytes(base64.b64decode(data))
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext: apt-get install poppler-utils")
    command = ["pdftotext", "-bbox", str(tmp_path / "r.pdf"), "-"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wide = float(re.findall(r'<page width="([0-9.]+)"', words)[0])
    ends = [float(v) for v in re.findall(r'xMax="([0-9.]+)"', words)]
    assert len(ends) > 500 and max(ends) < wide - 20, "something runs off the paper"
    assert "verdict</word>" in words and "tokens/answer</word>" in words


@pytest.mark.skipif(axe() is None, reason="no axe-core: npm install --no-save axe-core")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_inaccessible(page: Page, width: int, scheme: str) -> None:
    show(page, width, scheme)
    script = axe()
    assert script is not None
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.evaluate(script.read_text(encoding="utf-8") + ";0")
    run = "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 150))]))"
    found = page.call("Runtime.evaluate", expression=run, returnByValue=True, awaitPromise=True)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = false; })")
    assert found["result"]["value"] == []
