"""The formula in a sentence: what an unmarked answer is, with what changes it (another value, "at least", a unit)."""

import re

from r3bench.grading.spelling.spoken import spoken_number
from r3bench.grading.spelling.words import changes, multiple

LONGEST = 300  # characters of a line that are looked at
_CONTRAST = re.compile(
    r"(?<=\S)[\s,;(–—-]+(?:(?:and|et|y|e|und|и)\s+)?(?:(?:not|nicht|non|pas|no|não|а\s+не|не|rather\s+than|"
    r"instead\s+of|as\s+opposed\s+to)(?![^\W\d_])|而不是|不是).*\Z",
    re.IGNORECASE | re.DOTALL,
)
_BECAUSE = re.compile(
    r"(?<=\S)[\s,;(–—-]+(?:because|since|due\s+to|as\s+(?:we|it|the|can|shown)|so\s+that|by\s+the|weil|da|denn|"
    r"parce\s+que|car|porque|perché|так\s+как|потому|where|which\s+(?:is\s+why|means|follows)|if\s+we)(?![^\W\d_]).*\Z"
    r"|(?<=\S)[,，(（]?\s*因为.*\Z",
    re.IGNORECASE | re.DOTALL,
)
_NOT_BUT = re.compile(
    r"\A\W*(?:not|nicht|no|non|pas|не|不是)\s.{0,80}?\s(?:but(?:\s+rather)?|sondern|sino|mais|ma|а|而是)\s+(.*)\Z",
    re.IGNORECASE | re.DOTALL,
)
_SENTENCE = re.compile(r"(?<!\b[apA-Z])(?<!\bapprox)(?<!\bca)\.(?=\s|\Z|\*)(?!\s*\d)|。|\?(?=\s|\Z)")
_MATH = re.compile(
    r"\$\$([^$]{1,2000}?)\$\$|\$((?:[^$\\]|\\.){1,2000}?)\$|\\\(((?:[^\\]|\\[^)]){1,2000}?)\\\)|\\\[((?:[^\\]|"
    r"\\[^\]]){1,2000}?)\\\]",
    re.DOTALL,
)
_CHOICE = re.compile(r"\(?([A-J])\)?(?=[.:)*]*\s*\Z)")
_TOKEN = re.compile(
    r"(?P<math>\\[a-zA-Z]+|\\[{}%$,;:!|]|\d+(?:[.,]\d+)*(?![a-zA-Z]{2})(?:[eE][-+]?\d+(?!\w))?|\.\d+|[-−–+*/^=≤≥]|"
    r"<(?![/a-z])|(?<![a-z])>|[≤≥≠±∓×÷·⋅√∛π∞%°'()\[\]{}|_!:∪∩∈$£€¥₹⁰¹²³⁴-⁹⁺⁻ⁿ₀-₉½⅓⅔¼¾⅕⅛αβγθλμφω…](?!/?[a-z]*>)"
    r"|(?<![^\W\d_])(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|inf)(?![^\W\d_])|(?<![^\W\d_])[a-zA-Z](?=[⁰¹²³⁴-⁹₀-₉ⁿ])|(?<![^\W\d_])[b-hj-zB-HJ-Z]"
    r"(?![^\W\d_'])|(?<=\d)[a-zA-Z]{1,2}(?![^\W\d_])|(?<![^\W\d_])[a-zA-Z](?=\s*[\^_=<>(+*/])|(?<=[\^+*/=(·×⋅-])"
    r"\s?[a-zA-Z](?![^\W\d_]))"
    r"|(?P<comma>[,;，、；])|(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*)|(?P<other>\S)"
)
_CONNECTORS = frozenset(
    ["or", "and", "und", "oder", "ou", "et", "y", "o", "e", "или", "и", "或", "和", "与", "및", "또는", "to"]
)
_RESULT = re.compile(
    r"(?:that|which|this)\s+(?:is|equals|gives)|i\.?\s?e\.?|so|hence|thus|equals|namely|=|das\s+ist|c'est-à-dire|"
    r"es\s+decir",
    re.IGNORECASE,
)
_FILLED = re.compile(
    r"[\d√π∞½⅓⅔¼¾⅕⅛]|[a-zA-Z][²³⁴-⁹ⁿ]|\\(?:frac|sqrt|pi|infty|emptyset)|[a-zA-Z]\s*[\^+*/=(-]|[\^+*/=-]\s*[a-zA-Z]|\A\s*[a-zA-Z]\s*\Z"
)
_LETTERS = re.compile(r"\(?[A-J]\)?(?:\s*(?:[,/&;、]|\bor\b|\band\b|或|和)+\s*\(?[A-J]\)?)+[.)]*")  # several choices
_DENIED = re.compile(r"(?:n['’]t|\bcannot|\bnot|\bnever|\bnicht|\bне|不是)\s+(?:[^\W\d_]+\s+){0,2}\W*\Z", re.IGNORECASE)
_WRONG = re.compile(r"\s*(?:is|was)\s+(?:wrong|incorrect|false|not)(?![^\W\d_])", re.IGNORECASE)
_EITHER = frozenset(["or", "oder", "ou", "или"])
_SAID = re.compile(
    r".*\b(?:is|are|was|were|equals|has|have)\s+(?:exactly\s+|about\s+|approximately\s+)?(.+?)[\s.!*]*\Z", re.DOTALL
)
_EDGE = " \t*`\"'“”。，,;:；"


