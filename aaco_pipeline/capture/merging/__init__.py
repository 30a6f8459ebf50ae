"""Combine the parts of one run into one set of canonical tables on one axis, with one numbering.

A part is the output of one reader: a process, a counter pass or a thread trace. Only the base trace provides times;
counter passes are matched to it by numbers, kernels and grids, never by time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl
import polars.selectors as cs

from aaco_pipeline.capture.discovery import Part, Run, discover_runs
from aaco_pipeline.capture.merging import passes
from aaco_pipeline.capture.merging.base import DEVICE_COLUMNS, TIMES, base_trace, choose_base, renumbered
from aaco_pipeline.capture.merging.iterations import as_iterations, from_markers
from aaco_pipeline.capture.merging.parts import EVENTS, NamedReading, matched_instructions, named_kernels, plainly_named
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.on_disk import pieces
from aaco_pipeline.lake.validation import empty_table

__all__ = ["NamedReading", "merge_parts", "moved", "row_accounts"]

#: Every table of an assembled capture, including empty ones.
TABLES: Final = (
    *("processes", "devices", "clock_domains", "environment", "iterations", "kernels"),
    *(*EVENTS, "counters", "pc_samples", "reported_statistics", "att_instructions", "gpu_samples", "ceilings"),
    *("operator_inputs", "captured_launches"),
)


def merge_parts(parts: Sequence[NamedReading]) -> CaptureTables:
    """Build one session's tables from the parts of a run, in the given order.

    All of `TABLES` are present. The axis begins at the earliest event of the base trace; parts from another host keep
    their own clock, aligned at the start, with a null uncertainty. Detail `source_rows` (part, item, rows_in, rows_out)
    lists the contents of each source; the details of thread traces are described in `parts`, and samples that could not
    be placed in `passes`. CaptureError if there are no parts.
    """
    if not parts:
        raise CaptureError("nothing to assemble: no part could be read")
    parts = plainly_named(parts)
    base, evidence = choose_base(parts)
    merged = base_trace(base)
    tables = merged.tables
    tables["counters"], tables["kernels"], placed = passes.counters(parts, merged)
    tables["pc_samples"] = passes.pc_samples(parts, merged)
    traced_parts = [(part.name, part.reading) for part in parts if part.table("att_instructions").height]
    keys = merged.keys if traced_parts else pl.DataFrame()
    tables["att_instructions"], traces, traced = matched_instructions(traced_parts, keys, tables["dispatches"])
    tables["kernels"], tables["att_instructions"], unnamed = named_kernels(
        parts, tables["kernels"], tables["att_instructions"]
    )
    for name in ("reported_statistics", "environment", "ceilings"):
        tables[name] = pl.concat([part.table(name) for part in parts]).unique(maintain_order=True)
    tables["environment"] = tables["environment"].unique(["category", "key"], keep="first", maintain_order=True)
    tables["gpu_samples"], tables["devices"], sampled, unplaced = passes.placed(parts, merged)
    tables["iterations"], tables["dispatches"], without = _iterations(tables, base[0], merged.clock_of)
    for part in parts:
        named = (replace(item, item=f"{item.item} of {part.name}") for item in part.reading.evidence)
        evidence += named if len(parts) > 1 else part.reading.evidence
    evidence += [*merged.evidence, *without, *placed, *traced, *unnamed, *sampled]
    # With several traces, the operators do not state which trace they belong to.
    alone = len(parts) == 1
    tables["operator_inputs"] = parts[0].table("operator_inputs") if alone else empty_table("operator_inputs")
    stated = parts[0].reading.details.get("named_launches") if alone else None
    # Imported only when reading traces: captures already in the lake do not need operators.
    from aaco_pipeline.analysis.roofline.operators.graph_replays import captured_launches

    tables["captured_launches"] = captured_launches(tables, stated)
    details = traces | unplaced | _accounts(parts)
    return CaptureTables({name: tables[name] for name in TABLES}, tuple(evidence), details)


def moved(reading: CaptureTables, by_ns: int, *, processes: int, devices: int) -> CaptureTables:
    """Shift all times of a reading, and offset its process and device numbers."""
    added = {"process_id": processes} | dict.fromkeys(DEVICE_COLUMNS, devices) | dict.fromkeys(TIMES, by_ns)
    named = (*EVENTS, "processes", "devices", "iterations", "pc_samples", "gpu_samples", "ceilings")
    tables = {name: renumbered(reading.tables[name], added, {}) for name in named}
    return CaptureTables({**reading.tables, **tables}, reading.evidence, reading.details)


def row_accounts(reading: CaptureTables) -> list[dict[str, object]]:
    """List each part's record kinds: part, item, rows_in, rows_out, and the reason if there is evidence."""
    reasons = {item.item: item.reason for item in reading.evidence}

    def reason(row: Mapping[str, object]) -> str | None:
        if row["rows_out"] == row["rows_in"]:
            return None
        file = f"{row['item']}".partition(" (")[2].removesuffix(")")  # for formats whose records are files of one kind
        named = (f"{row['item']}", f"records {row['item']}", f"unusable rows of {file}", f"repeated counters ({file})")
        return next(
            (reasons[item] for name in named for item in (f"{name} of {row['part']}", name) if reasons.get(item)), None
        )

    rows = reading.details["source_rows"].to_dicts() if "source_rows" in reading.details else []
    return [{**row, "reason": reason(row)} for row in rows]


