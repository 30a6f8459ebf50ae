"""Reading the parts of one run, each by its own reader, on the way to one set of tables.

How parts become one is `merging`; which files make a run is `discovery`.
"""

from aaco_pipeline.capture.discovery import Run
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import Evidence


def read_run(run: Run, limits: Limits | None = None) -> CaptureTables:
    """All tables of a run; a part that cannot be read is evidence. CaptureError when none can be."""
    limits = limits or Limits()
    named: list[NamedReading] = []
    failed: list[Evidence] = []
    holders: dict[str, str] = {}
    for part in run.parts:
        try:
            one = NamedReading(part.name, part.read(limits))
        except CaptureError as error:
            failed.append(Evidence(f"part {part.name}", "invalid", str(error), part.name))
            continue
        guids = one.table("processes").get_column("guid").drop_nulls().to_list()
        if guids and all(guid in holders for guid in guids):
            reason = f"repeats the process of {holders[guids[0]]}, and is not read a second time"
            failed.append(Evidence(f"part {part.name}", "partial", reason, part.name))
            continue
        holders |= dict.fromkeys(guids, part.name)
        named.append(one)
    if not named:
        reasons = "; ".join(item.reason or "" for item in failed) or f"{run.folder}: nothing in it can be read"
        raise CaptureError(reasons)
    merged = merge_parts(named)
    return CaptureTables(merged.tables, (*merged.evidence, *failed), merged.details)
