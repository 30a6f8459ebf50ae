"""The declarations of every table in the TraceLake, one module per part of the lake, in dictionary order.

Only declarations belong here; what a declaration can say is `aaco_pipeline.lake.contracts`.
"""

from collections.abc import Iterator

from aaco_pipeline.lake.contracts import Table


def declared() -> Iterator[Table]:
    """Every declared table, in the order of the data dictionary."""
    from aaco_pipeline.lake.tables import (
        analysis,
        campaigns,
        device_limits,
        inference,
        judgement,
        model,
        profiler_records,
        telemetry,
        trace,
        what_was_run,
    )

    parts = (what_was_run, model, inference, trace, profiler_records, telemetry)
    for module in (*parts, analysis, device_limits, judgement, campaigns):
        yield from module.TABLES
