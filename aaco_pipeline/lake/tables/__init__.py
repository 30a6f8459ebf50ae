"""The declarations of every table in the TraceLake, one module per part of the lake, in dictionary order.

Only declarations belong here; what a declaration can say is `aaco_pipeline.lake.declaration`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.tables import (
    analysis,
    campaigns,
    device_limits,
    history,
    judgement,
    optimizations,
    runs,
    telemetry,
    trace,
)

#: Every declared table, in the order of the data dictionary.
TABLES: Final[tuple[Table, ...]] = (
    *(*runs.TABLES, *trace.TABLES, *telemetry.TABLES, *analysis.TABLES, *device_limits.TABLES, *judgement.TABLES),
    *(*campaigns.TABLES, *optimizations.TABLES, *history.TABLES),
)
