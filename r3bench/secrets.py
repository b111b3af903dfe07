"""Passwords, tokens and keys in texts that are printed or recorded: found by name and by shape, and masked."""

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
SHORT = 4  # characters; a password below can't be replaced in a sentence without telling where it stood

_NAME = (
    r"(?:pass(?:word|wd|phrase|code)|(?<=[_-])pass|pwd|secret(?:[_-]?key)?"
    r"|(?:api|access|private|secret|account|auth|encryption|signing)[_-]?key(?:[_-]?id)?"
    r"|token|credentials?|authorization)(?:_?\d{1,3})?"
)
# what a tokenizer and a parser call a token, and types and constants: text of programs, not of their users
_HARMLESS_NAME = re.compile(
    r"(?i)(?:^|[._-])(?:pad|eos|bos|unk|mask|sep|cls|image|video|audio|special|stop|end|start|first|last|next|prev|max|"
    r"min|per|think|prompt|boi|eoi|user|assistant|tool)[_-]?token$"
)
_HARMLESS_VALUE = re.compile(
    r"(?i)^(?:str|int|float|bool|bytes|any|object|optional|none|null|true|false|nil|undefined|list|dict|self|missing|"
    r"unknown|[0-9.]{1,5}|\$\{?\w+\}?|\*+|<\w*>|/.*|)$"
)
_ATTRIBUTE = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$")
_BEFORE = re.compile(r"[\w.-]{0,60}$")  # the rest of a name that ends in a telling word
_ASSIGNED = re.compile(
    rf"""(?ix)
    (?P<name> {_NAME})
    (?P<sign> ["']? \s* (?: : \s* (?:str|bytes|any|SecretStr|(?:typing\.)?Optional\[str\]) (?:\s*\|\s*None)? \s* =
        | [:=]=? | => ) [^\S\n]* (?:got[ ])? )
    (?: (?P<prefix> [rbuf]{{0,2}}) (?P<quote> ["']) (?P<quoted> (?:(?!(?P=quote))[^\n\\] | \\.)* ) (?P=quote)
      | (?P<bare> (?:Bearer\s+|Basic\s+)? [^\s"'`,;)\]}}&]+ ) )
    """
)
_PROSE = re.compile(  # a sentence about the name, not its value
    r"(?:never|got|expected|must|can't|can|is|are|was|has|have|not|no|the|an?|unknown|missing|needs?|invalid|failed) "
)
_OPTION = re.compile(rf"(?i)(?P<name>(?<!\w)--?[\w-]{{0,60}}{_NAME})(?P<sign>[^\S\n]+)(?P<bare>(?!-)[^\s\"']+)")
# a user's part of an address reaches to the last @ of the word: passwords hold any character, @ and / among them
_ADDRESS = re.compile(r"""(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<who>[^\s"'<>`]{1,500})@""")
_QUERY = re.compile(rf"(?i)(?P<name>[?&;][\w.-]{{0,60}}(?:{_NAME}|key|sig|signature|auth|code)=)[^&\s\"'<>`]+")
_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}",  # Hugging Face
        r"(?<![A-Za-z0-9])api_org_[A-Za-z0-9]{16,}",
        r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
        r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{20,}",
        r"(?<![A-Za-z0-9])gl[a-z]{1,6}-[A-Za-z0-9_-]{20,}",  # GitLab
        r"(?<![A-Za-z0-9])[sr]k-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and others
        r"(?<![A-Za-z0-9])(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
        r"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
        r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])",  # AWS
        r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}",  # Google
        r"(?<![A-Za-z0-9])ya29\.[A-Za-z0-9_-]{10,}",
        r"(?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{16,}",
        r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{30,}",
        r"(?<![A-Za-z0-9])nvapi-[A-Za-z0-9_-]{20,}",
        r"(?<![A-Za-z0-9])r8_[A-Za-z0-9]{30,}",  # Replicate
        r"(?<![A-Za-z0-9])dop_v1_[a-f0-9]{40,}",
        r"(?<![A-Za-z0-9])wandb_v\d+_[A-Za-z0-9_-]{16,}",  # Weights & Biases, new form
        r"(?i)(?<=wandb)(?P<kept>[^\n]{0,80}?)(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])",  # and old: 40 digits, as a commit
        r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web token
        r"(?i)(?P<kept>\bbearer\s+)[A-Za-z0-9._~+/=-]{12,}",
        r"(?i)(?P<kept>\blogin\s+\S+[\s+-]+password\s+)\S+",  # .netrc
        r"(?i)(?P<kept>\bkey[\"']?\s*[:=]\s*[\"']?)[A-Za-z0-9+/_=-]{32,}",
    )
)
_KEY_BLOCK = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL
)
_TELLING = re.compile(rf"(?i){_NAME}$")