def formula_of(text: str) -> str | None:
    """The answer at the start of `text`, which follows a phrase such as "the answer is"; None if there is none."""
    shown = _MATH.match(text.lstrip(" *"))
    if shown and (shown[1] or shown[4]):  # displayed, possibly over several lines
        return next(part for part in shown.groups() if part is not None).strip()
    line = text.partition("\n")[0][:LONGEST].replace("**", " ").replace("`", " ").strip(_EDGE)
    otherwise = _NOT_BUT.match(line)
    if otherwise:
        return formula_of(otherwise[1])
    line = _BECAUSE.sub("", _CONTRAST.sub("", line)).strip(_EDGE)
    sentence = _sentence(line)
    if line[len(sentence) :].lstrip().startswith("?"):
        return line  # asked, not answered
    line = sentence
    if not line or _LETTERS.fullmatch(line):
        return line or None
    if _CHOICE.fullmatch(line.rstrip(".:)* ")):
        return line.strip("().:* ")
    labelled = re.match(r"\(?([A-J])\)?[.:)]\s+(.*)", line)
    if labelled:  # '(B) 27', but 'B. This is because ...'
        return labelled[1] if re.match(r"[A-Z][a-z]*(?:\s+[^\W\d_]+){3}", labelled[2]) else line
    return _chosen(line) or line


def last_formula(text: str) -> str | None:
    """The last number of a text with the formula or list that it is part of, and words that change it; else None."""
    digits = [found.end() for found in re.finditer(r"\d", text)]
    if not digits:
        return _unnumbered(text)
    start = text.rfind("\n", 0, digits[-1]) + 1
    end = text.find("\n", digits[-1])
    line = text[max(start, digits[-1] - LONGEST) : end if end >= 0 else len(text)][: 2 * LONGEST]
    line = _BECAUSE.sub("", _CONTRAST.sub("", line.replace("**", " ").strip(_EDGE))).strip(_EDGE)
    sentences = [part for part in _SENTENCE.split(line) if re.search(r"\d", part)]
    if not sentences or re.fullmatch(r".*\d[^\d.]*\?[\s*\"')]*", line, re.DOTALL):
        return None  # none, or a question
    formulas = [next(part for part in found.groups() if part is not None) for found in _MATH.finditer(line)]
    if (
        formulas
        and re.search(r"\d", formulas[-1])
        and not re.search(r"\d", line[[m.end() for m in _MATH.finditer(line)][-1] :])
    ):
        found = _spans(line)
        joined = found[-1]
        place = len(found) - 1
        while place and _connected(line[found[place - 1][1] : joined[0]]):
            place -= 1
            joined = (found[place][0], joined[1])
        if place < len(found) - 1 or not _MATH.search(line):
            return _bare(line[joined[0] : joined[1]])
        return formulas[-1].strip()
    return _last_run(sentences[-1])


def _unnumbered(text: str) -> str | None:
    """The answer of a last line without any digit: its last formula, or the number that its words say."""
    lines = text.strip().splitlines()
    line = lines[-1][-LONGEST:].replace("**", " ").strip(_EDGE) if lines else ""
    line = _sentence(_BECAUSE.sub("", _CONTRAST.sub("", line)))
    spans = _spans(line) or [one for one in _runs(line) if re.search(r"[√π∞²³⁴-⁹ⁿ]|\\", line[slice(*one)])]
    if spans:
        return line if len(spans) > 1 or _hedged(_without_results(line)) else _bare(line[slice(*spans[0])]).strip(" :")
    said = _SAID.fullmatch(line)
    number = spoken_number(said[1]) if said else None
    return None if said is None or number is None or (number[0] == 1 and number[1]) else said[1]


def _sentence(line: str) -> str:
    """The first sentence, with stops inside formulas passed over."""
    inside = [(found.start(), found.end()) for found in _MATH.finditer(line)]
    for stop in _SENTENCE.finditer(line):
        if not any(start < stop.start() < end for start, end in inside):
            return line[: stop.start()].strip(_EDGE)
    return line.strip(_EDGE)


def _spans(line: str) -> list[tuple[int, int]]:
    return [(found.start(), found.end()) for found in _MATH.finditer(line)]


