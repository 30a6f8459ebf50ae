"""A decoded thread trace (`ui_output_agent_<handle>_dispatch_<id>`), or the same folder from program-counter sampling.

Every time here is in shader clock cycles with an epoch of its own for each shader engine, never nanoseconds. Only the
wavefronts of one compute unit are traced, so hits say nothing of the whole grid. The raw trace files that the folder
was decoded from are not read: no open decoder exists for them.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits, unpacked
from aaco_pipeline.formats.thread_trace import files
from aaco_pipeline.formats.thread_trace.waves import wave_frames
from aaco_pipeline.hardware.instruction_classes import instruction_class
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import empty_table, to_contract

FORMAT: Final = "rocprofv3-thread-trace"
_FOLDER: Final = re.compile(r"ui_output_agent_(\d{1,20})_dispatch_(\d{1,20})")
_WAVE_FILE: Final = re.compile(r"se(\d{1,9})_sm(\d{1,9})_sl(\d{1,9})_wv(\d{1,9})\.json")
_PERF_FILE: Final = re.compile(r"se(\d{1,9})_perfcounter\.json")
_HEAD_BYTES: Final = 4096
_CYCLE_COLUMNS: Final = ("hits", "latency_cycles", "stall_cycles", "idle_cycles")
_STATISTICS: Final = ("CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source")
_STATISTICS_OF: Final = ("code_object_id", "address", "instruction", *_CYCLE_COLUMNS, "source")
_NAMED: Final = 5


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a folder by what its `filenames.json` or `code.json` begins with; None for anything else."""
    for name, marks in (
        ("filenames.json", (b'"gfxv"', b'"wave_filenames"', b'"global_begin_time"')),
        ("code.json", (b'"code"',)),
    ):
        try:
            with (path / name).open("rb") as stream:
                head = stream.read(_HEAD_BYTES)
        except (OSError, ValueError):
            continue
        if head.lstrip().startswith(b"{") and any(mark in head for mark in marks):
            sampled = re.search(rb'"pc_sampling"\s*:\s*true', head) is not None
            return DetectedFormat(
                FORMAT, "program-counter samples by instruction" if sampled else "decoded thread trace"
            )
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """The folder `path` and the `stats_*.csv` beside it. CaptureError when it is no such folder or its code is damaged.

    Tables: `att_instructions` (kernel_id and dispatch_id null: only other files of the capture know them) and
    `clock_domains` (one per shader engine, tied to nothing). Details, all times and durations in cycles:

    - `traced_dispatch`, one row: agent_handle, source_dispatch_id (from the folder's name), gfxv, gfxip,
      counter_names, kernel_names (symbols), kernel_display_names, code_object_ids
    - `functions`: line, name, display_name, code_object_id, address of each function in the listing
    - `waves`: wave_index, shader_engine, simd, slot, wave, cu, begin, end, duration, num_insts, num_stitched, file
    - `wave_instructions`: wave_index, time, category, stall, duration, line, in order of execution
    - `wave_timeline`: wave_index, time, state, cycles
    - `wait_dependencies`: wave_index, wait (number of the wait within its wavefront), line, dependency_line (null
      when it waited for nothing that is known)
    - `occupancy`: shader_engine, time, cu, simd, slot, started, source_kernel_id, kernel; every compute unit
    - `wave_states`: time, state, waves
    - `realtime`: shader_engine, gfx_clock, realtime_clock, frequency (ticks of realtime_clock a second)
    - `perf_counters`: shader_engine, time, counter_0 … counter_3, cu, bank
    - `sampled_stalls`: line, code_object_id, address, issued, stalled and one count for each reason to stall
    - `source_files`: source (path at build), file (copy in the folder), found
    - `source_rows`: item, rows_in, rows_out
    """
    return _Folder(path, limits or Limits()).reading()


