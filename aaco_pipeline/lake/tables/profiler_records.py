"""Further records that only some profilers write: allocations, waits between streams, program-counter samples, sums.

The events every trace has are `trace`; what is concluded from any of these lives in `analysis`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTES,
    COUNT,
    FLOAT64,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    RATIO,
    STRING,
    TEXT,
    TRUTH,
    UINT64,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="memory_allocations", section="Trace",
        meaning="One row is one allocation, release or resizing of device-visible memory that the tracer recorded, "
                "scratch memory included. Filled by the stage kernel_trace.",
        sort_by=("allocation_id",),
        columns=(
            column("allocation_id", INT32, ID, "Dense number of the event within the session, starting at 0."),
            column("process_id", INT32, ID, "Process that asked for the memory, in `processes`."),
            nullable("thread_id", INT64, ID, "Operating-system thread that asked for the memory; null when the capture "
                "does not say."),
            nullable("device_id", INT32, ID, "Device the memory belongs to; null for host memory or not stated."),
            column("kind", STRING, NAME, "What the memory is: `memory` that the program asked for, or `scratch` for "
                "spills."),
            column("operation", STRING, NAME, "What was done, as the tracer spells it."),
            nullable("size_bytes", INT64, BYTES, "Bytes asked for; null when not stated, as for most releases."),
            nullable("address", UINT64, ID, "Address of the memory in the process; null when not stated."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the `api_calls` row that asked for "
                "it; null when there is none."),
            column("start_ns", INT64, NS, "When the operation began on the host, on the session's axis."),
            column("end_ns", INT64, NS, "When the operation ended on the host, on the session's axis."),
        ),
    ),
    Table(
        name="operator_inputs", section="Trace",
        meaning="One row is one call of a framework operator whose inputs the trace recorded. Filled by the stage "
                "kernel_trace.",
        sort_by=("call_id",),
        columns=(
            column("call_id", INT32, ID, "The operator's call, in `api_calls`."),
            column("operator", STRING, NAME, "The operator as the framework calls it, such as `aten::mm`."),
            column("shapes", STRING, TEXT, "The inputs' shapes as the trace's JSON states them."),
            column("types", STRING, TEXT, "The inputs' types as the trace's JSON states them."),
            nullable("strides", STRING, TEXT, "The inputs' strides in elements as the trace's JSON states them; null "
                "when not recorded."),
            nullable("values", STRING, TEXT, "Values of the inputs that are numbers, true or false, or lists of these, "
                "as a JSON list of texts; empty for others, null when not recorded."),
        ),
    ),
    Table(
        name="captured_launches", section="Trace",
        meaning="One row is one launch that was made while a stream was captured into a graph: it ran nothing then, "
                "and what it launches runs in every replay. From the trace itself, and from the traces in its folder "
                "capture_traces. Filled by the stage kernel_trace.",
        sort_by=("graph", "position"),
        columns=(
            column("graph", INT32, ID, "Number of the capture, from 0 in the order of traces and captures."),
            column("position", INT32, ID, "Place of the launch in the order of the capture, from 0."),
            column("trace", STRING, NAME, "Trace in which the graph was captured; empty for the session's own."),
            nullable("launched_ns", INT64, NS, "When the launch was made, on the session's axis; null of other traces, "
                "whose time is another."),
            column("kind", STRING, NAME, "What is launched: `kernel`, `copy` (fills, too) or `graph`."),
            nullable("kernel", STRING, NAME, "The kernel; null where neither the call nor a warm-up tells it."),
            nullable("grid_x", INT64, COUNT, "Work-items of the grid along x; null when not known."),
            nullable("grid_y", INT64, COUNT, "Work-items of the grid along y; null when not known."),
            nullable("grid_z", INT64, COUNT, "Work-items of the grid along z; null when not known."),
            nullable("workgroup_x", INT64, COUNT, "Work-items of a workgroup along x; null when not known."),
            nullable("workgroup_y", INT64, COUNT, "Work-items of a workgroup along y; null when not known."),
            nullable("workgroup_z", INT64, COUNT, "Work-items of a workgroup along z; null when not known."),
            nullable("named_by", STRING, NAME, "Who tells the kernel: `call` states it itself, or `warm_up`, the same "
                "operators before the capture; null when none does."),
            nullable("operator_call", INT32, ID, "Call of the operator in its own trace, by which the launches of one "
                "call are told; null outside every operator with recorded inputs."),
            nullable("operator", STRING, NAME, "The operator that launched; null like operator_call."),
            nullable("shapes", STRING, TEXT, "Shapes of its inputs as in `operator_inputs`."),
            nullable("types", STRING, TEXT, "Types of its inputs as in `operator_inputs`."),
            nullable("strides", STRING, TEXT, "Strides of its inputs as in `operator_inputs`."),
            nullable("values", STRING, TEXT, "Values of its inputs as in `operator_inputs`."),
        ),
    ),
    Table(
        name="synchronizations", section="Trace",
        meaning="One row is one wait of a stream, a device or the host for device work, where the tracer records it "
                "with what was waited for. Filled by the stage kernel_trace.",
        sort_by=("synchronization_id",),
        columns=(
            column("synchronization_id", INT32, ID, "Dense number of the wait within the session, from 0."),
            column("process_id", INT32, ID, "Process that asked for the wait, in `processes`."),
            nullable("device_id", INT32, ID, "Device of the stream that waited; null when not stated."),
            nullable("stream_id", INT32, ID, "Stream that waited; null when the whole device or the host did."),
            column("kind", STRING, NAME, "What waited for what, such as `stream_wait_event`, `event_synchronize`, "
                "`stream_synchronize` or `device_synchronize`."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the `api_calls` row that asked for "
                "the wait; null when there is none."),
            nullable("waited_stream_id", INT32, ID, "Stream that was waited for; null when not stated or several."),
            nullable("waited_correlation_id", UINT64, ID, "Correlation of the call that recorded the event waited for; "
                "null when not stated."),
            column("start_ns", INT64, NS, "When the wait began, on the session's axis."),
            column("end_ns", INT64, NS, "When the wait was over, on the session's axis."),
        ),
    ),
    Table(
        name="pc_samples", section="Trace",
        meaning="One row is one program-counter sample of a wavefront. Filled by the stage kernel_trace; summed by "
                "instruction in `att_instructions`.",
        sort_by=("sample_id",),
        columns=(
            column("sample_id", INT32, ID, "Dense number of the sample within the session, starting at 0."),
            nullable("time_ns", INT64, NS, "When the sample was taken, on the session's axis; null when its clock is "
                "not tied to it."),
            nullable("dispatch_id", INT32, ID, "Dispatch that was sampled; null when it could not be matched."),
            nullable("source_dispatch_id", UINT64, ID, "The capture's own number of the dispatch; null without one."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the call that launched the "
                "dispatch; null when there is none."),
            nullable("code_object_id", UINT64, ID, "The capture's number of the code object; null if unknown."),
            nullable("address", UINT64, ID, "Offset of the instruction in its code object; null if not stated."),
            nullable("instruction", STRING, TEXT, "Disassembled instruction; null when it was not decoded."),
            nullable("source", STRING, TEXT, "Source file and line of the instruction; null without them."),
            nullable("execution_mask", UINT64, ID, "Lanes that were active, one bit each; null when not stated."),
            nullable("wave_issued", BOOL, TRUTH, "True when the wavefront issued an instruction at that moment; null "
                "for host-trap samples."),
            nullable("instruction_type", STRING, NAME, "Kind of the instruction issued; null for host-trap samples."),
            nullable("stall_reason", STRING, NAME, "Why nothing was issued; null when something was, and for host-trap "
                "samples."),
            nullable("active_waves", INT64, COUNT, "Wavefronts resident on the compute unit; null if not stated."),
        ),
    ),
    Table(
        name="reported_statistics", section="Trace",
        meaning="One row is one sum that the profiling tool itself printed; for comparison only, no figure is made "
                "from it. Filled by the stage kernel_trace.",
        sort_by=("source", "domain", "name"),
        columns=(
            column("source", STRING, NAME, "File of the capture that holds the sum."),
            column("domain", STRING, NAME, "What was summed, such as `kernel`, `hip_api` or `domain`."),
            column("name", STRING, NAME, "Kernel, function or domain that was summed over."),
            column("call_count", INT64, COUNT, "Calls or dispatches in the sum."),
            nullable("total_ns", INT64, NS, "Their summed duration as the tool states it."),
            nullable("mean_ns", INT64, NS, "Their mean duration as the tool states it, rounded to whole ns."),
            nullable("min_ns", INT64, NS, "The shortest; null when the tool does not state it."),
            nullable("max_ns", INT64, NS, "The longest; null when the tool does not state it."),
            nullable("standard_deviation_ns", INT64, NS, "Sample standard deviation of the durations, rounded; null "
                "when the tool does not state it."),
            nullable("share_ratio", FLOAT64, RATIO, "Part of the domain's summed duration, 0 to 1: the tool's "
                "percentage divided by 100."),
        ),
    ),
)
