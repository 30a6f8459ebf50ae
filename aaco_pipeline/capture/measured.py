"""The capture of a session that this project measured: unprofiled pass, the runtime's own profile, telemetry.

The documents are `aaco_pipeline.formats.native`, the profile is `aaco_pipeline.formats.ort_profile`. A session that
also ran under rocprofv3 is `profiled`, which takes its kernels from there.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.capture.digests import content_digest, file_digests, raw_bytes
from aaco_pipeline.capture.face import Facts, Kind, Subject
from aaco_pipeline.capture.lazy_tables import LazyTables, Source
from aaco_pipeline.capture.model import RecordedModel
from aaco_pipeline.formats import native, ort_profile
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import InferenceCapture, scheduler, telemetry
from aaco_pipeline.formats.native.kernel_plane import reading as kernel_plane
from aaco_pipeline.formats.native.kernel_plane.probes import read_probes
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.providers import CPU_PROVIDER

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
    """Whether a raw folder holds a session that was measured for its latency alone."""
    return (raw / "latency.json").is_file() and not (raw / "trace.json").exists()


class MeasuredCapture:
    """A session's documents and what they refer to."""

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
        """Devices, processes and clocks; of GPUs what the sampler saw of them."""
        sampled = self._samples.details.get("gpu_devices")
        devices = self._documents.devices()
        if sampled is not None:
            devices = pl.concat([devices, sampled]).unique("device_id", keep="first", maintain_order=True)
        return {
            "devices": devices,
            "processes": self._documents.processes(),
            "clock_domains": self._documents.clock_domains(),
        }

    @cached_property
    def _trace(self) -> CaptureTables:
        """What the session's kernels are taken from: the runtime's own profile, where it left one."""
        own = self._documents
        if not own.is_traced:
            reason = "the profiled pass left no profile" if "trace" in own.passes else "there was no profiled pass"
            return CaptureTables({}, (Evidence("kernel events", "absent", reason, native.PROFILE_FILE, 0),))
        return ort_profile.read(
            own.folder / native.PROFILE_FILE, axis_start_ns=own.profile_axis_start_ns(), process_id=_TRACE_PROCESS
        )

    def _frames_beside(self) -> tuple[str, ...]:
        """Names of the frames of a thread trace, which the runtime's profile never holds."""
        return ()

    def _of_trace(self) -> dict[str, pl.DataFrame]:
        read = self._trace.tables
        return {name: read[name] if name in read else empty_table(name) for name in TRACE_TABLES}

    def _trace_evidence(self) -> tuple[Evidence, ...]:
        """What the profile holds, and what it cannot hold."""
        if not self._trace.tables:
            return self._trace.evidence
        absent = [Evidence(item, "absent", reason, native.PROFILE_FILE) for item, reason in _ABSENT]
        provider = self._documents.capture["provider"]
        if provider != CPU_PROVIDER:
            reason = (
                f"the runtime's profile holds host-side times of the partitions that {provider} runs, not the kernels "
                "on the device; these need rocprofv3"
            )
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
        file = document.get("file") if document is not None else None
        return scheduler.read(
            document,
            scheduler.event_lines(own.folder, str(file)) if file is not None else (),
            {one["process_id"] for one in own.passes.values()},
            own.axis_zero_monotonic_ns,
        )
