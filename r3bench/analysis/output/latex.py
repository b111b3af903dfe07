"""Tables for a paper: booktabs, siunitx and threeparttable, broken up until they fit the page.

The widths of texts are estimated from those of Computer Modern, which is wider than the serif fonts of most styles.
What is too wide goes into another panel with the same rows, and what is too tall into another float. This is written
out here because pandas' Styler, which sets such tables, knows neither threeparttable nor widths, and takes longer to
import than all tables take to make.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from r3bench.analysis.output.frame import Column, Entry, Table
from r3bench.analysis.output.render import LONGEST_NOTE, latex_text, plain

Width = Literal["page", "column"]
POINTS_WIDE = {"page": 397.0, "column": 234.0}  # 5.5 in, 3.25 in
HEIGHT, PAGE = 430.0, 535.0  # of one float, without and with its notes; article on letter paper has 550
SIZE = 8.0  # of the font; set in points, so that it is the same in a 10 pt and a 12 pt document
GAP, PAIR, LINE, NOTE = 6.0, 2.0, 9.8, 8.6
LONG, CHUNK = 66.0, 8  # a word wider than this many points may be broken, after so many characters
MOST_FLOATS = 8  # LaTeX holds 18 that have no place yet, others of the document among them
TILDE = r"\textasciitilde{}"
PACKAGES = "booktabs, siunitx and threeparttable"
NUMBER = re.compile(r"[+-]?[\d,]*\d(\.\d+)?")
BELOW = re.compile(r"< [\d.]+")  # of a p
PERCENT = " %"
WITH_LIMITS = re.compile(r"([+-]?\d+(?:\.\d+)?) \(([+-]?\d+(?:\.\d+)?) to ([+-]?\d+(?:\.\d+)?)\)( ~)?")


@dataclass(frozen=True)
class _Set:
    """One column as it is set."""

    kind: Literal["text", "number", "pair"]
    heading: tuple[str, ...]  # lines, escaped
    spec: str  # of the tabular; WIDTH stands for that of a text column
    width: float  # natural, in points
    least: float  # a text column can be broken down to this
    first: tuple[str, ...]  # LaTeX of each row
    second: tuple[str, ...]  # of the line below each; '' without
    texts: tuple[Entry, ...] = ()  # of a column of texts, which are broken when its width is known


def to_latex(table: Table, width: Width = "page", label: str | None = None) -> str:
    """Floats that hold the table; the document needs booktabs, siunitx and threeparttable.

    Args:
        table: what to set.
        width: 'page' fits 5.5 in and the full width of a two-column page (`table*`); 'column' one column of 3.25 in.
        label: of the first float; `tab:KEY` if left out.
    """
    columns = [_column(table, i) for i in range(len(table.columns))]
    room = POINTS_WIDE[width]
    whole = max([i + 1 for i, c in enumerate(table.columns) if c.benchmark] or [1])
    panels = _panels(columns, room, whole)
    lines = [f"% needs the packages {PACKAGES}"]
    name = label or f"tab:{re.sub(r'[^a-z0-9]+', '-', table.key.lower()).strip('-') or 'table'}"
    floats, used = _floats(panels, len(table.rows), room)
    notes = _notes(table.notes, room, PAGE - used)
    floats += [[] for _ in notes[1:]]  # more notes than the last one has room for
    environment = "table*" if width == "page" else "table"
    for number, parts in enumerate(floats):
        title = _breakable(table.title) + (" (continued)" if number else "")
        lines += [rf"\begin{{{environment}}}[tp]", r"\centering\fontsize{8}{9.6}\selectfont\setlength{\tabcolsep}{0pt}"]
        if number:
            lines.append(r"\addtocounter{table}{-1}")
        heading = [rf"\caption{{{title}}}", rf"\label{{{name}{f'-{number + 1}' if number else ''}}}"]
        below = notes[number + len(notes) - len(floats)] if number >= len(floats) - len(notes) else []
        for n, (panel, rows) in enumerate(parts):
            lines += [r"\begin{threeparttable}", *(heading if n == 0 else []), *_tabular(panel, rows, room)]
            lines += _tablenotes(below) if n == len(parts) - 1 else []
            lines.append(r"\end{threeparttable}" + (r"\par\medskip" if n < len(parts) - 1 else ""))
        if not parts:
            empty = [r"\begin{tabular*}{\linewidth}{@{}l@{\extracolsep{\fill}}l@{}}", r"\toprule\end{tabular*}"]
            lines += [r"\begin{threeparttable}", *heading, *empty, *_tablenotes(below), r"\end{threeparttable}"]
        lines.append(rf"\end{{{environment}}}")
    return "\n".join(lines) + "\n"


def _tablenotes(texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    return [r"\begin{tablenotes}[flushleft]\fontsize{7}{8.4}\selectfont\setlength{\labelsep}{0pt}",
            *(rf"\item {_breakable(text, LONGEST_NOTE)}" for text in texts), r"\end{tablenotes}"]  # fmt: skip


def _notes(texts: Sequence[str], room: float, left: float) -> list[list[str]]:
    """Notes below the last float, which has so many points of height left, and in floats of their own behind it."""
    found: list[list[str]] = [[]]
    for text in texts:
        height = NOTE * math.ceil(0.9 * text_width(plain(text, LONGEST_NOTE)) / room)
        if height > left and (found[-1] or len(found) == 1):
            found.append([])
            left = PAGE - 4 * LINE
        found[-1].append(text)
        left -= height
    return found


def joined(texts: Sequence[str]) -> str:
    """Several tables in one text, which makes LaTeX place its floats before it has too many to hold."""
    lines, waiting = [], 0
    for line in "\n".join(texts).split("\n"):
        if line.startswith((r"\begin{table}", r"\begin{table*}")):  # not what is inside: tabular, tablenotes
            waiting += 1
            if waiting % MOST_FLOATS == 0:
                lines.append(r"\clearpage")
        lines.append(line)
    return "\n".join(lines)


def text_width(text: str) -> float:
    """Width of plain text in points at 8 pt; at least that in Computer Modern."""
    em = {**dict.fromkeys("iljtf.,:;'|!()[] I", 0.40), **dict.fromkeys("mwMW@%", 1.05), **dict.fromkeys("+<>=±", 0.8)}
    return SIZE * sum(em.get(c, 0.72 if c.isupper() else 0.56) for c in text)


def _pieces(text: str, longest: int) -> list[str]:
    """Plain text cut where a line may end: at spaces, which end a piece, behind signs, in very long words."""
    pieces: list[str] = []
    for word in re.findall(r"[^ ]* ?", plain(text, longest)):
        parts = [word] if text_width(word) <= LONG else re.findall(r"[^_=+/:.-]+[_=+/:.-]*|[_=+/:.-]+", word)
        for part in parts:
            step = len(part) if text_width(part) <= LONG else CHUNK
            pieces += [part[i : i + step] for i in range(0, len(part), max(step, 1))]
    return [piece for piece in pieces if piece]


def _breakable(text: str, longest: int = 200) -> str:
    """Escaped text with signs as they are set, and breaks allowed in what is too long for a narrow column."""
    shown = "".join(
        latex_text(piece, longest) + ("" if piece.endswith(" ") else r"\allowbreak{}")
        for piece in _pieces(text, longest)
    ).removesuffix(r"\allowbreak{}")
    return re.sub(r"(?<![\w}])-(?=\d)", "$-$", shown.replace("+-", r"$\pm$"))


def _lines(text: str, width: float) -> list[str]:
    """Plain text in lines that take about the width."""
    lines = [""]
    for piece in _pieces(text, 200):
        if lines[-1] and text_width((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return lines


def _heading(name: str, room: float) -> list[str]:
    """Lines of a heading, broken at spaces and in long words; plain text."""
    lines = [""]
    for word in plain(name, 60).split(" "):
        for piece in [word[i : i + 14] for i in range(0, len(word), 14)] or [""]:
            joined = f"{lines[-1]} {piece}".strip() if piece == word or word.startswith(piece) else None
            if joined is not None and text_width(joined) <= max(room, 30.0):
                lines[-1] = joined
            else:
                lines.append(piece)
    return [line for line in lines if line] or [""]


def _column(table: Table, index: int) -> _Set:
    column, entries = table.columns[index], [row[index] for row in table.rows]
    filled = [e for e in entries if e.text not in ("-", "")]
    if index and column.align == "right" and filled:
        if any(e.spread is not None for e in filled) and all(NUMBER.fullmatch(e.text) for e in filled):
            return _pair(column, entries)
        if all(WITH_LIMITS.fullmatch(e.text) or NUMBER.fullmatch(e.text) for e in filled) and any(
            WITH_LIMITS.fullmatch(e.text) for e in filled
        ):
            return _limits(column, entries)
        if all(e.text.endswith(PERCENT) and NUMBER.fullmatch(e.text.removesuffix(PERCENT)) for e in filled):
            bare = [replace(e, text=e.text.removesuffix(PERCENT)) for e in entries]
            return _numbers(replace(column, name=f"{column.name}, %"), bare)
        if all(NUMBER.fullmatch(e.text) or BELOW.fullmatch(e.text) for e in filled):
            return _numbers(column, entries)
    return _words(column, entries, index == 0)


def _words(column: Column, entries: Sequence[Entry], first: bool) -> _Set:
    natural = max([text_width(plain(e.text)) for e in entries] or [0.0]) + 4
    pieces = [text_width(piece) for e in entries for piece in _pieces(e.text, 200)]
    least = min(natural, max([80.0 if first else 55.0, *(p + 2 for p in pieces)]))
    heading = _heading(column.name, max(min(natural, 110.0), least))
    over = max(text_width(line) for line in heading)
    return _Set("text", tuple(map(latex_text, heading)), r">{\raggedright\arraybackslash\hspace{0pt}}p{WIDTHpt}",
                max(natural, over), max(least, over), (), ("",) * len(entries), tuple(entries))  # fmt: skip


def _format(texts: Sequence[str]) -> tuple[str, float]:
    """siunitx table-format of numbers, and the width they take."""
    bare = [t.replace(",", "") for t in texts if NUMBER.fullmatch(t)]
    whole = max([len(t.lstrip("+-").partition(".")[0]) for t in bare] or [1])
    part = max([len(t.partition(".")[2]) for t in bare] or [0])
    sign = "+" if any(t.startswith("+") for t in bare) else "-" if any(t.startswith("-") for t in bare) else ""
    return f"{sign}{whole}.{part}", SIZE * (0.55 * (whole + part) + (0.8 if sign else 0) + 0.3 * (whole // 3 + 1))


def _s_column(form: str) -> str:
    return (
        f"S[table-format={form},detect-weight,retain-explicit-plus,group-digits=integer,"
        "group-separator={,},group-minimum-digits=4]"
    )


def _number(entry: Entry, text: str) -> str:
    if BELOW.fullmatch(text):
        return f"{{$<${text[2:]}}}"
    if not NUMBER.fullmatch(text):
        return "{--}" if text in ("-", "") else f"{{{latex_text(text)}}}"
    return (r"\bfseries " if entry.strong else "") + text.replace(",", "")


def _numbers(column: Column, entries: Sequence[Entry]) -> _Set:
    form, width = _format([e.text for e in entries])
    width = max([width, *(text_width(e.text) for e in entries if BELOW.fullmatch(e.text))])
    heading = _heading(column.name, width)
    over = max(width, *(text_width(line) for line in heading))
    texts = tuple(_number(e, e.text) for e in entries)
    return _Set("number", tuple(map(latex_text, heading)), _s_column(form), over, over, texts, ("",) * len(texts))


def _two(
    column: Column, entries: Sequence[Entry], texts: list[str], beside: list[str], wide: float, below: list[str],
    low: float,
) -> _Set:  # fmt: skip
    form, width = _format(texts)
    body = max(width + PAIR + wide, low)
    heading = _heading(column.name, body)
    over = max(body, *(text_width(line) for line in heading))
    first = tuple(f"{_number(e, t)} & {b}" for e, t, b in zip(entries, texts, beside, strict=True))
    return _Set("pair", tuple(map(latex_text, heading)),
                _s_column(form) + rf"@{{\extracolsep{{0pt}}\hspace{{{PAIR:g}pt}}}}l", over, over, first,
                tuple(below))  # fmt: skip


def _minus(text: str) -> str:
    return text.replace("-", "$-$")


def _limits(column: Column, entries: Sequence[Entry]) -> _Set:
    """Numbers with an interval in their text: the number aligned, the interval behind it."""
    found = [WITH_LIMITS.fullmatch(e.text) for e in entries]
    texts = [m[1] if m else e.text for m, e in zip(found, entries, strict=True)]
    beside = [f"({m[2]}, {m[3]})" + (" ~" if m[4] else "") if m else "" for m in found]
    shown = [_minus(b).replace("~", TILDE) for b in beside]
    return _two(column, entries, texts, shown, max(text_width(b.replace("-", "+")) for b in beside),
                [""] * len(texts), 0.0)  # fmt: skip


def _pair(column: Column, entries: Sequence[Entry]) -> _Set:
    """Numbers with what stands beside them, and their intervals in brackets on the line below."""
    beside, below, wide, low = [], [], 0.0, 0.0
    for entry in entries:
        if entry.spread is None:
            beside.append("")
            below.append("")
            continue
        line, (raised, lowered), within = entry.spread.parts()
        text = line.strip().replace("± ", r"$\pm$").replace("-", "$-$").replace("~", TILDE)
        if raised or lowered:
            text += rf"$^{{{raised}}}_{{{lowered}}}$" if raised else rf"$_{{{lowered}}}$"
        if entry.spread.letters:
            text += rf"\textsuperscript{{{entry.spread.letters}}}"
        beside.append(text)
        scripts = max(raised, lowered, key=len).replace("-", "+")
        aside = 0.85 * text_width(scripts) + 0.8 * text_width(entry.spread.letters)
        wide = max(wide, text_width(line.strip().replace("± ", "±")) + aside)
        inner = within.replace(" to ", ", ")
        below.append(
            rf"\multicolumn{{2}}{{c}}{{\fontsize{{7}}{{8}}\selectfont {_minus(inner).replace('~', TILDE)}}}"
            if inner
            else ""
        )
        low = max(low, 0.875 * text_width(inner.replace("-", "+")))
    return _two(column, entries, [e.text for e in entries], beside, wide, below, low)


def _panels(columns: Sequence[_Set], room: float, whole: int) -> list[list[_Set]]:
    """Columns side by side while they fit; every panel begins with the first one.

    The first `whole` columns are in as few panels as can be; those of panels behind are spread evenly, so that none is
    left with a column alone.
    """
    panels = _filled(columns, room)
    kept, seen = 0, 1
    while seen < whole:
        seen += len(panels[kept]) - 1
        kept += 1
    rest = [columns[0], *columns[seen:]]
    found, narrower = panels[kept:], room
    while len(found) > 1 and narrower > 0 and len(again := _filled(rest, narrower)) == len(found):
        found, narrower = again, narrower - LINE
    return panels[:kept] + found


def _filled(columns: Sequence[_Set], room: float) -> list[list[_Set]]:
    first, panels = columns[0], [[columns[0]]]
    used = first.least
    for column in columns[1:]:
        if used + GAP + column.least > room and len(panels[-1]) > 1:
            panels.append([first])
            used = first.least
        panels[-1].append(column)
        used += GAP + column.least
    return panels


def _text_widths(panel: Sequence[_Set], room: float) -> dict[int, float]:
    """Index in the panel -> width of its text columns, which share what the others leave."""
    texts = {i: c for i, c in enumerate(panel) if c.kind == "text"}
    spare = room - sum(c.least for c in panel) - GAP * (len(panel) - 1)
    wanted = {i: c.width - c.least for i, c in texts.items()}
    share = min(1.0, max(spare, 0.0) / max(sum(wanted.values()), 1e-9))
    return {i: c.least + share * wanted[i] for i, c in texts.items()}


def _row_lines(panel: Sequence[_Set], widths: dict[int, float], row: int) -> float:
    """Height of a row in lines."""
    lines = [float(len(_lines(panel[i].texts[row].text, 0.92 * width))) for i, width in widths.items()]
    return max([*lines, 1.95 if any(c.second[row] for c in panel) else 1.0])


def _text(entry: Entry, width: float, below: bool | None) -> str:
    """A text in its column: all of it, or (`below`) its first line or the rest."""
    text = entry.text
    if below is not None:
        lines = _lines(text, 0.92 * width)
        text = "".join(lines[1:]) if below else lines[0]
    shown = "--" if text == "-" else _breakable(text)
    return rf"\textbf{{{shown}}}" if entry.strong and shown else shown


def _floats(panels: list[list[_Set]], rows: int, room: float) -> tuple[list[list[tuple[list[_Set], range]]], float]:
    """Panels, cut where they are too tall, gathered into floats; and the height of the last one."""
    floats: list[list[tuple[list[_Set], range]]] = [[]]
    used = 0.0
    for panel in panels:
        widths, head = _text_widths(panel, room), LINE * (3 + max(len(c.heading) for c in panel))
        whole = head + LINE * sum(_row_lines(panel, widths, r) for r in range(rows))
        if floats[-1] and used + whole > HEIGHT:
            floats.append([])
            used = 0.0
        start, used = 0, used + head
        for row in range(rows):
            height = LINE * _row_lines(panel, widths, row)
            if used + height > HEIGHT and row > start:
                floats[-1].append((panel, range(start, row)))
                floats.append([])
                start, used = row, head
            used += height
        floats[-1].append((panel, range(start, rows)))
    return floats, used


def _tabular(panel: Sequence[_Set], rows: range, room: float) -> list[str]:
    widths = _text_widths(panel, room)
    between = rf"@{{\extracolsep{{\fill}}\hspace{{{GAP:g}pt}}}}"
    specs = [c.spec.replace("WIDTH", f"{widths[i]:.1f}") if c.kind == "text" else c.spec for i, c in enumerate(panel)]
    heads = []
    for i, column in enumerate(panel):
        text, align = column.heading[0], "l" if column.kind == "text" else "c"
        if len(column.heading) > 1:
            text = rf"\shortstack[{align}]{{" + r" \\ ".join(column.heading) + "}"
        after = "@{}" if i == len(panel) - 1 else rf"@{{\hspace{{{GAP:g}pt}}}}"
        heads.append(rf"\multicolumn{{{2 if column.kind == 'pair' else 1}}}{{@{{}}{align}{after}}}{{{text}}}")
    body = []
    for row in rows:
        two = any(c.second[row] for c in panel)
        first = [_text(c.texts[row], widths[i], False if two else None) if c.kind == "text" else c.first[row]
                 for i, c in enumerate(panel)]  # fmt: skip
        body.append(" & ".join(first) + r" \\")
        if two:
            empty = {"pair": " & "}
            below = [
                _text(c.texts[row], widths[i], True) if c.kind == "text" else c.second[row] or empty.get(c.kind, "")
                for i, c in enumerate(panel)
            ]
            body.append(" & ".join(below) + r" \\[1pt]")
    return [
        rf"\begin{{tabular*}}{{\linewidth}}{{@{{}}{between.join(specs)}@{{}}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular*}",
    ]