def _accounts(parts: Sequence[NamedReading]) -> dict[str, pl.DataFrame]:
    held = [(part.name, part.reading.details["source_rows"]) for part in parts if "source_rows" in part.reading.details]
    frames = [rows.select(pl.lit(name).alias("part"), "item", "rows_in", "rows_out") for name, rows in held]
    return {"source_rows": pl.concat(frames)} if frames else {}


def _iterations(
    tables: Mapping[str, pl.DataFrame], first: NamedReading, clock_of: Mapping[int, tuple[str, ...]]
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """Return iterations as counted by the format or derived from markers, and the dispatches with their iterations."""
    dispatches = tables["dispatches"]
    if first.table("iterations").height:
        return first.table("iterations"), dispatches, []
    if dispatches.get_column("iteration").null_count() < dispatches.height:
        runs = tables["api_calls"].filter((pl.col("domain") == "onnxruntime") & (pl.col("name") == "model_run"))
        return as_iterations(runs), dispatches, []
    return from_markers(tables, clock_of)


def read_run(run: Run, limits: Limits | None = None) -> CaptureTables:
    """Read all tables of a run; an unreadable part becomes evidence. CaptureError if none is readable."""
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
    """Return `captured_launches` of the run's traces and of its graph-capture traces, renumbered consecutively."""
    if not traces:
        return own, []
    # Imported only when reading traces: captures already in the lake do not need operators.
    from aaco_pipeline.analysis.roofline.operators.graph_replays import captured_launches

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
    """Return the reading if none of its texts exceeds the maximum length of a name or value."""
    for name, frame in (*read.tables.items(), *read.details.items()):
        for piece in pieces(frame.select(cs.string())):
            texts = piece.select(pl.all().str.len_bytes().max())
            for column, longest in zip(texts.columns, texts.row(0) if texts.columns else (), strict=True):
                if longest is not None and longest > limits.text_bytes:
                    what = f"a text of {longest} bytes for {name}.{column}"
                    raise CaptureError(f"{place}: {what}; no profiler writes one so long")
    return read


def kernels_on_path(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each kernel's time on the critical path in ns and its number of runs, from the files of a pass."""
    from aaco_pipeline.analysis.timeline.activities import recorded
    from aaco_pipeline.analysis.timeline.critical_path import critical_path
    from aaco_pipeline.analysis.timeline.dependency_graph import network

    parts = [part for run in discover_runs(folder).runs for part in run.parts]
    if not parts:
        return {}
    tables = merge_parts([NamedReading(part.name, part.read(Limits())) for part in parts]).tables
    run = recorded({**tables, "iterations": tables["iterations"].clear()})
    if run.dispatches.is_empty():
        return {}
    path = critical_path(network(run.activities, run.calls, run.waits))
    counts = run.dispatches.group_by("kernel_id").agg(count=pl.len())
    kernels = path.kernels.join(counts, on="kernel_id").join(tables["kernels"], on="kernel_id")
    return {row["name"]: (int(row["critical_ns"]), int(row["count"])) for row in kernels.to_dicts()}
