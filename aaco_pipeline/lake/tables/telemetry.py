"""Samples of host and devices beside the run, and what the Linux kernel did with the measured threads.

Events of the workload itself are `trace`, facts about a whole session `runs`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
    BOOL,
    BYTES,
    COUNT,
    DEG_C,
    FLOAT64,
    ID,
    INT32,
    INT64,
    JOULE,
    MHZ,
    NAME,
    NS,
    RATIO,
    STRING,
    STRINGS,
    TRUTH,
    VARIES,
    VERSION,
    WATT,
    Table,
    column,
    nullable,
)

# A column is one call of at most three lines.
# fmt: off
TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="gpu_samples", section="Telemetry",
        meaning="One row is one reading of one GPU's sensors. Filled by the stage telemetry.",
        sort_by=("time_ns", "device_id"), version=2,
        columns=(
            column("time_ns", INT64, NS, "When the reading was taken, on the session's axis."),
            column("device_id", INT32, ID, "Device that was read, in `devices`."),
            nullable("power_w", FLOAT64, WATT, "Power of the whole socket or board as the firmware reports it, "
                "averaged over the firmware's own window; null when not reported."),
            nullable("energy_j", FLOAT64, JOULE, "The device's energy accumulator; only differences between samples "
                "mean anything; null when not reported."),
            nullable("temperature_hotspot_c", FLOAT64, DEG_C, "Junction temperature at the hottest spot of the die; "
                "null when not reported."),
            nullable("temperature_memory_c", FLOAT64, DEG_C, "Temperature of the device memory at its hottest stack; "
                "null when not reported."),
            nullable("gfx_clock_mhz", FLOAT64, MHZ, "Current engine clock, averaged over the XCCs that report one; on "
                "NVIDIA of the SMs; null when not reported."),
            nullable("memory_clock_mhz", FLOAT64, MHZ, "Current memory clock, before any data-rate multiplier; null "
                "when not reported."),
            nullable("gfx_activity_ratio", FLOAT64, RATIO, "Share of the firmware's own window in which the engine was "
                "busy, 0..1; it says nothing of how many compute units were; null when not reported."),
            nullable("memory_activity_ratio", FLOAT64, RATIO, "Share of the firmware's own window in which the memory "
                "controller was busy, 0..1; null when not reported."),
            nullable("memory_used_bytes", INT64, BYTES, "Device memory in use by all processes together; null when not "
                "reported."),
            nullable("throttle_reasons", STRINGS, NAME, "Limits that held the clocks down at or since the previous "
                "sample, in the driver's names; empty when none did; null when not reported."),
            nullable("temperature_gpu_c", FLOAT64, DEG_C, "Temperature of the die by its ordinary sensor, AMD's edge "
                "or NVIDIA's GPU temperature; null when not reported.", since=2),
            nullable("pcie_generation", INT64, VERSION, "Generation of PCIe that the device's link runs at; it falls "
                "while the device idles; null when not reported.", since=2),
            nullable("pcie_lanes", INT64, COUNT, "Lanes that the device's PCIe link runs with; null when not "
                "reported.", since=2),
            nullable("ecc_corrected", INT64, COUNT, "Memory errors that ECC has corrected since the driver was loaded; "
                "null when not reported or without ECC.", since=2),
            nullable("ecc_uncorrected", INT64, COUNT, "Memory errors that ECC could not correct since the driver was "
                "loaded; null when not reported or without ECC.", since=2),
        ),
    ),
    Table(
        name="system_samples", section="Telemetry",
        meaning="One row is one reading of the host and of the measured process. Filled by the stage telemetry.",
        sort_by=("time_ns",),
        columns=(
            column("time_ns", INT64, NS, "When the reading was taken, on the session's axis."),
            nullable("cpu_ratio", FLOAT64, RATIO, "Share of all logical CPUs' time that was not idle since the "
                "previous sample, 0..1, all processes together; null in the first sample."),
            nullable("process_cpu_ns", INT64, NS, "CPU time the measured process has used since it began, user and "
                "system, all threads; null when it could not be read."),
            nullable("run_delay_ns", INT64, NS, "Time the measured process's threads have been runnable but waiting "
                "for a CPU since it began; null when the kernel does not report it."),
            nullable("rss_bytes", INT64, BYTES, "Resident memory of the measured process, shared pages included; null "
                "when it could not be read."),
            nullable("voluntary_switches", INT64, COUNT, "Times the measured process's threads have given up the CPU "
                "to wait since it began; null when it could not be read."),
            nullable("involuntary_switches", INT64, COUNT, "Times the measured process's threads have been pushed off "
                "the CPU since it began; null when it could not be read."),
            nullable("major_faults", INT64, COUNT, "Page faults of the measured process that needed storage since it "
                "began; null when it could not be read."),
            nullable("load_1m", FLOAT64, COUNT, "The host's load average over one minute, in runnable or blocked "
                "tasks; null when it could not be read."),
            nullable("cpu_pressure_ratio", FLOAT64, RATIO, "Share of the time since the previous sample in which at "
                "least one runnable task waited for a CPU, 0..1; null when the kernel does not report it."),
            nullable("clock_mhz", FLOAT64, MHZ, "Current clock averaged over the logical CPUs; null when the host does "
                "not report it."),
        ),
    ),
    Table(
        name="scheduler_events", section="Telemetry",
        meaning="One row is one scheduler or interrupt event that touched a thread of the measured process. Filled by "
                "the stage telemetry.",
        sort_by=("time_ns", "cpu", "thread_id", "kind"),
        columns=(
            column("time_ns", INT64, NS, "When the event happened, on the session's axis."),
            nullable("cpu", INT32, ID, "Logical CPU on which it happened; null when the source does not say."),
            nullable("thread_id", INT64, ID, "Operating-system thread it happened to; null for an event of the CPU as "
                "a whole."),
            column("kind", STRING, NAME, "Kind of event as its source names it, such as a switch, a wake-up, a "
                "migration or an interrupt."),
            nullable("duration_ns", INT64, NS, "How long the thread was kept from running by the event; null when the "
                "event has no extent or its end was not seen."),
        ),
    ),
    Table(
        name="kernel_events", section="Kernel plane",
        meaning="One row is one event that the kernel recorded of a measured thread, or a switch on any CPU while the "
                "passes ran. Filled by the stage kernel_plane.",
        sort_by=("time_ns", "cpu", "thread_id", "kind", "name"),
        columns=(
            column("time_ns", INT64, NS, "When it happened or began, on the session's axis."),
            nullable("cpu", INT32, ID, "Logical CPU that recorded it; null when the source does not say."),
            nullable("thread_id", INT64, ID, "Operating-system thread it is about: of a switch the one that left the "
                "CPU, of a wake-up the one that was woken; 0 is an idle CPU; null for an event of the CPU alone."),
            column("kind", STRING, NAME, "`switch`, `ran` (the kernel's account of a thread's time on a CPU), "
                "`waking`, `migrate`, `fork`, `exit`, `page_fault`, `interrupt`, `softirq`, `syscall`, `signal`, "
                "`block_io`, `cpu_frequency`, `gpu_job` or `fence_wait`."),
            nullable("name", STRING, NAME, "What of that kind: the interrupt's or softirq's name, the system call, "
                "`user` or `kernel` for a fault, the tracepoint of a driver, of a wake-up by a handler `interrupt`; "
                "null where the kind says it all."),
            nullable("duration_ns", INT64, NS, "From its entry to its exit, of a fault to where its page is in place; "
                "null when it has no extent or its exit was not seen."),
            nullable("other_thread_id", INT64, ID, "Of a switch the thread that got the CPU, of a wake-up the one that "
                "woke it (null from an interrupt, or where the source does not say), of a fork the new one; else "
                "null."),
            nullable("state", STRING, NAME, "Of a switch how the thread left the CPU: `runnable`, `sleeping`, "
                "`disk_sleep`, `stopped`, `dead` or `idle`; else null."),
            nullable("value", INT64, VARIES, "Address of a fault, bytes of block I/O, kHz of a frequency, number of a "
                "signal, CPU a migration went to, target CPU of a wake-up; null for other kinds."),
        ),
    ),
    Table(
        name="kernel_threads", section="Kernel plane",
        meaning="One row is one thread that the kernel's switches name, or that a measured one began. Filled by the "
                "stage kernel_plane.",
        sort_by=("thread_id", "start_ns"),
        columns=(
            column("thread_id", INT64, ID, "Operating-system thread; 0 is an idle CPU."),
            nullable("process_id", INT32, ID, "Measured process it belongs to, in `processes`; null for a thread of "
                "another process."),
            nullable("name", STRING, NAME, "The thread's name as the kernel had it when it was last seen; null when no "
                "event says it."),
            nullable("start_ns", INT64, NS, "When it was first seen, on the session's axis."),
            nullable("end_ns", INT64, NS, "When it ended, or the recording did, on the session's axis."),
        ),
    ),
    Table(
        name="thread_states", section="Kernel plane",
        meaning="One row is one interval of one measured thread in one state; a thread's intervals follow one another "
                "without a gap from its first to its last. Filled by the stage kernel_plane.",
        sort_by=("thread_id", "start_ns"),
        columns=(
            column("thread_id", INT64, ID, "Operating-system thread, in `kernel_threads`."),
            column("start_ns", INT64, NS, "When the state began, on the session's axis."),
            column("end_ns", INT64, NS, "When it ended, or the recording did, on the session's axis."),
            column("state", STRING, NAME, "`running`; `preempted`: runnable while another thread had the CPU; "
                "`throttled`: runnable while the group's quota was used up; `queued`: woken and not yet running; "
                "`blocked`; `stopped` by a signal; `unknown`: its events are not whole."),
            nullable("cpu", INT32, ID, "Logical CPU it ran on, was taken from or was queued for; null while blocked."),
            nullable("wait", STRING, NAME, "What a blocked thread waited for, by the event before it: `page_fault`, "
                "`disk`, `lock`, `sleep`, `io` or `other`; null in other states."),
            nullable("by_thread_id", INT64, ID, "Thread that had the CPU meanwhile (the one that had most of it), or "
                "that woke a blocked one; null when none is known, as from an interrupt."),
            nullable("by_name", STRING, NAME, "That thread's name; of a wake-up out of an interrupt `interrupt`."),
        ),
    ),
    Table(
        name="kernel_losses", section="Kernel plane",
        meaning="One row is a time for which a CPU's events are not whole; states are unknown there. Filled by the "
                "stage kernel_plane.",
        sort_by=("start_ns", "cpu", "buffer"),
        columns=(
            column("cpu", INT32, ID, "Logical CPU whose events were lost."),
            column("buffer", STRING, NAME, "Which events: `threads` for those of measured threads, `switches` for the "
                "scheduler's on all CPUs."),
            column("start_ns", INT64, NS, "Last event before the loss, on the session's axis."),
            column("end_ns", INT64, NS, "First event after it, on the session's axis."),
            nullable("events", INT64, COUNT, "How many were lost; null when the kernel does not say."),
        ),
    ),
    Table(
        name="fixed_work_probes", section="Kernel plane",
        meaning="One row is one probe of the machine between blocks of iterations: a thread that does nothing but read "
                "the clock, whose gaps are time that it was not given. Filled by the stage kernel_plane.",
        sort_by=("start_ns", "cpu"),
        columns=(
            nullable("pass", STRING, NAME, "Pass in whose process it ran; null for a probe of its own process."),
            nullable("before_iteration", INT32, ID, "Number of the iteration that follows it; null outside a pass."),
            nullable("cpu", INT32, ID, "Logical CPU it ran on; null when it moved."),
            column("start_ns", INT64, NS, "When it began, on the session's axis."),
            column("end_ns", INT64, NS, "When it ended, on the session's axis."),
            column("gaps", INT64, COUNT, "How often two readings of the clock were further apart than the probe's own "
                "step can be."),
            column("gap_ns", INT64, NS, "How long those gaps were, together."),
            nullable("unseen_ns", INT64, NS, "Of them what no event of the kernel explains: the machine stood still, "
                "as when a hypervisor takes the CPU; null without the kernel's events."),
        ),
    ),
    Table(
        name="iteration_delays", section="Kernel plane",
        meaning="One row is one part of one iteration of its deciding thread; the parts of an iteration sum to its "
                "latency exactly. Filled by the stage iteration_delays.",
        sort_by=("pass", "iteration", "cause"),
        columns=(
            column("pass", STRING, NAME, "Pass of the iteration, in `iterations`."),
            column("iteration", INT32, ID, "Number of the iteration within its pass."),
            column("cause", STRING, NAME, "`preempted`, `throttled`, `stopped`, `queued`, `major_fault`, `disk`, "
                "`lock`, `sleep`, `blocked`, `timer` for its ticks and their softirqs, `interrupts` for all others, "
                "`minor_faults`, `unknown`, or `on_cpu` for the rest."),
            column("duration_ns", INT64, NS, "How much of the iteration's latency it took."),
            nullable("thread_id", INT64, ID, "Thread that was decomposed: the one that decided when the iteration "
                "ended; null without one."),
            nullable("occurrences", INT64, COUNT, "How often: intervals, faults or interrupts; null for the rest."),
            column("grade", STRING, NAME, "`observed`: the kernel recorded begin and end; `estimated`: a count times "
                "this machine's calibrated cost of one, or how long one was seen to last if that is more; `rest`: "
                "what is left."),
            nullable("by_kind", STRING, NAME, "What caused most of it: `thread`, `interrupt`, `signal` or the system "
                "`call` in which it went by, if it usually does not; null when not known."),
            nullable("by_thread_id", INT64, ID, "The thread that caused most of it; of work, sleep and storage another "
                "one of the process, which was waited for; null when none did."),
            nullable("by_name", STRING, NAME, "Name of that thread, interrupt or system call."),
        ),
    ),
    Table(
        name="iteration_grades", section="Kernel plane",
        meaning="One row is the judgement of one iteration: whether the machine disturbed it, and if it is a spike, "
                "why. Filled by the stage iteration_delays.",
        sort_by=("pass", "iteration"),
        columns=(
            column("pass", STRING, NAME, "Pass of the iteration, in `iterations`."),
            column("iteration", INT32, ID, "Number of the iteration within its pass."),
            column("grade", STRING, NAME, "`clean`, `disturbed` by something outside the program, or `unknown` where "
                "events are not whole; the iteration's own latency has no part in it."),
            nullable("disturbed_by", STRING, NAME, "Cause with most of the disturbance; null unless disturbed."),
            nullable("disturbed_ns", INT64, NS, "Time that causes outside the program took; null when unknown."),
            column("is_spike", BOOL, TRUTH, "True when its latency exceeds the pass's median by more than five widths "
                "of its noise and a tenth of it."),
            column("excess_ns", INT64, NS, "Latency less the median of the pass's measured iterations."),
            nullable("spike_cause", STRING, NAME, "Cause whose excess over its own median explains most of a spike: "
                "one of `iteration_delays`, with `on_cpu_longer` for the rest; null when no spike or unexplained."),
            nullable("explained_ns", INT64, NS, "How much of the excess that cause explains; null when no spike or "
                "unexplained."),
        ),
    ),
    Table(
        name="delay_figures", section="Kernel plane",
        meaning="One row is what one cause did to the measured iterations of one pass. Filled by the stage "
                "iteration_delays.",
        sort_by=("pass", "cause"),
        columns=(
            column("pass", STRING, NAME, "Pass of the iterations."),
            column("cause", STRING, NAME, "Cause, as in `iteration_delays`; `on_cpu` is what no event explains."),
            column("iterations", INT64, COUNT, "Measured iterations in which it took more than its median."),
            column("spikes", INT64, COUNT, "Spikes that it explains."),
            column("total_ns", INT64, NS, "All its time in measured iterations."),
            nullable("variance_share_ratio", FLOAT64, RATIO, "Share of the latency's variance: its covariance with the "
                "latency over that; shares of all causes sum to 1, one may be negative; null when nothing varies."),
            nullable("tail_share_ratio", FLOAT64, RATIO, "Share of P99 - P50: its mean from P99 up less its mean "
                "around P50, over the same of the latency; null under 100 iterations."),
            nullable("p99_without_ns", INT64, NS, "P99 had the cause never exceeded its median; null under 100 "
                "iterations."),
            nullable("ci_low_ns", INT64, NS, "Lower end of its 95 % interval, by resampling blocks of iterations."),
            nullable("ci_high_ns", INT64, NS, "Upper end of that interval."),
        ),
    ),
)