def _bare(text: str) -> str:
    r"""Without dollar signs; `\$` stays."""
    return " ".join(re.sub(r"(?<!\\)\$|\\[()]|\\[\[\]]", " ", text).split())


def _runs(line: str) -> list[tuple[int, int]]:
    """Where the formula-like runs of a line are."""
    spans: list[list[int]] = []
    open_run = False
    for token in _TOKEN.finditer(line):
        if token["math"] is not None:
            if open_run:
                spans[-1][1] = token.end()
            else:
                spans.append([token.start(), token.end()])
                open_run = True
        elif token["comma"] and open_run:
            text = line[spans[-1][0] : token.start()]
            open_run = sum(text.count(one) for one in "([{") > sum(text.count(one) for one in ")]}")
        else:
            open_run = False
    return [(start, end) for start, end in spans if _FILLED.search(line[start:end].strip(" :."))]


def _connected(text: str) -> bool:
    words = re.findall(r"[^\W\d_]+", text)
    return (
        bool(re.fullmatch(r"[\s,;，、；&/]*(?:[^\W\d_]+)?[\s,;$]*(?:\\[()])?[\s$]*", text))
        and all(word.lower() in _CONNECTORS for word in words)
        and (bool(words) or bool(re.search(r"[,;，、；&/]", text)))
    )


def _hedged(words: str) -> bool:
    return any(
        changes(word) or word.lower() in ("not", "than", "least", "most")
        for word in re.findall(r"[^\W\d_]{2,}|[^\W\d_a-zA-Z]", words)
        if word.lower() not in ("is", "are", "and", "was")
    )


def _chosen(line: str) -> str | None:
    """The run of a sentence that is the answer, with what changes it; None if the words are the answer."""
    spans = _spans(line) or _runs(line)
    if not spans:
        return None
    if _hedged(_without_results(line[: spans[0][0]])):
        return _bare(line)
    first, last = 0, 0
    while last + 1 < len(spans) and _connected(line[spans[last][1] : spans[last + 1][0]]):
        last += 1
    if last + 1 < len(spans):
        between = line[spans[last][1] : spans[last + 1][0]]
        if any(_RESULT.search(line[a[1] : b[0]]) for a, b in zip(spans[last:], spans[last + 1 :], strict=False)):
            first = last = len(spans) - 1
        elif _hedged(between):
            return _bare(line)
    start, end = spans[first][0], spans[last][1]
    after = (
        re.split(r"[,;(，；（]", line[end:], maxsplit=1)[0]
        if last + 1 >= len(spans)
        else re.split(r"[,;(]", line[end : spans[last + 1][0]], maxsplit=1)[0]
    )
    run = _bare(line[start:end]).strip(" :") if "$" in line or "\\(" in line else line[start:end].strip(" :")
    after = " ".join(after.split()).strip(" .*:")
    return f"{run} {after}" if after and re.search(r"[^\W\d_]|%", after) else run


def _without_results(text: str) -> str:
    return re.sub(r"\b(?:is|are|was|equals)\b", " ", text)


def _last_run(line: str) -> str | None:
    """The last run with a digit, with the ones that are joined to it and a word next to it that changes it."""
    spans = [span for span in _runs(line) if re.search(r"\d", line[span[0] : span[1]])]
    if not spans:
        return None
    first = len(spans) - 1
    while (
        first
        and _connected(line[spans[first - 1][1] : spans[first][0]])
        and "to" not in line[spans[first - 1][1] : spans[first][0]].split()
    ):
        joint = line[spans[first - 1][1] : spans[first][0]]
        if not re.search(r"[^\W\d_]|[,;]", joint):
            break
        first -= 1
    start, end = spans[first][0], spans[-1][1]
    run = line[start:end].strip(" :.")
    if run.startswith(("=", "/", ":")):
        run = run.lstrip("=/: ")
    before = re.findall(r"[^\W\d_]+", line[:start])[-2:]
    if _DENIED.search(line[:start]):
        return f"not {run}"
    if _EITHER & {word.lower() for word in before} and re.search(r"[^\W\d_]\W*\Z", line[:start]):
        return f"{before[-1]} {run}"
    if _WRONG.match(line[end:]) or {"might", "could", "may"} & {word.lower() for word in before}:
        return f"not {run}"
    if before and (
        before[-1].lower() in ("not", "but", "than", "least", "most", "under", "over", "below", "above", "nicht", "не")
    ):
        return " ".join([*before, run])
    after = re.match(r"\s*([^\W\d_]+)", line[end:])
    if after and (
        multiple(after[1]) is not None or (changes(after[1]) and after[1].lower() not in ("is", "are", "was", "and"))
    ):
        return f"{run} {after[1]}"
    return run
