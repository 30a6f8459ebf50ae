"""Hide secrets on command lines: option values, and passwords by their position in known programs' arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from aaco_pipeline.formats.parsing.redaction.text import (
    REDACTED,
    Announced,
    announced,
    is_login,
    is_secret,
    is_technical,
    looks_chosen,
    safe_text,
)


@dataclass(frozen=True)
class Takes:
    """The ways in which a program takes its password."""

    #: Short options before a password, which may follow in the same word.
    letters: str = ""
    #: Short options without a value that may precede those in one word: `-xw`.
    flags: str = ""
    #: Other options followed by a password as a separate word.
    words: tuple[str, ...] = ()
    #: The password is never a separate word: `7z -pSECRET`.
    only_glued: bool = False
    #: This program's options end at its first argument, which is another program.
    runs: bool = False
    #: Options before a user and a password, and the separator between the two.
    logins: str = ""
    between: str = ":"
    #: After one of these words and this many more, all arguments are passwords: `rabbitmqctl add_user NAME SECRET`.
    arguments: Mapping[str, int] = field(default_factory=dict)


_HTPASSWD: Final = {
    **dict.fromkeys(("-b", "-bc", "-cb", "-bB", "-Bb", "-cBb", "-cbB", "-Bbc", "-Bcb", "-bcB", "-bBc"), 3),
    **dict.fromkeys(("-nb", "-bn", "-nbB", "-nBb", "-bnB", "-Bbn", "-Bnb", "-bBn"), 2),
}
_TABLE: Final = (
    (
        "mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlcheck mysqlslap mysqlbinlog mysqlpump mysqlsh "
        "mysql_upgrade mariadb mariadb-dump mariadb-admin mariadb-import mariadb-show mariadb-check mariadb-slap "
        "mariadb-binlog mycli xtrabackup mariabackup",
        Takes("p", "ABCEfGHiLnNqrstTvwX"),
    ),
    ("mongo mongosh mongodump mongorestore mongoexport mongoimport mongostat mongotop mongofiles", Takes("p", "v")),
    (
        "cqlsh beeline cypher-shell couchbase-cli cbq cbimport cbexport cbbackupmgr hdbsql exaplus twine rdesktop "
        "useradd usermod groupadd groupmod ncftp ncftpget ncftpput steghide rabbitmqadmin racadm ilorest hydra "
        "ipmipower ipmiconsole ipmi-sensors ipmi-chassis ipmi-sel bmc-config",
        Takes("p"),
    ),
    ("sshpass", Takes("p", "ev", runs=True)),
    ("redis-cli redis-benchmark valkey-cli valkey-benchmark keydb-cli", Takes("a", words=("--pass",))),
    ("ldapsearch ldapadd ldapmodify ldapdelete ldapcompare ldapmodrdn ldapwhoami ldapexop", Takes("w", "xZvncMCLtuA")),
    ("ldappasswd", Takes("was", "xZvncMCS")),
    ("sqlcmd bcp isql osql tsql fisql freebcp defncopy", Takes("P")),
    ("mosquitto_pub mosquitto_sub mosquitto_rr", Takes("P", words=("--pw",))),
    (
        "snmpget snmpgetnext snmpset snmpwalk snmpbulkget snmpbulkwalk snmptable snmptrap snmpinform snmpstatus snmpdf "
        "snmpnetstat snmpusm snmpdelta",
        Takes("AXc"),
    ),
    ("ipmitool", Takes("Pky")),
    ("zip", Takes("P", "rqvjmoe0123456789ulDXyTFgkA")),
    ("unzip", Takes("P", "qonjlvtpzfuaCLX")),
    ("7z 7za 7zz 7zr", Takes("p", only_glued=True)),
    ("rar unrar", Takes("p", "h", only_glued=True)),
    (
        "curl",
        Takes(logins="uU", flags="sSfkLgvIiaGNnqRjlO0123456#", words=("--pass", "--proxy-pass", "--oauth2-bearer")),
    ),
    ("lftp", Takes(logins="u", between=",")),
    (
        "smbclient smbget smbcacls smbtree rpcclient winexe net samba-tool",
        Takes(logins="U", flags="NkgcLP", between="%"),
    ),
    ("openssl", Takes(words=("-k", "-K"), arguments={"passwd": 1})),
    ("ssh-keygen", Takes("NP", "q")),
    ("kadmin kadmin.local", Takes("w", words=("-pw",))),
    ("plink pscp psftp putty", Takes(words=("-pw",))),
    ("pdftotext pdfinfo pdfimages pdftoppm pdftocairo pdftops pdftohtml pdffonts", Takes(words=("-upw", "-opw"))),
    ("dig delv nsupdate", Takes("y")),
    ("vsql", Takes("w")),
    ("doctl", Takes("t")),
    ("slappasswd", Takes("s")),
    ("pk12util", Takes("WK")),
    ("ccrypt", Takes("K")),
    ("swaks", Takes(words=("-ap",))),
    ("sendemail", Takes(words=("-xp",))),
    ("xfreerdp", Takes(words=("/p",))),
    ("rabbitmqctl", Takes(arguments=dict.fromkeys(("add_user", "change_password", "authenticate_user"), 2))),
    ("wpa_passphrase", Takes(arguments={"wpa_passphrase": 2})),
    ("radtest", Takes(arguments={"radtest": 2})),
    ("rclone", Takes(arguments={"obscure": 1})),
    ("htpasswd", Takes(arguments=_HTPASSWD)),
)
PROGRAMS: Final = {name: takes for names, takes in _TABLE for name in names.split()}
_LOGGING_IN: Final = "docker podman buildah skopeo nerdctl helm oras oc cf az ibmcloud"
#: Programs whose command `login` takes `-p`; elsewhere, as in `docker run -p 80:80`, it means ports.
LOG_IN: Final = frozenset(_LOGGING_IN.split())
LOGIN: Final = Takes("p")
_LONG_LOGINS: Final = ("--user", "--proxy-user", "--userpwd")


def password_at(takes: Takes, option: str) -> int | None:
    """Return where in an option the password begins, its end if that is the next word; None without one."""
    for word in takes.words:
        if option == word or option.startswith(f"{word}:"):
            return len(word) + (option != word)
    return _end_of(takes.letters, takes.flags, option)


def login_at(takes: Takes, option: str) -> int | None:
    """Return where in an option a user with a password begins, its end if that is the next word."""
    if takes.logins and option in _LONG_LOGINS:
        return len(option)
    return _end_of(takes.logins, takes.flags, option)


def _end_of(letters: str, flags: str, option: str) -> int | None:
    found = _short(letters, flags).match(option) if letters else None
    return found.end() if found else None


@cache
def _short(letters: str, flags: str) -> re.Pattern[str]:
    return re.compile(rf"-[{re.escape(flags)}]*[{letters}]" if flags else f"-[{letters}]")


#: A longer command line is truncated: no kernel accepts longer words, and nobody reads them.
LONGEST_COMMAND: Final = 128 << 10
_DEEPEST: Final = 4
_CUT: Final = " (cut)"
#: Words including quoted parts, and the spaces between them.
_WORDS: Final = re.compile(r"""((?:[^\s"']|"[^"]*"|'[^']*')+|["'])""")
_SPACE: Final = re.compile(r"\s")
_UNQUOTED_WORDS: Final = re.compile(r"(\S+)")
#: Marks of a command line that other text lacks: an option, or one of these words.
_OPTION: Final = re.compile(r"""-(?<=[\s"']-)-?[A-Za-z]""")
_COMMANDING: Final = ("login ", " set ")
_QUOTES: Final = re.compile(r"""\\?["']""")
_PAIR: Final = re.compile(r"""(?s)(-{0,2}["']?[A-Za-z_][\w.:/-]*?["']?)(=)(.*)""")
_WHOLE_QUOTE: Final = re.compile(r"""(["'])(.*)\1""", re.DOTALL)

_LOGIN_OPTIONS: Final = frozenset({"-u", "-U", "--user", "--proxy-user", "--userpwd", "--auth", "-a"})
_NAMES_A_USER: Final = frozenset({"-u", "-U", "--user", "--username", "--login", "login", "--login-name"})
_PIPED_INTO: Final = re.compile(r"password-stdin|with-token|chpasswd|sudo\s+-\w*S|--passphrase-fd")
_ECHOED: Final = ("echo", "printf")
_SEPARATORS: Final = frozenset({"|", "||", "|&", "&", "&&", ";"})


#: Programs that accept a password without any of the options below.
_NAMED: Final = (
    "curl,mysql,mariadb,smbclient,rpcclient,zip,rar,lftp,ssh-keygen,openssl passwd,htpasswd,slappasswd,pk12util,"
    "radtest,wpa_passphrase,rclone obscure,add_user,change_password,authenticate_user,dig,nsupdate,doctl,swaks,xfreerdp"
)
#: Text before a secret that is common on command lines and rare elsewhere; longer options announce theirs by name.
_ANCHORS: Final = (
    (b" -", re.compile(rb"[pP]|[uUabwkK] |-(?:user|auth)[= ]|-cookie |-pw |[uo]pw |pass|-password-stdin|-with-token")),
    (b" login ", re.compile(rb"")),
    *((program.encode(), re.compile(rb"(?:\.exe)? ")) for program in _NAMED.split(",")),
    (b"snmp", re.compile(rb"\w{3,12} ")),
    (b"ldap", re.compile(rb"[a-z]{3,9} ")),
    (b" set ", re.compile(rb"\S{0,64}(?i:key|secret|token|pass)")),
)
#: A pattern that matches at least these, for `suspects`.
ANCHORED: Final = "|".join(f"{anchor.decode()}(?:{further.pattern.decode()})" for anchor, further in _ANCHORS)
_LINE_END: Final = re.compile(rb"""\n|(?<!\\)\"""")
_LONGEST_LINE: Final = 2048


_NOTHING: Final = Takes()


@dataclass
class _State:
    """State between words: the name waiting for its value, and the running program."""

    logs_in: bool
    echo_is_secret: bool
    program: str = ""
    takes: Takes = _NOTHING
    waiting: Announced = Announced.NOTHING
    #: The program is known to take a password here, regardless of its form.
    is_sure: bool = False
    #: The separator between a user and a password in the next word.
    between: str = ""
    #: Number of arguments before the passwords; None if there are none.
    before_passwords: int | None = None
    after: str = ""


def safe_command(words: str | Sequence[str]) -> str:
    """Redact a command line, given as one text or as words; each secret becomes `REDACTED`."""
    if isinstance(words, str):
        return safe_text(_safe_line(_cut(words), 0))
    return safe_text(_cut(" ".join(_safe_words([_cut(str(word)) for word in words], 0))))


def safe_words(words: Sequence[str]) -> list[str]:
    """Redact the words of a command line, keeping their number; each secret becomes `REDACTED`."""
    return [safe_text(word) for word in _safe_words([_cut(word) for word in words], 0)]


def safe_prose(text: str) -> str:
    """Redact free text; text with options is treated as a command line."""
    return safe_command(text) if _is_command(text) else safe_text(_cut(text))


def command_spans(content: bytes) -> Iterator[tuple[int, int]]:
    """Locate secrets in a text file that are only recognizable on a command line, such as `mysql -phunter2`."""
    after = 0
    for at in sorted(_anchors(content)):
        if at < after:
            continue
        start = max(content.rfind(b"\n", max(0, at - _LONGEST_LINE), at), _quote_before(content, at)) + 1
        ends = _LINE_END.search(content, at, at + _LONGEST_LINE)
        after = ends.start() if ends else min(len(content), at + _LONGEST_LINE)
        words = list(_WORDS.finditer(content[start:after].decode("latin-1")))
        for word, safe in zip(words, _safe_words([word[0] for word in words], 0), strict=True):
            if safe != word[0]:
                same = _same(safe, word[0])
                at_end = _same(safe[same:][::-1], word[0][same:][::-1])
                yield start + word.start() + same, start + word.end() - at_end


def _anchors(content: bytes) -> Iterator[int]:
    """Locate text that only occurs on command lines and that a secret may follow."""
    for anchor, further in _ANCHORS:
        at = content.find(anchor)
        while at >= 0:
            if further.match(content, at + len(anchor)):
                yield at
            at = content.find(anchor, at + len(anchor))


def _quote_before(content: bytes, at: int) -> int:
    """Locate the start of the text around `at`: the last unescaped `"`, if it is near."""
    least = max(0, at - _LONGEST_LINE)
    quote = content.rfind(b'"', least, at)
    while quote > least and content[quote - 1 : quote] == b"\\":
        quote = content.rfind(b'"', least, quote)
    return quote if quote >= 0 else least - 1


def _same(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def may_hold_secrets(text: str) -> bool:
    """Return whether `safe_prose` may change a line of this text; it is cheaper to ask about many texts at once."""
    return _is_command(text) or safe_text(text) != text


def _is_command(text: str) -> bool:
    return any(word in text for word in _COMMANDING) or _OPTION.search(text) is not None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_COMMAND else text[:LONGEST_COMMAND] + _CUT


def _safe_line(line: str, depth: int, words: re.Pattern[str] = _WORDS) -> str:
    pieces = words.split(line)
    pieces[1::2] = _safe_words(pieces[1::2], depth)
    return "".join(pieces)


def _safe_words(words: Sequence[str], depth: int) -> list[str]:
    bare = [_QUOTES.sub("", word) for word in words]
    line_asks = any(map(_PIPED_INTO.search, (" ".join(bare[-24:]), *bare[-24:])))
    state = _State(not _NAMES_A_USER.isdisjoint(bare), line_asks)
    return [_safe_word(word, plain, state, depth) for word, plain in zip(words, bare, strict=True)]


def _safe_word(word: str, plain: str, state: _State, depth: int) -> str:
    waiting, is_sure, between, after = state.waiting, state.is_sure, state.between, state.after
    state.waiting, state.is_sure, state.between, state.after = Announced.NOTHING, False, "", plain
    if plain in _SEPARATORS or after.endswith(";"):
        state.program, state.takes, state.before_passwords = "", _NOTHING, None
    awaited = waiting and not plain.startswith("--") and is_secret(plain, waiting)
    logs_in = between and between in plain[1:-1]
    if (
        logs_in
        or (awaited and (is_sure or not _is_known(plain, after)))
        or _is_argument_secret(plain, state)
        or _is_positional_secret(plain, after, state)
    ):
        return _like(word, REDACTED)
    _recognize(plain, after, state)
    if _SPACE.search(plain) and depth < _DEEPEST:
        quoted = _WHOLE_QUOTE.fullmatch(word)
        if quoted is None:
            return safe_text(_safe_line(word, depth + 1, _UNQUOTED_WORDS))
        return quoted[1] + safe_text(_safe_line(quoted[2], depth + 1)) + quoted[1]
    pair = _PAIR.fullmatch(word)
    if pair is not None:
        return _safe_pair(pair, state, depth)
    if plain.startswith("-") or password_at(state.takes, plain) is not None:
        return _safe_option(word, plain, state)
    if announced(plain) is Announced.SURELY and not plain.endswith((":", ".")) and not _is_place(plain):
        # `aws configure set aws_secret_access_key …`: a name without `=` or dashes; its value must look secret.
        state.waiting = Announced.PERHAPS
    return word


def _recognize(plain: str, after: str, state: _State) -> None:
    """Record a word's program, or its command, and thereby the meaning of its options and arguments."""
    is_option = plain.startswith("-")
    if not is_option and state.takes.runs:
        state.takes = _NOTHING
    name = PurePosixPath(plain).name.removesuffix(".exe") if not is_option and len(plain) < _LONGEST_PROGRAM else ""
    # The value of an option is not a program: `docker run --name mysql -p 3306:3306`.
    if (name in PROGRAMS or name in LOG_IN or name in _ECHOED) and (after == "--" or not after.startswith("--")):
        state.program, state.takes, state.before_passwords = name, PROGRAMS.get(name, _NOTHING), None
    elif plain == "login" and state.program in LOG_IN:
        state.takes = LOGIN
    elif state.before_passwords is not None and not is_option:
        state.before_passwords -= 1
    state.before_passwords = state.takes.arguments.get(name or plain, state.before_passwords)


def _safe_pair(pair: re.Match[str], state: _State, depth: int) -> str:
    """Redact `--name=value`, `NAME=value`, or one of them within the value (`--env=NAME=value`)."""
    name, value = _QUOTES.sub("", pair[1]), pair[3]
    plain = _QUOTES.sub("", value)
    if is_secret(plain, announced(name)) and not ("&" in plain and "=" in plain):
        return pair[1] + "=" + _like(value, REDACTED)
    if name in _LOGIN_OPTIONS and (is_login(plain) or (state.takes.logins and state.takes.between in plain[1:-1])):
        return pair[1] + "=" + REDACTED
    inner = _PAIR.fullmatch(value)
    if inner is not None and depth < _DEEPEST:
        return pair[1] + "=" + _safe_pair(inner, state, depth + 1)
    return pair[0]


def _safe_option(word: str, plain: str, state: _State) -> str:
    """Redact an option without `=`, or note that it waits for a secret."""
    state.waiting = announced(plain)
    at, login = password_at(state.takes, plain), login_at(state.takes, plain)
    if at is not None:
        if at < len(plain):
            return plain[:at] + REDACTED
        if not state.takes.only_glued:
            state.waiting, state.is_sure = Announced.SURELY, True
    elif login is not None:
        if state.takes.between in plain[login + 1 : -1]:
            return plain[:login] + REDACTED
        state.between = state.takes.between
    elif plain in ("-p", "-P"):
        state.waiting = Announced.LIKELY if state.logs_in else Announced.PERHAPS
    elif plain.startswith("-p") and state.logs_in and looks_chosen(plain[2:]):
        return plain[:2] + REDACTED
    return word


def _is_argument_secret(plain: str, state: _State) -> bool:
    """Return whether a word is a password by its position after a command: `rabbitmqctl add_user NAME SECRET`."""
    is_due = state.before_passwords is not None and state.before_passwords <= 1
    return is_due and not plain.startswith("-") and is_secret(plain, Announced.SURELY)


def _is_positional_secret(plain: str, after: str, state: _State) -> bool:
    if after in _LOGIN_OPTIONS and is_login(plain):
        return True
    if after == "-U" and "%" in plain[1:-1]:  # smbclient's user%password
        return True
    if after in ("-b", "--cookie") and "=" in plain:
        return not plain.startswith("-")
    if after == "login" and len(plain) >= 16 and plain.isalnum() and looks_chosen(plain):
        return True
    if plain.startswith("pass:") and after.startswith("-pass"):
        return True
    return after in _ECHOED and state.echo_is_secret and not plain.startswith(("-", "$"))


def _is_known(plain: str, after: str) -> bool:
    """Return whether the word after `-p` is not a password: `-p NAME=value`, an address, ports, `-p no:plugin`."""
    if after not in ("-p", "-P"):
        return False
    pair = _PAIR.fullmatch(plain)
    return ":" in plain or is_technical(plain) or (pair is not None and not announced(pair[1]))


def _is_place(plain: str) -> bool:
    return "/" in plain or "\\" in plain


def _like(word: str, text: str) -> str:
    """Quote a text like the word that it replaces."""
    quoted = _WHOLE_QUOTE.fullmatch(word)
    return f"{quoted[1]}{text}{quoted[1]}" if quoted else text


_LONGEST_PROGRAM: Final = 256
