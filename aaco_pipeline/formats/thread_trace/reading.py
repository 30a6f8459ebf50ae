"""Read a decoded thread trace into tables: waves, instructions, their stalls and dependencies.

`files` opens and checks the files.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits, table_of
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.thread_trace import FOLDER, files, probe
from aaco_pipeline.formats.thread_trace.files import CATEGORIES, WAVE_STATES, Folder, Wave, WaveFile, some
from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.validation import to_contract

_WAVES: Final = pl.Schema(
    {
        "wave_index": pl.Int32(),
        **dict.fromkeys(("shader_engine", "simd", "slot", "wave", "cu", "begin", "end"), pl.Int64()),
        **dict.fromkeys(("duration", "num_insts", "num_stitched"), pl.Int64()),
        "file": pl.String(),
    }
)
_CATEGORY: Final = pl.Enum(CATEGORIES)
_STATE: Final = pl.Enum(WAVE_STATES)
#: Details with one row per entry of a wavefront's lists, keyed by list.
_TAKEN: Final = {"instructions": "wave_instructions", "timeline": "wave_timeline", "waitcnt": "wait_dependencies"}
_WAVE_FILE: Final = re.compile(r"se(\d{1,9})_sm(\d{1,9})_sl(\d{1,9})_wv(\d{1,9})\.json")


def read_waves(folder: Folder, listing: dict[str, Any]) -> bool:
    """Add the details of the traced wavefronts and report unreadable ones; return whether all are present."""
    listed = _listed(folder, listing)
    read: list[tuple[WaveFile, Wave]] = []
    lost: list[str] = []
    count = 0
    for one in listed:
        path = files.inside(folder.path, one.name)
        try:
            if path is None:
                raise CaptureError("is not in the folder")
            found = files.wave(path, folder.limits)
        except CaptureError as error:
            lost.append(f"{one.name[:80]} {str(error).removeprefix(f'{path}: ')}")
            continue
        count += len(found.instructions) + len(found.timeline) + len(found.waits[2])
        if count > folder.limits.events:
            raise CaptureError(f"{folder.path}: more than {folder.limits.events} records; raise the limit on events")
        read.append((one, found))
    folder.details.update(wave_frames(read))
    folder.took("wavefront files", len(listed), len(read))
    for name, detail in _TAKEN.items():
        folder.took(f"wavefront {name}", folder.details[detail].height)
    if lost:
        folder.say("wavefronts", "partial" if read else "invalid", some(lost), len(read))
    elif read:
        folder.say("wavefronts", "present", rows=len(read))
    else:
        sampled = listing.get("pc_sampling") is True
        why = "the folder is of program-counter sampling" if sampled else "none is listed"
        folder.say("wavefronts", "absent", why, 0)
    if read:
        _say_oddities(folder, read)
    return not lost


def _listed(folder: Folder, listing: dict[str, Any]) -> list[WaveFile]:
    """List the wavefronts in `filenames.json`, or if it is missing, those whose files are present."""
    found = [match for name in folder.names() if (match := _WAVE_FILE.fullmatch(name))]
    if not listing:
        return [WaveFile(int(one[1]), int(one[2]), int(one[3]), int(one[4]), one[0]) for one in found]
    try:
        listed = files.listed_waves(folder.path / "filenames.json", listing.get("wave_filenames"))
    except CaptureError as error:
        folder.say("listing of the wavefronts", "invalid", str(error).partition("filenames.json: ")[2])
        return []
    known = {one.name for one in listed}
    surplus = [match[0] for match in found if match[0] not in known]
    why = f"filenames.json does not list them, so they were not read: {some(surplus)}"
    folder.note(len(surplus), "unlisted wavefronts", "partial", why)
    return listed


def _say_oddities(folder: Folder, read: Sequence[tuple[WaveFile, Wave]]) -> None:
    missing = [f"{one.name}: {', '.join(wave.missing)}" for one, wave in read if wave.missing]
    folder.note(len(missing), "parts of wavefronts", "partial", f"null in {some(missing)}")
    moved = [
        one.name
        for one, wave in read
        if (one.begin is not None and one.begin != wave.facts["begin"])
        or (one.end is not None and one.end != wave.facts["end"])
    ]
    why = f"filenames.json states another begin or end than the file of {some(moved)}"
    folder.note(len(moved), "times of wavefronts", "partial", why)
    unknown = folder.details["wave_instructions"].get_column("category").null_count()
    unknown += folder.details["wave_timeline"].get_column("state").null_count()
    why = f"{unknown} records have a category or state that this aaco_pipeline does not know; they are null"
    folder.note(unknown, "categories and states", "partial", why)


def aggregated(waves: pl.DataFrame, wave_instructions: pl.DataFrame) -> pl.DataFrame:
    """Sum the traced wavefronts' cycles per line: line, hits, latency_cycles, stall_cycles, idle_cycles.

    Idle is the time from the end of all earlier instructions of the wavefront (initially its begin) to its next one;
    instructions may overlap, so that end is a running maximum, and an instruction that starts earlier has 0 idle
    cycles. `wave_instructions` must be in execution order within each wavefront.
    """
    ended = (pl.col("time") + pl.col("duration")).cum_max().shift(1).over("wave_index")
    return (
        wave_instructions.join(waves.select("wave_index", "begin"), on="wave_index", how="left", maintain_order="left")
        .with_columns(before=pl.max_horizontal("begin", ended))
        .group_by("line")
        .agg(
            hits=pl.len().cast(pl.Int64),
            latency_cycles=pl.col("duration").sum(),
            stall_cycles=pl.col("stall").sum(),
            idle_cycles=(pl.col("time") - pl.col("before")).clip(lower_bound=0).sum(),
        )
        .sort("line")
    )


def wave_frames(read: Sequence[tuple[WaveFile, Wave]]) -> dict[str, pl.DataFrame]:
    """Build the frames of all wavefronts, each row with the `wave_index` of its wavefront."""
    places = ("shader_engine", "simd", "slot", "wave")
    rows = [
        {"wave_index": index, "file": one.name, **{place: getattr(one, place) for place in places}, **wave.facts}
        for index, (one, wave) in enumerate(read)
    ]
    executed = _stacked([wave.instructions for _, wave in read], 5)
    states = _stacked([wave.timeline for _, wave in read], 2)
    begins = np.asarray([wave.facts["begin"] for _, wave in read], np.int64)
    # A state begins when the previous ones of its wavefront have ended.
    whole = np.concatenate(([0], np.cumsum(states[1][:, 1])))
    firsts = np.concatenate(([0], np.cumsum([len(wave.timeline) for _, wave in read])))[:-1].astype(np.int64)
    waits = [wave.waits for _, wave in read]
    return {
        "waves": pl.DataFrame(rows, schema=_WAVES),
        "wave_instructions": pl.DataFrame(
            {
                "wave_index": executed[0],
                "time": executed[1][:, 0],
                "category": _named(executed[1][:, 1], _CATEGORY),
                "stall": executed[1][:, 2],
                "duration": executed[1][:, 3],
                "line": executed[1][:, 4],
            }
        ),
        "wave_timeline": pl.DataFrame(
            {
                "wave_index": states[0],
                "time": begins[states[0]] + whole[:-1] - whole[firsts[states[0]]],
                "state": _named(states[1][:, 0], _STATE),
                "cycles": states[1][:, 1],
            }
        ),
        "wait_dependencies": _wait_frame(waits),
    }


def _wait_frame(waits: Sequence[tuple[npt.NDArray[np.int64], ...]]) -> pl.DataFrame:
    none = np.empty(0, np.int64)
    lines, counts, awaited = (np.concatenate([none, *(one[part] for one in waits)]) for part in range(3))
    wave = np.repeat(np.arange(len(waits), dtype=np.int32), [len(one[0]) for one in waits])
    number = np.concatenate([none, *(np.arange(len(one[0])) for one in waits)])
    rows = np.maximum(counts, 1)  # a wait without a known dependency keeps one row, with null
    known = np.repeat(counts > 0, rows)
    dependency = np.zeros(len(known), np.int64)
    dependency[known] = awaited
    return pl.DataFrame(
        {
            "wave_index": np.repeat(wave, rows),
            "wait": np.repeat(number, rows),
            "line": np.repeat(lines, rows),
            "dependency_line": dependency,
            "known": known,
        }
    ).select(pl.exclude("dependency_line", "known"), pl.when("known").then("dependency_line").alias("dependency_line"))


def _stacked(
    tables: Sequence[npt.NDArray[np.int64]], width: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return each row's position among `tables`, and the rows of all."""
    index = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    return index, np.concatenate([np.empty((0, width), np.int64), *tables])