def aggregated(waves: pl.DataFrame, wave_instructions: pl.DataFrame) -> pl.DataFrame:
    """What the traced wavefronts spent on each line: line, hits, latency_cycles, stall_cycles, idle_cycles.

    Idle is the time from the end of whatever the wavefront had executed (at first its own begin) to its next
    instruction; instructions may overlap, so that end is a running maximum and an early start idles for 0.
    `wave_instructions` must be in order of execution within each wavefront.
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


class _Folder:
    """One folder while it is read: what was found so far, and what is to be said of it."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.evidence: list[Evidence] = []
        self.rows: list[tuple[str, int, int]] = []
        self.details: dict[str, pl.DataFrame] = {}
        if probe(path) is None:
            raise CaptureError(
                f"{path}: holds neither code.json nor filenames.json of a decoded thread trace; give the folder "
                "ui_output_agent_<handle>_dispatch_<id>"
            )

    def reading(self) -> CaptureTables:
        listing = self._optional("filenames.json", files.mapping, "listing of the folder") or {}
        found = self._optional("code.json", files.code, "instructions", required=True)
        code, sampled = found if found is not None else (None, False)
        self._waves(listing)
        instructions = self._instructions(code, sampled, listing)
        if not sampled:
            self._compare(code)
        self._statistics(code)
        self._frame("occupancy.json", "occupancy", files.occupancy, files.OCCUPANCY_SCHEMA)
        self._wave_states()
        clocks = self._frame("realtime.json", "realtime", files.realtime, files.REALTIME_SCHEMA)
        self._perf_counters()
        self._sources()
        self._traced_dispatch(listing)
        schema = {"item": pl.String(), "rows_in": pl.Int64(), "rows_out": pl.Int64()}
        self.details["source_rows"] = pl.DataFrame(self.rows, schema=schema, orient="row")
        tables = {"att_instructions": instructions, "clock_domains": _clock_domains(self.details["waves"], clocks)}
        return CaptureTables(tables, tuple(self.evidence), self.details)

    def _say(self, item: str, status: Status, reason: str | None = None, rows: int | None = None) -> None:
        self.evidence.append(Evidence(item, status, reason, self.path.name, rows))

    def _optional(
        self, name: str, parse: Callable[[Path, Limits], Any], item: str, *, required: bool = False
    ) -> Any | None:
        """What `parse` makes of the file; None, said absent or invalid, where it cannot be used."""
        path = files.inside(self.path, name)
        if path is None:
            self._say(item, "absent", f"the folder has no {name}")
            return None
        try:
            return parse(path, self.limits)
        except CaptureError as error:
            if required:
                raise
            self._say(item, "invalid", str(error).removeprefix(f"{path}: "))
            return None

    def _frame(
        self, name: str, item: str, parse: Callable[[Path, Limits], pl.DataFrame], schema: pl.Schema
    ) -> pl.DataFrame:
        frame = self._optional(name, parse, item)
        if frame is not None:
            self._say(item, "present", rows=frame.height)
            self.rows.append((name, frame.height, frame.height))
        self.details[item] = frame if frame is not None else pl.DataFrame(schema=schema)
        return self.details[item]

    # --- Code ---------------------------------------------------------------------------------------------------------

    def _instructions(self, code: pl.DataFrame | None, sampled: bool, listing: dict[str, Any]) -> pl.DataFrame:
        """`att_instructions`; also the details `functions` and `sampled_stalls`."""
        rows = code if code is not None else pl.DataFrame(schema=files.CODE_SCHEMA)
        heading = pl.col("instruction").str.starts_with(";").fill_null(False)
        functions = rows.filter(heading)
        self.details["functions"] = functions.select(
            "line",
            name=pl.col("instruction").str.strip_prefix(";").str.strip_chars(),
            display_name=_stated(pl.col("source")),
            code_object_id=pl.col("code_object_id"),
            address=pl.col("address"),
        )
        rows = rows.filter(~heading)
        self.details["sampled_stalls"] = rows.filter(pl.col("stall_reasons").is_not_null()).select(
            "line",
            "code_object_id",
            "address",
            "issued",
            "stalled",
            *(
                pl.col("stall_reasons").list.get(number, null_on_oob=True).alias(reason)
                for number, reason in enumerate(files.STALL_REASONS)
            ),
        )
        if code is not None:
            self.rows.append(("code.json instructions", rows.height, rows.height))
            self.rows.append(("code.json function headings", functions.height, functions.height))
            self._say(
                "instructions",
                "present" if rows.height else "absent",
                None if rows.height else "code.json lists none",
                rows.height,
            )
        elif files.inside(self.path, "code.json") is not None:
            self._say("instructions", "absent", "code.json says null: the decoder had no code object for it", 0)
        if sampled:
            self._samples(listing)
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
        return to_contract("att_instructions", columns) if rows.height else empty_table("att_instructions")

    def _samples(self, listing: dict[str, Any]) -> None:
        stalls = self.details["sampled_stalls"]
        count = int(stalls.select((pl.col("issued") + pl.col("stalled")).sum()).item() or 0)
        self._say("program-counter samples", "present" if count else "absent", None if count else "all are 0", count)
        reasons = pl.sum_horizontal(*files.STALL_REASONS)
        apart = stalls.filter(reasons != pl.col("stalled")).height
        if apart:
            why = f"the reasons of {apart} instructions do not add up to their stalled samples"
            self._say("stall reasons", "invalid", why, stalls.height)
        elif listing.get("is_pcs_stochastic") is False and stalls.filter(reasons > 0).height:
            why = (
                "filenames.json says that the samples are not stochastic, and only stochastic ones have a reason; yet "
                "reasons are there"
            )
            self._say("stall reasons", "partial", why, stalls.height)
        else:
            self._say("stall reasons", "present", rows=stalls.height)

    def _compare(self, code: pl.DataFrame | None) -> None:
        """State whether the sums in `code.json` follow from the wavefronts."""
        item = "sums recomputed from the wavefronts"
        waves, executed = self.details["waves"], self.details["wave_instructions"]
        if code is None or not waves.height:
            self._say(item, "absent", "there is no code" if code is None else "there are no wavefronts")
            return
        if self._waves_missing:
            self._say(item, "absent", "not compared: wavefronts that the sums include are missing")
            return
        sums = aggregated(waves, executed)
        joined = code.select("line", *_CYCLE_COLUMNS).join(sums, on="line", how="full", coalesce=True, suffix="_again")
        different = joined.filter(
            pl.any_horizontal(
                pl.col(name).fill_null(0) != pl.col(f"{name}_again").fill_null(0) for name in _CYCLE_COLUMNS
            )
            | ~pl.col("line").is_in(code.get_column("line").implode())
        ).height
        told = (
            f"{different} of {joined.height} rows differ in hits, latency, stall or idle cycles; recomputed from "
            f"{executed.height} executed instructions of {waves.height} wavefronts"
        )
        self._say(item, "invalid" if different else "present", told, executed.height)

    def _statistics(self, code: pl.DataFrame | None) -> None:
        """State whether the CSV beside the folder says the same as `code.json`, ordered by code object and address."""
        name = f"stats_{self.path.name}.csv"
        item = "statistics beside the folder"
        path = files.inside(self.path.parent, name)
        if path is None:
            self._say(item, "absent", f"there is no {name}")
            return
        try:
            content = unpacked(path, self.limits)
            stated = pl.read_csv(content, infer_schema=False).fill_null("")
        except (CaptureError, pl.exceptions.PolarsError) as error:
            self._say(item, "invalid", str(error).removeprefix(f"{path}: ").strip().split("\n", 1)[0])
            return
        if tuple(stated.columns) != _STATISTICS:
            self._say(item, "invalid", f"its columns are not {', '.join(_STATISTICS)}", stated.height)
        elif code is None:
            self._say(item, "partial", "there is no code to compare them with", stated.height)
        else:
            listed = code.sort("code_object_id", "address", "line").select(
                pl.col(_STATISTICS_OF).cast(pl.String).fill_null("")
            )
            listed.columns = list(_STATISTICS)
            both = min(stated.height, listed.height)
            unequal = pl.any_horizontal(pl.col(column).ne_missing(pl.col(f"{column}_code")) for column in _STATISTICS)
            beside = pl.concat([stated[:both], listed[:both].rename(lambda one: f"{one}_code")], how="horizontal")
            different = beside.filter(unequal).height + max(stated.height, listed.height) - both
            told = f"{different} of {max(stated.height, listed.height)} rows differ from code.json, which they repeat"
            self._say(item, "invalid" if different else "present", told, stated.height)
        self.rows.append((item, stated.height, 0))

    # --- Wavefronts ---------------------------------------------------------------------------------------------------

    def _waves(self, listing: dict[str, Any]) -> None:
        """The details of the traced wavefronts; wavefronts that cannot be read are said."""
        self._waves_missing = False
        listed = self._listed(listing)
        read: list[tuple[files.WaveFile, files.Wave]] = []
        lost: list[str] = []
        count = 0
        for one in listed:
            path = files.inside(self.path, one.name)
            try:
                if path is None:
                    raise CaptureError("is not in the folder")
                found = files.wave(path, self.limits)
            except CaptureError as error:
                lost.append(f"{one.name[:80]} {str(error).removeprefix(f'{path}: ')}")
                continue
            count += len(found.instructions) + len(found.timeline) + len(found.waits[2])
            if count > self.limits.events:
                raise CaptureError(f"{self.path}: more than {self.limits.events} records; raise the limit on events")
            read.append((one, found))
        self.details.update(wave_frames(read))
        self.rows.append(("wavefront files", len(listed), len(read)))
        for name, frame in (
            ("instructions", "wave_instructions"),
            ("timeline", "wave_timeline"),
            ("waitcnt", "wait_dependencies"),
        ):
            self.rows.append((f"wavefront {name}", self.details[frame].height, self.details[frame].height))
        self._waves_missing = bool(lost)
        if lost:
            self._say("wavefronts", "partial" if read else "invalid", _some(lost), len(read))
        elif read:
            self._say("wavefronts", "present", rows=len(read))
        else:
            why = (
                "the folder is of program-counter sampling" if listing.get("pc_sampling") is True else "none is listed"
            )
            self._say("wavefronts", "absent", why, 0)
        if read:
            self._oddities(read)

    def _listed(self, listing: dict[str, Any]) -> list[files.WaveFile]:
        """The wavefronts that `filenames.json` lists, or without it those whose files are there."""
        found = [match for name in _names(self.path) if (match := _WAVE_FILE.fullmatch(name))]
        if not listing:
            return [files.WaveFile(int(one[1]), int(one[2]), int(one[3]), int(one[4]), one[0]) for one in found]
        try:
            listed = files.listed_waves(self.path / "filenames.json", listing.get("wave_filenames"))
        except CaptureError as error:
            self._say("listing of the wavefronts", "invalid", str(error).partition("filenames.json: ")[2])
            return []
        known = {one.name for one in listed}
        surplus = [match[0] for match in found if match[0] not in known]
        if surplus:
            why = f"filenames.json does not list them, so they were not read: {_some(surplus)}"
            self._say("unlisted wavefronts", "partial", why, len(surplus))
        return listed

    def _oddities(self, read: Sequence[tuple[files.WaveFile, files.Wave]]) -> None:
        missing = [f"{one.name}: {', '.join(wave.missing)}" for one, wave in read if wave.missing]
        if missing:
            self._say("parts of wavefronts", "partial", f"null in {_some(missing)}", len(missing))
        moved = [
            one.name
            for one, wave in read
            if (one.begin is not None and one.begin != wave.facts["begin"])
            or (one.end is not None and one.end != wave.facts["end"])
        ]
        if moved:
            why = f"filenames.json states another begin or end than the file of {_some(moved)}"
            self._say("times of wavefronts", "partial", why, len(moved))
        unknown = self.details["wave_instructions"].get_column("category").null_count()
        unknown += self.details["wave_timeline"].get_column("state").null_count()
        if unknown:
            why = f"{unknown} records have a category or state that this aaco_pipeline does not know; they are null"
            self._say("categories and states", "partial", why, unknown)

    # --- Whatever else is in the folder -------------------------------------------------------------------------------

    def _wave_states(self) -> None:
        frames = []
        for state in range(1, len(files.WAVE_STATES)):
            name = f"wstates{state}.json"
            if files.inside(self.path, name) is None:
                continue  # the decoder writes no file for a state that never occurred
            parse = partial(files.wave_states, state=state)
            frame = self._optional(name, parse, f"wave states of {name}")
            if frame is not None:
                frames.append(frame)
                self.rows.append((name, frame.height, frame.height))
        schema = {"time": pl.Int64(), "state": pl.String(), "waves": pl.Int64()}
        self.details["wave_states"] = pl.concat(frames) if frames else pl.DataFrame(schema=schema)
        rows = self.details["wave_states"].height
        self._say("wave states", "present" if rows else "absent", None if rows else "the folder has none", rows)

    def _perf_counters(self) -> None:
        frames = []
        for name in _names(self.path):
            match = _PERF_FILE.fullmatch(name)
            if match is None:
                continue
            parse = partial(files.perf_counters, engine=match[1])
            frame = self._optional(name, parse, f"streamed counters of {name}")
            if frame is not None:
                frames.append(frame)
                self.rows.append((name, frame.height, frame.height))
        self.details["perf_counters"] = pl.concat(frames) if frames else pl.DataFrame(schema=files.PERF_COUNTERS_SCHEMA)
        rows = self.details["perf_counters"].height
        why = None if rows else "none were streamed (--att-perfcounters)"
        self._say("streamed counters", "present" if rows else "absent", why, rows)

    def _sources(self) -> None:
        listed = self._optional("snapshots.json", files.source_files, "source files")
        frame = listed if listed is not None else pl.DataFrame(schema={"source": pl.String(), "file": pl.String()})
        found = [files.inside(self.path, name) is not None for name in frame.get_column("file")]
        self.details["source_files"] = frame.with_columns(found=pl.Series(found, dtype=pl.Boolean))
        if listed is None:
            return
        lost = frame.filter(~pl.Series(found, dtype=pl.Boolean)).get_column("file").to_list()
        self.rows.append(("snapshots.json", frame.height, frame.height))
        why = f"not in the folder: {_some(lost)}" if lost else None
        self._say("source files", "partial" if lost else "present", why, sum(found))

    def _traced_dispatch(self, listing: dict[str, Any]) -> None:
        match = _FOLDER.fullmatch(self.path.resolve().name)
        number = int(match[2]) if match is not None and int(match[2]) < 1 << 64 else None
        functions, occupancy = self.details["functions"], self.details["occupancy"]
        names = [
            *functions.get_column("name").to_list(),
            *occupancy.get_column("kernel").drop_nulls().unique(maintain_order=True).to_list(),
        ]
        counters, ip, generation = (listing.get(name) for name in ("counter_names", "gfxip", "gfxv"))
        self.details["traced_dispatch"] = pl.DataFrame(
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
            self._say("traced dispatch", "absent", why)
        else:
            self._say("traced dispatch", "present", rows=1)


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


def _stated(text: pl.Expr) -> pl.Expr:
    """The text, null where it is empty."""
    return pl.when(text != "").then(text)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise CaptureError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _some(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
