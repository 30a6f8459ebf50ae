"""The capture of a program recorded by `aaco record`: its runs, marks, samples and profiler files.

`aaco_pipeline.formats.program` reads the recorder's documents. Profiler files in a pass's folder are recognized and
read like those of any capture, and placed on the runs' axis by the clock that they state.
"""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.capture import ingested
from aaco_pipeline.capture.discovery import Part, Run, discover_runs
from aaco_pipeline.capture.face import Facts, Subject
from aaco_pipeline.capture.ingested import FILES_FOLDER, IngestedCapture
from aaco_pipeline.capture.measured import TRACE_TABLES
from aaco_pipeline.capture.merging import moved, read_run
from aaco_pipeline.capture.merging.iterations import as_iterations, placed_in
from aaco_pipeline.capture.workload import program_of
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import program
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits, table_of
from aaco_pipeline.formats.native import kernel_plane, scheduler, telemetry
from aaco_pipeline.formats.native.kernel_plane import read_probes
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.formats.parsing.regular_files import is_folder, readable_entries, settled
from aaco_pipeline.formats.program.runs import MARKS_FOLDER, RUN_FILE, ProgramDocuments, read_documents, tables_of
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table

#: The recorder's files in a run's folder; all others belong to a profiler.
_OF_THE_RECORDER: Final = (RUN_FILE, MARKS_FOLDER, "stdout_tail", "stderr_tail")
_TELEMETRY_TABLES: Final = ("system_samples", "gpu_samples", "scheduler_events")


def probe(raw: Path) -> bool:
    """Return whether a session's raw folder holds a recording of `aaco record`."""
    return ingested.probe(raw) and _recorded_in(raw) is not None


def read(raw: Path) -> IngestedCapture:
    """Read an ingested capture, as a program's if it is a recording. CaptureError if it is damaged."""
    capture = ingested.read(raw)
    folder = _recorded_in(raw)
    return capture if folder is None else ProgramCapture(capture, folder)


def _recorded_in(raw: Path) -> Path | None:
    files = settled(raw) / FILES_FOLDER
    if not is_folder(files):
        return None
    folders = [entry.path for entry in readable_entries(files) if entry.is_folder]
    return next((folder for folder in folders if program.probe(folder) is not None), None)


