"""What a device can do, and how close each kernel came: ceilings, roofline, occupancy, counters, single instructions.

What follows from it, the name of a bottleneck, lives in `judgement`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="ceilings",
        section="Analysis",
        meaning=(
            "One row is one limit of a device: a rate it cannot exceed, or was never measured to. Filled by the stage "
            "roofline."
        ),
        columns=(
            column("device_id", "int32", "id", False, "Device the limit holds for, in `devices`."),
            column(
                "resource",
                "string",
                "name",
                False,
                "What is limited, such as vector or matrix arithmetic, the memory fabric, DRAM, L2, vL1D or LDS.",
            ),
            column(
                "dtype",
                "string",
                "name",
                True,
                "Number format an arithmetic limit holds for; null for limits of bandwidth.",
            ),
            column(
                "value",
                "float64",
                "varies",
                False,
                "The limit in the unit of its row, for the device as partitioned and at the clock the reference "
                "states.",
            ),
            column("unit", "string", "name", False, "Unit of value: `flop/s`, `op/s`, `byte/s` or `instruction/s`."),
            column(
                "source",
                "string",
                "name",
                False,
                "`spec` when published or computed from published figures, `measured` when a benchmark found it on "
                "this device, `fitted` when it is the envelope of the session's own kernels, and so judges none.",
            ),
            column(
                "reference",
                "string",
                "text",
                True,
                "Document, or benchmark run, that the value comes from; null only when a capture gave the value "
                "without one.",
            ),
        ),
        sort_by=(
            "device_id",
            "resource",
            "dtype",
            "source",
        ),
    ),
    Table(
        name="roofline",
        section="Analysis",
        meaning=(
            "One row places one kernel, or one dispatch of it, on the roofline. Filled by the stage roofline; "
            "durations come from the base trace, never from a counter pass."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel that is placed, in `kernels`."),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that is placed, in `dispatches`; null for the kernel's aggregate over its counted "
                "dispatches.",
            ),
            column(
                "duration_ns",
                "int64",
                "ns",
                True,
                "Duration in the base trace, summed over the dispatches the row covers; null when they could not be "
                "matched to the base trace.",
            ),
            column(
                "flops",
                "float64",
                "flop",
                True,
                "Floating-point operations executed, over all number formats; null when no counter gives them.",
            ),
            column(
                "flops_by_type",
                "list<flops_of_type>",
                "flop",
                True,
                "The same operations split by number format; null when the counters do not tell the formats apart.",
            ),
            column(
                "flops_is_lower_bound",
                "bool",
                "bool",
                True,
                "True when some operations could not be counted, so that flops and what follows from it may be too "
                "low; null when flops is null.",
            ),
            column(
                "fabric_read_bytes",
                "int64",
                "bytes",
                True,
                "Bytes the L2 read from the memory side, whether Infinity Cache or DRAM served them; null when not "
                "counted.",
            ),
            column(
                "fabric_write_bytes",
                "int64",
                "bytes",
                True,
                "Bytes the L2 wrote to the memory side, atomics included; null when not counted.",
            ),
            column(
                "dram_read_bytes",
                "int64",
                "bytes",
                True,
                "Bytes read from DRAM itself; null where the architecture cannot count them or the pass was not taken.",
            ),
            column(
                "l2_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes requested of the L2 in either direction, hits included; null when not counted.",
            ),
            column(
                "vl1d_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes requested of the vector L1 data caches in either direction, hits included; null when not "
                "counted.",
            ),
            column(
                "lds_traffic_bytes",
                "int64",
                "bytes",
                True,
                "Bytes moved between registers and the local data share in either direction; null when not counted.",
            ),
            column(
                "achieved_flops_per_s",
                "float64",
                "flop/s",
                True,
                "flops divided by duration_ns in seconds; null when either is missing or the duration is zero.",
            ),
            column(
                "achieved_bytes_per_s",
                "float64",
                "byte/s",
                True,
                "Fabric bytes, read and written, divided by duration_ns in seconds; null when any of them is missing "
                "or the duration is zero.",
            ),
            column(
                "fabric_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte the L2 exchanged with the memory side; null when either is missing or no bytes moved.",
            ),
            column(
                "dram_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte exchanged with DRAM, reads alone where only they are counted, which quality_flags "
                "then says; null when not counted.",
            ),
            column(
                "l2_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte requested of the L2; null when either is missing or no bytes moved.",
            ),
            column(
                "vl1d_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte requested of the vector L1 data caches; null when either is missing or no bytes moved.",
            ),
            column(
                "lds_arithmetic_intensity",
                "float64",
                "flop/byte",
                True,
                "flops per byte moved to or from the local data share; null when either is missing or no bytes moved.",
            ),
            column(
                "bound",
                "string",
                "name",
                True,
                "Resource in `ceilings` whose roof is lowest for this row and so limits it; null when the evidence "
                "does not decide.",
            ),
            column(
                "efficiency_ratio",
                "float64",
                "ratio",
                True,
                "Achieved rate divided by what the limiting roof allows; above 1 means that a ceiling or a counter is "
                "wrong; null when bound is null.",
            ),
            column(
                "quality_flags",
                "list<string>",
                "name",
                False,
                "Named reservations about the row, such as few samples or a counter from another execution; empty "
                "when there are none.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
        ),
    ),
    Table(
        name="occupancy",
        section="Analysis",
        meaning=(
            "One row gives the wavefront occupancy of one kernel, or of one dispatch of it. Filled by the stage "
            "roofline."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel the row is about, in `kernels`."),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch the row is about, in `dispatches`; null for the kernel's aggregate.",
            ),
            column(
                "theoretical_ratio",
                "float64",
                "ratio",
                True,
                "Wavefronts per SIMD that registers, LDS and workgroup size admit, divided by the architecture's "
                "limit, 0..1; null when a resource is not stated.",
            ),
            column(
                "limiter",
                "string",
                "name",
                True,
                "Resource that admits the fewest wavefronts, such as vector registers, scalar registers, LDS or the "
                "workgroup's size; null when theoretical_ratio is.",
            ),
            column(
                "achieved_ratio",
                "float64",
                "ratio",
                True,
                "Mean resident wavefronts per SIMD from counters while the kernel ran, divided by the architecture's "
                "limit, 0..1; null when not counted.",
            ),
            column(
                "workgroups_per_cu",
                "int64",
                "count",
                True,
                "Workgroups that fit at once into a compute unit, on RDNA into the two of a workgroup processor; null "
                "when theoretical_ratio is.",
                since=2,
            ),
            column(
                "next_ratio",
                "float64",
                "ratio",
                True,
                "The next higher theoretical_ratio within reach of the limiting resource alone; null when there is "
                "none.",
                since=2,
            ),
            column(
                "next_step",
                "string",
                "text",
                True,
                "What reaches next_ratio, such as `vector registers: 136 to 128`; null when next_ratio is.",
                since=2,
            ),
            column(
                "grid_waves_ratio",
                "float64",
                "ratio",
                True,
                "Workgroups of the grid divided by those that the whole device holds at once: below 1 the grid is "
                "too small to fill the device; null when the grid or the device is not known.",
                since=2,
            ),
            column(
                "tail_ratio",
                "float64",
                "ratio",
                True,
                "Share of the device's room for workgroups that stays empty in the last of the rounds the grid takes, "
                "over all rounds, if workgroups take equally long, 0..1; null when grid_waves_ratio is.",
                since=2,
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
        ),
        version=2,
    ),
    Table(
        name="counter_metrics",
        section="Analysis",
        meaning=(
            "One row is one figure derived from the counters of one kernel, such as a hit rate, a utilization or a "
            "bandwidth. Filled by the stage roofline."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel the figure is about, in `kernels`."),
            column("metric", "string", "name", False, "Name of the figure; the docs hold each formula."),
            column("unit", "string", "name", False, "Unit of value, mean, min and max."),
            column(
                "value",
                "float64",
                "varies",
                True,
                "The figure over all counted dispatches of the kernel: the ratio of the sums; null when it could not "
                "be computed, and quality_flags says why.",
            ),
            column("mean", "float64", "varies", True, "Mean of the figure over dispatches; null when value is."),
            column("min", "float64", "varies", True, "Smallest figure of a dispatch; null when value is."),
            column("max", "float64", "varies", True, "Largest figure of a dispatch; null when value is."),
            column("n", "int64", "count", False, "Dispatches behind the figure; zero when none gave it."),
            column(
                "quality_flags",
                "list<string>",
                "name",
                False,
                "Named reservations about the figure, such as a clock that the hardware cannot have run at; empty "
                "when there are none.",
            ),
        ),
        sort_by=("kernel_id", "metric"),
    ),
    Table(
        name="resource_bounds",
        section="Analysis",
        meaning=(
            "One row is the shortest time that one resource would have needed for one kernel's work, were it busy "
            "throughout. Filled by the stage roofline."
        ),
        columns=(
            column("kernel_id", "int32", "id", False, "Kernel the row is about, in `kernels`."),
            column("resource", "string", "name", False, "What does the work, as `ceilings` names it."),
            column(
                "dtype",
                "string",
                "name",
                True,
                "Number format the work is in; null for bandwidth, and for several formats on one unit together.",
            ),
            column("work", "float64", "varies", False, "Work the resource did, in the unit of its row."),
            column("unit", "string", "name", False, "Unit of work: `flop`, `op`, `byte` or `instruction`."),
            column(
                "lower_bound_ns",
                "int64",
                "ns",
                False,
                "Work divided by the ceiling, to the nanosecond, summed over the dispatches that the kernel's "
                "row in `roofline` covers.",
            ),
            column(
                "share_ratio",
                "float64",
                "ratio",
                True,
                "lower_bound_ns divided by the measured duration; above 1 means that a ceiling or a counter is "
                "wrong; null when the duration is not known.",
            ),
            column("ceiling_source", "string", "name", False, "Source of the ceiling, as in `ceilings`."),
            column(
                "work_source",
                "string",
                "name",
                False,
                "Where the work comes from: `counters` of the hardware, or the `model`'s operators and shapes.",
            ),
        ),
        sort_by=("kernel_id", "resource", "dtype", "ceiling_source"),
    ),
    Table(
        name="att_instructions",
        section="Analysis",
        meaning=(
            "One row is one instruction of a traced or sampled kernel with what it cost. Filled by the stage "
            "att_enrichment; cycles here never become durations."
        ),
        columns=(
            column(
                "kernel_id",
                "int32",
                "id",
                True,
                "Kernel the instruction belongs to, in `kernels`; null when the code could not be matched to one.",
            ),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that was traced, in `dispatches`; null when several are summed or it could not be matched.",
            ),
            column(
                "code_object_id",
                "uint64",
                "id",
                True,
                "The capture's number of the code object that holds the instruction; never a key across sessions; "
                "null when not stated.",
            ),
            column(
                "address",
                "uint64",
                "id",
                True,
                "Address of the instruction in its code object as the capture states it; null for rows the decoder "
                "gives without one.",
            ),
            column(
                "line",
                "int64",
                "id",
                True,
                "Position of the instruction in the decoder's listing of the code; null when there is no listing.",
            ),
            column(
                "instruction",
                "string",
                "text",
                True,
                "Disassembled instruction with its operands; null when the code object was not at hand.",
            ),
            column(
                "instruction_class",
                "string",
                "name",
                True,
                "Unit that executes it, such as vector, scalar, matrix, vector memory, scalar memory, LDS, branch or "
                "wait; null when instruction is null.",
            ),
            column(
                "hits",
                "int64",
                "count",
                True,
                "Times the traced wavefronts executed the instruction; null when it was sampled and not traced.",
            ),
            column(
                "latency_cycles",
                "int64",
                "cycles",
                True,
                "Cycles from the wavefront reaching the instruction to it being done, summed over hits, stall_cycles "
                "included; null when not traced.",
            ),
            column(
                "stall_cycles",
                "int64",
                "cycles",
                True,
                "Cycles in which the wavefront could not issue the instruction, summed over hits; null when not "
                "traced.",
            ),
            column(
                "idle_cycles",
                "int64",
                "cycles",
                True,
                "Cycles between the end of the instruction before and the wavefront reaching this one, summed over "
                "hits; null when not traced.",
            ),
            column(
                "samples",
                "int64",
                "count",
                True,
                "Program-counter samples that fell on the instruction, whether it issued then or stalled; null when it "
                "was traced and not sampled.",
            ),
            column(
                "source",
                "string",
                "text",
                True,
                "Source file and line that the compiler's debug information gives for the instruction; null when "
                "there is none.",
            ),
            column(
                "charged_stall_cycles",
                "int64",
                "cycles",
                True,
                "Stalled cycles of wait instructions that waited for this one, such as those of a wait for this load; "
                "they are in stall_cycles of the waits and never in this row's. Null when the trace does not say "
                "what was waited for, and when not traced.",
                since=2,
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
            "code_object_id",
            "address",
            "line",
        ),
        version=2,
    ),
    Table(
        name="att_stalls",
        section="Analysis",
        meaning=("One row is one reason for which wavefronts of a kernel stalled. Filled by the stage att_enrichment."),
        columns=(
            column(
                "kernel_id",
                "int32",
                "id",
                True,
                "Kernel that stalled, in `kernels`; null when the code could not be matched to one.",
            ),
            column(
                "dispatch_id",
                "int32",
                "id",
                True,
                "Dispatch that was traced, in `dispatches`; null when several are summed or it could not be matched.",
            ),
            column(
                "reason",
                "string",
                "name",
                False,
                "What the wavefronts waited for: `waiting for …` what a wait instruction waited for, `… issue` or "
                "`… busy` the instruction's own unit, `unattributed` where the trace does not say; in samples the "
                "hardware's own reasons.",
            ),
            column(
                "stall_cycles",
                "int64",
                "cycles",
                True,
                "Stalled cycles with this reason, summed over the traced wavefronts; over all reasons they are the "
                "stall_cycles of `att_instructions`. Null when the kernel was sampled and not traced.",
            ),
            column(
                "samples",
                "int64",
                "count",
                True,
                "Samples that found a wavefront stalled for this reason; null when the kernel was traced and not "
                "sampled.",
            ),
            column(
                "share_ratio",
                "float64",
                "ratio",
                True,
                "This reason's part of all stalled cycles, or samples, of the same kernel and dispatch, 0..1; null "
                "when there are none.",
            ),
        ),
        sort_by=(
            "kernel_id",
            "dispatch_id",
            "reason",
        ),
    ),
)