def masked(text: str, also: Iterable[str] = ()) -> str:
    """`text` with every secret in it replaced by `***`.

    Found are: values of this process's environment variables with a telling name (`HF_TOKEN`, `PGPASSWORD`); tokens of
    well-known shapes; private key blocks; the user's part of addresses; values given to a telling name in an
    assignment, a mapping, an option or a query. Rather one too many than one too few; a token of an unknown shape under
    a name that tells nothing is not found.

    Args:
        text: of a line, an exception, a diff.
        also: secrets known from elsewhere, such as a password in an option.
    """
    for secret in sorted({*also, *_environment(os.environ)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _KEY_BLOCK.sub(lambda found: f"{found['what']} {MASK}", text)
    text = _ADDRESS.sub(_address, text)
    text = _QUERY.sub(lambda found: found["name"] + MASK, text)
    for shape in _SHAPES:
        text = shape.sub(lambda found: (found.groupdict().get("kept") or "") + MASK, text)
    text = _ASSIGNED.sub(_assigned, text)
    return _OPTION.sub(lambda found: found["name"] + found["sign"] + MASK, text)


def certain(text: str) -> bool:
    """Whether `text` holds a secret by its shape, whatever it is called: a token, a key, an address with a password."""
    if _KEY_BLOCK.search(text) or any(shape.search(text) for shape in _SHAPES):
        return True
    return any(_address(found) != found[0] for found in _ADDRESS.finditer(text))


def masked_values(value: object) -> object:
    """JSON-ready `value` with `masked` texts, and whole values masked under telling keys."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            key: MASK if isinstance(inner, str) and inner and telling(str(key)) else masked_values(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked_values(inner) for inner in value]
    return value


def telling(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    return bool(_TELLING.search(name)) and not _HARMLESS_NAME.search(name)


def in_address(url: str) -> set[str]:
    """The secrets in an address, in every spelling in which a library may repeat them."""
    rest = url.partition("://")[2] or url
    found: set[str] = set()
    if "@" in rest:
        who = rest.rpartition("@")[0]
        password = who.partition(":")[2]
        found.add(password)
        if "@" in password:  # not encoded, as it must be: libraries cut it there and take the parts for a host
            found.update(re.split(r"[@/?#:]", password))
    found.update(
        part.partition("=")[2] for part in re.split(r"[?&;]", rest)[1:] if telling(unquote(part.partition("=")[0]))
    )
    spelled = {change(secret) for secret in found for change in (str, unquote, unquote_plus, quote, quote_plus)}
    spelled |= {quote(unquote(secret), safe="") for secret in found}
    return spelled - {"", MASK}


def said_of(url: str, error: BaseException) -> str:
    """The first line of what `error` says about `url`, without its secrets: of its cause, where it has one.

    A library's own wrapping ("an exception was raised during the commit") tells nothing.
    """
    seen = {id(error)}
    while (cause := error.__cause__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    error = getattr(error, "orig", None) or error
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    secrets = in_address(url)
    if any(len(secret) < SHORT and secret in line for secret in secrets):
        return type(error).__name__
    return masked(line, secrets)


def _environment(variables: Mapping[str, str]) -> set[str]:
    return {
        value
        for name, value in variables.items()
        if len(value) >= 8 and telling(name) and not _HARMLESS_VALUE.match(value)  # PWD is a path
    }


def _address(found: re.Match[str]) -> str:
    scheme, who = found["scheme"], found["who"]
    user, colon, _password = who.partition(":")
    if who.startswith("/") or (not colon and "/" in who):  # a file, or a path with an @
        return found[0]
    if colon:
        return f"{scheme}{user}:{MASK}@"
    known = user in ("git", "hg", "svn") or "http" not in scheme.lower()
    return f"{scheme}{user if known else MASK}@"  # a name alone before a web address is a token


def _assigned(found: re.Match[str]) -> str:
    name, sign, quoted, bare, text = found["name"], found["sign"], found["quoted"], found["bare"], found.string
    whole: str = found[0]
    value = quoted if bare is None else bare
    before = _BEFORE.search(text, max(0, found.start() - 60), found.start())
    if _HARMLESS_NAME.search((before[0] if before else "") + name) or _HARMLESS_VALUE.match(value) or MASK in value:
        return whole
    if bare is None:
        return f"{name}{sign}{found['prefix']}{found['quote']}{MASK}{found['quote']}"
    if any(c in bare for c in "([{") or _ATTRIBUTE.match(bare):  # an expression of a program
        return whole
    if sign.endswith(": ") and _PROSE.match(text, found.start("bare")):
        return whole
    return f"{name}{sign}{MASK}"
