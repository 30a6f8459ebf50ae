"""Text of a capture made harmless to show: what would steer a terminal or fool an eye stands there as an escape.

Every door by which text leaves calls this: the terminal (`report.terminal.screen`, `cli.output`), Markdown, HTML, CSV
and Dagster. JSON is ASCII throughout; Parquet and traces hold names as they are.
"""

import re
from typing import Final

from aaco_pipeline.optimization.guards.characters import UNSEEN

#: Everything but plain ASCII is looked at one by one; that finds most texts to be harmless at once.
_TO_LOOK_AT: Final = re.compile(r"[^ -~]")


def printable(text: str, keep: str = "") -> str:
    """The text with every control, bidirectional, invisible and unassigned character as an escape such as `\\x1b`.

    Those in `keep` stay. Every kind of space becomes the plain one. Doing it twice changes nothing.
    """
    return _TO_LOOK_AT.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def in_a_line(text: str) -> str:
    """The text as `printable` has it, with spaces for its ends of lines and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return printable(re.sub("[\n\t]", " ", text))


def in_lines(text: str) -> str:
    """The text as `printable` has it, its lines kept."""
    return printable(text, keep="\n")


def _shown(one: str) -> str:
    if one.isprintable() and UNSEEN.match(one) is None:
        return one
    # What is left of the spaces are those that begin no line or paragraph of their own, such as the unbreakable one.
    if one.isspace() and one > "\x9f" and one not in "\u2028\u2029":
        return " "
    return one.encode("unicode_escape").decode()
