"""Which stretches of time meet, and for how long: all pairs at once, without a loop over them."""

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int64]


def meetings(
    start: Numbers, end: Numbers, piece_start: Numbers, piece_end: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Every pair of a span and a piece that share time: the span's place, the piece's, and the shared start and end.

    Pieces are in order and do not overlap; spans may. Pairs come by span, then by piece.
    """
    first = np.searchsorted(piece_end, start, side="right")
    counts = np.maximum(np.searchsorted(piece_start, end, side="left") - first, 0)
    span = np.repeat(np.arange(len(start)), counts)
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return span, piece, np.maximum(start[span], piece_start[piece]), np.minimum(end[span], piece_end[piece])


def within(at: Numbers, start: Numbers, end: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Of instants those that lie in stretches in order that do not overlap: the stretch of each, and which they are."""
    which = np.searchsorted(end, at, side="right")
    inside = which < len(end)
    inside[inside] = start[which[inside]] <= at[inside]
    return which[inside], inside


def union(start: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """The same time as stretches in order that neither overlap nor touch; those without length are left out."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    long = end > start
    start, end = start[long], end[long]
    if not len(start):
        return start, end
    reached = np.maximum.accumulate(end)
    opens = np.append(True, start[1:] > reached[:-1])
    closes = np.append(opens[1:], True)
    return start[opens], reached[closes]


def ends(frame: pl.DataFrame) -> tuple[Numbers, Numbers]:
    """`start_ns` and `end_ns` of its rows."""
    return frame.get_column("start_ns").to_numpy(), frame.get_column("end_ns").to_numpy()
