"""Hide secrets in text: by the preceding key, and by the known forms of tokens, keys and passwords."""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from typing import Final


class Announced(IntEnum):
    """Certainty with which a name announces a secret, and so how little its value must look like one."""

    NOTHING = 0
    #: Hidden when the value looks like a secret: `pass`, `auth`, `signature`.
    PERHAPS = 1
    #: Hidden unless it is a number, a switch, a path or a placeholder: `token`.
    LIKELY = 2
    #: Hidden unless it is a switch, a path or a placeholder: `password`.
    SURELY = 3


#: Every name that announces a secret contains one of these, in lower case.
HINTS: Final = tuple(b"pass pwd secret token key cred auth cookie signature sig= otp".split())

_SURELY: Final = re.compile(
    "passw(or)?d|passphrase|requirepass|storepass|keypass|userpass|dbpass|pgpass|smtppass|passin$|passout$"
    "|apikey|accesskey|secretkey|privatekey|accountkey|sharedkey|subscriptionkey|signingkey|encryptionkey|masterkey"
    "|licensekey|storagekey|authkey|hmackey|clientkeydata|secret|credential|authorization$|cookie|(^|[^d])userpwd$"
)
_LIKELY: Final = re.compile("token$|pwd$")
_PERHAPS: Final = re.compile("pass$|auth$|sig$|signature$|deploykey$|sshkey$|servicekey$|sessionkey$")
#: A name with such a suffix gives a secret's location, length or kind, not its value.
_ABOUT: Final = re.compile(
    "file|files|path|paths|dir|folder|name|names|url|uri|endpoint|type|types|kind|len|length|size|count|limit"
    "|limits|ids|ttl|age|expiry|expires|expiration|policy|store|storage|manager|provider|providers|env|var|stdin"
    "|prompt|field|header|rate|budget|usage|helper|cache|backend|scope|format|version|mode|method|required"
    "|enabled|class|server|issuer|index|position|probability|prob|embedding|embeddings|logits|mask|vocab|regex"
    "|pattern|algorithm"
)
#: Words before `token` that refer to a language model's token.
_OF_A_MODEL: Final = re.compile(
    "max|min|num|n|pad|padding|eos|bos|unk|mask|masked|sep|cls|stop|special|image|audio|video|vision|per|first"
    "|next|last|prompt|output|input|each|new|end|start|begin|draft|think|thinking|word|sub|control|sampled"
    "|current|previous|prefix|suffix|fim|tool|text|extra|generated|decode|prefill"
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SWITCH: Final = re.compile(r"(?i)true|false|none|null|nil|yes|no|on|off|auto|default|undefined|required|optional")
_STAND_IN: Final = re.compile(
    r"\W*|redacted|[*x.#]+|<.*>|\$[\w@({].*|\$\w+|%\w+%|\{\{.*|(?i:your|my|the|some)[-_](?i:\w*(?:token|key|secret|pass).*)"
)
_NUMBER: Final = re.compile(r"[-+]?\d{1,9}(\.\d{1,9})?([eE][-+]?\d+)?[kKMG]?")
_PATH: Final = re.compile(
    r"(~|\.{0,2})/[\w.@+-]+(/[\w.@+-]*)*|[\w.-]+\.(json|txt|ya?ml|pem|key|crt|toml|env|ini|cfg|py|so)"
)
_LETTER: Final = re.compile(r"[A-Za-z]")
_DIGIT: Final = re.compile(r"\d")
_SIGN: Final = re.compile(r"[!@#$%^&*?~+=]")
#: A data type, architecture, version or shape: letters and digits that are not a secret.
_TECHNICAL: Final = re.compile(
    r"(?i)(b?f(p|loat)?|u?int|i|u|e\dm\d|q|mx|tcp|udp|ipv?|sha|md|utf|latin|rank|node|gpu|cpu|cuda|rocm|python|x)\d+\w{0,6}"
    r"|gfx\w+|[\w-]+(\.[\w-]+)+\.*|[\d,.:-]+|\w+[~^@]{1,2}\d*|\d+(x\d+)+|0x[0-9a-f]+|\d+[a-z]{1,2}"
)
_RANDOM_SEGMENT: Final = re.compile(r"[A-Za-z0-9+/]{30,}")
_CLASSES: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|[+/]+")
#: In random letters and digits, 62 of 100 adjacent pairs change class; in CamelCase words about 35.
_LEAST_CHANGES: Final = 0.45
_LEAST_OF_EACH: Final = 3


@lru_cache(8192)
def announced(name: str) -> Announced:
    """Classify a name: an option with its dashes, a variable, a JSON key, a header."""
    words = [word.lower() for word in _HUMP.split(name) if word]
    if not words:
        return Announced.NOTHING
    flat = "".join(words)
    if _ABOUT.fullmatch(words[-1]) or (words[-1] == "id" and not flat.endswith("secretid")):
        return Announced.NOTHING
    if _SURELY.search(flat) or words[-1] in ("otp", "totp"):
        return Announced.SURELY if not flat.endswith(("tokens", "keys")) else Announced.PERHAPS
    if _LIKELY.search(flat):
        if flat.endswith("token"):
            return _token(words)
        return Announced.NOTHING if flat in ("pwd", "oldpwd") and name.isupper() else Announced.LIKELY
    return Announced.PERHAPS if _PERHAPS.search(flat) else Announced.NOTHING


def _token(words: list[str]) -> Announced:
    if words[-1] != "token":
        return Announced.LIKELY if words[-1].endswith(("authtoken", "accesstoken")) or len(words) > 1 else _glued(words)
    before = words[-2] if len(words) > 1 else ""
    return Announced.NOTHING if _OF_A_MODEL.fullmatch(before) else Announced.LIKELY


def _glued(words: list[str]) -> Announced:
    """Classify `hftoken` and `padtoken`, written as one word."""
    before = words[-1].removesuffix("token")
    return Announced.NOTHING if _OF_A_MODEL.fullmatch(before) else Announced.LIKELY


def is_secret(value: str, surety: Announced) -> bool:
    """Return whether a value must be hidden after a name of this certainty."""
    if surety is Announced.NOTHING or _STAND_IN.fullmatch(value) or _SWITCH.fullmatch(value):
        return False
    if _PATH.fullmatch(value) and not is_random(value):
        return False
    if surety is Announced.SURELY:
        return True
    if _NUMBER.fullmatch(value):
        return False
    return surety is Announced.LIKELY or looks_chosen(value)


def looks_chosen(value: str) -> bool:
    """Return whether a value looks like a password or token rather than a word, number, path or data type."""
    if len(value) < 6 or _TECHNICAL.fullmatch(value) or _PATH.fullmatch(value) or _NUMBER.fullmatch(value):
        return is_login(value)
    if is_login(value) or is_random(value):
        return True
    letters = _LETTER.search(value) is not None
    return letters and (_DIGIT.search(value) is not None or _SIGN.search(value) is not None)


def is_technical(value: str) -> bool:
    """Return whether a value is a data type, a version, a shape or port numbers."""
    return _TECHNICAL.fullmatch(value) is not None


def is_login(value: str) -> bool:
    """Return whether a value is `user:password`, plain or in base64, rather than two numbers or an address."""
    user, colon, password = value.partition(":")
    if colon:
        return bool(user and password) and not password[0].isdigit() and not password.startswith(("/", "\\", ":"))
    try:
        decoded = b64decode(value, validate=True) if len(value) % 4 == 0 and len(value) >= 8 else b""
    except ValueError:
        return False
    return decoded.isascii() and b":" in decoded[1:-1] and decoded.decode("ascii").isprintable()


def is_random(word: str) -> bool:
    """Return whether a word has a long run of letters and digits that looks random: a key without a name.

    Digests, hexadecimal identifiers, mangled names and kernel names do not count as such runs.
    """
    if "_Z" in word:
        return False
    return any(_unspelled(segment[0]) for segment in _RANDOM_SEGMENT.finditer(word))


def _unspelled(segment: str) -> bool:
    runs = _CLASSES.findall(segment)
    lower, upper, digits = (sum(len(run) for run in runs if test(run[0])) for test in _TESTS)
    numbers = sum(run[0].isdigit() for run in runs)
    if min(lower, upper, digits, numbers) < _LEAST_OF_EACH or segment.count("/") > len(segment) // 16:
        return False
    return (len(runs) - 1) / (len(segment) - 1) >= _LEAST_CHANGES


_TESTS: Final = (str.islower, str.isupper, str.isdigit)


#: Each form: text that it must contain, and the pattern from there; group `s` is only the secret. Lower-case texts are
#: matched in any case if their pattern says so.
SHAPES: Final[tuple[tuple[bytes, bytes], ...]] = (
    # code hosts, registries and models
    *((b"gh" + kind + b"_", rb"gh\w_[A-Za-z0-9]{20,255}") for kind in (b"p", b"o", b"s", b"u", b"r")),
    (b"github_pat_", rb"github_pat_\w{20,255}"),
    *(
        (kind, kind + rb"[\w-]{20,64}")
        for kind in (b"glpat-", b"gldt-", b"glrt-", b"glptt-", b"glft-", b"glcbt-", b"glimt-", b"glsoat-", b"glagent-")
    ),
    (b"hf_", rb"hf_[A-Za-z0-9]{20,255}"),
    (b"api_org_", rb"api_org_[A-Za-z0-9]{20,64}"),
    (b"sk-", rb"sk-(?=[\w-]{0,128}\d)[\w-]{20,255}"),
    (b"gsk_", rb"gsk_[A-Za-z0-9]{20,255}"),
    (b"xai-", rb"xai-[A-Za-z0-9]{20,255}"),
    (b"nvapi-", rb"nvapi-[\w-]{20,255}"),
    (b"r8_", rb"r8_[A-Za-z0-9]{30,64}"),
    (b"pplx-", rb"pplx-[A-Za-z0-9]{30,64}"),
    (b"npm_", rb"npm_[A-Za-z0-9]{30,64}"),
    (b"pypi-A", rb"pypi-A[\w-]{15,1024}"),
    (b"rubygems_", rb"rubygems_[0-9a-f]{40,64}"),
    (b"dckr_", rb"dckr_(?:pat|oat)_[\w-]{20,64}"),
    (b"wandb_v1_", rb"wandb_v1_\w{20,255}"),
    # clouds
    (b"AKIA", rb"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    (b"ASIA", rb"ASIA[0-9A-Z]{16}(?![0-9A-Za-z])"),
    (b"AIza", rb"AIza[\w-]{30,64}"),
    (b"ya29.", rb"ya29\.[\w-]{20,1024}"),
    (b"GOCSPX-", rb"GOCSPX-[\w-]{20,64}"),
    (b"1//0", rb"1//0[\w-]{30,255}"),
    (b"dapi", rb"dapi[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),
    (b"dop_v1_", rb"dop_v1_[0-9a-f]{40,64}"),
    *((kind, re.escape(kind) + rb"[\w-]{20,255}") for kind in (b"hvs.", b"hvb.", b"hvr.")),
    (b"glsa_", rb"glsa_\w{30,64}"),
    (b"tskey-", rb"tskey-\w{3,16}-[\w-]{16,128}"),
    # messages, mail and money
    (b"xox", rb"xox[abeoprs]-[A-Za-z0-9-]{10,255}"),
    (b"xapp-", rb"xapp-\d-[A-Za-z0-9-]{20,255}"),
    (b"hooks.slack.com/", rb"hooks\.slack\.com/(?:services|workflows)/(?P<s>[\w/-]{10,255})"),
    (b"/api/webhooks/", rb"/api/webhooks/(?P<s>\d{8,32}/[\w-]{20,255})"),
    (b":AA", rb":AA[\w-]{33}(?![\w-])"),
    (b"SG.", rb"SG\.[\w-]{16,64}\.[\w-]{16,128}"),
    (b"key-", rb"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    *(
        (kind + mode, kind + mode + rb"_[A-Za-z0-9]{10,255}")
        for kind in (b"sk", b"rk")
        for mode in (b"_live", b"_test")
    ),
    (b"whsec_", rb"whsec_[A-Za-z0-9+/=]{20,255}"),
    *((kind, kind + rb"[0-9a-fA-F]{32}") for kind in (b"shpat_", b"shpss_", b"shpca_", b"shppa_")),
    (b"ATATT3", rb"ATATT3[\w=-]{20,512}"),
    (b"lin_api_", rb"lin_api_[A-Za-z0-9]{20,64}"),
    (b"figd_", rb"figd_[\w-]{20,64}"),
    (b"PMAK-", rb"PMAK-[0-9a-f-]{30,128}"),
    # signed objects and key blocks, the latter also as base64
    (b"eyJ", rb"eyJ[\w-]{10,4096}\.[\w-]{4,8192}(?:\.[\w-]{0,4096}){0,3}"),
    (
        b"-----BEGIN ",
        rb"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:[^-]{0,24000}?-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----|(?:[\w+/=\s:,]|\\[nr]){0,24000})",
    ),
    (b"LS0tLS1CRUdJTiB", rb"LS0tLS1CRUdJTiB[QSFPE][A-Za-z0-9+/=]{40,24000}"),
    (b"AGE-SECRET-KEY-", rb"AGE-SECRET-KEY-[0-9A-Z]{20,128}"),
    # logins as written by curl, SQL and netrc
    (b"bearer ", rb"(?i:bearer)\s{1,4}(?P<s>(?:(?=[\w.~+/-]{0,255}\d)[\w.~+/-]{8,4096}|[\w.~+/-]{24,4096})=*)"),
    (b"basic ", rb"(?i:basic)\s{1,4}(?P<s>[A-Za-z0-9+/]{8,1024}={0,2})"),
    (b"identified by ", rb"(?i:identified by)\s{1,4}'(?P<s>[^'\n]{1,256})"),
    (b"login ", rb"(?i:login)\s{1,4}(?P<s>(?=[A-Za-z]{0,255}\d)[A-Za-z0-9]{24,255})(?![\w.-])"),
    (b"login ", rb"(?i:login)\s{1,8}\S{1,128}\s{1,8}(?i:password)\s{1,8}(?P<s>[^\s\"'\\]{1,256})"),
)
#: Forms whose beginnings occur in every trace: a login in an address (user:password@host, or a long token).
FREQUENT: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"SK", rb"SK[0-9a-f]{32}(?![0-9A-Za-z])"),
    *(
        (
            slashes,
            re.escape(slashes) + rb"(?P<s>[^\s/\\@\"'<>:,]{0,128}:[^\s/\\\"'<>,]{1,256}|(?=[\w~.%+-]{0,64}\d)"
            rb"[\w~.%+-]{16,256})@(?!sha256:)",
        )
        for slashes in (b"://", b":\\/\\/")
    ),
)
#: Forms found anywhere, even directly after a letter.
_ANYWHERE: Final = (b"github_pat_", b"hooks.slack.com/", b"/api/webhooks/", b":AA", b"-----BEGIN ", b"://", b":\\/\\/")
#: Lower-case forms that are matched in any case.
ANY_CASE: Final = frozenset({b"bearer ", b"basic ", b"identified by ", b"login "})
_WORD: Final = re.compile(rb"[A-Za-z0-9]")
#: A word begins after these JSON and URL escapes, although they end with a letter or digit.
_ESCAPE: Final = re.compile(rb".*(?:\\[nrtbf]|%[0-9A-Fa-f]{2}|\\u00[0-9a-f]{2})", re.DOTALL)


@cache
def pattern(shape: bytes) -> re.Pattern[bytes]:
    """Compile the pattern of a form on first use."""
    return re.compile(shape)


def begins(content: bytes, at: int, anchor: bytes) -> bool:
    """Return whether a secret may begin here, rather than a longer word continuing."""
    if at == 0 or anchor in _ANYWHERE or not _WORD.match(content, at - 1):
        return True
    return _ESCAPE.fullmatch(content, max(0, at - 6), at) is not None


#: Replacement for a secret.
REDACTED: Final = "redacted"
#: No secret with its name is longer; one across two pieces of a file is found if this much of it is in one.
LONGEST: Final = 32 << 10
#: Text up to this far before a secret may affect the decision: the line of a command.
LONGEST_BEFORE: Final = 4 << 10

#: Size of the window for one search for beginnings of secrets, none of which exceeds the next bound.
_WINDOW: Final = 16 << 10
_LONGEST_BEGINNING: Final = 64
_REDACTED_BYTES: Final = REDACTED.encode()
_NAME_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_LONGEST_NAME: Final = 128
#: Quotes with their escapes; tables stored as text double them.
_QUOTES: Final = rb"""\\{0,8}["']{1,2}"""
#: The gap between two words in a list, where a command line was split at its blanks.
_NEXT_WORD: Final = rb"""\\{0,8}["']\s{0,32},\s{0,32}\\{0,8}["']"""
#: Between a name and its value, including quotes and escapes: `=`, `:`, and JSON that lists name and value.
_ASSIGNED: Final = re.compile(
    rb"(?:%(quotes)s|\\{0,8})[\])]?[ \t]{0,8}(?::%(next)s(?!-)|(?:=>|:=|==?|:(?![:=/]))[ \t]{0,8})"
    rb"|%(quotes)s\s{0,32},(?:\s{0,32}|%(next)s)%(quotes)s(?i:value)%(quotes)s\s{0,8}:(?:%(next)s|\s{0,8})"
    % {b"quotes": _QUOTES, b"next": _NEXT_WORD}
)
_AFTER_OPTION: Final = re.compile(rb"""\\{0,8}["']\s{0,32},\s{0,32}(?=\\{0,8}["'])|\\{0,8}["']?\s{1,32}(?:- )?""")
_IN_CELLS: Final = re.compile(rb"""\\{0,8}["'],(?=\\{0,8}["'])|\s{1,4}(?=')""")
_OPENED: Final = re.compile(rb"""(\\{0,8})(""(?!")|["'])""")
_DOUBLED: Final = b'""'
_QUOTED: Final = {
    b'"': re.compile(rb'(?:[^"\\]|\\.){0,16384}', re.DOTALL),
    b"'": re.compile(rb"(?:[^'\\]|\\.){0,16384}", re.DOTALL),
}
_BARE: Final = re.compile(rb"""[^\s"'\\<>{}\[\]()`|,;&]{1,4096}""")
_LINE: Final = re.compile(rb"""[^"'\r\n\\]{1,4096}""")
_SCHEME: Final = re.compile(
    rb"(?i)(?:basic|bearer|token|digest|negotiate|apikey|hmac|aws4-hmac-sha256)(?:[ \t]{1,4}|%s)" % _NEXT_WORD
)
_NAMED_IN_A_FILE_NAME: Final = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|secret|api[-_]?key)[-_=.](?P<s>[^-_=./]{6,})"
)
_WORDS: Final = re.compile(r"[^\s\"'<>{}\[\](),;:=|]{30,}")


