"""Sessions measured here: documents, model and tables, plus any passes under rocprofv3.

`aaco_pipeline.formats.native` reads the documents and `aaco_pipeline.formats.ort_profile` the profile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.capture import content_digest, file_digests, raw_bytes
from aaco_pipeline.capture.discovery import the_run
from aaco_pipeline.capture.face import THREAD_TRACE, Facts, InferredTypes, Kind, LazyTables, Source, Subject, TensorType
from aaco_pipeline.capture.merging import moved, read_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import native, onnx, ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables, Limits, table_of
from aaco_pipeline.formats.native import InferenceCapture, ProfilerPass, kernel_plane, scheduler, telemetry
from aaco_pipeline.formats.native.kernel_plane import read_probes
from aaco_pipeline.formats.onnx import ModelGraph
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.regular_files import is_regular, readable_entries, settled
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.providers import CPU_PROVIDER


@dataclass(frozen=True)
class RecordedModel:
    """The graph given to the runtime (`file`), and the executed graph (`optimized_file`, if it was written).

    `input_shapes` are those of the run. `kernel_shapes` holds kernel_id and the shapes in the runtime's profile for
    each kernel; None if the profile has none. `partition_files` are the parts that a runtime handed to a compiler.
    """

    file: Path
    optimized_file: Path
    input_shapes: Mapping[str, Sequence[int]]
    kernel_shapes: pl.DataFrame | None = None
    partition_files: tuple[Path, ...] = field(default=())

    @cached_property
    def graph(self) -> ModelGraph:
        return onnx.read(self._content, self.file.name)

    @cached_property
    def optimized(self) -> ModelGraph | None:
        """Return the runtime's optimized graph; None if the runtime did not write one."""
        if not is_regular(self.optimized_file):
            return None
        return onnx.read(_content_of(self.optimized_file), self.optimized_file.name)

    @cached_property
    def partitions(self) -> dict[str, list[str]]:
        """Return the node names of each partition, by partition name."""
        graphs = ((file.stem, onnx.read(_content_of(file), file.name)) for file in self.partition_files)
        return {name: graph.nodes.get_column("name").drop_nulls().to_list() for name, graph in graphs}

    def inferred(self, seen: Mapping[str, TensorType]) -> InferredTypes:
        """Infer the types of all tensors from the run's inputs and the types observed at run time.

        The edges are the graph's, with their tensors' types (observed types first), as in the table `model_edges`.
        """
        found = onnx.inferred_shapes(self._content, self.input_shapes, seen)
        return InferredTypes(found.types, found.reason, onnx.typed_edges(self.graph.edges, {**found.types, **seen}))

    @cached_property
    def _content(self) -> bytes:
        return _content_of(self.file)


def _content_of(file: Path) -> bytes:
    """Read a model without weights."""
    limits = Limits()
    return read_decompressed(file, replace(limits, whole_bytes=limits.document_bytes))


#: The traced pass is the second of the session's processes.
_TRACE_PROCESS: Final = 1
TRACE_TABLES: Final = (
    *("kernels", "dispatches", "api_calls", "memory_copies", "markers", "counters", "memory_allocations"),
    *("synchronizations", "pc_samples", "reported_statistics", "operator_inputs", "att_instructions", "ceilings"),
    "captured_launches",
)
_TELEMETRY_TABLES: Final = ("system_samples", "gpu_samples", "scheduler_events")
_ABSENT: Final = (
    ("memory copies", "the runtime's profile does not record copies"),
    ("markers", "the runtime's profile has no marker ranges"),
    ("allocations, waits and samples", "the runtime's profile records none of them"),
    ("hardware counters", "the runtime's profile has no hardware counters; they need rocprofv3 on a ROCm host"),
    ("launch links", "the CPU provider calls its kernels directly: there are no launches to link"),
)


def is_untraced(raw: Path) -> bool:
    """Return whether a raw folder holds a session measured only for latency."""
    return (raw / "latency.json").is_file() and not (raw / "trace.json").exists()


