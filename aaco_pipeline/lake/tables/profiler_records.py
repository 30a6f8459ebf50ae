"""Further records that only some profilers write: allocations, waits between streams, program-counter samples, sums.

The events every trace has are `trace`; what is concluded from any of these lives in `analysis`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="memory_allocations",
        section="Trace",
        meaning=(
            "One row is one allocation, release or resizing of device-visible memory that the tracer recorded, "
            "scratch memory included. Filled by the stage kernel_trace."
        ),
        columns=(
            column(
                "allocation_id", "int32", "id", False, "Dense number of the event within the session, starting at 0."
            ),
            column("process_id", "int32", "id", False, "Process that asked for the memory, in `processes`."),
            column(
                "thread_id",
                "int64",
                "id",
                True,
                "Operating-system thread that asked for the memory; null when the capture does not say.",
            ),
            column(
                "device_id", "int32", "id", True, "Device the memory belongs to; null for host memory or not stated."
            ),
            column(
                "kind",
                "string",
                "name",
                False,
                "What the memory is: `memory` that the program asked for, or `scratch` for spills.",
            ),
            column("operation", "string", "name", False, "What was done, as the tracer spells it."),
            column(
                "size_bytes", "int64", "bytes", True, "Bytes asked for; null when not stated, as for most releases."
            ),
            column("address", "uint64", "id", True, "Address of the memory in the process; null when not stated."),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the `api_calls` row that asked for it; null when there is none.",
            ),
            column("start_ns", "int64", "ns", False, "When the operation began on the host, on the session's axis."),
            column("end_ns", "int64", "ns", False, "When the operation ended on the host, on the session's axis."),
        ),
        sort_by=("allocation_id",),
    ),
    Table(
        name="operator_shapes",
        section="Trace",
        meaning=(
            "One row is one call of a framework operator whose inputs' shapes the trace recorded. Filled by the stage "
            "kernel_trace."
        ),
        columns=(
            column("call_id", "int32", "id", False, "The operator's call, in `api_calls`."),
            column("operator", "string", "name", False, "The operator as the framework calls it, such as `aten::mm`."),
            column("shapes", "string", "text", False, "The inputs' shapes as the trace's JSON states them."),
            column("types", "string", "text", False, "The inputs' types as the trace's JSON states them."),
        ),
        sort_by=("call_id",),
    ),
    Table(
        name="synchronizations",
        section="Trace",
        meaning=(
            "One row is one wait of a stream, a device or the host for device work, where the tracer records it with "
            "what was waited for. Filled by the stage kernel_trace."
        ),
        columns=(
            column("synchronization_id", "int32", "id", False, "Dense number of the wait within the session, from 0."),
            column("process_id", "int32", "id", False, "Process that asked for the wait, in `processes`."),
            column("device_id", "int32", "id", True, "Device of the stream that waited; null when not stated."),
            column("stream_id", "int32", "id", True, "Stream that waited; null when the whole device or the host did."),
            column(
                "kind",
                "string",
                "name",
                False,
                "What waited for what, such as `stream_wait_event`, `event_synchronize`, `stream_synchronize` or "
                "`device_synchronize`.",
            ),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the `api_calls` row that asked for the wait; null when there is none.",
            ),
            column(
                "waited_stream_id", "int32", "id", True, "Stream that was waited for; null when not stated or several."
            ),
            column(
                "waited_correlation_id",
                "uint64",
                "id",
                True,
                "Correlation of the call that recorded the event waited for; null when not stated.",
            ),
            column("start_ns", "int64", "ns", False, "When the wait began, on the session's axis."),
            column("end_ns", "int64", "ns", False, "When the wait was over, on the session's axis."),
        ),
        sort_by=("synchronization_id",),
    ),
    Table(
        name="pc_samples",
        section="Trace",
        meaning=(
            "One row is one program-counter sample of a wavefront. Filled by the stage kernel_trace; summed by "
            "instruction in `att_instructions`."
        ),
        columns=(
            column("sample_id", "int32", "id", False, "Dense number of the sample within the session, starting at 0."),
            column(
                "time_ns",
                "int64",
                "ns",
                True,
                "When the sample was taken, on the session's axis; null when its clock is not tied to it.",
            ),
            column("dispatch_id", "int32", "id", True, "Dispatch that was sampled; null when it could not be matched."),
            column(
                "source_dispatch_id",
                "uint64",
                "id",
                True,
                "The capture's own number of the dispatch; null without one.",
            ),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the call that launched the dispatch; null when there is none.",
            ),
            column("code_object_id", "uint64", "id", True, "The capture's number of the code object; null if unknown."),
            column(
                "address", "uint64", "id", True, "Offset of the instruction in its code object; null if not stated."
            ),
            column("instruction", "string", "text", True, "Disassembled instruction; null when it was not decoded."),
            column("source", "string", "text", True, "Source file and line of the instruction; null without them."),
            column(
                "execution_mask", "uint64", "id", True, "Lanes that were active, one bit each; null when not stated."
            ),
            column(
                "wave_issued",
                "bool",
                "bool",
                True,
                "True when the wavefront issued an instruction at that moment; null for host-trap samples.",
            ),
            column(
                "instruction_type",
                "string",
                "name",
                True,
                "Kind of the instruction issued; null for host-trap samples.",
            ),
            column(
                "stall_reason",
                "string",
                "name",
                True,
                "Why nothing was issued; null when something was, and for host-trap samples.",
            ),
            column(
                "active_waves", "int64", "count", True, "Wavefronts resident on the compute unit; null if not stated."
            ),
        ),
        sort_by=("sample_id",),
    ),
    Table(
        name="reported_statistics",
        section="Trace",
        meaning=(
            "One row is one sum that the profiling tool itself printed; for comparison only, no figure is made from "
            "it. Filled by the stage kernel_trace."
        ),
        columns=(
            column("source", "string", "name", False, "File of the capture that holds the sum."),
            column("domain", "string", "name", False, "What was summed, such as `kernel`, `hip_api` or `domain`."),
            column("name", "string", "name", False, "Kernel, function or domain that was summed over."),
            column("call_count", "int64", "count", False, "Calls or dispatches in the sum."),
            column("total_ns", "int64", "ns", True, "Their summed duration as the tool states it."),
            column("mean_ns", "int64", "ns", True, "Their mean duration as the tool states it, rounded to whole ns."),
            column("min_ns", "int64", "ns", True, "The shortest; null when the tool does not state it."),
            column("max_ns", "int64", "ns", True, "The longest; null when the tool does not state it."),
            column(
                "standard_deviation_ns",
                "int64",
                "ns",
                True,
                "Sample standard deviation of the durations, rounded; null when the tool does not state it.",
            ),
            column(
                "share_ratio",
                "float64",
                "ratio",
                True,
                "Part of the domain's summed duration, 0 to 1: the tool's percentage divided by 100.",
            ),
        ),
        sort_by=("source", "domain", "name"),
    ),
)
