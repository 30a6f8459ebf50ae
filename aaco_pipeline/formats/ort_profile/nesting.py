"""Which event of a thread lies inside which, from their times alone."""

import numpy as np
import numpy.typing as npt
import polars as pl


def nesting(
    position: npt.NDArray[np.int64], start: npt.NDArray[np.int64], duration: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For events of one thread in file order, the position of each event's parent, or -1 at the top level.

    `position` is increasing (file order, which is order of end), times are whole ticks cut off downwards. An event
    is inside a later one if it started no earlier; an event of no measured length that begins on the same tick as
    the later one cannot be told from its left neighbour and counts as such. Vectorized: O(n log n).
    """
    count = len(position)
    parent = np.full(count, -1, np.int64)
    if count == 0:
        return parent
    # Whatever was written before an event had ended by the event's own end. If some of it ended after the event's
    # start, it lies inside; a left neighbour had ended by then.
    ended = np.maximum.accumulate(start + duration)
    has_children = np.concatenate(([False], ended[:-1] > start[1:]))
    if not has_children.any():
        return parent
    # Events without children follow one another, so in file order their starts do not fall. In that row of leaves
    # an event with children covers a contiguous, non-empty stretch [low, high).
    leaf = np.flatnonzero(~has_children)
    outer = np.flatnonzero(has_children)
    leaf_key = 2 * start[leaf] + (duration[leaf] > 0)
    leaf_key = np.maximum.accumulate(leaf_key)
    low = np.searchsorted(leaf_key, 2 * start[outer] + 1, side="left")
    high = np.searchsorted(leaf, outer, side="left")
    low = np.minimum(low, high - 1)
    order = np.lexsort((-outer, -high, low))  # the wider first; of equal ones the later in the file is the outer
    outer, low, high = outer[order], low[order], high[order]
    closes = np.sort(high)
    depth = np.arange(len(outer)) - np.searchsorted(closes, low, side="right")
    open_at_leaf = np.searchsorted(low, np.arange(len(leaf)), side="right") - np.searchsorted(
        closes, np.arange(len(leaf)), side="right"
    )
    inner = pl.concat(
        [
            pl.DataFrame({"event": leaf, "at": np.arange(len(leaf)), "level": open_at_leaf - 1}),
            pl.DataFrame({"event": outer, "at": low, "level": depth - 1}),
        ]
    ).filter(pl.col("level") >= 0)
    enclosing = pl.DataFrame({"parent": outer, "at": low, "level": depth}).sort("at")
    joined = inner.sort("at").join_asof(enclosing, on="at", by="level", strategy="backward", check_sortedness=False)
    parent[joined.get_column("event").to_numpy()] = position[joined.get_column("parent").to_numpy()]
    return parent
