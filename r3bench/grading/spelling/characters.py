"""Characters outside ASCII spelt as LaTeX or ASCII: what Unicode itself says of them, and a table for the rest."""

import re
import unicodedata
from functools import lru_cache

_OVERRIDES = "\u202d\u202e"  # these marks turn the order of digits round, so they stay: the text is then no number
_TABLE = {
    **dict.fromkeys("−⁃﹣－", "-"),
    **dict.fromkeys("·⋅∙•・", r"\cdot "),
    **dict.fromkeys("∗⁎＊✱", "*"),
    **dict.fromkeys("×✕✖⨯╳", r"\times "),
    **dict.fromkeys("÷➗", r"\div "),
    **dict.fromkeys("’′‘`´ʹ＇", "'"),
    **dict.fromkeys("“”„«»", '"'),
    **dict.fromkeys("≤≦⩽", r"\leq "),
    **dict.fromkeys("≥≧⩾", r"\geq "),
    **dict.fromkeys("≈≅≃≒", r"\approx "),
    **dict.fromkeys("⟨〈〈", "("),
    **dict.fromkeys("⟩〉〉", ")"),
    **dict.fromkeys("→⟶", r"\to "),
    **dict.fromkeys("⇒⟹", r"\Rightarrow "),
    **dict.fromkeys("º˚°", r"^\circ "),
    **dict.fromkeys("∣｜", "|"),
    **dict.fromkeys("✓✔✅☑", r"\checkmark "),
    **dict.fromkeys("■□▪▫◻◼∎", r"\blacksquare "),
    **dict.fromkeys("。｡．", "."),
    **dict.fromkeys("、，､，،٬", ","),
    **dict.fromkeys("；؛", ";"),
    **dict.fromkeys("：", ":"),
    **dict.fromkeys("∕⁄／", "/"),
    **dict.fromkeys("µμ", r"\mu "),
    "\u2126": r"\Omega ",  # ohm sign
    "∑": r"\sum ",
    "∏": r"\prod ",
    "∫": r"\int ",
    "√": r"\sqrt ",
    "∛": r"\sqrt[3] ",
    "∜": r"\sqrt[4] ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∞": r"\infty ",
    "≠": r"\neq ",
    "≡": r"\equiv ",
    "∼": r"\sim ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "∅": r"\emptyset ",
    "∖": r"\setminus ",
    "∧": r"\land ",
    "∨": r"\lor ",
    "∀": r"\forall ",
    "∴": r"\therefore ",
    "∠": r"\angle ",
    "△": r"\triangle ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "∂": r"\partial ",
    "″": "''",
    "٫": ".",
    "٪": "%",
    "ı": "i",
    "…": r"\ldots ",
    "ℝ": r"\mathbb{R}",
    "ℕ": r"\mathbb{N}",
    "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}",
    "ℏ": r"\hbar ",
    "ℓ": r"\ell ",
    "ϵ": r"\epsilon ",
    "ϕ": r"\phi ",
    "ϑ": r"\theta ",
    "ς": r"\sigma ",
    "℃": r"^\circ C",
    "℉": r"^\circ F",
    "㎡": "m^{2}",
    "㎥": "m^{3}",
    "㎢": "km^{2}",
    "㎝": "cm",
    "\u212b": "Å",
    "∤": r"\nmid ",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)")
_CAPITALS = ("GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA")  # own commands
_TWINS = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True))
_STACKED = re.compile("([⁰¹²³⁴-⁹]+)[⁄/]([₀-₉]+)")
_DIGITS = {
    **{ord(c): str(i) for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{ord(c): str(i) for i, c in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


@lru_cache(maxsize=8192)
def _spelt(char: str) -> tuple[str, str]:
    """(`sup`, `sub` or nothing; the character in ASCII or LaTeX); one that has no such spelling stays."""
    known = _TABLE.get(char)
    if known is not None:
        return "", known
    category = unicodedata.category(char)
    if category == "Cf" or char in "\ufe0e\ufe0f":
        return "", char if char in _OVERRIDES else ""
    if category == "Nd":
        return "", str(unicodedata.decimal(char))
    if category == "Pd":
        return "", "-"
    if category == "Zs":
        return "", " "
    name = _GREEK.fullmatch(unicodedata.name(char, ""))
    if name:
        size, letter = name.groups()
        command = letter.lower().replace("lamda", "lambda")
        if size == "SMALL":
            return "", rf"\{command} " if char != "ο" else "o"
        return "", rf"\{command.capitalize()} " if letter in _CAPITALS else _TWINS.get(char, char)
    tag, _, rest = unicodedata.decomposition(char).partition(" ")
    if not tag.startswith("<"):
        return "", char
    base = "".join(chr(int(code, 16)) for code in rest.split())
    if tag == "<fraction>":
        above, _, below = base.partition("\u2044")
        return "", rf"\frac{{{above}}}{{{below}}}" if below else f"{above}/"
    plain = "".join(_spelt(one)[1] if not one.isascii() else one for one in base)
    return {"<super>": "sup", "<sub>": "sub"}.get(tag, ""), plain


def ascii_text(text: str) -> str:
    """`text` with superscripts as `^{...}`, subscripts as `_{...}`, vulgar fractions as `\\frac`, digits of any script,
    full-width and mathematical letters as ASCII, signs and Greek letters as commands, without invisible characters.

    Letters and ideographs of other languages stay. A text in ASCII is returned as it is.
    """
    if text.isascii():
        return text
    text = _STACKED.sub(
        lambda found: rf"\frac{{{found[1].translate(_DIGITS)}}}{{{found[2].translate(_DIGITS)}}}",
        unicodedata.normalize("NFC", text),
    )
    out: list[str] = []
    level = ""
    for char in text:
        place, spelt = ("", char) if char.isascii() else _spelt(char)
        if place != level:
            if level:
                out.append("}")
            if place:
                out.append("^{" if place == "sup" else "_{")
            level = place
        out.append(spelt)
    return "".join(out) + ("}" if level else "")
