"""Which options and arguments of which programs are passwords although no name says so: `mysql -pSECRET`.

Options that say so by name, such as `--password`, are `keys`'s. Of programs that are not listed here `-p` is a port, a
path or a project, and what follows is hidden only where it looks like a secret (`commands`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final


@dataclass(frozen=True)
class Takes:
    """How a program takes its password."""

    #: Short options before a password, which may follow in the same word.
    letters: str = ""
    #: Short options without a value, which may stand before those in one word: `-xw`.
    flags: str = ""
    #: Other options before a password, which is a word of its own.
    words: tuple[str, ...] = ()
    #: The password is never a word of its own: `7z -pSECRET`.
    only_glued: bool = False
    #: The options of this program end at its first argument, which is another program.
    runs: bool = False
    #: Options before a user and a password, and what stands between the two.
    logins: str = ""
    between: str = ":"
    #: Behind one of these words, so many words further on, all are passwords: `rabbitmqctl add_user NAME SECRET`.
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
    (
        "ldapsearch ldapadd ldapmodify ldapdelete ldapcompare ldapmodrdn ldapwhoami ldapexop",
        Takes("w", "xZvncMCLtuA"),
    ),
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
#: Programs whose command `login` takes `-p`: elsewhere in them, as in `docker run -p 80:80`, it is ports.
LOG_IN: Final = frozenset(_LOGGING_IN.split())
LOGIN: Final = Takes("p")
_LONG_LOGINS: Final = ("--user", "--proxy-user", "--userpwd")


def password_at(takes: Takes, option: str) -> int | None:
    """Where in an option the password begins, its end where that is the next word; None where there is none."""
    for word in takes.words:
        if option == word or option.startswith(f"{word}:"):
            return len(word) + (option != word)
    return _end_of(takes.letters, takes.flags, option)


def login_at(takes: Takes, option: str) -> int | None:
    """Where in an option a user with a password begins, its end where that is the next word."""
    if takes.logins and option in _LONG_LOGINS:
        return len(option)
    return _end_of(takes.logins, takes.flags, option)


def _end_of(letters: str, flags: str, option: str) -> int | None:
    found = _short(letters, flags).match(option) if letters else None
    return found.end() if found else None


@cache
def _short(letters: str, flags: str) -> re.Pattern[str]:
    return re.compile(rf"-[{re.escape(flags)}]*[{letters}]" if flags else f"-[{letters}]")