class MeasuredCapture:
    """A session's documents and the files that they refer to."""

    def __init__(self, documents: InferenceCapture) -> None:
        self._documents = documents

    def tables(self) -> Mapping[str, pl.DataFrame]:
        own = self._documents
        sources: dict[str, Source] = {
            "sessions": lambda: {"sessions": own.sessions(fingerprint(self._environment), content_digest(own.folder))},
            "environment": lambda: {"environment": self._environment},
            "iterations": lambda: {"iterations": own.iterations()},
            "iteration_blocks": lambda: {"iteration_blocks": own.iteration_blocks()},
            **{name: lambda name=name: {name: empty_table(name)} for name in ("program_runs", "program_marks")},  # type: ignore[misc]
            **dict.fromkeys(("devices", "processes", "clock_domains"), self._machine),
            **dict.fromkeys(TRACE_TABLES, self._of_trace),
            **dict.fromkeys(self._frames_beside(), lambda: self._trace.details),
            **dict.fromkeys(_TELEMETRY_TABLES, lambda: {**self._samples.tables, **self._scheduler.tables}),
            **dict.fromkeys((*kernel_plane.TABLES, "kernel_throttling"), self._of_kernel),
            **dict.fromkeys(
                ("kernel_probes", "kernel_costs"), lambda: read_probes(own.passes, own.axis_zero_monotonic_ns)
            ),
        }
        return LazyTables(sources)

    def facts(self) -> Facts:
        model = self._documents.capture["model"]
        summary = {
            "model": model["name"],
            "weights": model["weights"],
            "provider": self._documents.capture["provider"],
            "raw_bytes": raw_bytes(self._documents.folder),
        }
        kind: Kind = "measured" if "trace" in self._documents.passes else "timed"
        return Facts(kind, "model", ran_here=True, summary=summary)

    def model(self) -> RecordedModel:
        own = self._documents
        return RecordedModel(
            own.folder / native.MODEL_FILE,
            own.folder / native.OPTIMIZED_FILE,
            {name: one["shape"] for name, one in own.passes["latency"]["inputs"].items()},
            self._trace.details.get("kernel_shapes"),
        )

    def evidence(self, subject: Subject) -> tuple[Evidence, ...]:
        if subject == "files":
            listed = file_digests(self._documents.folder)
            kept = (Evidence(f"raw file {name}", "present", None, f"raw/{name}", None, hash_) for name, hash_ in listed)
            return (*kept, *self._documents.inference_evidence())
        if subject == "host":
            return self._host_evidence()
        if subject == "iterations":
            return self._documents.inference_evidence()
        if subject == "telemetry":
            return (*self._samples.evidence, *self._scheduler.evidence)
        if subject == "kernel":
            return self._kernel.evidence
        return self._trace_evidence()

    @cached_property
    def _environment(self) -> pl.DataFrame:
        return environment(self._documents.host["facts"])

    def _machine(self) -> dict[str, pl.DataFrame]:
        """Return devices, processes and clocks; GPU facts come from the sampler."""
        sampled = self._samples.details.get("gpu_devices")
        devices = self._documents.devices()
        if sampled is not None:
            devices = pl.concat([devices, sampled]).unique("device_id", keep="first", maintain_order=True)
        own = self._documents
        return {"devices": devices, "processes": own.processes(), "clock_domains": own.clock_domains()}

    @cached_property
    def _trace(self) -> CaptureTables:
        """Read the session's kernels from the runtime's own profile, if it wrote one."""
        own = self._documents
        if not own.is_traced:
            reason = "the profiled pass left no profile" if "trace" in own.passes else "there was no profiled pass"
            return CaptureTables({}, (Evidence("kernel events", "absent", reason, native.PROFILE_FILE, 0),))
        return ort_profile.read(
            own.folder / native.PROFILE_FILE, axis_start_ns=own.profile_axis_start_ns(), process_id=_TRACE_PROCESS
        )

    def _frames_beside(self) -> tuple[str, ...]:
        """Return the names of thread-trace frames, which the runtime's profile never contains."""
        return ()

    def _of_trace(self) -> dict[str, pl.DataFrame]:
        read = self._trace.tables
        return {name: read[name] if name in read else empty_table(name) for name in TRACE_TABLES}

    def _trace_evidence(self) -> tuple[Evidence, ...]:
        """Report what the profile contains, and what it cannot contain."""
        if not self._trace.tables:
            return self._trace.evidence
        absent = [Evidence(item, "absent", reason, native.PROFILE_FILE) for item, reason in _ABSENT]
        provider = self._documents.capture["provider"]
        if provider != CPU_PROVIDER:
            held = f"the runtime's profile holds host-side times of the partitions that {provider} runs"
            reason = f"{held}, not the kernels on the device; these need rocprofv3"
            absent.append(Evidence("device kernels", "absent", reason, native.PROFILE_FILE))
        return (*self._trace.evidence, *absent)

    def _host_evidence(self) -> tuple[Evidence, ...]:
        rows = self._environment
        unknown = rows.filter(pl.col("value").is_null())
        known = Evidence("host facts", "present", None, "host.json", rows.height - unknown.height)
        if not unknown.height:
            return (known,)
        names = ", ".join(f"{category}.{key}" for category, key in unknown.select("category", "key").iter_rows())
        reason = f"not stated by this host: {names}"
        return known, Evidence("further host facts", "absent", reason, "host.json", unknown.height)

    @cached_property
    def _samples(self) -> CaptureTables:
        own = self._documents
        return telemetry.read(telemetry.load(own.folder / telemetry.TELEMETRY_FILE), own.axis_zero_monotonic_ns)

    def _of_kernel(self) -> dict[str, pl.DataFrame]:
        return {**self._kernel.tables, "kernel_throttling": self._kernel.details["throttling"]}

    @cached_property
    def _kernel(self) -> CaptureTables:
        own = self._documents
        document = telemetry.load(own.folder / kernel_plane.DOCUMENT_FILE)
        return kernel_plane.read(document, own.folder, own.axis_zero_monotonic_ns)

    @cached_property
    def _scheduler(self) -> CaptureTables:
        own = self._documents
        document = telemetry.load(own.folder / scheduler.SCHEDULER_FILE)
        pids = {one["process_id"] for one in own.passes.values()}
        return scheduler.read_from(own.folder, document, pids, own.axis_zero_monotonic_ns)


