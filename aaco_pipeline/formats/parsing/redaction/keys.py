"""What a name says of the value behind it: whether `--max-tokens`, `api_key` or `sessionToken` announces a secret.

Where names and their values stand in a text is `text`'s to find.
"""

import re
from base64 import b64decode
from enum import IntEnum
from functools import lru_cache
from typing import Final


class Announced(IntEnum):
    """How surely a name announces a secret, and so how little its value must look like one."""

    NOTHING = 0
    #: Hidden when the value looks like a secret: `pass`, `auth`, `signature`.
    PERHAPS = 1
    #: Hidden unless it is a number, a switch, a path or a stand-in: `token`.
    LIKELY = 2
    #: Hidden unless it is a switch, a path or a stand-in: `password`.
    SURELY = 3


#: One of these is part of every name that announces a secret, in lower case.
HINTS: Final = (
    b"pass",
    b"pwd",
    b"secret",
    b"token",
    b"key",
    b"cred",
    b"auth",
    b"cookie",
    b"signature",
    b"sig=",
    b"otp",
)

_SURELY: Final = re.compile(
    "passw(or)?d|passphrase|requirepass|storepass|keypass|userpass|dbpass|pgpass|smtppass|passin$|passout$"
    "|apikey|accesskey|secretkey|privatekey|accountkey|sharedkey|subscriptionkey|signingkey|encryptionkey|masterkey"
    "|licensekey|storagekey|authkey|hmackey|clientkeydata|secret|credential|authorization$|cookie|(^|[^d])userpwd$"
)
_LIKELY: Final = re.compile("token$|pwd$")
_PERHAPS: Final = re.compile("pass$|auth$|sig$|signature$|deploykey$|sshkey$|servicekey$|sessionkey$")
#: A name that ends so says where a secret lies, how long it is or of what kind, and not what it is.
_ABOUT: Final = re.compile(
    "file|files|path|paths|dir|folder|name|names|url|uri|endpoint|type|types|kind|len|length|size|count|limit"
    "|limits|ids|ttl|age|expiry|expires|expiration|policy|store|storage|manager|provider|providers|env|var|stdin"
    "|prompt|field|header|rate|budget|usage|helper|cache|backend|scope|format|version|mode|method|required"
    "|enabled|class|server|issuer|index|position|probability|prob|embedding|embeddings|logits|mask|vocab|regex"
    "|pattern|algorithm"
)
#: Before `token` these make it one of a language model's.
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
#: A data type, an architecture, a version or a shape: letters with digits that are no secret.
_TECHNICAL: Final = re.compile(
    r"(?i)(b?f(p|loat)?|u?int|i|u|e\dm\d|q|mx|tcp|udp|ipv?|sha|md|utf|latin|rank|node|gpu|cpu|cuda|rocm|python|x)\d+\w{0,6}"
    r"|gfx\w+|[\w-]+(\.[\w-]+)+\.*|[\d,.:-]+|\w+[~^@]{1,2}\d*|\d+(x\d+)+|0x[0-9a-f]+|\d+[a-z]{1,2}"
)
_RANDOM_SEGMENT: Final = re.compile(r"[A-Za-z0-9+/]{30,}")
_CLASSES: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|[+/]+")
#: Of two random letters or digits 62 in 100 are of different classes; of CamelCase words about 35.
_LEAST_CHANGES: Final = 0.45
_LEAST_OF_EACH: Final = 3


@lru_cache(8192)
def announced(name: str) -> Announced:
    """What a name announces: an option with its dashes, a variable, a key of JSON, a header."""
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
    """Of `hftoken` and `padtoken`, written as one word."""
    before = words[-1].removesuffix("token")
    return Announced.NOTHING if _OF_A_MODEL.fullmatch(before) else Announced.LIKELY


def is_secret(value: str, surety: Announced) -> bool:
    """Whether a value is to be hidden behind a name of such surety."""
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
    """Whether a value looks like a password or a token, and not like a word, a number, a path or a data type."""
    if len(value) < 6 or _TECHNICAL.fullmatch(value) or _PATH.fullmatch(value) or _NUMBER.fullmatch(value):
        return is_login(value)
    if is_login(value) or is_random(value):
        return True
    letters = _LETTER.search(value) is not None
    return letters and (_DIGIT.search(value) is not None or _SIGN.search(value) is not None)


def is_technical(value: str) -> bool:
    """Whether a value is a data type, a version, a shape, a number of ports."""
    return _TECHNICAL.fullmatch(value) is not None


def is_login(value: str) -> bool:
    """Whether a value is `user:password`, plain or as base64, and not two numbers or an address."""
    user, colon, password = value.partition(":")
    if colon:
        return bool(user and password) and not password[0].isdigit() and not password.startswith(("/", "\\", ":"))
    try:
        decoded = b64decode(value, validate=True) if len(value) % 4 == 0 and len(value) >= 8 else b""
    except ValueError:
        return False
    return decoded.isascii() and b":" in decoded[1:-1] and decoded.decode("ascii").isprintable()


def is_random(word: str) -> bool:
    """Whether a word holds a long run of letters and digits that nobody would spell: a key without any name.

    Digests, identifiers of hexadecimal digits, mangled names and names of kernels are no such runs.
    """
    if "_Z" in word:
        return False
    return any(_unspelled(segment[0]) for segment in _RANDOM_SEGMENT.finditer(word))


def _unspelled(segment: str) -> bool:
    runs = _CLASSES.findall(segment)
    lower, upper, digits = (sum(len(run) for run in runs if test(run[0])) for test in _TESTS)
    numbers = sum(run[0].isdigit() for run in runs)
    if (
        min(lower, upper, digits) < _LEAST_OF_EACH
        or numbers < _LEAST_OF_EACH
        or segment.count("/") > len(segment) // 16
    ):
        return False
    return (len(runs) - 1) / (len(segment) - 1) >= _LEAST_CHANGES


_TESTS: Final = (str.islower, str.isupper, str.isdigit)
