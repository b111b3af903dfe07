"""Words behind a number: those that multiply it, those that make another statement of it, and nouns, which do neither.

The words for large numbers come from CLDR through babel, in the languages that models answer in.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

_LANGUAGES = (
    "en en_IN de fr es it pt nl sv da nb fi pl cs uk ru ro hu el tr vi id zh zh_Hant ja ko hi bn ta te ur ar fa he th"
)
LANGUAGES = tuple(_LANGUAGES.split())
_MULTIPLIERS = """
100: hundred hundreds hundert cien ciento cientos cem centena centenas sto сто сотен 百 백
1000: thousand thousands k mil mille mila tausend tysięcy тыс тысяч тысячи тысяча 千 천 ribu nghìn हजार
1000000: million millions mn mln mio millón millones milhão milhões milione milioni millionen млн миллионов
1000000000: billion billions bn bln milliard milliards milliarden mrd miliardi млрд
1000000000000: trillion trillions tn trn трлн
100000: lakh lakhs lac lacs लाख
10000000: cr crore crores करोड़ करोड
12: dozen dozens dutzend douzaine douzaines docena docenas dúzia dúzias dozzina dozzine дюжина дюжин 打
10000: 万 萬 만 vạn
100000000: 亿 億 억
10: tens 十 십
144: gross
"""  # beside CLDR's
_SHORT = "bin bil bill mill mia bio tri tis rb jt kcr lcr"  # abbreviations that are English nouns too
_OTHER = frozenset(_SHORT.split())
_ORDINAL_NAMES = (
    "half third quarter fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
)
_ORDINALS = _ORDINAL_NAMES.split()
_PARTS = {
    **{word: Fraction(1, n) for n, word in enumerate(_ORDINALS, 2)},
    "halves": Fraction(1, 2),
    "fourth": Fraction(1, 4),
    "hundredth": Fraction(1, 100),
    "thousandth": Fraction(1, 1000),
    "millionth": Fraction(1, 10**6),
    "billionth": Fraction(1, 10**9),
}
# words that bound a number, join it to another, negate it, or are one
_CHANGERS = """
    or to than plus minus times by over under above below between through until till except without
    unless not no never
    cannot isnt isn't wasn't false wrong incorrect untrue doubtful rejected maybe perhaps possibly
    probably might could if
    else either neither nor but and instead rather versus vs is are was were be more less fewer
    greater smaller larger
    least most many minimum maximum half halves twice double doubled triple tripled thrice quadruple
    quadrupled halved negated inverted negative positive zero score scores
    pair pairs couple couples factorial squared cubed root power inverse reciprocal others other
    another onwards upward
    upwards downwards mod modulo exclusive
    oder und mehr weniger höchstens mindestens nicht kein keine falsch vielleicht minus bis über
    unter als hoch halbe
    ou et plus moins pas non faux peut-être environ jusqu'à sans demi demie demis demies tiers quart
    quarts moitié
    o u y más menos no falso quizás quizá tal vez hasta sin medio media medios medias mitad cuarto
    cuartos tercio tercios
    e mais menos não falso talvez até sem meio meia metade quarto quartos terço terços
    più meno oppure forse mezzo mezza metà terzo terzi
    meer minder niet eller eller eller lub i albo nie nebo
    paar paare paares paire paires pares coppia coppie par
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi
    psi omega
    sin cos tan cot sec csc log ln exp sqrt max min inf infinity
    или и не нет без до от больше меньше более менее свыше минимум максимум возможно неверно пара
    пары пар
