"""Terms shared by several parts of an answer: window names and advice.

It imports nothing from the analysis, because the report's wording uses it too.
"""

from typing import Final

#: Rules for windows without a steady part: everything recorded, and nothing at all.
WHOLE: Final = "the whole recording"
NO_WINDOW: Final = "none"
#: Advice for work near its roof; the maximum saving then comes from reaching the roof.
AT_ROOF: Final = "Near this peak, only less work or a narrower number format saves more"
#: Advice for copies whose calls take longer than the copies.
PACK: Final = "Pack these copies into one"


def one_of(rule: str) -> str:
    """Name a repetition of the window found by `rule`: the program's own iteration, or a repetition."""
    return "iteration" if " marked iteration" in rule or rule.startswith("measured iterations") else "repetition"


def each_of(rule: str) -> str:
    """Return `an iteration` or `a repetition`, depending on the window's rule."""
    one = one_of(rule)
    return f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
