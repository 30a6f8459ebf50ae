"""Terms that several parts of an answer share: names of windows, advice, and the calls that allocate memory.

It imports nothing of the analysis, because the report's words use it too.
"""

from typing import Final

import polars as pl

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


#: Calls that allocate or free memory, but for those on a stream's own pool: freeing waits for the device, too.
_ALLOCATES: Final = (
    r"^(?:hip|cuda)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
    r"|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|Host|Address)|^hsa_amd_memory_pool_(?:allocate|free)"
)
_OF_A_POOL: Final = r"Async|FromPool"


def allocating(api_calls: pl.DataFrame) -> pl.DataFrame:
    """The calls that allocate or free memory, as often as they recur; there are few names and many calls."""
    names = api_calls.get_column("name").unique().cast(pl.String)
    named = names.filter(names.str.contains(_ALLOCATES) & ~names.str.contains(_OF_A_POOL))
    return api_calls.filter(pl.col("name").cast(pl.String).is_in(named.implode()))
