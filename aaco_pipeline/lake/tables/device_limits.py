"""Limits of a device and how close each kernel came: ceilings, roofline, occupancy, counters, instructions.

The bottleneck that follows from them is `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTE_PER_S,
    BYTES,
    COUNT,
    CYCLES,
    FLOAT64,
    FLOP,
    FLOP_PER_BYTE,
    FLOP_PER_S,
    FLOPS_OF_TYPES,
    ID,
    INT32,
    INT64,
    NAME,
    NS,
    RATIO,
    STRING,
    STRINGS,
    TEXT,
    TRUTH,
    UINT64,
    VARIES,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="ceilings", section="Analysis",
        meaning="One row is one limit of a device: a rate that it cannot exceed, or the highest measured. Filled by "
        "the stage roofline.",
        sort_by=("device_id", "resource", "dtype", "source"),
        columns=(
            column("device_id", INT32, ID, "Device the limit holds for, in `devices`."),
            column("resource", STRING, NAME, "What is limited, such as vector or matrix arithmetic, the memory fabric, "
                "DRAM, L2, vL1D or LDS."),
            nullable("dtype", STRING, NAME, "Number format an arithmetic limit holds for; null for limits of "
                "bandwidth."),
            column("value", FLOAT64, VARIES, "The limit in the unit of its row, for the device as partitioned and at "
                "the clock the reference states."),
            column("unit", STRING, NAME, "Unit of value: `flop/s`, `op/s`, `byte/s` or `instruction/s`."),
            column("source", STRING, NAME, "`spec` when published or computed from published figures, `reported` when "
                "a benchmark sustains it on such a device, `measured` when one did on this device, `fitted` when it is "
                "the envelope of the session's own kernels, and so judges none."),
            nullable("reference", STRING, TEXT, "Document, or benchmark run, that the value comes from; null only when "
                "a capture gave the value without one."),
        ),
    ),
    Table(
        name="roofline", section="Analysis",
        meaning="One row places one kernel, or one dispatch of it, on the roofline. Filled by the stage roofline; "
                "durations come from the base trace, never from a counter pass.",
        sort_by=("kernel_id", "dispatch_id"), version=2,
        columns=(
            column("kernel_id", INT32, ID, "Kernel that is placed, in `kernels`."),
            nullable("dispatch_id", INT32, ID, "Dispatch that is placed, in `dispatches`; null for the kernel's "
                "aggregate over its counted dispatches."),
            nullable("duration_ns", INT64, NS, "Duration in the base trace, summed over the dispatches the row covers; "
                "null when they could not be matched to the base trace."),
            nullable("flops", FLOAT64, FLOP, "Floating-point operations executed, over all number formats; null when "
                "no counter gives them."),
            nullable("flops_by_type", FLOPS_OF_TYPES, FLOP, "The same operations split by number format; null when the "
                "counters do not tell the formats apart."),
            nullable("flops_is_lower_bound", BOOL, TRUTH, "True when some operations could not be counted, so that "
                "flops and what follows from it may be too low; null when flops is null."),
            nullable("fabric_read_bytes", INT64, BYTES, "Bytes the L2 read from the memory side, whether Infinity "
                "Cache or DRAM served them; null when not counted."),
            nullable("fabric_write_bytes", INT64, BYTES, "Bytes the L2 wrote to the memory side, atomics included; "
                "null when not counted."),
            nullable("dram_read_bytes", INT64, BYTES, "Bytes read from DRAM itself; null where the architecture cannot "
                "count them or the pass was not taken."),
            nullable("l2_traffic_bytes", INT64, BYTES, "Bytes requested of the L2 in either direction, hits included; "
                "null when not counted."),
            nullable("vl1d_traffic_bytes", INT64, BYTES, "Bytes requested of the vector L1 data caches in either "
                "direction, hits included; null when not counted."),
            nullable("lds_traffic_bytes", INT64, BYTES, "Bytes moved between registers and the local data share in "
                "either direction; null when not counted."),
            nullable("achieved_flops_per_s", FLOAT64, FLOP_PER_S, "flops divided by duration_ns in seconds; null when "
                "either is missing or the duration is zero."),
            nullable("achieved_bytes_per_s", FLOAT64, BYTE_PER_S, "Fabric bytes, read and written, divided by "
                "duration_ns in seconds; null when any of them is missing or the duration is zero."),
            nullable("fabric_arithmetic_intensity", FLOAT64, FLOP_PER_BYTE, "flops per byte the L2 exchanged with the "
                "memory side; null when either is missing or no bytes moved."),
            nullable("dram_arithmetic_intensity", FLOAT64, FLOP_PER_BYTE, "flops per byte exchanged with DRAM, reads "
                "alone where only they are counted, which quality_flags then says; null when not counted."),
            nullable("l2_arithmetic_intensity", FLOAT64, FLOP_PER_BYTE, "flops per byte requested of the L2; null when "
                "either is missing or no bytes moved."),
            nullable("vl1d_arithmetic_intensity", FLOAT64, FLOP_PER_BYTE, "flops per byte requested of the vector L1 "
                "data caches; null when either is missing or no bytes moved."),
            nullable("lds_arithmetic_intensity", FLOAT64, FLOP_PER_BYTE, "flops per byte moved to or from the local "
                "data share; null when either is missing or no bytes moved."),
            nullable("bound", STRING, NAME, "Nearest roof: the resource of the unit that needed the longest; whether "
                "it limits the kernel says `bottlenecks`. Null when the evidence does not decide."),
            nullable("efficiency_ratio", FLOAT64, RATIO, "Shortest time that unit needs for the work, or counted itself"
                " busy, divided by duration_ns; may exceed 1; null when bound is."),
            nullable("second_bound", STRING, NAME, "Nearest roof among the other units; null when bound is, or no "
                "other did work.", since=2),
            nullable("second_ratio", FLOAT64, RATIO, "The same for second_bound; null when that is.", since=2),
            column("quality_flags", STRINGS, NAME, "Named reservations about the row, such as few samples or a counter "
                "from another execution; empty when there are none."),
        ),
    ),
    Table(
        name="operator_shapes", section="Analysis",
        meaning="One row is one framework operator with inputs of certain shapes: what its calls had to do at least, "
                "and how long they took. Filled by the stage roofline.",
        sort_by=("operator", "shapes", "types", "detail", "device_id", "flops", "least_bytes", "reason", "inputs_from"),
        version=3,
        columns=(
            column("operator", STRING, NAME, "The operator as the framework calls it, such as `aten::mm`; of nested "
                "ones the innermost whose work is known."),
            column("shapes", STRING, TEXT, "The inputs' shapes as the trace's JSON states them."),
            column("types", STRING, TEXT, "The inputs' types as the trace's JSON states them."),
            nullable("detail", STRING, TEXT, "What tells it from calls with the same shapes, such as `causal` or "
                "`stride 2×2, padding 1×1`; null when nothing does.", since=2),
            nullable("dtype", STRING, NAME, "Number format of the operations, from the inputs; null when the inputs "
                "differ or none is a tensor.", since=2),
            column("device_id", INT32, ID, "Device that the calls ran on, in `devices`.", since=2),
            column("inputs_from", STRING, NAME, "Who tells the inputs: the `trace`, or `captured graph, by names and "
                "sizes`, `by names` or `by count and order` of the launches that replays were matched by.", since=3),
            column("call_count", INT64, COUNT, "Calls that launched something on the device.", since=2),
            column("launch_count", INT64, COUNT, "Kernels, copies and fills that these calls launched.", since=2),
            column("kernel_ns", INT64, NS, "Summed duration of the kernels; each kernel counts to one operator.",
                since=2),
            column("copy_ns", INT64, NS, "Summed duration of the copies and fills.", since=2),
            nullable("flops", FLOAT64, FLOP, "Operations that one call takes, by formula from the shapes; null when "
                "reason says why.", since=2),
            nullable("least_bytes", INT64, BYTES, "Least bytes that one call moves: inputs read once, outputs written "
                "once; null when reason says why.", since=2),
            nullable("achieved_flops_per_s", FLOAT64, FLOP_PER_S, "Operations of all calls divided by kernel_ns and "
                "copy_ns in seconds; null when flops is or nothing took time.", since=2),
            nullable("achieved_bytes_per_s", FLOAT64, BYTE_PER_S, "Minimum bytes of all calls divided by the same "
                "time; null when least_bytes is null or nothing took time.", since=2),
            nullable("bound", STRING, NAME, "Resource in `ceilings` whose roof is nearest; null when it cannot be "
                "told.", since=2),
            nullable("share_ratio", FLOAT64, RATIO, "Shortest time at that roof divided by the time taken; null when "
                "bound is.", since=2),
            nullable("reason", STRING, TEXT, "Why flops or least_bytes is null, naming the operator; null when neither "
                "is.", since=2),
        ),
    ),
    Table(
        name="occupancy", section="Analysis",
        meaning="One row gives the wavefront occupancy of one kernel, or of one dispatch of it. Filled by the stage "
                "roofline.",
        sort_by=("kernel_id", "dispatch_id"), version=2,
        columns=(
            column("kernel_id", INT32, ID, "Kernel the row is about, in `kernels`."),
            nullable("dispatch_id", INT32, ID, "Dispatch the row is about, in `dispatches`; null for the kernel's "
                "aggregate."),
            nullable("theoretical_ratio", FLOAT64, RATIO, "Wavefronts per SIMD that registers, LDS and workgroup size "
                "admit, divided by the architecture's limit, 0..1; null when a resource is not stated."),
            nullable("limiter", STRING, NAME, "Resource that admits the fewest wavefronts, such as vector registers, "
                "scalar registers, LDS or the workgroup's size; null when theoretical_ratio is."),
            nullable("achieved_ratio", FLOAT64, RATIO, "Mean resident wavefronts per SIMD from counters while the "
                "kernel ran, divided by the architecture's limit, 0..1; null when not counted."),
            nullable("workgroups_per_cu", INT64, COUNT, "Workgroups that fit at once into a compute unit, on RDNA into "
                "the two of a workgroup processor; null when theoretical_ratio is.", since=2),
            nullable("next_ratio", FLOAT64, RATIO, "The next higher theoretical_ratio within reach of the limiting "
                "resource alone; null when there is none.", since=2),
            nullable("next_step", STRING, TEXT, "What reaches next_ratio, such as `vector registers: 136 to 128`; null "
                "when next_ratio is.", since=2),
            nullable("grid_waves_ratio", FLOAT64, RATIO, "Workgroups of the grid divided by those that the whole "
                "device holds at once: below 1 the grid is too small to fill the device; null when the grid or the "
                "device is not known.", since=2),
            nullable("tail_ratio", FLOAT64, RATIO, "Share of the device's room for workgroups that stays empty in the "
                "last of the rounds the grid takes, over all rounds, if workgroups take equally long, 0..1; null when "
                "grid_waves_ratio is.", since=2),
        ),
    ),
    Table(
        name="counter_metrics", section="Analysis",
        meaning="One row is one figure derived from the counters of one kernel, such as a hit rate, a utilization or a "
                "bandwidth. Filled by the stage roofline.",
        sort_by=("kernel_id", "metric"),
        columns=(
            column("kernel_id", INT32, ID, "Kernel the figure is about, in `kernels`."),
            column("metric", STRING, NAME, "Name of the figure; the docs hold each formula."),
            column("unit", STRING, NAME, "Unit of value, mean, min and max."),
            nullable("value", FLOAT64, VARIES, "The figure over all counted dispatches of the kernel: the ratio of the "
                "sums; null when it could not be computed, and quality_flags says why."),
            nullable("mean", FLOAT64, VARIES, "Mean of the figure over dispatches; null when none gave it."),
            nullable("min", FLOAT64, VARIES, "Smallest figure of a dispatch; null when none gave it."),
            nullable("max", FLOAT64, VARIES, "Largest figure of a dispatch; null when none gave it."),
            column("n", INT64, COUNT, "Dispatches behind the figure; zero when none gave it, also where the kernel's "
                "executions did that are no known dispatch (flag `joined_by_kernel`)."),
            column("quality_flags", STRINGS, NAME, "Named reservations about the figure, such as a clock that the "
                "hardware cannot have run at; empty when there are none."),
        ),
    ),
    Table(
        name="resource_bounds", section="Analysis",
        meaning="One row is the shortest time that one resource would have needed for one kernel's work, were it busy "
                "throughout. Filled by the stage roofline.",
        sort_by=("kernel_id", "resource", "dtype", "ceiling_source"),
        columns=(
            column("kernel_id", INT32, ID, "Kernel the row is about, in `kernels`."),
            column("resource", STRING, NAME, "What does the work, as `ceilings` names it."),
            nullable("dtype", STRING, NAME, "Number format the work is in; null for bandwidth, and for several formats "
                "on one unit together."),
            column("work", FLOAT64, VARIES, "Work the resource did, in the unit of its row."),
            column("unit", STRING, NAME, "Unit of work: `flop`, `op`, `byte`, `issue slot`, or `ns` of busy cycles."),
            column("lower_bound_ns", INT64, NS, "Work divided by the ceiling, to the nanosecond, summed over the "
                "dispatches that the kernel's row in `roofline` covers."),
            nullable("share_ratio", FLOAT64, RATIO, "lower_bound_ns divided by the measured duration; above 1 means "
                "that a ceiling or a counter is wrong; null when the duration is not known."),
            column("ceiling_source", STRING, NAME, "Source of the ceiling, as in `ceilings`; `busy` where the unit "
                "counted its own busy cycles and no ceiling is involved."),
            column("work_source", STRING, NAME, "Where the work comes from: `counters` of the hardware, or the "
                "`model`'s operators and shapes."),
        ),
    ),
    Table(
        name="att_instructions", section="Analysis",
        meaning="One row is one instruction of a traced or sampled kernel with what it cost. Filled by the stage "
                "att_enrichment; cycles here never become durations.",
        sort_by=("kernel_id", "dispatch_id", "capture", "code_object_id", "address", "line"), version=3,
        columns=(
            nullable("kernel_id", INT32, ID, "Kernel the instruction belongs to, in `kernels`; null when the code "
                "could not be matched to one."),
            nullable("dispatch_id", INT32, ID, "Dispatch that was traced, in `dispatches`; null when several are "
                "summed or it could not be matched."),
            nullable("code_object_id", UINT64, ID, "The capture's number of the code object that holds the "
                "instruction; never a key across sessions; null when not stated."),
            nullable("address", UINT64, ID, "Address of the instruction in its code object as the capture states it; "
                "null for rows the decoder gives without one."),
            nullable("line", INT64, ID, "Position of the instruction in the decoder's listing of the code; null when "
                "there is no listing."),
            nullable("instruction", STRING, TEXT, "Disassembled instruction with its operands; null when the code "
                "object was not at hand."),
            nullable("instruction_class", STRING, NAME, "Unit that executes it, such as vector, scalar, matrix, vector "
                "memory, scalar memory, LDS, branch or wait; null when instruction is null."),
            nullable("hits", INT64, COUNT, "Times the traced wavefronts executed the instruction; null when it was "
                "sampled and not traced."),
            nullable("latency_cycles", INT64, CYCLES, "Cycles from the wavefront reaching the instruction to it being "
                "done, summed over hits, stall_cycles included; null when not traced."),
            nullable("stall_cycles", INT64, CYCLES, "Cycles in which the wavefront could not issue the instruction, "
                "summed over hits; null when not traced."),
            nullable("idle_cycles", INT64, CYCLES, "Cycles between the end of the instruction before and the wavefront "
                "reaching this one, summed over hits; null when not traced."),
            nullable("samples", INT64, COUNT, "Program-counter samples that fell on the instruction, whether it issued "
                "then or stalled; null when it was traced and not sampled."),
            nullable("source", STRING, TEXT, "Source file and line that the compiler's debug information gives for the "
                "instruction; null when there is none."),
            nullable("charged_stall_cycles", INT64, CYCLES, "Stalled cycles of wait instructions that waited for this "
                "one, such as those of a wait for this load; they are in stall_cycles of the waits and never in this "
                "row's. Null when the trace does not say what was waited for, and when not traced.", since=2),
            nullable("capture", STRING, NAME, "Thread trace that lists the instruction, by its folder in the capture; "
                "traces are never added up. Null for program-counter samples of a dispatch.", since=3),
            nullable("source_dispatch_id", UINT64, ID, "The traced dispatch by the capture's own number; null when not "
                "stated.", since=3),
        ),
    ),
    Table(
        name="att_stalls", section="Analysis",
        meaning="One row is one reason for which wavefronts of a kernel stalled. Filled by the stage att_enrichment.",
        sort_by=("kernel_id", "dispatch_id", "capture", "reason"), version=2,
        columns=(
            nullable("kernel_id", INT32, ID, "Kernel that stalled, in `kernels`; null when the code could not be "
                "matched to one."),
            nullable("dispatch_id", INT32, ID, "Dispatch that was traced, in `dispatches`; null when several are "
                "summed or it could not be matched."),
            column("reason", STRING, NAME, "What the wavefronts waited for: `waiting for …` what a wait instruction "
                "waited for, `… issue` or `… busy` the instruction's own unit, `unattributed` where the trace does not "
                "say; in samples the hardware's own reasons."),
            nullable("stall_cycles", INT64, CYCLES, "Stalled cycles with this reason, summed over the traced "
                "wavefronts; over all reasons they are the stall_cycles of `att_instructions`. Null when the kernel "
                "was sampled and not traced."),
            nullable("samples", INT64, COUNT, "Samples that found a wavefront stalled for this reason; null when the "
                "kernel was traced and not sampled."),
            nullable("share_ratio", FLOAT64, RATIO, "This reason's part of all stalled cycles, or samples, of the same "
                "kernel, dispatch and thread trace, 0..1; null when there are none."),
            nullable("capture", STRING, NAME, "Thread trace that the stalls are of, by its folder in the capture; null "
                "for program-counter samples of a dispatch.", since=2),
        ),
    ),
)
