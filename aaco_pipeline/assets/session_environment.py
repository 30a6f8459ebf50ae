"""The stage `session_environment`: facts about the host and software during the capture.

They were read at capture time (`aaco_pipeline.resources.host`). `aaco_pipeline.analysis.sessions.environment` defines
which of them make sessions comparable.
"""

from typing import Final

from aaco_pipeline.assets.stage import ALL_KINDS, Outcome, Session, stage
from aaco_pipeline.hardware.device_facts import how_identified, identified
from aaco_pipeline.lake.validation import empty_table

_TABLES: Final = ("environment", "devices", "processes", "clock_domains")


@stage(
    reads=("sessions",),
    publishes=_TABLES,
    group="capture",
    kinds=("linux", "rocm", "parquet"),
    session_kinds=ALL_KINDS,
)
def session_environment(session: Session) -> Outcome:
    """On which host, software and clocks was this measured, and which other sessions are comparable?"""
    captured = session.capture.tables()
    tables = {name: captured[name] for name in _TABLES}
    # Read kernels only if needed: a capture whose kernels are unreadable still has an environment.
    asked = bool(tables["devices"].get_column("arch").null_count())
    dispatches, kernels = (captured[name] if asked else empty_table(name) for name in ("dispatches", "kernels"))
    devices = identified(tables["devices"], dispatches, kernels, session.stated)
    tables["devices"] = devices
    unknown = tables["environment"].get_column("value").null_count()
    return Outcome(
        tables,
        (*session.capture.evidence("host"), *how_identified(devices)),
        {
            "fingerprint": session.tables("sessions")["sessions"].item(0, "fingerprint"),
            "devices": tables["devices"].height,
            "processes": tables["processes"].height,
            "facts": tables["environment"].height,
            "facts_unknown": unknown,
        },
        tables["devices"].select("device_id", "vendor", "arch", "arch_source", "product", "compute_units"),
        "devices",
    )
