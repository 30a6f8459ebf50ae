"""Which operator's call each launch counts to: the innermost open one whose work is known, and each launch to one.

Operators nest: a linear layer calls a matrix product, a library's product may call the framework's, a convolution
copies. The innermost with a formula has the launch, and one without hands it to what it lies in. Of operators that are
whole (`formulas.Formula`) what they launch through copies and fills is theirs; a whole one that calls another whole one
only passes the work on, and counts nothing.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.model.launching_operators import OPERATOR_DOMAIN, launched, outer_first, within
from aaco_pipeline.analysis.roofline.operators.formulas import FORMULAS

#: Records a collective, which is no work on shapes; `aaco_pipeline.analysis.timeline.collectives` has these.
_COLLECTIVE: Final = "record_param_comms"
_OVER_THE_HOST: Final = ("host_to_device", "device_to_host")


def owned_launches(
    dispatches: pl.DataFrame, copies: pl.DataFrame, api_calls: pl.DataFrame, inputs: pl.DataFrame
) -> pl.DataFrame:
    """One row per kernel, copy or fill that an operator with recorded inputs launched, with the call it counts to.

    `dispatches`, `copies` (memory_copies), `api_calls` and `inputs` (operator_inputs) are canonical tables. Columns:
    activity_kind (`dispatch`, `memory_copy`), activity_id, kernel_id (null of copies), device_id, duration_ns, call_id,
    from_or_to_host (of copies).
    Where no operator around a launch has a formula, the innermost one has it.
    """
    activities = pl.concat([activities_of(dispatches, "dispatch"), activities_of(copies, "memory_copy")])
    launches = launched(activities.with_row_index("row"), api_calls)
    return owners(launches, api_calls, inputs).select(
        *("activity_kind", "activity_id", "kernel_id", "device_id", "duration_ns", "from_or_to_host"),
        call_id="operator_call_id",
    )


def owners(launches: pl.DataFrame, api_calls: pl.DataFrame, inputs: pl.DataFrame) -> pl.DataFrame:
    """The launches that an operator with recorded inputs made, with `operator_call_id`, the call that each counts to.

    `launches` has row, process_id, thread_id and launched_ns, and is given back in the order of `row`; the other
    arguments are those of `owned_launches`.
    """
    operators = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    operators = operators.filter(among(operators.get_column("call_id"), inputs.get_column("call_id")))
    name = pl.col("name").cast(pl.String)
    whole = [one for one, formula in FORMULAS.items() if formula.is_whole]
    parts = [one for one, formula in FORMULAS.items() if not formula.is_whole]
    found = []
    for candidates in (
        _last_of_nested(operators.filter(name.is_in(whole))),
        operators.filter(name.is_in(parts)),
        operators,
    ):
        owned = within(launches, candidates)
        found.append(owned)
        launches = launches.join(owned.select("row"), on="row", how="anti", maintain_order="left")
    return pl.concat(found).filter(pl.col("operator") != _COLLECTIVE).sort("row")


def among(numbers: pl.Series, wanted: pl.Series) -> pl.Series:
    """Whether each of these dense numbers is one of the wanted ones."""
    last = max((one for one in (numbers.max(), wanted.max()) if isinstance(one, int)), default=0)
    is_wanted = np.zeros(last + 1, np.bool_)
    is_wanted[wanted.to_numpy()] = True
    return pl.Series(is_wanted[numbers.to_numpy()])


def activities_of(rows: pl.DataFrame, kind: str) -> pl.DataFrame:
    """What ran on a device, and took a time that can be used: of `dispatches`, or of memory_copies by that `kind`."""
    is_copy = kind == "memory_copy"
    known = rows.filter((pl.col("end_ns") >= pl.col("start_ns")) & pl.col("device_id").is_not_null())
    return known.select(
        "process_id",
        "correlation_id",
        "device_id",
        pl.lit(kind).alias("activity_kind"),
        pl.col("copy_id" if is_copy else "dispatch_id").alias("activity_id"),
        pl.lit(None, pl.Int32).alias("kernel_id") if is_copy else pl.col("kernel_id"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        (pl.col("direction").is_in(_OVER_THE_HOST) if is_copy else pl.lit(False)).alias("from_or_to_host"),
    )


def _last_of_nested(operators: pl.DataFrame) -> pl.DataFrame:
    """The calls that no other of these lies in."""
    holds = (pl.col("start_ns").shift(-1) < pl.col("end_ns")).fill_null(False)
    threads = operators.partition_by("process_id", "thread_id", maintain_order=True)
    return pl.concat([operators.clear(), *(outer_first(own).filter(~holds) for own in threads)])
