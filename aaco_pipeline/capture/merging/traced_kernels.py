"""The kernels that thread traces list, by the names in their `code.json`, among the kernels of the session.

Which dispatch a trace is of says `aaco_pipeline.formats.thread_trace.matching`; a trace whose dispatch no other file of
the capture has still names its kernel.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging.parts import NamedReading
from aaco_pipeline.formats.capture_tables import Findings, described_kernels
from aaco_pipeline.formats.thread_trace.matching import plain_name
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract

_LISTED: Final = pl.Schema({"capture": pl.String, "code_object_id": pl.UInt64, "line": pl.Int64, "symbol": pl.String})


def named(
    parts: Sequence[NamedReading], kernels: pl.DataFrame, instructions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """The table `kernels` with what the traces list, and `att_instructions` with a kernel in every row that has one.

    An instruction of a trace that matched no dispatch is of the function that it is listed under. A trace that lists
    none names its kernel where its occupancy names one alone. Kernels known before get their symbol.
    """
    traces = [part for part in parts if part.table("att_instructions").height]
    if not traces:
        return kernels, instructions, []
    listed = pl.concat([_LISTED.to_frame(), *map(_functions, traces)])
    spelled = dict(
        pair
        for part in traces
        for pair in part.reading.details["functions"].select("name", "display_name").drop_nulls().iter_rows()
    )
    kernels = _with_symbols(kernels, spelled)
    known = _numbers(kernels)
    without = instructions.filter(pl.col("kernel_id").is_null() & pl.col("capture").is_not_null())
    used = _under(without, listed).get_column("symbol").drop_nulls().unique(maintain_order=True).sort().to_list()
    new = [symbol for symbol in used if plain_name(symbol) not in known]
    if new:
        rows = [(kernels.height + at, spelled.get(symbol) or symbol, symbol) for at, symbol in enumerate(new)]
        schema = {"kernel_id": pl.Int32, "name": pl.String, "symbol": pl.String}
        further = described_kernels(pl.DataFrame(rows, schema=schema, orient="row"))
        kernels = pl.concat([kernels, further.select(kernels.columns)])
    known = _numbers(kernels)
    of_symbol = {symbol: known[plain_name(symbol)] for symbol in used}
    under = (
        _under(instructions, listed).get_column("symbol").replace_strict(of_symbol, default=None, return_dtype=pl.Int32)
    )
    instructions = instructions.with_columns(kernel_id=pl.coalesce("kernel_id", under))
    findings = Findings()
    nameless = instructions.filter(pl.col("kernel_id").is_null() & pl.col("capture").is_not_null())
    where = ", ".join(nameless.get_column("capture").unique().sort().to_list())
    reason = f"{nameless.height} instructions of {where} are listed under no function's name: no kernel is known"
    findings.note(nameless.height, "kernels of thread traces", "partial", reason)
    return kernels, to_contract("att_instructions", instructions), findings.evidence


def _functions(part: NamedReading) -> pl.DataFrame:
    """The functions in a trace's listing: capture, code_object_id, line of the heading, symbol (its name)."""
    functions = part.reading.details["functions"].select(
        pl.lit(part.name).alias("capture"), "code_object_id", "line", symbol=pl.col("name").str.strip_suffix(".kd")
    )
    functions = functions.filter(pl.col("symbol") != "")
    traced = part.reading.details["traced_dispatch"]
    stated = traced.item(0, "kernel_names").to_list() if traced.height else []
    if functions.is_empty() and len(stated) == 1:
        objects = part.table("att_instructions").select("code_object_id").unique()
        return objects.select(
            pl.lit(part.name).alias("capture"), "code_object_id", line=pl.lit(-1, pl.Int64), symbol=pl.lit(stated[0])
        )
    return functions


def _under(instructions: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """The instructions with `symbol`: the last heading above each in its trace's listing of its code object."""
    by = ["capture", "code_object_id"]
    return (
        instructions.drop("symbol", strict=False)
        .with_row_index("row")
        .sort("line", nulls_last=True)
        .join_asof(
            listed.sort("line"), on="line", by=by, strategy="backward", allow_exact_matches=True, check_sortedness=False
        )
        .sort("row")
        .drop("row")
    )


def _with_symbols(kernels: pl.DataFrame, spelled: dict[str, str]) -> pl.DataFrame:
    """The kernels with the symbols of those that a trace lists under the same name."""
    symbols = {plain_name(name): symbol for symbol, name in spelled.items()}
    found = [symbols.get(plain_name(name)) for name in kernels.get_column("name")]
    return kernels.with_columns(symbol=pl.coalesce("symbol", pl.Series(found, dtype=pl.String)))


def _numbers(kernels: pl.DataFrame) -> dict[str, int]:
    """The kernel of each plain name or symbol; of several alike the first."""
    numbers: dict[str, int] = {}
    for number, *names in kernels.select("kernel_id", "name", "symbol").iter_rows():
        for name in filter(None, names):
            numbers.setdefault(plain_name(name), number)
    return numbers
