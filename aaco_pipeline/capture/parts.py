"""Reading the parts of one run, each by its own reader, on the way to one set of tables.

How parts become one is `merging`; which files make a run is `discovery`.
"""

from collections.abc import Sequence

import polars as pl
import polars.selectors as cs

from aaco_pipeline.capture.discovery import Part, Run
from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import pieces


def read_run(run: Run, limits: Limits | None = None) -> CaptureTables:
    """All tables of a run; a part that cannot be read is evidence. CaptureError when none can be."""
    limits = limits or Limits()
    named: list[NamedReading] = []
    failed: list[Evidence] = []
    holders: dict[str, str] = {}
    captures = [part for part in run.parts if part.holds_captures]
    for part in (part for part in run.parts if not part.holds_captures):
        try:
            reading = _bounded(part.read(limits), limits, str(run.folder / part.name))
            one = NamedReading(part.name, reading, part.counts_first)
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
    graphs, told = _captured_in(captures, merged.tables["captured_launches"], limits, run)
    tables = {**merged.tables, "captured_launches": graphs}
    return CaptureTables(tables, (*merged.evidence, *failed, *told), merged.details)


def _captured_in(
    traces: Sequence[Part], own: pl.DataFrame, limits: Limits, run: Run
) -> tuple[pl.DataFrame, list[Evidence]]:
    """`captured_launches` of the run's own traces and of those in which its graphs were captured, numbered on."""
    if not traces:
        return own, []
    # Only what reads traces pays for what knows operators: a capture that the lake has is not read.
    from aaco_pipeline.analysis.roofline.operators.graphs.captured import captured_launches

    found, said = [own], []
    for part in traces:
        item = f"captured graphs of {part.name}"
        try:
            reading = _bounded(part.read(limits), limits, str(run.folder / part.name))
        except CaptureError as error:
            said.append(Evidence(item, "invalid", str(error), part.name))
            continue
        rows = captured_launches(reading.tables, reading.details.get("named_launches"), part.name)
        first = max((int(one["graph"].max()) + 1 for one in found if one.height), default=0)  # type: ignore[arg-type]
        found.append(rows.with_columns(pl.col("graph") + first))
        count = rows.get_column("graph").n_unique()
        reason = None if count else "no capture of a graph is recorded in it (no hipStreamBeginCapture)"
        said.append(Evidence(item, "present" if count else "absent", reason, part.name, count))
    return pl.concat(found), said


def _bounded(read: CaptureTables, limits: Limits, place: str) -> CaptureTables:
    """What was read, if no text in it is longer than a name or a value ever is."""
    for name, frame in (*read.tables.items(), *read.details.items()):
        for piece in pieces(frame.select(cs.string())):
            texts = piece.select(pl.all().str.len_bytes().max())
            for column, longest in zip(texts.columns, texts.row(0) if texts.columns else (), strict=True):
                if longest is not None and longest > limits.text_bytes:
                    raise CaptureError(
                        f"{place}: a text of {longest} bytes for {name}.{column}; no profiler writes one so long"
                    )
    return read