def redacted_bytes(content: bytes) -> tuple[bytes, int]:
    """Redact bytes; return them with the number of secrets."""
    found = spans(content)
    return replaced(content, found), len(found)


def redacted_text(text: str) -> tuple[str, int]:
    """Redact a program's names and words; return the text with the number of secrets."""
    content, hits = redacted_bytes(text.encode("utf-8", "surrogateescape"))
    return (content.decode("utf-8", "surrogateescape"), hits) if hits else (text, 0)


def redacted_prose(text: str) -> tuple[str, int]:
    """Redact free text, including key-like words without a name; return it with the number of secrets."""
    clean, hits = redacted_text(text)
    found = [match.span() for match in _WORDS.finditer(clean) if is_random(match[0]) and not _is_code(clean, match)]
    for start, end in reversed(found):
        clean = clean[:start] + REDACTED + clean[end:]
    return clean, hits + len(found)


def _is_code(text: str, word: re.Match[str]) -> bool:
    """Return whether the word is a C++ name: `space::name`, `name<…>`, `name(…)`."""
    return text[max(0, word.start() - 2) : word.start()] == "::" or text[word.end() : word.end() + 1] in ("<", "(")


def safe_text(text: str) -> str:
    """Redact free text."""
    return redacted_prose(text)[0]


