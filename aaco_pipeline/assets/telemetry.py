"""The stage `telemetry`: samples of the host and the measured process, on the session's time axis.

Samples were taken during the capture (`aaco_pipeline.resources.telemetry`) and are read in `aaco_pipeline.capture`.
"""

from typing import Final

from aaco_pipeline.assets.stage import ALL_KINDS, Outcome, Session, stage

_TABLES: Final = ("system_samples", "gpu_samples", "scheduler_events")


@stage(
    reads=("sessions",),
    publishes=_TABLES,
    group="capture",
    kinds=("linux", "rocm", "parquet"),
    session_kinds=ALL_KINDS,
)
def telemetry(session: Session) -> Outcome:
    """What were the machine and the measured process doing during the run?"""
    captured = session.capture.tables()
    tables = {name: captured[name] for name in _TABLES}
    busy = tables["system_samples"].get_column("cpu_ratio").mean()
    return Outcome(
        tables,
        session.capture.evidence("telemetry"),
        {
            "samples": tables["system_samples"].height,
            "gpu_samples": tables["gpu_samples"].height,
            "host_cpu_ratio": busy if isinstance(busy, float) else None,
            "scheduler_events": tables["scheduler_events"].height,
        },
    )