FOLDER: Final = "rocprofv3"


def read(raw: Path) -> MeasuredCapture:
    """Read the capture of a session measured by this project, with or without passes under rocprofv3.

    CaptureError if a document is damaged.
    """
    documents = native.read(settled(raw))
    return (MeasuredCapture if base_pass(documents) is None else ProfiledCapture)(documents)


def base_pass(documents: InferenceCapture) -> ProfilerPass | None:
    """Return the session's kernel trace under rocprofv3, if one was requested."""
    return next((one for one in documents.profiler_passes if one.kind == "base"), None)


class ProfiledCapture(MeasuredCapture):
    """A measured session with passes under rocprofv3."""

    def facts(self) -> Facts:
        passes = self._documents.profiler_passes
        asked = tuple(one.kernel for one in passes if one.kind == "thread_trace" and one.kernel is not None)
        return Facts("profiled", "compiler", ran_here=True, asked_to_trace=asked, summary=super().facts().summary)

    def model(self) -> RecordedModel:
        base = base_pass(self._documents)
        listed = [] if base is None else readable_entries(base.folder)
        files = tuple(one.path for one in listed if one.path.suffix == ".onnx")
        return replace(super().model(), kernel_shapes=None, partition_files=files)

    def _machine(self) -> dict[str, pl.DataFrame]:
        """Return the same, but prefer the profiler's facts about a device over the sampler's."""
        own, profiled = super()._machine(), self._trace.tables
        cpu = own["devices"].filter(pl.col("device_id").is_in(self._documents.devices().get_column("device_id")))
        devices = pl.concat([cpu, profiled["devices"], own["devices"]])
        return {
            "devices": devices.unique("device_id", keep="first", maintain_order=True),
            "processes": pl.concat([own["processes"], profiled["processes"]]),
            "clock_domains": pl.concat([own["clock_domains"], profiled["clock_domains"]]),
        }

    @cached_property
    def _trace(self) -> CaptureTables:
        """Read all tables of the profiler passes, on the session's axis and with its process and device numbers.

        Processes are numbered after the session's own (0 unprofiled, 1 the runtime's profile), devices after the CPU,
        which is 0. Iterations are those of the base pass, as timed by its measured process. CaptureError if the tool's
        files are damaged, or if the process did not read the boot clock that is needed to place the tool's times on the
        axis.
        """
        documents = self._documents
        base = base_pass(documents)
        if base is None:
            raise CaptureError(f"{documents.folder}: holds no base pass of rocprofv3")
        clock = base.boot_clock
        if clock is None:
            raise CaptureError(f"{base.folder}: its process read no boot clock; the kernels have no place on the axis")
        reading = read_run(the_run(documents.folder / FOLDER, "run the session again"))
        clocks = reading.tables["clock_domains"].filter(pl.col("domain") == "boottime")
        zero_of_boot = -int(clocks.item(0, "offset_ns")) if clocks.height else 0
        by_ns = zero_of_boot + clock[0] - documents.axis_zero_monotonic_ns
        processes, devices = documents.processes().height, documents.devices().height
        placed = moved(reading, by_ns, processes=processes, devices=devices)
        anchor = "readings of CLOCK_BOOTTIME and CLOCK_MONOTONIC around the base pass, by the measured process"
        offset_ns = clock[0] - documents.axis_zero_monotonic_ns
        row = {"domain": "boottime", "offset_ns": offset_ns, "uncertainty_ns": clock[1], "anchor": anchor}
        said = Evidence("device kernels", "present", None, FOLDER, placed.tables["dispatches"].height)
        tables = {**placed.tables, "clock_domains": table_of("clock_domains", [row])}
        return CaptureTables(tables, (*placed.evidence, said), placed.details)

    def _frames_beside(self) -> tuple[str, ...]:
        return THREAD_TRACE if self.facts().asked_to_trace else ()

    def _of_trace(self) -> dict[str, pl.DataFrame]:
        # Ceilings in a profiler's files may describe another machine; this machine's come from its calibration.
        return {**super()._of_trace(), "ceilings": empty_table("ceilings")}

    def _trace_evidence(self) -> tuple[Evidence, ...]:
        return self._trace.evidence
