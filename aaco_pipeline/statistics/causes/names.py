"""Kernel names without what a compiler or tuner varies: template arguments, tiles, solution numbers.

Equal normalized names mean the same code at another setting; that two names differ says nothing by itself.
"""

from typing import Final

import polars as pl

#: Nested template arguments and parameter lists are taken away from the inside out, this deep.
_DEEPEST: Final = 40
#: A Tensile solution: what it computes, then how.
_TENSILE: Final = r"^(Cijk_[A-Za-z]+_[A-Za-z]+_[A-Za-z0-9]+)_.*$"
_DIGESTS: Final = r"_(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{6,}"


def normalized(names: pl.Series) -> pl.Series:
    """Each name without template arguments, parameters, tile and solution numbers; every other number becomes `#`."""
    text = names.cast(pl.String)
    for _ in range(_DEEPEST):
        shorter = text.str.replace_all(r"<[^<>()]*>|\([^<>()]*\)", "")
        if shorter.equals(text, null_equal=True):
            break
        text = shorter
    frame = text.alias("name").to_frame()
    return frame.select(
        pl.col("name")
        .str.replace(_TENSILE, "${1}")
        .str.replace_all(_DIGESTS, "")
        .str.replace_all(r"^\s*void\s+", "")
        .str.replace_all(r"[0-9]+", "#")
        .str.replace_all(r"#(?:[x_]#)+", "#")
        .str.strip_chars()
    ).to_series()