class ProgramCapture(IngestedCapture):
    """A recorded program's runs with sampler and profiler files, parsed on demand."""

    def __init__(self, taken: IngestedCapture, recorded: Path) -> None:
        super().__init__(taken.folder, taken.listed)
        self._recorded = recorded

    @cached_property
    def contents(self) -> CaptureTables:
        """Combine everything recorded into one set of tables."""
        own, traced = self._own, self._trace
        tables = {name: traced.tables.get(name, empty_table(name)) for name in TRACE_TABLES}
        dispatches, iterations = self._with_iterations(tables)
        sampled = self._samples.details.get("gpu_devices")
        beside = {
            name: [own.tables[name], traced.tables.get(name, empty_table(name))]
            for name in ("devices", "processes", "clock_domains")
        }
        beside["devices"] += [] if sampled is None else [sampled]
        together = {name: pl.concat(frames) for name, frames in beside.items()}
        tables |= {
            "program_runs": own.tables["program_runs"],
            "program_marks": own.tables["program_marks"],
            "dispatches": dispatches,
            "iterations": iterations,
            "iteration_blocks": empty_table("iteration_blocks"),
            "environment": self._environment,
            **together,
            "devices": together["devices"].unique("device_id", keep="first", maintain_order=True),
            # Ceilings in a profiler's files may describe another machine.
            "ceilings": empty_table("ceilings"),
            **self._kernel.tables,
            **{name: {**self._samples.tables, **self._scheduler.tables}[name] for name in _TELEMETRY_TABLES},
        }
        evidence = (*own.evidence, *traced.evidence)
        details = {
            "iteration_threads": own.details["iteration_threads"],
            "kernel_throttling": self._kernel.details["throttling"],
            **read_probes({}, self._documents.axis_zero_monotonic_ns),  # a program needs no probes
        }
        return CaptureTables(tables, evidence, {**traced.details, **details})

    def tables(self) -> Mapping[str, pl.DataFrame]:
        return {**self.contents.details, **self.contents.tables, "sessions": self._session}

    def facts(self) -> Facts:
        summary = {
            "workload": self._workload,
            "runs": len(self._documents.runs),
            "failure": self._documents.failure,
            "raw_bytes": sum(one["bytes"] for one in self.listed["files"]),
        }
        # The gaps between iterations are the program's own work, and it may have run on another machine.
        return Facts("program", "compiler", ran_here=False, summary=summary)

    def evidence(self, subject: Subject) -> tuple[Evidence, ...]:
        if subject == "files":
            *others, _ = super().evidence("files")  # except the source of the workload's name
            return (*others, *self._slot())
        if subject == "host":
            known = self._environment.get_column("value").drop_nulls().len()
            return (Evidence("host facts", "present", None, "host.json", known),)
        if subject == "iterations":
            return (*self._own.evidence, *self._units())
        if subject == "kernel":
            return self._kernel.evidence
        if subject == "telemetry":
            return (*self._samples.evidence, *self._scheduler.evidence)
        return (*self._trace.evidence, *self._counted(), *self._profilers())

    @cached_property
    def _named(self) -> tuple[str | None, Evidence]:
        return self._workload, Evidence("workload", "present", "the program that was recorded")

    @cached_property
    def _documents(self) -> ProgramDocuments:
        return read_documents(self._recorded)

    @cached_property
    def _own(self) -> CaptureTables:
        return tables_of(self._documents, Limits())

    @cached_property
    def _workload(self) -> str | None:
        """Name the workload as the user does, else as the recording states, else after the program."""
        stated = self.listed["workload"] or self._documents.capture["workload"]["name"]
        called = stated or program_of(self._documents.command) or "program"
        return safe_name(called)

    @cached_property
    def _environment(self) -> pl.DataFrame:
        facts = [{"volatile": False, **one} for one in self._documents.host["facts"]]
        own = environment(facts)
        traced = self._trace.tables.get("environment", empty_table("environment"))
        return pl.concat([own, traced]).unique(["category", "key"], keep="first", maintain_order=True)

    @cached_property
    def _session(self) -> pl.DataFrame:
        documents, request = self._documents, self._documents.capture["request"]
        row = {
            "source_kind": "live",
            "source_format": program.FORMAT,
            "workload": self._workload,
            "workload_kind": "program",
            "failure": documents.failure,
            **{name: request.get(name) for name in ("campaign_id", "arm", "block")},
            "started_at": ingested.started(self.contents.tables["clock_domains"]),
            "host": documents.fact("host", "name"),
            "fingerprint": fingerprint(self._environment),
            "capture_digest": self.digest,
        }
        return table_of("sessions", [row])

    @cached_property
    def _trace(self) -> CaptureTables:
        """Read the profiler files of all passes, on the axis and numbered after the runs; empty without files.

        Unreadable files become evidence: the unprofiled runs are still useful.
        """
        try:
            parts = self._parts()
            if not parts:
                return CaptureTables({})
            reading = read_run(Run(self._recorded, parts))
            by_ns, said = self._onto_axis(reading.tables["clock_domains"])
        except CaptureError as error:
            return CaptureTables({}, (Evidence("trace", "invalid", str(error)),))
        processes, devices = (self._own.tables[name].height for name in ("processes", "devices"))
        placed = moved(reading, by_ns, processes=processes, devices=devices)
        of_profiler = placed.tables["clock_domains"].with_columns(pl.col("offset_ns") + by_ns)
        known = self._own.tables["clock_domains"].get_column("domain")
        clocks = of_profiler.filter(~pl.col("domain").is_in(known.implode()))
        kernels = placed.tables["dispatches"].height
        reason = None if kernels else "the profiler recorded none: the program ran nothing on a device"
        found = Evidence("device kernels", "present" if kernels else "absent", reason, "trace", kernels)
        tables = {**placed.tables, "clock_domains": clocks}
        return CaptureTables(tables, (*placed.evidence, *said, found), placed.details)

    def _parts(self) -> list[Part]:
        """List every profiler file in the pass folders as a part named after its pass."""
        found = []
        few = self._documents.capture["request"].get("count_first") is not None
        for run in self._documents.runs:
            if run.kind == "run":
                continue
            first = few and run.kind == "counters"
            for entry in readable_entries(run.folder):
                if entry.refused is None and entry.path.name not in _OF_THE_RECORDER:
                    for one in discover_runs(entry.path).runs:
                        named = (replace(part, name=f"{run.name}/{part.name}") for part in one.parts)
                        found += [replace(part, counts_first=first) for part in named]
        return found

    def _onto_axis(self, clocks: pl.DataFrame) -> tuple[int, tuple[Evidence, ...]]:
        """Return the offset of the profilers' times, by the first host clock that they state."""
        documents = self._documents
        offsets = dict(clocks.select("domain", "offset_ns").drop_nulls().iter_rows())
        traced = next((run for run in documents.runs if run.kind == "trace"), documents.runs[-1])
        readings: dict[str, Any] = dict(traced.document["clocks_before"])
        for domain, key in (("monotonic", "monotonic_ns"), ("boottime", "boottime_ns"), ("realtime", "realtime_ns")):
            if domain in offsets and key in readings:
                apart = readings["monotonic_ns"] - readings[key]
                return apart - documents.axis_zero_monotonic_ns - offsets[domain], ()
        began = traced.document["start_monotonic_ns"] - documents.axis_zero_monotonic_ns
        reason = "its files tie their times to no clock of the host: they are put where the traced run began"
        return began, (Evidence("clock of the trace", "partial", reason),)

    def _with_iterations(self, tables: Mapping[str, pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the dispatches with their iterations, and all iterations.

        Iterations of the traced run are its own marks, else the ranges with the name given in the recording, else those
        with common names.
        """
        own, dispatches = self._own.tables["iterations"], tables["dispatches"]
        traced = own.filter(pl.col("pass") == "trace")
        if not traced.height:
            traced = self._ranges(tables["markers"])
        if not traced.height:
            others = self._trace.tables.get("iterations", empty_table("iterations"))
            return dispatches, pl.concat([own, others])
        number = next((run.number for run in self._documents.runs if run.kind == "trace"), None)
        traced = traced.with_columns(run=pl.lit(number, pl.Int32))
        ranges = traced.select(number="iteration", start_ns="start_ns", until_ns="end_ns")
        processes = dispatches.select("process_id").unique()
        placed = placed_in(dispatches, tables["api_calls"], ranges.join(processes, how="cross"))
        return placed, pl.concat([own.filter(pl.col("pass") != "trace"), traced])

    def _ranges(self, markers: pl.DataFrame) -> pl.DataFrame:
        """Return iterations from the markers that match the requested name, on the thread that set one first."""
        pattern = self._documents.capture["request"].get("iterations_from")
        if pattern is None:
            return empty_table("iterations")
        names = [name for name in markers.get_column("name").unique() if fnmatchcase(name, pattern)]
        found = markers.filter(pl.col("name").is_in(names) & (pl.col("end_ns") > pl.col("start_ns"))).sort("start_ns")
        if not found.height:
            return empty_table("iterations")
        thread = [pl.col(key).eq_missing(pl.lit(found.item(0, key))) for key in ("process_id", "thread_id")]
        own = found.filter(*thread)
        ends = pl.col("end_ns").cum_max().shift(1)
        return as_iterations(own.filter(ends.is_null() | (pl.col("start_ns") >= ends)))

    def _units(self) -> tuple[Evidence, ...]:
        iterations, runs = self.contents.tables["iterations"], self._own.tables["program_runs"]
        timed = iterations.filter(pl.col("pass") == "latency")
        span = ["run", "start_ns", "end_ns"]
        if timed.join(runs.select(span), on=span, how="anti").height:
            return (Evidence("iterations", "present", None, "marks", timed.height),)
        pattern = self._documents.capture["request"].get("iterations_from")
        reason = "the program marks none: each unprofiled run is one (docs/marks.md)"
        if pattern is not None:
            reason += f"; ranges called {pattern!r} are known of the traced run alone"
        return (Evidence("iterations", "partial", reason, "program_runs", timed.height),)

    def _profilers(self) -> tuple[Evidence, ...]:
        """Report unavailable profilers, and if none was available, that there was no traced pass."""
        said = [
            Evidence(f"profiler {one['name']}", "absent", one["reason"] or "not on this host", "capture.json")
            for one in self._documents.capture["profilers"]
            if not one["present"]
        ]
        if not any(run.kind == "trace" for run in self._documents.runs):
            said.append(Evidence("trace pass", "absent", "no run was traced", "capture.json"))
        return tuple(said)

    def _counted(self) -> tuple[Evidence, ...]:
        """Report whether the counter runs succeeded, and if not, why; empty if none was requested."""
        asked = [run for run in self._documents.runs if run.kind == "counters"]
        if not asked:
            return ()
        values = self._trace.tables.get("counters", empty_table("counters")).height
        told = dict.fromkeys(run.reason for run in asked if run.reason is not None)
        reason = None if values else "; ".join(told) or "the profiler counted nothing: the program ran no kernel"
        return (Evidence("counters", "present" if values else "absent", reason, "capture.json", values),)

    def _slot(self) -> tuple[Evidence, ...]:
        slot = self._documents.capture.get("measurement_slot")
        if slot is None:
            return ()
        inside = slot["container"]
        reason = None if inside is None else f"in a container ({inside}): others of its host are not kept apart"
        return (Evidence("measurement slot", "present", reason, slot["file"]),)

    @cached_property
    def _samples(self) -> CaptureTables:
        zero = self._documents.axis_zero_monotonic_ns
        return telemetry.read(telemetry.load(self._recorded / telemetry.TELEMETRY_FILE), zero)

    @cached_property
    def _kernel(self) -> CaptureTables:
        document = telemetry.load(self._recorded / kernel_plane.DOCUMENT_FILE)
        return kernel_plane.read(document, self._recorded, self._documents.axis_zero_monotonic_ns)

    @cached_property
    def _scheduler(self) -> CaptureTables:
        document = telemetry.load(self._recorded / scheduler.SCHEDULER_FILE)
        pids = {run.document["process_id"] for run in self._documents.runs}
        return scheduler.read_from(self._recorded, document, pids, self._documents.axis_zero_monotonic_ns)