"""
_CHANGING = frozenset(_CHANGERS.split())
_PART = re.compile(  # a part of one, in English and by the endings of other languages
    r"(?:\w+-)?(?:half|halves|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|"
    r"\w*teenth|\w+tieth"
    r"|hundredth|thousandth|\w+illionth)s?|\w*(?:drittel|viertel|fünftel|sechstel|siebtel|achtel|neuntel|zehntel|"
    r"[sz]tel|ndertel)n?"
    r"|\w+ièmes?|(?:déc|cent|mil|cien|cen|mill)\w*[eéè]sim\w+|d[eéè]cim\w+|quint[oa]s|sext[oa]s|s[eé]ptim[oa]s|"
    r"octav[oa]s|noven[oa]s"
    r"|quint[oi]|sest[oi]|\w*(?:десят|сот|тысячн|миллионн|половин|четверт|трет)\w*",
    re.IGNORECASE,
)
# behind a number: counters and short endings of languages written without spaces; each may be followed by a noun
_COUNTERS = re.compile(
    r"[个個只隻条條本名位人张張件种種次天年月日元块塊圆圓円角分度秒米克吨升岁歲页頁组組匹头頭辆輛台颗顆粒枚枝支把套层層班箱盒瓶"
    r"杯袋根朵棵株场場回冊册羽軒轩题題步点點座间間幅批颗段节節通]|小时|小時|分钟|分鐘|厘米|公里|千米|毫米|公斤|千克|毫升|平方|立方|公顷|英|美元|欧元"
    r"|日元|時間|メートル|センチ|キロ|グラム|リットル|ドル|ユーロ|つ|개|명|마리|권|원|살|시간|분|초|번|가지|장|대|송이|입니다|이다|です|だ"
)
_NOT_COUNTED = re.compile(  # and what changes the number all the same
    r"[或和与與及跟到至上下多余餘以超未约約不非否错錯倍双雙对對半百千万萬亿億兆成割折零负負之]|より|また|もしくは|以|이상|이하|미만|초과|또는|와|과|혹은|배|쌍|아니|ない|なく"
)
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*\.?")
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_UNITS = _SMALL.split()
_TEN_NAMES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = dict(zip(_TEN_NAMES.split(), range(20, 100, 10), strict=True))
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


@lru_cache(maxsize=1)
def _multiples() -> dict[str, Fraction]:
    from babel import Locale

    found: dict[str, Fraction] = {}
    for language in LANGUAGES:
        formats = Locale.parse(language).compact_decimal_formats
        for length in ("short", "long"):
            for patterns in formats.get(length, {}).values():
                for least, pattern in patterns.items():
                    text = str(pattern.pattern)
                    digits = text.count("0")
                    word = re.sub(r"[0'\s\u00a0\u200f\u061c]+", "", text).rstrip(".").lower()
                    if digits and word and (len(word) > 2 or not word.isascii()) and word not in _OTHER:
                        found.setdefault(word, Fraction(int(least), 10 ** (digits - 1)))
    for line in _MULTIPLIERS.strip().splitlines():
        value, _, words = line.partition(": ")
        found.update(dict.fromkeys(words.split(), Fraction(int(value))))
    return found


@lru_cache(maxsize=1)
def _connectors() -> frozenset[str]:
    """CLDR's words for "and" and "or"."""
    from babel import Locale

    found = set()
    for language in LANGUAGES:
        patterns = Locale.parse(language).list_patterns
        for style in ("standard", "or"):
            found |= set(_WORD.findall(re.sub(r"\{\d\}", " ", dict(patterns.get(style, {})).get("2", ""))))
    return frozenset(word.lower() for word in found) - {"of"}  # Dutch for "or"


@lru_cache(maxsize=4096)
def multiple(word: str) -> Fraction | None:
    """What a number before `word` is multiplied by: million, lakh, 万, dozen, hundredths; None for others."""
    low = unicodedata.normalize("NFC", word).lower().rstrip(".")
    part = _PARTS.get(low) or _PARTS.get(low.removesuffix("s"))
    if part is not None:
        return part
    if low.isascii() and (len(low) > 11 or not low.isalpha()):
        return None
    return _multiples().get(low)


def changes(word: str) -> bool:
    """Whether a word behind a number makes another statement of it: "or", "minus", "mehr", "pairs", "более"."""
    low = unicodedata.normalize("NFC", word).lower().strip(".-")
    return low in _CHANGING or bool(_PART.fullmatch(low)) or (len(low) > 1 and low in _connectors())


@lru_cache(maxsize=4096)
def nouns(text: str) -> bool:
    """Whether the words of `text`, found behind a number, leave its value as it is: a unit or what is counted."""
    text = unicodedata.normalize("NFC", text)
    if _HAN.search(text):
        return bool(_COUNTERS.match(text.strip())) and not _NOT_COUNTED.search(text)
    words = _WORD.findall(text)
    if not words:
        return False
    if any(not _latin(char) for word in words for char in word if char.isalpha()):
        return False  # scripts of which no list of counters is kept
    if len(words) > 12:
        return False
    return all(not changes(word) and (multiple(word) is None or len(word) < 3) for word in words)


def _latin(char: str) -> bool:
    return unicodedata.name(char, "").startswith(("LATIN", "CYRILLIC", "GREEK", "MICRO", "OHM"))


@lru_cache(maxsize=1024)
def number_in_words(text: str) -> int | None:
    """The number that English words spell ("twenty-seven", "one hundred and five", "five million"), else None."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > 20 or re.search(r"[^a-zA-Z\s,-]", text.strip()):
        return None
    total = group = 0
    last = 10**15
    used = False
    for word in words:
        if word == "and" and used:
            continue
        if word in _UNITS:
            group += _UNITS.index(word)
        elif word in _TENS:
            group += _TENS[word]
        elif word == "hundred":
            group = max(group, 1) * 100
        elif word in _SCALES and _SCALES[word] < last:
            total, group, last = total + max(group, 1) * _SCALES[word], 0, _SCALES[word]
        else:
            return None
        used = True
    return total + group
