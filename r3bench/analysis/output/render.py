"""Four renderings of one table. Whatever text a study holds, it comes out as text: nothing is markup."""

import csv
import html
import io
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, get_args

from r3bench.analysis.output.frame import Entry, Spread, Table
from r3bench.errors import ConfigError, nearest

Format = Literal["markdown", "latex", "csv", "html"]
SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv", "html": "html"}
LONGEST = 200  # characters of one table cell
LONGEST_NOTE = 1000  # characters of a note
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "{*}", "`": r"\textasciigrave{}",
}  # fmt: skip


def render(tables: Sequence[Table], to: str) -> str:
    """All tables in one text.

    Args:
        tables: what to render.
        to: 'markdown', 'latex' (see `latex.to_latex`), 'csv' (of the first table: one header, plain numbers) or 'html'.

    Raises:
        ConfigError: unknown format.
    """
    if to == "csv":
        return to_csv(tables[0])
    if to not in get_args(Format):
        raise ConfigError(f"format: got '{to}'{nearest(to, get_args(Format))}")
    from r3bench.analysis.output.latex import joined, to_latex

    writers = {"markdown": to_markdown, "latex": to_latex, "html": to_html}
    texts = [writers[to](table) for table in tables]
    return joined(texts) if to == "latex" else "\n".join(texts)


def plain(text: str, longest: int = LONGEST) -> str:
    """One line of visible text: control, bidirectional and line-breaking characters out, cut at a limit."""
    text = text[: 4 * longest]
    kept = "".join(" " if c in "\n\r\t" else c for c in text if c in "\n\r\t" or unicodedata.category(c)[0] != "C")
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


# what opens a heading, quote, list, code fence, rule or reference at the start of a note
BLOCK = re.compile(r"^(\d{0,9})([#>+=:.)-])(?=\s|#|>|=|-|$)")
OPENED = r"\1\\\2"


def _unlinked(match: re.Match[str]) -> str:
    """A scheme, `www` or `@` that GitHub would make a link of by itself: its first character as an entity."""
    return f"&#{ord(match[0][0])};{match[0][1:]}"


def to_markdown(table: Table) -> str:
    """GitHub-flavoured Markdown."""

    def cell(text: str, strong: bool = False, longest: int = LONGEST) -> str:
        text = plain(text, longest).strip()
        text = re.sub(r"([\\|`*\[\]~$]|[<>](?! )|(?<![a-z0-9])_|_(?![a-z0-9]))", r"\\\1", text).replace("&", "&amp;")
        text = re.sub(r"(?i)\b(https?|ftp|mailto|xmpp)(?=:)|\bwww(?=\.)|(?<=\w)@(?=[\w-]+\.\w)", _unlinked, text)
        return f"**{text}**" if strong else text

    lines = [f"### {cell(table.title)}", ""]
    lines.append("| " + " | ".join(cell(c.name) for c in table.columns) + " |")
    lines.append("|" + "|".join("---:" if c.align == "right" else ":---" for c in table.columns) + "|")
    lines += ["| " + " | ".join(_dressed(cell(e.text, e.strong), e.spread) for e in row) + " |" for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {BLOCK.sub(OPENED, cell(note, longest=LONGEST_NOTE))}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _dressed(text: str, spread: Spread | None) -> str:
    """A number with what stands beside it, as Markdown and HTML; everything in a spread is made of digits."""
    if spread is None:
        return text
    line, (raised, lowered), within = spread.parts()
    scripts = (f"<sup>{raised}</sup>" if raised else "") + (f"<sub>{lowered}</sub>" if lowered else "")
    letters = f"<sup>{spread.letters}</sup>" if spread.letters else ""
    return f"{text}{scripts}{letters}{line}{f' {within}' if within else ''}"


def to_csv(table: Table) -> str:
    """One header line and full-precision values; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(c.name for c in table.columns)
    for row in table.rows:
        writer.writerow([_csv_value(e) for e in row])
    return out.getvalue()


def _csv_value(entry: Entry) -> str:
    if entry.value is None:
        return "" if entry.text == "-" else entry.text
    return repr(entry.value) if isinstance(entry.value, float) else str(entry.value)


def to_html(table: Table) -> str:
    """A `<table>` with caption and header scopes, to be placed in a page."""
    head = "".join(f'<th scope="col">{html.escape(plain(c.name))}</th>' for c in table.columns)
    body = []
    for row in table.rows:
        cells = []
        for i, (entry, column) in enumerate(zip(row, table.columns, strict=True)):
            text = html.escape(plain(entry.text))
            text = _dressed(f"<strong>{text}</strong>" if entry.strong else text, entry.spread)
            kind = ' class="num"' if column.align == "right" else ""
            cells.append(f'<th scope="row">{text}</th>' if i == 0 else f"<td{kind}>{text}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f"<li>{html.escape(plain(note, LONGEST_NOTE))}</li>" for note in table.notes)
    return (
        f'<div class="table"><table><caption>{html.escape(plain(table.title))}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
    )  # fmt: skip


def latex_text(text: str, longest: int = LONGEST) -> str:
    """`plain` text with every character that LaTeX would read as a command made printable; others become '?'."""
    parts = []
    for character in unicodedata.normalize("NFKC", plain(text, longest)):
        if character in LATEX:
            parts.append(LATEX[character])
        elif " " <= character <= "~":
            parts.append(character)
        else:
            bare = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
            parts.append(bare if bare.isalnum() else "?")
    return "".join(parts)
