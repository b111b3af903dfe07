"""Makes the pictures of the pages from a finished study: `python docs/make/pictures.py runs/quickstart [before.html]`.

`before.html` is a report of the same study by an older version, to be set beside today's.

Needs Chromium, pdflatex with booktabs, siunitx and threeparttable, and pdftoppm. Every picture is of what a command
writes: `report`, `plot`, `tables --layout wide --format latex` and `status`.
"""

import base64
import html
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "analysis"))
from browser import opened  # noqa: E402, the tests' own

PICTURES = ROOT / "docs" / "pictures"
PAPER = r"""\documentclass{article}
\usepackage[textwidth=5.5in]{geometry}
\usepackage[T1]{fontenc}
\usepackage{array,booktabs,siunitx,threeparttable}
\pagestyle{empty}
\begin{document}
\input{table.tex}
\end{document}
"""
TERMINAL = """<!DOCTYPE html><html><meta charset="utf-8"><title>status</title><body style="margin:0">
<pre style="margin:0;padding:1rem 1.2rem;width:max-content;background:#1b1f23;color:#e8e8e8;font:15px/1.4 monospace">
$ r3bench {arguments}
{text}</pre></body></html>"""


def r3bench(*arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-c", "from r3bench.cli import main; main()", *arguments]
    wide = os.environ | {"COLUMNS": "100"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=wide).stdout


def shot(page: Path, width: int, height: int | None, folder: Path, scheme: str = "light") -> Image.Image:
    """The upper part of a page, or with height None all that its body holds."""
    with opened(page, folder / f"profile-{width}-{scheme}") as tab:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        if height is None:
            width, height = tab.evaluate("(e => [e.offsetWidth, e.offsetHeight])(document.body.firstElementChild)")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        drawn = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    return Image.open(io.BytesIO(base64.b64decode(drawn["data"]))).convert("RGB")


def printed(table: str, folder: Path) -> Image.Image:
    """A LaTeX table on its page, without the margins."""
    (folder / "table.tex").write_text(table, encoding="utf-8")
    (folder / "page.tex").write_text(PAPER, encoding="utf-8")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "page.tex"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["pdftoppm", "-r", "160", "-png", "-singlefile", "page.pdf", "page"], cwd=folder, check=True)
    image = Image.open(folder / "page.png").convert("RGB")
    left, top, right, bottom = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox() or (0,) * 4
    return image.crop((left - 16, top - 16, right + 16, bottom + 16))


def beside(images: list[Image.Image], gap: int = 24, ground: str = "white") -> Image.Image:
    """Pictures in a row, their upper ends level."""
    size = sum(i.width for i in images) + gap * (len(images) - 1), max(i.height for i in images)
    found, left = Image.new("RGB", size, ground), 0
    for image in images:
        found.paste(image, (left, 0))
        left += image.width + gap
    return found


def halved(image: Image.Image) -> Image.Image:
    """Half as wide and tall."""
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def save(image: Image.Image, name: str) -> None:
    """As a small PNG."""
    PICTURES.mkdir(exist_ok=True)
    few = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # rare colours stay
    few.save(PICTURES / f"{name}.png", optimize=True)


def main(study: str, before: str | None = None) -> None:
    where = ["--runs", str(Path(study).resolve().parent)]
    name = Path(study).name
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        r3bench("report", name, *where, "--no-figures", "--out", str(folder / "report.html"))
        save(shot(folder / "report.html", 1280, 1330, folder), "report")
        save(shot(folder / "report.html", 390, 1330, folder, "dark"), "report-phone")
        table = r3bench("tables", name, *where, "--layout", "wide", "--format", "latex", "--out", str(folder / "t"))
        save(printed(table, folder), "table")
        drawn = r3bench(
            "plot", name, "accuracy", "effects", "maj-at-k", *where, "--format", "png", "--out", str(folder)
        )
        save(beside([halved(Image.open(path).convert("RGB")) for path in drawn.split()]), "figures")
        if before is not None:
            pages = [shot(page, 1280, 2600, folder / str(i)) for i, page in
                     enumerate((Path(before).resolve(), folder / "report.html"))]  # fmt: skip
            save(beside([halved(page) for page in pages], ground="#888888"), "before-after")
        text = html.escape(r3bench("status", name, *where))
        (folder / "status.html").write_text(TERMINAL.format(arguments=f"status {name}", text=text), encoding="utf-8")
        save(shot(folder / "status.html", 1100, None, folder), "status")


if __name__ == "__main__":
    main(*sys.argv[1:])
