"""Numbers in the units a person reads; tables and JSON keep the exact ones.

What is said with them is decided by each renderer.
"""

from collections.abc import Mapping


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
