"""The capture of a session that this project measured and also ran under rocprofv3: kernels come from the tool.

The tool's files lie in the raw capture's folder `rocprofv3`; what else the capture holds is `measured`.
"""

from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.capture.discovery import the_run
from aaco_pipeline.capture.face import THREAD_TRACE, Facts
from aaco_pipeline.capture.measured import MeasuredCapture
from aaco_pipeline.capture.merging import moved
from aaco_pipeline.capture.model import RecordedModel
from aaco_pipeline.capture.parts import read_run
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import native
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import InferenceCapture, ProfilerPass
from aaco_pipeline.formats.parsing.regular_files import readable_entries, settled
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

FOLDER: Final = "rocprofv3"


def read(raw: Path) -> MeasuredCapture:
    """The capture of a session that this project measured, with passes under rocprofv3 or without.

    CaptureError when a document is damaged.
    """
    documents = native.read(settled(raw))
    return (MeasuredCapture if base_pass(documents) is None else ProfiledCapture)(documents)


def base_pass(documents: InferenceCapture) -> ProfilerPass | None:
    """The session's kernel trace under rocprofv3, when one was asked for."""
    return next((one for one in documents.profiler_passes if one.kind == "base"), None)


class ProfiledCapture(MeasuredCapture):
    """A measured session with passes under rocprofv3."""

    def facts(self) -> Facts:
        asked = (one.kernel for one in self._documents.profiler_passes if one.kind == "thread_trace")
        return Facts(
            "profiled",
            "compiler",
            ran_here=True,
            asked_to_trace=tuple(kernel for kernel in asked if kernel is not None),
            summary=super().facts().summary,
        )

    def model(self) -> RecordedModel:
        base = base_pass(self._documents)
        files = (
            [one.path for one in readable_entries(base.folder) if one.path.suffix == ".onnx"]
            if base is not None
            else ()
        )
        own = super().model()
        return RecordedModel(own.file, own.optimized_file, own.input_shapes, None, tuple(files))

    def _machine(self) -> dict[str, pl.DataFrame]:
        """What the profiler says of a device goes before what its sampler saw."""
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
        """All tables of the profiler passes, on the session's axis and with its process and device numbers.

        Processes follow the session's own (0 unprofiled, 1 the runtime's profile), devices follow the CPU, which is 0.
        Iterations are the base pass's, as its measured process timed them. CaptureError when the tool's files are
        damaged or the process read no boot clock, by which alone the tool's times have a place on the axis.
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
        rows = {
            "domain": ["boottime"],
            "offset_ns": [clock[0] - documents.axis_zero_monotonic_ns],
            "uncertainty_ns": [clock[1]],
            "anchor": ["readings of CLOCK_BOOTTIME and CLOCK_MONOTONIC around the base pass, by the measured process"],
        }
        said = Evidence("device kernels", "present", None, FOLDER, placed.tables["dispatches"].height)
        tables = {**placed.tables, "clock_domains": to_contract("clock_domains", pl.DataFrame(rows))}
        return CaptureTables(tables, (*placed.evidence, said), placed.details)

    def _frames_beside(self) -> tuple[str, ...]:
        return THREAD_TRACE if self.facts().asked_to_trace else ()

    def _of_trace(self) -> dict[str, pl.DataFrame]:
        # Ceilings that a profiler's files bring along are another machine's; this one's come from its calibration.
        return {**super()._of_trace(), "ceilings": empty_table("ceilings")}

    def _trace_evidence(self) -> tuple[Evidence, ...]:
        return self._trace.evidence
