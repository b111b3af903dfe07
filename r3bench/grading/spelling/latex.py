"""The LaTeX that models and data sets write, in the one dialect that the grader reads. Text in, text out."""

import re
from collections.abc import Callable

from r3bench.grading.spelling.characters import ascii_text

MAX_LENGTH = 2000  # characters of an answer; longer ones are right only if they are the gold's text
_END = r"(?![a-zA-Z])"
_WRAPPERS = (("**", "**"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_NOTHING = (
    "left right bigl bigr bigg Bigl Bigr Biggl Biggr biggl biggr big Big Bigg middle displaystyle textstyle "
    "scriptstyle "
    "scriptscriptstyle limits nolimits tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge "
    "rm bf it sf tt em sl cal sc bfseries itshape rmfamily sffamily ttfamily mdseries upshape normalfont boldmath "
    "unboldmath mathstrut strut hfill hfil noindent centering nobreak allowbreak relax nonumber notag null par "
    "boldsymbol bm bold pmb mathsf mathnormal mathop mathord mathbin mathrel mathopen mathclose mathpunct mathinner "
    "underline uline underbrace overbrace smash ensuremath boxed fbox framebox mathbf mathit mathtt"
)
_SPACES = "quad qquad enspace enskip thinspace medspace thickspace negthinspace space"
_ARGUMENT = r"\s*\{[^{}]{0,60}\}"
_DROPPED = re.compile(
    r"(\\\\)"  # the end of a matrix row stays; without it here its second half would go with the space behind it
    rf"|\\(?:{'|'.join(sorted(_NOTHING.split(), key=len, reverse=True))}){_END}\*?"
    rf"|\\(?:textcolor|color|colorbox|definecolor)(?:\[[a-zA-Z]{{1,20}}\])?\s*\{{[^{{}}]{{1,30}}\}}"
    rf"|\\(?:[hv]?phantom|label|tag|hspace|vspace|mspace|footnote|rule)\*?{_ARGUMENT}"
    r"|\\(?:hskip|kern|mskip|mkern)\s*-?[\d.]+\s*[a-z]{2}"
    r"|\\!"
)
_SPACE = re.compile(rf"(\\\\)|\\[,;:> ]|~|\\(?:{'|'.join(_SPACES.split())}){_END}|\s+")
_TEXTS = (
    "text textbf textit textrm textsf texttt textsc textup textsl textmd textnormal emph mathrm mbox hbox operatorname"
)
_TEXT = re.compile(rf"\\(?:{'|'.join(sorted(_TEXTS.split(), key=len, reverse=True))}){_END}\*?\s*\{{([^{{}}]*)\}}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])(?=\s*(?:[-+=*/^)]|\\(?:times|cdot|div|approx)|\Z))")
_LAST_ROW = re.compile(r"\s*\\\\\s*\Z")
_TEXT_POWER = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\^\{(-?\d+)\}([^{}]*)\}")
_GROUP = re.compile(r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*(?<!\\)\}")  # one group, with groups two deep inside
_LEADING = re.compile(
    rf"\A(?:\s*(?:\\(?:therefore|because|implies|Rightarrow|Longrightarrow|Leftrightarrow|iff|rightarrow|to|"
    rf"leadsto|mapsto"
    rf"|quad){_END}|(?:=>|->|⟹|[:=]\s*(?=\S))))+\s*"
)
_TRAILING = re.compile(
    rf"\s*(?:\\(?:checkmark|blacksquare|square|Box|qed|qedsymbol|surd){_END}|\(?\s*\\text\{{\s*\}}\)?)\s*\Z"
)
_SYNONYMS = {  # command: what it is here
    "dfrac tfrac cfrac sfrac nicefrac flatfrac xfrac": "frac",
    "dbinom tbinom": "binom",
    "lbrace": "{",
    "rbrace": "}",
    "lbrack": "[",
    "rbrack": "]",
    "lparen": "(",
    "rparen": ")",
    "lvert rvert vert mvert": "|",
    "langle": "(",
    "rangle": ")",
    "le leqslant leqq eqslantless": "leq",
    "ge geqslant geqq eqslantgtr": "geq",
    "ne": "neq",
    "lt": "<",
    "gt": ">",
    "wedge": "land",
    "vee": "lor",
    "varnothing empty O": "emptyset",
    "varepsilon": "epsilon",
    "varphi": "phi",
    "vartheta": "theta",
    "varrho": "rho",
    "varsigma": "sigma",
    "varkappa": "kappa",
    "infin": "infty",
    "ast": "*",
    "cdotp centerdot bullet": "cdot",
    "colon ratio": ":",
    "coloneqq coloneq": "=",
    "tg tang": "tan",
    "ctg cotg": "cot",
    "arctg": "arctan",
    "cosec": "csc",
    "R reals Reals": "mathbb{R}",
    "N natnums": "mathbb{N}",
    "Z": "mathbb{Z}",
    "Q": "mathbb{Q}",
    "C cnums Complex": "mathbb{C}",
    "dots dotsc dotsb cdots ldotp": "ldots",
    "longrightarrow rightarrow": "to",
    "smallsetminus backslash": "setminus",
    "thickapprox simeq approxeq cong": "approx",
    "pound pounds textsterling": "£",
    "euro texteuro": "€",
    "yen textyen": "¥",
    "rupee": "₹",
    "cent textcent": "¢",
    "textdollar": "$",
    "textdegree degree": "^\\circ",
    "percent": "%",
    "textpercent": "%",
    "i imath": "i",
    "dd": "d",
}
_PLAIN = frozenset("{}[]()|<>*=:$%£€¥₹¢") | {"^\\circ", "d", "i"}
_SYNONYM = {
    name: ({"{": r"\{", "}": r"\}", "$": r"\$"}.get(to, to) if to in _PLAIN else "\\" + to)
    for names, to in _SYNONYMS.items()
    for name in names.split()
}
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_BLACKBOARD = re.compile(r"\\(?:mathbb|Bbb|mathds|mathbf)\s*\{?\s*([RNZQC])\s*\}?(?![a-zA-Z])")
_BOLD_REALS = re.compile(r"\\mathbf\s*\{\s*([RNZQ])\s*\}(?=\s*(?:\Z|\\(?:setminus|backslash|cup|cap)|[\^_-]))")
_MATRICES = re.compile(r"\\(begin|end)\s*\{(?:[pbB]?smallmatrix|[bB]?matrix|array)\*?\}")
_ARRAY = re.compile(r"\\begin\s*\{array\}\s*\{[lcr|\s@{}]{0,60}?\}")
_BRACKETED = re.compile(r"[(\[]\s*(\\begin\{pmatrix\}(?:(?!\\begin|\\end).)*\\end\{pmatrix\})\s*[)\]]", re.DOTALL)
_ONE_CELL = re.compile(r"\A\s*\\begin\{pmatrix\}\s*([^&\\]*(?:\\[a-zA-Z{}][^&\\]*)*)\\end\{pmatrix\}\s*\Z")
_ROW_END = re.compile(
    rf"\\\\\*?\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in|pc|mu|sp)\s*\]|\\(?:cr|newline|tabularnewline){_END}|"
    rf"\\hline{_END}"
)
_TRANSPOSED = re.compile(  # a row written across, for a column
    r"([\[(][^&]*,[^&]*[\])]|\\begin\{pmatrix\}(?:(?!\\\\)[^()\[\]])*&(?:(?!\\\\)[^()\[\]])*\\end\{pmatrix\})"
    r"\s*\^\s*\{?\s*(?:\\text\{\s*)?(?:T|\\top|\\intercal|t)\s*\}{0,2}"
)
_NESTED = re.compile(r"\[\s*(\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*)\s*\]")
_ALIGNED = re.compile(
    r"\\begin\s*\{((?:aligned|align|equation|gather|gathered|split|alignat|eqnarray|multline|math|displaymath)\*?)"
    r"\}(.*?)\\end\s*\{\1\}",
    re.DOTALL,
)

Replacement = str | Callable[["re.Match[str]"], str]
_SPELLING: tuple[tuple["re.Pattern[str]", Replacement], ...] = (
    (re.compile(r"\\frac\s*([\da-zA-Z])\s*([\da-zA-Z])(?![a-zA-Z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\\(?!frac|sqrt|text|left)[a-zA-Z]+)\s*(?=[\d{\\])"), r"\\frac{\1}"),
    (re.compile(r"\\frac(?:\s*(\d)|\s+([a-zA-Z]))\s*(?=[{\\])"), r"\\frac{\1\2}"),
    (re.compile(rf"(\\frac\s*{_GROUP.pattern})\s*(\d|\\(?!frac|sqrt|text|right|left)[a-zA-Z]+)"), r"\1{\2}"),
    (re.compile(r"\{\s*([-+])\s*\}"), r"\1"),
    (re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    (re.compile(r"(?<![\w}])\{\s*([^{}\\]+?)\s*\\over(?![a-zA-Z])\s*([^{}\\]+?)\s*\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\A\s*([^{}\\=]+?)\s*\\over(?![a-zA-Z])\s*([^{}\\=]+?)\s*\Z"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\root\s*\{?\s*(\w{1,9})\s*\}?\s*\\of\s*\{?(\w{1,20})\}?"), r"\\sqrt[\1]{\2}"),
    # meant so, though TeX sets one digit under it
    (re.compile(r"\\sqrt\s*(\[[^\[\]]{1,20}\])?\s*(\d+)"), r"\\sqrt\1{\2}"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]{1,20}\])?\s*\(([^()]*)\)"), r"\\sqrt\1{\2}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\{"), r"\\sqrt{"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*(\d+)"), r"\\sqrt{\1}"),
    (
        re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}|\A([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\Z"),
        r"\\binom{\1\3}{\2\4}",
    ),
    (re.compile(r"\^\s*\{\s*((?:\\prime\s*){1,3})\}|\^\s*(\\prime)(?![a-zA-Z])"), lambda m: "'" * m[0].count("prime")),
    (re.compile(r"\(\s*(\d+)\s*\)\s*(?=_)"), r"\1"),  # of a base
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<=\d)\s*\^\s*\{\s*(?:\\text\{)?\s*(?:st|nd|rd|th)\s*\}\}?"), ""),
    # a decimal comma: not before three digits, unless a zero is all that comes before it
    (re.compile(r"(?<![\d,.}])(\d+)\{,\}(?!\d{3}(?!\d))(\d+)(?![\d.,{])"), r"\1.\2"),
    (re.compile(r"(?<![\d,.}])0\{,\}(\d+)(?![\d.,{])"), r"0.\1"),
    (re.compile(r"(?<=\d)\{([,.])\}(?=\d)|(?<=\d)\\text\{([,.])\}(?=\d)"), r"\1\2"),
    (re.compile(r"(?<=\d)\\,?'(?=\d{3}(?!\d))|(?<=\d)'(?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<![\d./])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d./])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=[\w)}])\s*\^\s*([-+]\d+|\d{2,})(?![\d.])"), r"^{\1}"),
    (re.compile(r"(?<=[\w)}])\s*\^\s*\(([^()]{1,60})\)"), r"^{\1}"),
    (re.compile(r"(?<=[\w)}])\s*\^\s*([-+])\s*([a-zA-Z])"), r"^{\1\2}"),
    (re.compile(r"\^\{\+(?=\d)"), "^{"),
    (re.compile(r"(?<=\d)\s*(?:[xX×]|\\text\{\s*[xX]\s*\})\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\\times\s*\{10\}"), r"\\times 10"),
    (re.compile(r"\(\s*10\s*\)\s*\^|\{\s*10\s*\}\s*\^"), "10^"),
    (re.compile(r"(?<=\d)\s*\\text\{\s*[eE]\s*\}\s*\{?\s*([-+]?)0*(\d{1,4})(?!\d)\}?"), r"\\times 10^{\1\2}"),
    (
        re.compile(r"(?<=\d)[eE](?=[-+]?\d{1,4}(?!\d))([-+]?)0*(\d+)"),
        lambda m: rf"\times 10^{{{m[1].strip('+')}{m[2]}}}",
    ),
    (re.compile(r"\\?%|(?<=[\d}])\s*(?:\\text\{\s*)?(?:percent(?:age)?|per cent|pct)(?![a-zA-Z])\s*\}?"), "%"),
    (re.compile(r"(?<=\d)\s*\\text\{\s*(%)\s*\}"), r"\1"),
    (re.compile(r"\\not\s*="), r"\\neq "),
    (re.compile(r"\\not\s*\\in(?![a-zA-Z])"), r"\\notin "),
    (re.compile(r"!="), r"\\neq "),
    (re.compile(r"<=(?!>)"), r"\\leq "),
    (re.compile(r">="), r"\\geq "),
    (re.compile(r":="), "="),
)
_CIS = re.compile(
    r"(?:\\text\{\s*cis\s*\}|\\cis(?![a-zA-Z])|(?<![a-zA-Z\\])cis(?![a-zA-Z]))\s*(?:\(([^()]{1,80})\)|\{([^{}]"
    r"{1,80})\}|((?:\\frac\{[^{}]*\}\{[^{}]*\}|[\d.]*\\?[a-zA-Z]+|[\d.]+)(?:\s*\^\\circ)?))"
)
_QUANTITY = re.compile(r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}|\\(?:num|ang)\s*\{([^{}]*)\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{?(\d{1,20})\}?(?!\d)")
_DEGREES = re.compile(r"\^\s*\{\s*\\circ\s*\}|\^?\s*\\circ(?![a-zA-Z])(?=\s*(?:$|[-+,;)\]}CFKcf.\\]))")


def dialect(text: str) -> str:
    r"""`text` without math delimiters and commands for space, font, size and colour, in ASCII as far as it has that
    spelling; all text commands as `\text{}`, all matrices as `pmatrix` (a determinant keeps `vmatrix`). Longer than
    `MAX_LENGTH` it stays as it is."""
    if len(text) > MAX_LENGTH:
        return text
    text = ascii_text(text).strip()
    text = _unwrapped(text)
    if "\\" in text:
        text = _BOLD_REALS.sub(r"\\mathbb{\1}", text)
        text = _DROPPED.sub(_kept, text)
        text = _COMMAND.sub(_synonym, text)
        text = _TEXT_POWER.sub(r"\\text{\1^\2\3}", text)
        text = _TEXT.sub(lambda found: rf"\text{{{found[1]}}}" if found[1].strip() else " ", text)
        text = _BLACKBOARD.sub(r"\\mathbb{\1}", text)
        if r"\begin" in text:
            text = _ROW_END.sub(lambda _: r"\\ ", text)
            text = _ARRAY.sub(r"\\begin{pmatrix}", text)
            text = _MATRICES.sub(r"\\\1{pmatrix}", text)
            text = _BRACKETED.sub(r"\1", text)
            text = _ONE_CELL.sub(lambda found: found[1], text)
            text = _ALIGNED.sub(_rows, text)
        if r"\text" in text or r"\cis" in text:
            text = _CIS.sub(_unit_circle, text)
        text = _QUANTITY.sub(lambda m: m[3] if m[3] is not None else rf"{m[1]}\text{{ {_si(m[2])}}}", text)
        text = _LEADING.sub("", text, count=1)
    else:
        text = _CIS.sub(_unit_circle, text)
        text = _LEADING.sub("", text, count=1)
    if text.count("$") - text.count(r"\$") in (2, 4, 6, 8) and not text.startswith("\\$"):
        text = re.sub(r"(?<!\\)\$", " ", text)
    elif text.count("$") - text.count(r"\$") > 2:
        text = re.sub(r"\$(?=\d)", "", text)
    if re.search(r"\d,\d{3}", text) and re.search(r"[-+=*/^]|\\(?:times|cdot|div|approx)", text):
        text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _LAST_ROW.sub("", text)
    text = _unwrapped(_unstopped(_SPACE.sub(lambda found: found[1] or " ", text).strip()))
    while (short := _TRAILING.sub("", text)) != text:
        text = short
    if _GROUP.fullmatch(text):
        text = text[1:-1].strip()
    text = _unstopped(text)
    if text.startswith("[") and (nested := _NESTED.fullmatch(text)):
        text = (
            r"\begin{pmatrix}"
            + r"\\".join(row.strip("[] ").replace(",", "&") for row in re.findall(r"\[[^\[\]]*\]", nested[1]))
            + r"\end{pmatrix}"
        )
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    if r"\mp" in text and r"\pm" not in text:
        text = re.sub(r"\\mp(?![a-zA-Z])", r"\\pm", text)
    turned = _TRANSPOSED.fullmatch(text)
    if turned and not re.search(r"[\[(]", turned[1][1:]):
        text = turned[1].replace("&", r" \\ ")
        text = f"({text[1:-1]})" if text.startswith("[") else text
    text = _DEGREES.sub(lambda _: r"^\circ ", text)
    if _TRIGONOMETRY.search(text):  # elsewhere the sign is a unit
        text = _ANGLE.sub(_radians, text)
    text = _REPEATING.sub(_fraction, text).strip()
    if text.endswith("\\") and not text.endswith("\\\\"):  # of a space command whose space was stripped
        text = text[:-1].rstrip()
    return _unstopped(text)


def untext(text: str) -> str:
    r"""`text` with what stands in `\text{}` bare."""
    while r"\text{" in text:
        shorter = _TEXT.sub(r" \1 ", text)
        if shorter == text:
            break
        text = shorter
    return text


def _kept(found: "re.Match[str]") -> str:
    return found[1] or ("" if found[0] == r"\!" else " ")


def _synonym(found: "re.Match[str]") -> str:
    return _SYNONYM[found[1]] + (" " if _SYNONYM[found[1]][-1:].isalpha() else "") if found[1] in _SYNONYM else found[0]


def _rows(found: "re.Match[str]") -> str:
    """The rows of an aligned display: one that goes on with a relation belongs to the row before."""
    out = ""
    for row in re.split(r"\\\\", re.sub(r"\A\s*\{\d+\}", "", found[2])):
        row = row.replace("&", " ").strip()
        if row:
            joined = not out or re.match(r"=|[<>]|\\(?:leq|geq|approx|equiv)(?![a-zA-Z])", row)
            out += row if joined else f", {row}"
    return out


def _unit_circle(found: "re.Match[str]") -> str:
    angle = next(filter(None, found.groups()))
    return rf"e^{{i({_ANGLE.sub(_radians, angle)})}}"


def _radians(found: "re.Match[str]") -> str:
    return rf"(\frac{{{found[1]} \pi}}{{180}})"


def _si(units: str) -> str:
    return re.sub(r"\\(?:per)(?![a-zA-Z])", "/", units).replace("\\", " ").replace(".", " ")


def _unwrapped(text: str) -> str:
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            if closing == "$" and text.endswith(r"\$"):
                continue
            inner = text[len(opening) : -len(closing)]
            if closing != "$" or "$" not in inner.replace(r"\$", ""):
                text = inner.strip()
    return text


def _unstopped(text: str) -> str:
    while len(text) > 1 and text[-1] in ".,;。" and not text.endswith(r"\."):
        text = text[:-1].rstrip()
    return text


def _fraction(match: "re.Match[str]") -> str:
    r"""A repeating decimal as a fraction: 0.1\overline{6} is (16 - 1)/90."""
    whole, fixed, period = match.groups()
    over = int(whole + fixed + period) - int("0" + whole + fixed)
    return rf"\frac{{{over}}}{{{'9' * len(period) + '0' * len(fixed)}}}"