def _named(numbers: npt.NDArray[np.int64], names: pl.Enum) -> pl.Series:
    """Look up the names of the decoder's numbers; null for an unknown number."""
    given = names.categories.to_list()
    return pl.Series(numbers).replace_strict(dict(enumerate(given)), default=None, return_dtype=names)


_CYCLE_COLUMNS: Final = ("hits", "latency_cycles", "stall_cycles", "idle_cycles")
_STATISTICS: Final = ("CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source")
_STATISTICS_OF: Final = ("code_object_id", "address", "instruction", *_CYCLE_COLUMNS, "source")


def instruction_rows(folder: Folder, code: pl.DataFrame | None, sampled: bool, listing: dict[str, Any]) -> pl.DataFrame:
    """Build `att_instructions`, and the details `functions` and `sampled_stalls`."""
    rows = code if code is not None else files.CODE_SCHEMA.to_frame()
    heading = pl.col("instruction").str.starts_with(";").fill_null(False)
    functions = rows.filter(heading)
    folder.details["functions"] = functions.select(
        "line",
        name=pl.col("instruction").str.strip_prefix(";").str.strip_chars(),
        display_name=_stated(pl.col("source")),
        code_object_id=pl.col("code_object_id"),
        address=pl.col("address"),
    )
    rows = rows.filter(~heading)
    counted = pl.col("stall_reasons").list
    reasons = {name: counted.get(at, null_on_oob=True) for at, name in enumerate(files.STALL_REASONS)}
    folder.details["sampled_stalls"] = rows.drop_nulls("stall_reasons").select(
        "line", "code_object_id", "address", "issued", "stalled", **reasons
    )
    if code is not None:
        folder.took("code.json instructions", rows.height)
        folder.took("code.json function headings", functions.height)
        folder.have("instructions", rows.height, "code.json lists none")
    elif files.inside(folder.path, "code.json") is not None:
        folder.say("instructions", "absent", "code.json says null: the decoder had no code object for it", 0)
    if sampled:
        _say_samples(folder, listing)
    traced = not sampled or listing.get("thread_trace") is True
    columns = rows.select(
        "code_object_id",
        "address",
        "line",
        instruction=_stated(pl.col("instruction")),
        instruction_class=instruction_class(_stated(pl.col("instruction"))),
        source=_stated(pl.col("source")),
        samples=pl.col("issued") + pl.col("stalled"),
        **{name: pl.col(name) if traced else pl.lit(None, pl.Int64) for name in _CYCLE_COLUMNS},
    )
    return to_contract("att_instructions", columns)


