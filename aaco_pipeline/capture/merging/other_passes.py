"""What the parts beside the base trace add to it: counters and samples, each at the dispatch it belongs to."""

from collections.abc import Sequence

import polars as pl

from aaco_pipeline.capture.merging.base import Base, renumbered
from aaco_pipeline.capture.merging.parts import MATCH, NamedReading
from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table


def counters(parts: Sequence[NamedReading], base: Base) -> tuple[pl.DataFrame, list[Evidence]]:
    """All counter values at the dispatches they belong to."""
    found = [empty_table("counters")]
    lost: dict[str, int] = {}
    of_session = base.keys.select(*MATCH, session_dispatch="dispatch_id")
    for part in parts:
        # A format whose file is one pass does not name it.
        named = pl.when(pl.col("pass") == "").then(pl.lit(part.name)).otherwise("pass").alias("pass")
        values = part.table("counters").with_columns(named)
        if part.name in base.dispatch_offsets:
            found.append(values.with_columns(pl.col("dispatch_id") + base.dispatch_offsets[part.name]))
        elif values.height:
            same = part.keys.join(of_session, on=MATCH, how="left", nulls_equal=True).unique(
                "dispatch_id", keep="first"
            )
            placed = values.join(same.select("dispatch_id", "session_dispatch"), on="dispatch_id", how="left")
            known = placed.drop_nulls("session_dispatch").with_columns(dispatch_id="session_dispatch")
            lost |= {part.name: placed.height - known.height} if known.height < placed.height else {}
            found.append(known.drop("session_dispatch"))
    findings = Findings()
    count = sum(lost.values())
    reason = f"{count} values of {', '.join(lost)} belong to executions that the base trace does not have"
    findings.note(count, "counter values matched to dispatches", "partial", reason)
    return pl.concat(found), findings.evidence


def pc_samples(parts: Sequence[NamedReading], base: Base) -> pl.DataFrame:
    """All samples of the program counter, numbered one part after another."""
    found = []
    for part in parts:
        samples = part.table("pc_samples")
        if part.name in base.dispatch_offsets:
            offsets = {"dispatch_id": base.dispatch_offsets[part.name], "time_ns": base.time_offsets[part.name]}
            found.append(renumbered(samples, offsets, {}))
        else:
            # Another run's clock: its times say nothing on this axis.
            found.append(samples.with_columns(time_ns=pl.lit(None, pl.Int64), dispatch_id=pl.lit(None, pl.Int32)))
    return pl.concat(found).with_columns(sample_id=pl.int_range(pl.len(), dtype=pl.Int32))


def gpu_samples(parts: Sequence[NamedReading], base: Base) -> pl.DataFrame:
    """All samples of GPUs, on the axis where their part is of the base trace."""
    return pl.concat(
        part.table("gpu_samples").with_columns(pl.col("time_ns") + base.time_offsets.get(part.name, 0))
        for part in parts
    )
