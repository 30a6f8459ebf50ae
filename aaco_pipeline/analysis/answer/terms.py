"""Terms that an answer's makers and its tellers share; it imports nothing, for those who only tell."""

from typing import Final

#: Rules of windows that hold nothing steady: everything recorded, and nothing at all.
WHOLE: Final = "the whole recording"
NO_WINDOW: Final = "none"
#: What to say of work near its roof; what is saved at most is then what reaching the roof saves.
AT_ROOF: Final = "Near this peak, only less work or a narrower number format saves more"
#: What to do about copies whose calls take longer than they do.
PACK: Final = "Pack these copies into one"


def one_of(rule: str) -> str:
    """What a repetition of the window that `rule` found is called: the program's own iteration, or a repetition."""
    return "iteration" if " marked iteration" in rule or rule.startswith("measured iterations") else "repetition"


def each_of(rule: str) -> str:
    """`an iteration` or `a repetition`, as the window's rule has it."""
    one = one_of(rule)
    return f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
