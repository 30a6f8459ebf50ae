"""Events as profilers recorded them: kernels, dispatches, calls, copies, counters, allocations, samples and sums.

Nothing derived from several events belongs here; that is `analysis`. Periodic samples are `telemetry`.
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
KINDS_OF_WORK: Final = (
    "Kind of work the kernel does: `attention`, `comm` (collectives), `conv`, `copy/memset`, `elementwise`, "
    "`embedding/gather`, `fft`, `gemm` (products of matrices and vectors), `kv cache` (its reads and writes), "
    "`linear attention` (and state-space models), `moe routing`, `norm`, `pool`, `quantization`, `reduction`, "
    "`sampling` (of tokens), `softmax`, `sort/scan` or `sparse`; null when family_source is `none`."
)

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="kernels", section="Trace",
        meaning="One row is one distinct kernel of the session, or one operator kernel on the CPU provider. Filled by "
                "the stage kernel_trace.",
        sort_by=("kernel_id",), version=2,
        columns=(
            column("kernel_id", INT32, ID, "Dense number of the kernel within the session, starting at 0."),
            column("name", STRING, NAME, "Full demangled name of the kernel as compiled; with fingerprint, what makes "
                "kernels comparable across sessions."),
            column("short_name", STRING, NAME, "Name shortened for tables, without template "
                "arguments; not unique."),
            nullable("fingerprint", STRING, TEXT, "Hash that names the same kernel in other sessions, made from what "
                "the compiler fixed and never from addresses; null when the capture holds too little."),
            nullable("family", STRING, NAME, KINDS_OF_WORK),
            nullable("library", STRING, NAME, "Library or compiler that provides the kernel, such as `hipblaslt`, "
                "`miopen` or `triton`; null when the name gives no sign."),
            nullable("dtype", STRING, NAME, "Number format the kernel computes in; null when neither its name nor its "
                "operator states it."),
            nullable("tile", STRING, TEXT, "Macro tile the kernel works in, such as `128x128x32`; null when the name "
                "does not carry one."),
            column("role", STRING, NAME, "`main` when the kernel does an operator's work itself, `auxiliary` when it "
                "only prepares or completes it."),
            column("family_source", STRING, NAME, "What the family was concluded from: `op` for the operator that "
                "launched it, `name` for the kernel's name, `none` when it is unknown."),
            nullable("arch_vgprs", INT64, COUNT, "Architectural vector registers allocated to each work-item; null "
                "when the capture does not state them."),
            nullable("accum_vgprs", INT64, COUNT, "Accumulation vector registers allocated to each work-item; zero on "
                "architectures without them; null when not stated."),
            nullable("sgprs", INT64, COUNT, "Scalar registers allocated to each wavefront; null when not stated."),
            nullable("static_lds_bytes", INT64, BYTES, "Local data share each workgroup takes as fixed by the "
                "compiler, without what the launch adds; null when not stated."),
            nullable("static_scratch_bytes", INT64, BYTES, "Scratch memory each work-item takes as fixed by the "
                "compiler; above zero means spills or local arrays; null when not stated."),
            nullable("symbol", STRING, NAME, "The kernel's symbol in its code object, as mangled by the compiler; null "
                "when the capture does not state it.", since=2),
        ),
    ),
    Table(
        name="dispatches", section="Trace",
        meaning="One row is one execution of a kernel, in the base trace; on the CPU provider, of an operator kernel. "
                "Filled by the stage kernel_trace.",
        sort_by=("dispatch_id",), version=2,
        columns=(
            column("dispatch_id", INT32, ID, "Dense number of the dispatch within the session, starting at 0."),
            column("process_id", INT32, ID, "Process that launched the dispatch, in `processes`."),
            nullable("thread_id", INT64, ID, "Operating-system thread that launched the dispatch; null when the "
                "capture does not say."),
            column("device_id", INT32, ID, "Device that executed the dispatch, in `devices`."),
            nullable("queue_id", INT32, ID, "Dense number of the hardware queue the dispatch went through; null when "
                "the capture does not say."),
            nullable("stream_id", INT32, ID, "Dense number of the stream the dispatch was launched on; null when the "
                "capture does not say."),
            column("kernel_id", INT32, ID, "Kernel that was executed, in `kernels`."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the `api_calls` row that launched "
                "the dispatch, unique only within its process; null when there is none."),
            nullable("start_ns", INT64, NS, "When the kernel began to execute on the device, on the session's axis; "
                "queueing before it is not included; null when the capture counted the dispatch without timing it."),
            nullable("end_ns", INT64, NS, "When the kernel finished on the device, on the session's axis; never before "
                "start_ns except where the source's own timestamps were reversed, which evidence then states; null "
                "without times."),
            nullable("grid_x", INT64, COUNT, "Work-items launched along x over the whole grid, not workgroups; null "
                "when the capture does not say."),
            nullable("grid_y", INT64, COUNT, "Work-items launched along y over the whole grid, not workgroups; null "
                "when the capture does not say."),
            nullable("grid_z", INT64, COUNT, "Work-items launched along z over the whole grid, not workgroups; null "
                "when the capture does not say."),
            nullable("workgroup_x", INT64, COUNT, "Work-items along x in one workgroup; null when the capture does not "
                "say."),
            nullable("workgroup_y", INT64, COUNT, "Work-items along y in one workgroup; null when the capture does not "
                "say."),
            nullable("workgroup_z", INT64, COUNT, "Work-items along z in one workgroup; null when the capture does not "
                "say."),
            nullable("lds_allocated_bytes", INT64, BYTES, "Local data share each workgroup of this launch got, static "
                "and dynamic together, rounded up as the hardware allocates it; null when not stated."),
            nullable("scratch_bytes", INT64, BYTES, "Scratch memory each work-item of this launch got; null when not "
                "stated."),
            nullable("graph_node_id", UINT64, ID, "Node of the captured device graph that launched the dispatch; null "
                "outside a graph launch or when the capture does not say."),
            nullable("iteration", INT32, ID, "Iteration of the pass `trace` the dispatch belongs to; null when it lies "
                "outside every iteration or they cannot be told apart."),
            nullable("parent_dispatch_id", INT32, ID, "The control-flow dispatch this one ran inside; null at the top "
                "level."),
            nullable("self_ns", INT64, NS, "Duration minus the time of direct children; equals end_ns - start_ns "
                "without children; null without times."),
            column("below_resolution", BOOL, TRUTH, "True when the duration is too short for the source's clock and "
                "instrumentation floor to be trusted singly."),
            nullable("grid_work_items", INT64, COUNT, "Work-items launched over the whole grid: the product over its "
                "axes, which some captures state alone; null when none does.", since=2),
            nullable("workgroup_work_items", INT64, COUNT, "Work-items in one workgroup: the product over its axes; "
                "null when the capture does not say.", since=2),
        ),
    ),
    Table(
        name="api_calls", section="Trace",
        meaning="One row is one host call into a runtime or library that the tracer recorded. Filled by the stage "
                "kernel_trace.",
        sort_by=("call_id",),
        columns=(
            column("call_id", INT32, ID, "Dense number of the call within the session, starting at 0."),
            column("process_id", INT32, ID, "Process that made the call, in `processes`."),
            nullable("thread_id", INT64, ID, "Operating-system thread that made the call; null when the capture does "
                "not say."),
            column("domain", STRING, NAME, "Interface the call belongs to, such as `hip_runtime`, `hsa`, `rccl` or the "
                "inference runtime's own."),
            column("name", STRING, NAME, "Name of the function that was called."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the device activities the call "
                "caused, unique only within its process; null when there is none."),
            column("start_ns", INT64, NS, "When the call was entered, on the session's axis."),
            column("end_ns", INT64, NS, "When the call returned, calls made inside it included, on the session's axis; "
                "device work it launched may run on beyond it."),
        ),
    ),
    Table(
        name="memory_copies", section="Trace",
        meaning="One row is one copy, fill or memset executed on behalf of the workload. Filled by the stage "
                "kernel_trace.",
        sort_by=("copy_id",), version=2,
        columns=(
            column("copy_id", INT32, ID, "Dense number of the copy within the session, starting at 0."),
            column("process_id", INT32, ID, "Process that asked for the copy, in `processes`."),
            nullable("device_id", INT32, ID, "Device that executed the copy and whose busy time it counts in; null "
                "when the capture does not say."),
            nullable("direction", STRING, NAME, "`host_to_device`, `device_to_host`, `device_to_device`, "
                "`host_to_host`, or `fill` for fills and memsets; null when the capture does not say."),
            nullable("source_device_id", INT32, ID, "Device the bytes were read from; null for host memory, for fills, "
                "and when the capture does not say."),
            nullable("destination_device_id", INT32, ID, "Device the bytes were written to; null for host memory and "
                "when the capture does not say."),
            nullable("size_bytes", INT64, BYTES, "Bytes moved or filled, counted once; null when the capture does not "
                "say."),
            nullable("queue_id", INT32, ID, "Dense number of the hardware queue the copy went through; null when the "
                "capture does not say."),
            nullable("stream_id", INT32, ID, "Dense number of the stream the copy was issued on; null when the capture "
                "does not say."),
            nullable("correlation_id", UINT64, ID, "The tracer's number shared with the `api_calls` row that asked for "
                "the copy, unique only within its process; null when there is none."),
            column("start_ns", INT64, NS, "When the copy began to execute, on the session's axis; queueing before it "
                "is not included."),
            column("end_ns", INT64, NS, "When the copy finished, on the session's axis."),
            nullable("host_memory", STRING, NAME, "Host memory that was read or written: `pageable`, which goes by way "
                "of a buffer of the driver, or `pinned`; null when the capture does not say.", since=2),
        ),
    ),
    Table(
        name="markers", section="Trace",
        meaning="One row is one range or instant that the program annotated itself, for instance with roctx. Filled by "
                "the stage kernel_trace.",
        sort_by=("marker_id",), version=2,
        columns=(
            column("marker_id", INT32, ID, "Dense number of the marker within the session, starting at 0."),
            column("process_id", INT32, ID, "Process that set the marker, in `processes`."),
            nullable("thread_id", INT64, ID, "Operating-system thread that set the marker; null when the capture does "
                "not say."),
            column("name", STRING, TEXT, "Text the program gave the marker."),
            column("start_ns", INT64, NS, "When the range was opened on the host, on the session's axis."),
            column("end_ns", INT64, NS, "When the range was closed on the host, on the session's axis; equal to "
                "start_ns for an instant."),
            nullable("collective", STRING, NAME, "Collective operation that the range issued, as the capture spells "
                "it; null for any other range.", since=2),
            nullable("communicator", STRING, NAME, "Group of ranks of that operation: its name, and its ranks where "
                "the capture lists them; null if not stated.", since=2),
            nullable("group_size", INT64, COUNT, "Ranks in the group; null when not stated.", since=2),
            nullable("sequence", INT64, ID, "Number of the operation within its communicator, the same on every rank; "
                "null when not stated.", since=2),
            nullable("dtype", STRING, NAME, "Data type of the operation's elements; null if unstated.", since=2),
            nullable("size_bytes", INT64, BYTES, "Bytes that the process put into the operation; null when not stated "
                "or the type's size is not known.", since=2),
        ),
    ),
    Table(
        name="counters", section="Trace",
        meaning="One row is one hardware counter's value for one counted execution of a kernel. Filled by the stage "
                "kernel_trace from the counter passes.",
        sort_by=("dispatch_id", "kernel_id", "counter", "pass", "source_dispatch_id"), version=2,
        columns=(
            nullable("dispatch_id", INT32, ID, "Dispatch of the base trace that the counted execution was matched to, "
                "in `dispatches`; null when only its kernel is known, so that the value is no single dispatch's."),
            column("counter", STRING, NAME, "Name of the counter as the profiler spells it."),
            column("value", FLOAT64, COUNT, "Value over the whole dispatch, summed over the counter's hardware "
                "instances unless its definition says otherwise."),
            column("pass", STRING, NAME, "Counter pass that gave the value; counters of different passes come from "
                "different executions of the workload."),
            nullable("pass_duration_ns", INT64, NS, "Duration of the dispatch in that counter pass, for normalising "
                "the value only, never for the timeline; null when the pass did not state it."),
            nullable("kernel_id", INT32, ID, "Kernel that was counted, in `kernels`; null in sessions of before.",
                since=2),
            nullable("matched_by", STRING, NAME, "How the execution found its place: `dispatch` by process, number "
                "and kernel, `execution` by kernel, grid and n-th execution where numbers differ, `kernel` by the "
                "kernel alone where neither tells.", since=2),
            nullable("source_dispatch_id", UINT64, ID, "Number of the counted execution in its own pass; null when "
                "the capture does not state one.", since=2),
        ),
    ),
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
            nullable("named_by", STRING, NAME, "How the kernel is known: `call` states it itself, or `warm_up`, the "
                "same operators before the capture; null if unknown."),
            nullable("operator_call", INT32, ID, "Call of the operator in its own trace, by which the launches of one "
                "call are reported; null outside every operator with recorded inputs."),
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
