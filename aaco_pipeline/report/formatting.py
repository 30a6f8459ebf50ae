"""Format numbers, units and names as text that is safe to print.

Independent of tables and documents; sentences are in the modules of their subjects.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from aaco_pipeline.optimization.guards.characters import UNSEEN

DECIMAL: Final[Mapping[str, float]] = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def duration(nanoseconds: float | None) -> str | None:
    """Format nanoseconds in the most readable unit, with four significant digits."""
    if nanoseconds is None:
        return None
    unit, least = prefixed(nanoseconds, {"s": 1e9, "ms": 1e6, "µs": 1e3}, "ns")
    return f"{number(nanoseconds / least)} {unit}" if least > 1 else f"{nanoseconds:.0f} ns"


def long_duration(nanoseconds: float | None) -> str | None:
    """Format nanoseconds for planning: seconds, minutes from two minutes on, hours from two hours on."""
    if nanoseconds is None:
        return None
    seconds = nanoseconds / 1e9
    unit, least = next(((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds >= 2 * size), ("s", 1))
    return f"{seconds / least:.2g} {unit}" if seconds < 99 * least else f"{seconds / least:,.0f} {unit}"


def size(bytes_: int | None) -> str | None:
    """Format bytes in binary units."""
    if bytes_ is None:
        return None
    unit, least = prefixed(bytes_, {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}, "B")
    return f"{bytes_ / least:.1f} {unit}" if least > 1 else f"{bytes_:.0f} B"


def prefixed(amount: float, units: Mapping[str, float], smallest: str) -> tuple[str, float]:
    """Return the largest unit not above `amount`, with its size; otherwise the smallest unit and 1. `units` are
    descending.
    """
    return next(((unit, least) for unit, least in units.items() if abs(amount) >= least), (smallest, 1.0))


def share(ratio: float | None) -> str | None:
    """Format a ratio as a percentage; tables and JSON keep the ratio."""
    # Adding zero turns negative zero into zero.
    return None if ratio is None else f"{round(100 * ratio, 1) + 0.0:.1f} %"


def bounded(amount: str | None, side: str | None) -> str | None:
    """Format a figure that is a bound, `at_least` or `at_most`; None without a figure."""
    return amount if amount is None or side is None else f"{side.replace('_', ' ')} {amount}"


def number(amount: float | None) -> str | None:
    """Format with four significant digits, never in exponential notation."""
    return None if amount is None else f"{amount:,.0f}" if abs(amount) >= 1000 else f"{amount:.4g}"


def work(amount: float | None) -> str | None:
    """Format floating-point operations with a decimal prefix."""
    if amount is None:
        return None
    prefix, least = prefixed(amount, {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}, "")
    return f"{amount / least:.4g} {prefix}flop"


def in_unit(amount: float | None, unit: str | None) -> str | None:
    """Format a figure with its unit, in a readable form if there is one."""
    if unit == "ns" or amount is None:
        return duration(amount)
    return f"{number(amount)}" if unit in ("ratio", "count", None) else f"{number(amount)} {unit}"


def grouped(amount: int | None) -> str | None:
    """Format an integer with thousands separators."""
    return None if amount is None else f"{amount:,}"


def exact(amount: float | None, unit: str | None = None) -> str | None:
    """Format the number exactly as in a table."""
    if amount is None:
        return None
    digits = f"{int(amount):,}" if float(amount).is_integer() else repr(float(amount))
    return f"{digits} {unit}" if unit else digits


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Format a count: `1 session`, `2 sessions`; `plural` is the plural ending."""
    return f"{count:,} {noun}" + ("" if count == 1 else plural)


def listed(words: Sequence[str]) -> str:
    """Join as `a`, `a and b` or `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def shortened(name: str, width: int = 100) -> str:
    """Shorten a name to fit a table; demangled templates can have thousands of characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"


def capital(text: str) -> str:
    """Capitalize the first letter and keep the rest."""
    return text[:1].upper() + text[1:]


#: Only characters beyond plain ASCII need an individual check; most texts have none.
_TO_LOOK_AT: Final = re.compile(r"[^ -~]")


def printable(text: str, keep: str = "") -> str:
    """Replace every control, bidirectional, invisible and unassigned character by an escape such as `\\x1b`.

    Characters in `keep` stay. Every kind of space becomes a plain space. The function is idempotent.
    """
    return _TO_LOOK_AT.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def in_a_line(text: str) -> str:
    """Make text `printable`, with spaces for line ends and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return printable(re.sub("[\n\t]", " ", text))


def in_lines(text: str) -> str:
    """Make text `printable`, keeping its lines."""
    return printable(text, keep="\n")


def _shown(one: str) -> str:
    if one.isprintable() and UNSEEN.match(one) is None:
        return one
    # Remaining spaces, such as the no-break space, never start a line or paragraph.
    if one.isspace() and one > "\x9f" and one not in "\u2028\u2029":
        return " "
    return one.encode("unicode_escape").decode()
