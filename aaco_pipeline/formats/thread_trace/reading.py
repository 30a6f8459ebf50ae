"""A decoded thread trace's folder to tables and details, file by file."""

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits
from aaco_pipeline.formats.thread_trace import files
from aaco_pipeline.formats.thread_trace.folder import Folder, some
from aaco_pipeline.formats.thread_trace.instructions import (
    compare_with_statistics,
    compare_with_waves,
    instruction_rows,
)
from aaco_pipeline.formats.thread_trace.signs import FOLDER, probe
from aaco_pipeline.formats.thread_trace.waves import read_waves
from aaco_pipeline.lake.validation import empty_table, to_contract

_PERF_FILE: Final = re.compile(r"se(\d{1,9})_perfcounter\.json")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.thread_trace.read`."""
    if probe(path) is None:
        raise CaptureError(
            f"{path}: holds neither code.json nor filenames.json of a decoded thread trace; give the folder "
            "ui_output_agent_<handle>_dispatch_<id>"
        )
    folder = Folder(path, limits)
    listing = folder.optional("filenames.json", files.mapping, "listing of the folder") or {}
    code, sampled = folder.optional("code.json", files.code, "instructions", required=True) or (None, False)
    complete = read_waves(folder, listing)
    instructions = instruction_rows(folder, code, sampled, listing)
    if not sampled:
        compare_with_waves(folder, code, complete)
    compare_with_statistics(folder, code)
    folder.detail("occupancy.json", "occupancy", files.occupancy, files.OCCUPANCY_SCHEMA)
    _wave_states(folder)
    clocks = folder.detail("realtime.json", "realtime", files.realtime, files.REALTIME_SCHEMA)
    _perf_counters(folder)
    _sources(folder)
    _traced_dispatch(folder, listing)
    folder.details["source_rows"] = folder.source_rows()
    tables = {"att_instructions": instructions, "clock_domains": _clock_domains(folder.details["waves"], clocks)}
    return CaptureTables(tables, tuple(folder.evidence), folder.details)


def _wave_states(folder: Folder) -> None:
    frames = []
    for state in range(1, len(files.WAVE_STATES)):
        name = f"wstates{state}.json"
        if files.inside(folder.path, name) is None:
            continue  # the decoder writes no file for a state that never occurred
        frame = folder.take(name, partial(files.wave_states, state=state), f"wave states of {name}")
        frames += [] if frame is None else [frame]
    folder.gather("wave_states", "wave states", frames, files.WAVE_STATES_SCHEMA, "the folder has none")


def _perf_counters(folder: Folder) -> None:
    frames = []
    for match in filter(None, map(_PERF_FILE.fullmatch, folder.names())):
        parse = partial(files.perf_counters, engine=match[1])
        frame = folder.take(match[0], parse, f"streamed counters of {match[0]}")
        frames += [] if frame is None else [frame]
    lacking = "none were streamed (--att-perfcounters)"
    folder.gather("perf_counters", "streamed counters", frames, files.PERF_COUNTERS_SCHEMA, lacking)


def _sources(folder: Folder) -> None:
    listed = folder.take("snapshots.json", files.source_files, "source files")
    frame = listed if listed is not None else pl.DataFrame(schema={"source": pl.String(), "file": pl.String()})
    found = [files.inside(folder.path, name) is not None for name in frame.get_column("file")]
    folder.details["source_files"] = frame.with_columns(found=pl.Series(found, dtype=pl.Boolean))
    if listed is None:
        return
    lost = frame.filter(~pl.Series(found, dtype=pl.Boolean)).get_column("file").to_list()
    why = f"not in the folder: {some(lost)}" if lost else None
    folder.say("source files", "partial" if lost else "present", why, sum(found))


def _traced_dispatch(folder: Folder, listing: dict[str, Any]) -> None:
    match = FOLDER.fullmatch(folder.path.resolve().name)
    number = int(match[2]) if match is not None and int(match[2]) < 1 << 64 else None
    functions, occupancy = folder.details["functions"], folder.details["occupancy"]
    names = [
        *functions.get_column("name").to_list(),
        *occupancy.get_column("kernel").drop_nulls().unique(maintain_order=True).to_list(),
    ]
    counters, ip, generation = (listing.get(name) for name in ("counter_names", "gfxip", "gfxv"))
    folder.details["traced_dispatch"] = pl.DataFrame(
        {
            "agent_handle": [match[1] if match is not None else None],
            "source_dispatch_id": [number],
            "gfxv": [generation if isinstance(generation, str) else None],
            "gfxip": [ip if type(ip) is int and 0 <= ip < 1 << 31 else None],
            "counter_names": [[str(name) for name in counters] if isinstance(counters, list) else None],
            "kernel_names": [list(dict.fromkeys(names))],
            "kernel_display_names": [functions.get_column("display_name").drop_nulls().to_list()],
            "code_object_ids": [functions.get_column("code_object_id").drop_nulls().unique().sort().to_list()],
        },
        schema=files.TRACED_DISPATCH_SCHEMA,
    )
    if number is None:
        why = "the folder's name is not ui_output_agent_<handle>_dispatch_<id>, and no file in it says"
        folder.say("traced dispatch", "absent", why)
    else:
        folder.say("traced dispatch", "present", rows=1)


def _clock_domains(waves: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """One clock for each shader engine; nothing ties its cycles to a time."""
    engines = sorted({*waves.get_column("shader_engine"), *clocks.get_column("shader_engine")})
    rows = []
    for engine in engines:
        own = clocks.filter(pl.col("shader_engine") == engine)
        anchor = None
        if own.height > 1 and own.item(0, "frequency"):
            cycles, ticks = (own.item(-1, name) - own.item(0, name) for name in ("gfx_clock", "realtime_clock"))
            if ticks > 0:
                rate = cycles / ticks * own.item(0, "frequency") / 1e6
                anchor = f"runs at {rate:.1f} MHz by {own.height} readings against a constant clock that is not tied"
        rows.append({"domain": f"shader clock of engine {engine}", "anchor": anchor})
    return to_contract("clock_domains", pl.DataFrame(rows)) if rows else empty_table("clock_domains")