def _say_samples(folder: Folder, listing: dict[str, Any]) -> None:
    stalls = folder.details["sampled_stalls"]
    count = int(stalls.select((pl.col("issued") + pl.col("stalled")).sum()).item() or 0)
    folder.have("program-counter samples", count, "all are 0")
    reasons = pl.sum_horizontal(*files.STALL_REASONS)
    apart = stalls.filter(reasons != pl.col("stalled")).height
    if apart:
        why = f"the reasons of {apart} instructions do not add up to their stalled samples"
        folder.say("stall reasons", "invalid", why, stalls.height)
    elif listing.get("is_pcs_stochastic") is False and stalls.filter(reasons > 0).height:
        why = (
            "filenames.json says that the samples are not stochastic, and only stochastic ones have a reason; yet "
            "reasons are there"
        )
        folder.say("stall reasons", "partial", why, stalls.height)
    else:
        folder.say("stall reasons", "present", rows=stalls.height)


def compare_with_waves(folder: Folder, code: pl.DataFrame | None, complete: bool) -> None:
    """Report whether the totals in `code.json` follow from the wavefronts, if none is missing (`complete`)."""
    item = "sums recomputed from the wavefronts"
    waves, executed = folder.details["waves"], folder.details["wave_instructions"]
    if code is None or not waves.height:
        folder.say(item, "absent", "there is no code" if code is None else "there are no wavefronts")
        return
    if not complete:
        folder.say(item, "absent", "not compared: wavefronts that the sums include are missing")
        return
    sums = aggregated(waves, executed)
    joined = code.select("line", *_CYCLE_COLUMNS).join(sums, on="line", how="full", coalesce=True, suffix="_again")
    unlike = (pl.col(name).fill_null(0) != pl.col(f"{name}_again").fill_null(0) for name in _CYCLE_COLUMNS)
    unlisted = ~pl.col("line").is_in(code.get_column("line").implode())
    different = joined.filter(pl.any_horizontal(unlike) | unlisted).height
    told = (
        f"{different} of {joined.height} rows differ in hits, latency, stall or idle cycles; recomputed from "
        f"{executed.height} executed instructions of {waves.height} wavefronts"
    )
    folder.say(item, "invalid" if different else "present", told, executed.height)


