"""Events as the traced passes recorded them: kernels, dispatches, calls, copies, markers and counter values.

Nothing derived from several events belongs here; that lives in `analysis`, and periodic samples live in `telemetry`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="kernels",
        section="Trace",
        meaning=(
            "One row is one distinct kernel of the session, or one operator kernel on the CPU provider. Filled by the "
            "stage kernel_trace."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Dense number of the kernel within the session, starting at 0."),
            column(
                "name",
                "string",
                "name",
                False,
                "Full demangled name of the kernel as compiled; with fingerprint, what makes kernels comparable "
                "across sessions.",
            ),
            column(
                "short_name",
                "string",
                "name",
                False,
                "Name cut to what a person reads in a table, without template arguments; not unique.",
            ),
            column(
                "fingerprint",
                "string",
                "text",
                True,
                "Hash that names the same kernel in other sessions, made from what the compiler fixed and never from "
                "addresses; null when the capture holds too little.",
            ),
            column(
                "family",
                "string",
                "name",
                True,
                "Kind of work the kernel does, such as `gemm`, `conv` or `elementwise`; null when "
                "family_source is `none`.",
            ),
            column(
                "library",
                "string",
                "name",
                True,
                "Library or compiler that provides the kernel, such as `hipblaslt`, `miopen` or `triton`; null when "
                "the name gives no sign.",
            ),
            column(
                "dtype",
                "string",
                "name",
                True,
                "Number format the kernel computes in; null when neither its name nor its operator states it.",
            ),
            column(
                "tile",
                "string",
                "text",
                True,
                "Macro tile the kernel works in, such as `128x128x32`; null when the name does not carry one.",
            ),
            column(
                "role",
                "string",
                "name",
                False,
                "`main` when the kernel does an operator's work itself, `auxiliary` when it only prepares or "
                "completes it.",
            ),
            column(
                "family_source",
                "string",
                "name",
                False,
                "What the family was concluded from: `op` for the operator that launched it, `name` for the kernel's "
                "name, `none` when it is unknown.",
            ),
            column(
                "arch_vgprs",
                "int64",
                "count",
                True,
                "Architectural vector registers allocated to each work-item; null when the capture does not state "
                "them.",
            ),
            column(
                "accum_vgprs",
                "int64",
                "count",
                True,
                "Accumulation vector registers allocated to each work-item; zero on architectures without them; null "
                "when not stated.",
            ),
            column(
                "sgprs", "int64", "count", True, "Scalar registers allocated to each wavefront; null when not stated."
            ),
            column(
                "static_lds_bytes",
                "int64",
                "bytes",
                True,
                "Local data share each workgroup takes as fixed by the compiler, without what the launch adds; null "
                "when not stated.",
            ),
            column(
                "static_scratch_bytes",
                "int64",
                "bytes",
                True,
                "Scratch memory each work-item takes as fixed by the compiler; above zero means spills or local "
                "arrays; null when not stated.",
            ),
        ),
        sort_by=("kernel_id",),
    ),
    Table(
        name="dispatches",
        section="Trace",
        meaning=(
            "One row is one execution of a kernel, in the base trace; on the CPU provider, of an operator kernel. "
            "Filled by the stage kernel_trace."
        ),
        columns=(
            column(
                "dispatch_id", "int32", "id", False, "Dense number of the dispatch within the session, starting at 0."
            ),
            column("process_id", "int32", "id", False, "Process that launched the dispatch, in `processes`."),
            column(
                "thread_id",
                "int64",
                "id",
                True,
                "Operating-system thread that launched the dispatch; null when the capture does not say.",
            ),
            column("device_id", "int32", "id", False, "Device that executed the dispatch, in `devices`."),
            column(
                "queue_id",
                "int32",
                "id",
                True,
                "Dense number of the hardware queue the dispatch went through; null when the capture does not say.",
            ),
            column(
                "stream_id",
                "int32",
                "id",
                True,
                "Dense number of the stream the dispatch was launched on; null when the capture does not say.",
            ),
            column("kernel_id", "int32", "id", False, "Kernel that was executed, in `kernels`."),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the `api_calls` row that launched the dispatch, unique only within "
                "its process; null when there is none.",
            ),
            column(
                "start_ns",
                "int64",
                "ns",
                True,
                "When the kernel began to execute on the device, on the session's axis; queueing before it is not "
                "included; null when the capture counted the dispatch without timing it.",
            ),
            column(
                "end_ns",
                "int64",
                "ns",
                True,
                "When the kernel finished on the device, on the session's axis; never before start_ns except where "
                "the source's own timestamps were reversed, which evidence then states; null without times.",
            ),
            column(
                "grid_x",
                "int64",
                "count",
                True,
                "Work-items launched along x over the whole grid, not workgroups; null when the capture does not say.",
            ),
            column(
                "grid_y",
                "int64",
                "count",
                True,
                "Work-items launched along y over the whole grid, not workgroups; null when the capture does not say.",
            ),
            column(
                "grid_z",
                "int64",
                "count",
                True,
                "Work-items launched along z over the whole grid, not workgroups; null when the capture does not say.",
            ),
            column(
                "workgroup_x",
                "int64",
                "count",
                True,
                "Work-items along x in one workgroup; null when the capture does not say.",
            ),
            column(
                "workgroup_y",
                "int64",
                "count",
                True,
                "Work-items along y in one workgroup; null when the capture does not say.",
            ),
            column(
                "workgroup_z",
                "int64",
                "count",
                True,
                "Work-items along z in one workgroup; null when the capture does not say.",
            ),
            column(
                "lds_allocated_bytes",
                "int64",
                "bytes",
                True,
                "Local data share each workgroup of this launch got, static and dynamic together, rounded up as the "
                "hardware allocates it; null when not stated.",
            ),
            column(
                "scratch_bytes",
                "int64",
                "bytes",
                True,
                "Scratch memory each work-item of this launch got; null when not stated.",
            ),
            column(
                "graph_node_id",
                "uint64",
                "id",
                True,
                "Node of the captured device graph that launched the dispatch; null outside a graph launch or when "
                "the capture does not say.",
            ),
            column(
                "iteration",
                "int32",
                "id",
                True,
                "Iteration of the pass `trace` the dispatch belongs to; null when it lies outside every iteration or "
                "they cannot be told apart.",
            ),
            column(
                "parent_dispatch_id",
                "int32",
                "id",
                True,
                "The control-flow dispatch this one ran inside; null at the top level.",
            ),
            column(
                "self_ns",
                "int64",
                "ns",
                True,
                "Duration minus the time of direct children; equals end_ns - start_ns without children; null without "
                "times.",
            ),
            column(
                "below_resolution",
                "bool",
                "bool",
                False,
                "True when the duration is too short for the source's clock and instrumentation floor to be trusted "
                "singly.",
            ),
            column(
                "grid_work_items",
                "int64",
                "count",
                True,
                "Work-items launched over the whole grid: the product over its axes, which some captures state alone; "
                "null when none does.",
                since=2,
            ),
            column(
                "workgroup_work_items",
                "int64",
                "count",
                True,
                "Work-items in one workgroup: the product over its axes; null when the capture does not say.",
                since=2,
            ),
        ),
        sort_by=("dispatch_id",),
        version=2,
    ),
    Table(
        name="api_calls",
        section="Trace",
        meaning=(
            "One row is one host call into a runtime or library that the tracer recorded. Filled by the stage "
            "kernel_trace."
        ),
        columns=(
            column("call_id", "int32", "id", False, "Dense number of the call within the session, starting at 0."),
            column("process_id", "int32", "id", False, "Process that made the call, in `processes`."),
            column(
                "thread_id",
                "int64",
                "id",
                True,
                "Operating-system thread that made the call; null when the capture does not say.",
            ),
            column(
                "domain",
                "string",
                "name",
                False,
                "Interface the call belongs to, such as `hip_runtime`, `hsa`, `rccl` or the inference runtime's own.",
            ),
            column("name", "string", "name", False, "Name of the function that was called."),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the device activities the call caused, unique only within its "
                "process; null when there is none.",
            ),
            column("start_ns", "int64", "ns", False, "When the call was entered, on the session's axis."),
            column(
                "end_ns",
                "int64",
                "ns",
                False,
                "When the call returned, calls made inside it included, on the session's axis; device work it "
                "launched may run on beyond it.",
            ),
        ),
        sort_by=("call_id",),
    ),
    Table(
        name="memory_copies",
        section="Trace",
        meaning=(
            "One row is one copy, fill or memset executed on behalf of the workload. Filled by the stage kernel_trace."
        ),
        columns=(
            column("copy_id", "int32", "id", False, "Dense number of the copy within the session, starting at 0."),
            column("process_id", "int32", "id", False, "Process that asked for the copy, in `processes`."),
            column(
                "device_id",
                "int32",
                "id",
                True,
                "Device that executed the copy and whose busy time it counts in; null when the capture does not say.",
            ),
            column(
                "direction",
                "string",
                "name",
                True,
                "`host_to_device`, `device_to_host`, `device_to_device`, `host_to_host`, or `fill` for fills and "
                "memsets; null when the capture does not say.",
            ),
            column(
                "source_device_id",
                "int32",
                "id",
                True,
                "Device the bytes were read from; null for host memory, for fills, and when the capture does not say.",
            ),
            column(
                "destination_device_id",
                "int32",
                "id",
                True,
                "Device the bytes were written to; null for host memory and when the capture does not say.",
            ),
            column(
                "size_bytes",
                "int64",
                "bytes",
                True,
                "Bytes moved or filled, counted once; null when the capture does not say.",
            ),
            column(
                "queue_id",
                "int32",
                "id",
                True,
                "Dense number of the hardware queue the copy went through; null when the capture does not say.",
            ),
            column(
                "stream_id",
                "int32",
                "id",
                True,
                "Dense number of the stream the copy was issued on; null when the capture does not say.",
            ),
            column(
                "correlation_id",
                "uint64",
                "id",
                True,
                "The tracer's number shared with the `api_calls` row that asked for the copy, unique only within its "
                "process; null when there is none.",
            ),
            column(
                "start_ns",
                "int64",
                "ns",
                False,
                "When the copy began to execute, on the session's axis; queueing before it is not included.",
            ),
            column("end_ns", "int64", "ns", False, "When the copy finished, on the session's axis."),
        ),
        sort_by=("copy_id",),
    ),
    Table(
        name="markers",
        section="Trace",
        meaning=(
            "One row is one range or instant that the program annotated itself, for instance with roctx. Filled by "
            "the stage kernel_trace."
        ),
        columns=(
            column("marker_id", "int32", "id", False, "Dense number of the marker within the session, starting at 0."),
            column("process_id", "int32", "id", False, "Process that set the marker, in `processes`."),
            column(
                "thread_id",
                "int64",
                "id",
                True,
                "Operating-system thread that set the marker; null when the capture does not say.",
            ),
            column("name", "string", "text", False, "Text the program gave the marker."),
            column("start_ns", "int64", "ns", False, "When the range was opened on the host, on the session's axis."),
            column(
                "end_ns",
                "int64",
                "ns",
                False,
                "When the range was closed on the host, on the session's axis; equal to start_ns for an instant.",
            ),
            column(
                "collective",
                "string",
                "name",
                True,
                "Collective operation that the range issued, as the capture spells it; null for any other range.",
                since=2,
            ),
            column(
                "communicator",
                "string",
                "name",
                True,
                "Group of ranks of that operation: its name, and its ranks where the capture lists them; null if "
                "not stated.",
                since=2,
            ),
            column("group_size", "int64", "count", True, "Ranks in the group; null when not stated.", since=2),
            column(
                "sequence",
                "int64",
                "id",
                True,
                "Number of the operation within its communicator, the same on every rank; null when not stated.",
                since=2,
            ),
            column(
                "dtype", "string", "name", True, "Data type of the operation's elements; null if unstated.", since=2
            ),
            column(
                "size_bytes",
                "int64",
                "bytes",
                True,
                "Bytes that the process put into the operation; null when not stated or the type's size is not known.",
                since=2,
            ),
        ),
        sort_by=("marker_id",),
        version=2,
    ),
    Table(
        name="counters",
        section="Trace",
        meaning=(
            "One row is one hardware counter's value for one dispatch. Filled by the stage kernel_trace from the "
            "counter passes."
        ),
        columns=(
            column(
                "dispatch_id",
                "int32",
                "id",
                False,
                "Dispatch of the base trace that the counted execution was matched to, in `dispatches`.",
            ),
            column("counter", "string", "name", False, "Name of the counter as the profiler spells it."),
            column(
                "value",
                "float64",
                "count",
                False,
                "Value over the whole dispatch, summed over the counter's hardware instances unless its definition "
                "says otherwise.",
            ),
            column(
                "pass",
                "string",
                "name",
                False,
                "Counter pass that gave the value; counters of different passes come from different executions of the "
                "workload.",
            ),
            column(
                "pass_duration_ns",
                "int64",
                "ns",
                True,
                "Duration of the dispatch in that counter pass, for normalising the value only, never for the "
                "timeline; null when the pass did not state it.",
            ),
        ),
        sort_by=(
            "dispatch_id",
            "counter",
            "pass",
        ),
    ),
)
