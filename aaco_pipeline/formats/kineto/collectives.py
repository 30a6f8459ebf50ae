"""What PyTorch records of a collective operation beside its kernel: which, in which group of ranks, and how much.

The operator `record_param_comms` states it (torch/csrc/distributed/c10d/ParamCommsUtils.hpp of PyTorch names the
arguments); a kernel's own name often is the same for every operation.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

#: Columns of the table `markers` that describe a collective.
COLUMNS: Final = ("collective", "communicator", "group_size", "sequence", "dtype", "size_bytes")
#: Bytes of an element by PyTorch's name of its type (c10/core/ScalarType.h).
_ELEMENT_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: Beyond this a number of elements is damage, and their bytes would not fit the column.
_MOST_ELEMENTS: Final = 2**58


def described(recorded: pl.DataFrame) -> pl.DataFrame:
    """The recording operators with `COLUMNS` instead of the arguments these come from.

    `recorded` has collective, group, ranks, dtype, group_size, sequence and elements, as the trace states them. What it
    does not state is null; so is a number below zero, or of elements that no memory holds. The communicator is the
    group's name with its ranks, for groups of other ranks may have the same name.
    """

    def stated(name: str) -> pl.Expr:
        return pl.when(pl.col(name) >= 0).then(name)

    width = pl.col("dtype").replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    # Ranks that the trace does not list, or not as a text, leave the group with its name alone.
    with_ranks = pl.when(pl.col("ranks") != "[]").then(pl.concat_str("group", pl.lit(" "), "ranks"))
    return recorded.with_columns(
        communicator=pl.coalesce(with_ranks, "group"),
        group_size=stated("group_size"),
        sequence=stated("sequence"),
        size_bytes=pl.when(pl.col("elements").is_between(0, _MOST_ELEMENTS)).then("elements") * width,
    ).drop("group", "ranks", "elements")
