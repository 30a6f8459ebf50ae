"""Format numbers, units and names as text that is safe to print.

Nothing here knows a table or a document: sentences live with their subjects.
"""

import re
from collections.abc import Mapping
from typing import Final

from aaco_pipeline.optimization.guards.characters import UNSEEN


def duration(nanoseconds: float | None) -> str | None:
    """Nanoseconds in the unit a person would choose, with four significant digits."""
    if nanoseconds is None:
        return None
    unit, least = prefixed(nanoseconds, {"s": 1e9, "ms": 1e6, "µs": 1e3}, "ns")
    return f"{number(nanoseconds / least)} {unit}" if least > 1 else f"{nanoseconds:.0f} ns"


def long_duration(nanoseconds: float | None) -> str | None:
    """Nanoseconds as a person plans by them: seconds, from two minutes on minutes, from two hours on hours."""
    if nanoseconds is None:
        return None
    seconds = nanoseconds / 1e9
    unit, least = next(((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds >= 2 * size), ("s", 1))
    return f"{seconds / least:.2g} {unit}" if seconds < 99 * least else f"{seconds / least:,.0f} {unit}"


def size(bytes_: int | None) -> str | None:
    """Bytes in binary units."""
    if bytes_ is None:
        return None
    unit, least = prefixed(bytes_, {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}, "B")
    return f"{bytes_ / least:.1f} {unit}" if least > 1 else f"{bytes_:.0f} B"


def prefixed(amount: float, units: Mapping[str, float], smallest: str) -> tuple[str, float]:
    """The largest of the units, the largest first, that `amount` reaches, with its size; else the smallest and 1."""
    return next(((unit, least) for unit, least in units.items() if abs(amount) >= least), (smallest, 1.0))


def share(ratio: float | None) -> str | None:
    """A ratio as a percentage for people; tables and JSON keep the ratio."""
    # Adding zero makes a negative zero a plain one.
    return None if ratio is None else f"{round(100 * ratio, 1) + 0.0:.1f} %"


def bounded(amount: str | None, side: str | None) -> str | None:
    """A figure in words with the side of the truth that it is on, `at_least` or `at_most`; None of none."""
    return amount if amount is None or side is None else f"{side.replace('_', ' ')} {amount}"


def number(amount: float | None) -> str | None:
    """Four significant digits, never in powers of ten."""
    return None if amount is None else f"{amount:,.0f}" if abs(amount) >= 1000 else f"{amount:.4g}"


def work(amount: float | None) -> str | None:
    """Floating-point operations with a decimal prefix."""
    if amount is None:
        return None
    prefix, least = prefixed(amount, {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}, "")
    return f"{amount / least:.4g} {prefix}flop"


def in_unit(amount: float | None, unit: str | None) -> str | None:
    """A figure with its unit, in the form a person reads where there is one."""
    if unit == "ns" or amount is None:
        return duration(amount)
    return f"{number(amount)}" if unit in ("ratio", "count", None) else f"{number(amount)} {unit}"


def grouped(amount: int | None) -> str | None:
    """A whole number with its thousands apart."""
    return None if amount is None else f"{amount:,}"


def exact(amount: float | None, unit: str | None = None) -> str | None:
    """The number as a table holds it."""
    if amount is None:
        return None
    digits = f"{int(amount):,}" if float(amount).is_integer() else repr(float(amount))
    return f"{digits} {unit}" if unit else digits


def counted(count: int, noun: str, plural: str = "s") -> str:
    """`1 session`, `2 sessions`; `plural` is what several of them end in."""
    return f"{count:,} {noun}" + ("" if count == 1 else plural)


def shortened(name: str, width: int = 100) -> str:
    """A name cut to what a table has room for; demangled templates run to thousands of characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"


def capital(text: str) -> str:
    """The text with its first letter as a capital, the others as they are."""
    return text[:1].upper() + text[1:]


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
