"""Which host calls allocate or free memory: a reason of idle time, and what goes with it."""

from typing import Final

import polars as pl

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
