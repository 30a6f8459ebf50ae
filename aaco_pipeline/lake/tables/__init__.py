"""The declarations of every table in the TraceLake, one module per part of the lake, in dictionary order.

Only declarations belong here; what a declaration can say is `aaco_pipeline.lake.declaration`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.tables import (
    analysis,
    answer,
    bisections,
    campaigns,
    completeness,
    device_limits,
    history,
    inference,
    judgement,
    kernel_plane,
    model,
    optimizations,
    profiler_records,
    program,
    session_history,
    telemetry,
    trace,
    what_was_run,
)

#: Every declared table, in the order of the data dictionary.
TABLES: Final[tuple[Table, ...]] = (
    *(*what_was_run.TABLES, *model.TABLES, *inference.TABLES, *program.TABLES, *trace.TABLES, *profiler_records.TABLES),
    *(*telemetry.TABLES, *kernel_plane.TABLES, *completeness.TABLES, *analysis.TABLES, *device_limits.TABLES),
    *(
        *answer.TABLES,
        *judgement.TABLES,
        *campaigns.TABLES,
        *bisections.TABLES,
        *optimizations.TABLES,
        *history.TABLES,
        *session_history.TABLES,
    ),
)