def safe_value(name: str, value: str) -> str:
    """Redact a value, or replace it with `REDACTED` when its name announces a secret."""
    return REDACTED if is_secret(value, announced(name)) else safe_text(value)


def safe_name(name: str) -> str:
    """Redact the name of a file or folder; unchanged if it contains no secret."""
    clean, _ = redacted_prose(name)
    return _NAMED_IN_A_FILE_NAME.sub(_without_its_end, clean)


def _without_its_end(found: re.Match[str]) -> str:
    if not looks_chosen(found["s"]):
        return found[0]
    return found[0][: found.start("s") - found.start()] + REDACTED


def spans(content: bytes) -> list[tuple[int, int]]:
    """Locate the secrets, in order and disjoint."""
    return apart([*_shaped(content, FREQUENT), *_shaped(content, SHAPES), *_announced_in(content)])


def suspects(content: bytes, further: str = "") -> list[tuple[int, int]]:
    """Find the parts that may contain secrets, each with all the context that affects the decision.

    One search for the beginnings of all secrets, and for the pattern `further`, replaces one search each.
    """
    if len(content) <= _WINDOW:
        return [(0, len(content))]
    import polars as pl  # searches for all beginnings at once; not needed for small files

    starts = range(0, len(content), _WINDOW)
    windows = pl.Series([content[at : at + _WINDOW + _LONGEST_BEGINNING].decode("latin-1") for at in starts])
    held = windows.str.contains(_beginnings() + further)
    found = [at for at, suspect in zip(starts, held, strict=True) if suspect]
    least, most = LONGEST_BEFORE, _WINDOW + _LONGEST_BEGINNING + LONGEST
    return apart((max(0, at - least), min(len(content), at + most)) for at in found)


