"""Refuse invisible and reordering characters in any source, and new non-ASCII characters in a rewrite.

The user reads a patch before applying it. Code is ASCII: the parser accepts other characters only in comments and
strings. There, a rewrite may use only characters of the baseline, so that no letter resembles another.
"""

import re
import unicodedata
from typing import Final

from aaco_pipeline.optimization.candidates import Refused

GUARD: Final = "characters"
#: Invisible characters that Unicode classifies as letters, marks or symbols: joiners, fillers, the empty Braille
#: pattern and variation selectors.
UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_PLAIN: Final = re.compile(r"[\t\n\v\f\r -~]*")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]")
#: White space accepted by compilers: any other line end would display a line at another position.
_WHITE: Final = "\t\n\v\f\r"


def hidden_in(content: bytes) -> str | None:
    """Find an invisible or reordering character: `line 3: U+202E …`, or None.

    These are control characters, format characters such as bidirectional controls and joiners, line separators, private
    and unassigned characters, and invisible letters and marks.
    """
    text = content.decode("utf-8", errors="replace")
    if _PLAIN.fullmatch(text):
        return None
    for at, one in enumerate(text):
        if (not one.isprintable() and one not in _WHITE and not one.isspace()) or UNSEEN.match(one) or one in _ENDS:
            return f"{_place(text, at)}, which is not seen or reorders what is"
    return None


#: Line and group separators that count as spaces, and as line ends in some editors.
_ENDS: Final = "\x1c\x1d\x1e\x1f\x85\u2028\u2029"


def check_characters(baseline: bytes, candidate: bytes) -> None:
    """Refuse a hidden character in either text, and a new non-ASCII character in the candidate."""
    for name, content in (("the baseline", baseline), ("the candidate", candidate)):
        if (found := hidden_in(content)) is not None:
            raise Refused(GUARD, f"{name}, {found}; take it out, or write it as an escape")
    known = set(_FOREIGN.findall(baseline.decode("utf-8", errors="replace")))
    text = candidate.decode("utf-8", errors="replace")
    for match in _FOREIGN.finditer(text):
        if match[0] not in known:
            where = f"{_place(text, match.start())}, outside ASCII and not in the baseline"
            what = "it may look like another letter; write comments and strings in ASCII"
            raise Refused(GUARD, f"{where}: {what}")


def _place(text: str, at: int) -> str:
    name = unicodedata.name(text[at], "")
    line = text.count("\n", 0, at) + 1
    return f"line {line}: U+{ord(text[at]):04X}{f' ({name})' if name else ''}"
