"""Kernel names without what a compiler or tuner varies: template arguments, tiles, solution numbers.

Equal keys mean the same code at another setting; that two keys differ says nothing by itself.
"""

from typing import Final

import polars as pl

#: Nested template arguments and parameter lists are taken away from the inside out, this deep.
_DEEPEST: Final = 40
#: A Tensile solution: what it computes, then how.
_TENSILE: Final = r"^(Cijk_[A-Za-z]+_[A-Za-z]+_[A-Za-z0-9]+)_.*$"
#: Kernels that run whatever functor they are given: without it the name says nothing of the work.
_CARRIERS: Final = (
    r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|^(?:\w+::)*Kernel#?$|for_each|transform_kernel"
    r"|_kernel_agent|DeviceReduce|DeviceScan"
)
#: What a kernel carries, as its short name has it.
_CARRIED: Final = r"\[(.*)\]$"
_DIGESTS: Final = r"_(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{6,}"


def normalized(names: pl.Series) -> pl.Series:
    """Each name without template arguments, parameters, tile and solution numbers; every other number becomes `#`."""
    text = names.cast(pl.String)
    for _ in range(_DEEPEST):
        shorter = text.str.replace_all(r"<[^<>()]*>|\([^<>()]*\)", "")
        if shorter.equals(text, null_equal=True):
            break
        text = shorter
    frame = text.alias("one").to_frame()
    return frame.select(
        pl.col("one")
        .str.replace(_TENSILE, "${1}")
        .str.replace_all(_DIGESTS, "")
        .str.replace_all(r"^\s*void\s+", "")
        .str.replace_all(r"[0-9]+", "#")
        .str.replace_all(r"#(?:[x_]#)+", "#")
        .str.strip_chars()
        .alias(names.name)
    ).to_series()


def code_keys(names: pl.Series, short_names: pl.Series) -> pl.Series:
    """What tells which code each kernel runs: its normalized name with the functor that it carries.

    `short_names` are as in `kernels`, null where none is known. A carrier whose functor is not known keeps its whole
    name: any two of them may do anything.
    """
    carried = short_names.str.extract(_CARRIED).alias("carried")
    frame = pl.DataFrame([names.cast(pl.String).alias("name"), normalized(names).alias("key"), normalized(carried)])
    carrier = pl.col("key").str.contains(_CARRIERS)
    return frame.select(
        pl.when(pl.col("carried").is_not_null())
        .then(pl.concat_str("key", pl.lit(" ["), "carried", pl.lit("]")))
        .when(carrier)
        .then("name")
        .otherwise("key")
    ).to_series()