def compare_with_statistics(folder: Folder, code: pl.DataFrame | None) -> None:
    """Report whether the CSV next to the folder equals `code.json`, ordered by code object and address."""
    name = f"stats_{folder.path.name}.csv"
    item = "statistics beside the folder"
    path = files.inside(folder.path.parent, name)
    if path is None:
        folder.say(item, "absent", f"there is no {name}")
        return
    try:
        content = read_decompressed(path, folder.limits)
        stated = pl.read_csv(content, infer_schema=False).fill_null("")
    except (CaptureError, pl.exceptions.PolarsError) as error:
        folder.say(item, "invalid", str(error).removeprefix(f"{path}: ").strip().split("\n", 1)[0])
        return
    if tuple(stated.columns) != _STATISTICS:
        folder.say(item, "invalid", f"its columns are not {', '.join(_STATISTICS)}", stated.height)
    elif code is None:
        folder.say(item, "partial", "there is no code to compare them with", stated.height)
    else:
        ordered = code.sort("code_object_id", "address", "line")
        listed = ordered.select(pl.col(_STATISTICS_OF).cast(pl.String).fill_null(""))
        listed.columns = list(_STATISTICS)
        both = min(stated.height, listed.height)
        unequal = pl.any_horizontal(pl.col(column).ne_missing(pl.col(f"{column}_code")) for column in _STATISTICS)
        beside = pl.concat([stated[:both], listed[:both].rename(lambda one: f"{one}_code")], how="horizontal")
        different = beside.filter(unequal).height + max(stated.height, listed.height) - both
        told = f"{different} of {max(stated.height, listed.height)} rows differ from code.json, which they repeat"
        folder.say(item, "invalid" if different else "present", told, stated.height)
    folder.took(item, stated.height, 0)


def _stated(text: pl.Expr) -> pl.Expr:
    """Return the text, null if it is empty."""
    return pl.when(text != "").then(text)


_PERF_FILE: Final = re.compile(r"se(\d{1,9})_perfcounter\.json")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.thread_trace.read`."""
    if probe(path) is None:
        reason = "holds neither code.json nor filenames.json of a decoded thread trace"
        raise CaptureError(f"{path}: {reason}; give the folder ui_output_agent_<handle>_dispatch_<id>")
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
    """Build one clock per shader engine; its cycles are not tied to any time."""
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
    return table_of("clock_domains", rows)