@cache
def _beginnings() -> str:
    """Build a pattern for the beginnings of all forms and the common parts of names that announce a secret."""
    shaped = {anchor for anchor, _ in (*SHAPES, *FREQUENT)}
    exact, any_case = shaped - ANY_CASE, {*HINTS, *(shaped & ANY_CASE)}
    of = ["|".join(re.escape(text.decode()) for text in sorted(texts)) for texts in (exact, any_case)]
    return f"{of[0]}|(?i:{of[1]})"


def apart(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort spans and merge overlapping ones."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def replaced(content: bytes, found: Sequence[tuple[int, int]]) -> bytes:
    """Replace these spans of the content."""
    pieces: list[bytes] = []
    after = 0
    for start, end in found:
        pieces += [content[after:start], b"0" if _is_bare_number(content, start, end) else _REDACTED_BYTES]
        after = end
    return b"".join([*pieces, content[after:]])


def _is_bare_number(content: bytes, start: int, end: int) -> bool:
    """Return whether the span is a JSON number, which must remain a number to keep the document valid."""
    named = content[max(0, start - 3) : start].rstrip().endswith(b'":')
    return named and content[start:end].isdigit() and content[end : end + 1] in (b",", b"}", b"\n", b" ")


def _shaped(content: bytes, shapes: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[int, int]]:
    """Locate text that has one of these forms."""
    lower = content.lower()
    for anchor, shape in shapes:
        where = lower if anchor in ANY_CASE else content
        at = where.find(anchor)
        while at >= 0:
            match = pattern(shape).match(content, at) if begins(content, at, anchor) else None
            if match is not None and (anchor != b"basic " or is_login(match["s"].decode())):
                yield match.span("s" if "s" in match.re.groupindex else 0)
            at = where.find(anchor, at + len(anchor) if match is None else max(match.end(), at + len(anchor)))


def _announced_in(content: bytes) -> Iterator[tuple[int, int]]:
    """Locate secrets after a name that announces them."""
    lower = content.lower()
    for hint in HINTS:
        at = lower.find(hint)
        while at >= 0:
            before = content[max(0, at - _LONGEST_NAME) : at]
            start = at - (len(before) - len(before.rstrip(_NAME_CHARACTERS)))
            ahead = content[at : at + _LONGEST_NAME]
            end = at + len(ahead) - len(ahead.lstrip(_NAME_CHARACTERS))
            found = _value(content, start, end)
            if found is not None:
                yield found
            at = lower.find(hint, end)


def _value(content: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Locate the secret that the name from `start` to `end` announces; None if it announces none."""
    name = content[start:end].decode("ascii", "replace")
    surety = announced(name)
    if surety is Announced.NOTHING:
        return None
    link = _ASSIGNED.match(content, end)
    if link is not None and content[max(0, start - 2) : start] == b"::":
        return None
    if link is None and name.startswith("-"):
        link = _AFTER_OPTION.match(content, end)
    elif link is None and surety is Announced.SURELY:
        link = _IN_CELLS.match(content, end)
    if link is None:
        return None
    at = link.end()
    if name.lower().endswith("authorization"):
        opened = _OPENED.match(content, at)
        at = opened.end() if opened else at
        scheme = _SCHEME.match(content, at)
        value = (_LINE if scheme or opened else _BARE).match(content, scheme.end() if scheme else at)
    elif name.lower().endswith("cookie") and not name.startswith("-"):
        opened = _OPENED.match(content, at)
        value = _LINE.match(content, opened.end() if opened else at)
    else:
        return _plain_value(content, at, name, surety)
    return value.span() if value and is_secret(value[0].decode("utf-8", "replace").strip(), Announced.LIKELY) else None


def _plain_value(content: bytes, at: int, name: str, surety: Announced) -> tuple[int, int] | None:
    opened = _OPENED.match(content, at)
    if opened is None:
        bare = _BARE.match(content, at)
        if bare is None or (name.startswith("-") and bare[0].startswith(b"--")):
            return None
        first, last = bare.span()
        prose = content[at - 1 : at] in (b" ", b"\t") and not name.startswith("-") and name != name.upper()
        surety = Announced.PERHAPS if prose and surety is Announced.LIKELY else surety
    elif opened[2] == _DOUBLED:
        first = opened.end()
        last = content.find(opened[0], first, first + LONGEST // 2)
        if last < 0 or any(mark in content[first:last] for mark in (b'"', b"\n")):
            return None  # not a cell's doubled quotes: a text without letters
    else:
        first = opened.end()
        last = content.find(opened[0], first, first + LONGEST // 2) if opened[1] else -1
        if last < 0:
            quoted = _QUOTED[opened[2]].match(content, first)
            last = quoted.end() if quoted else first
    return (first, last) if is_secret(content[first:last].decode("utf-8", "replace"), surety) else None
