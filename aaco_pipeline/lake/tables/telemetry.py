"""What was sampled or observed beside the run: device telemetry, host telemetry and scheduler events.

Events of the workload itself do not belong here; they live in `trace`, and limits that hold for a whole session in
`what_was_run`.
"""

from typing import Final

from aaco_pipeline.lake.contracts import Table, column

TABLES: Final[tuple[Table, ...]] = (
    Table(
        name="gpu_samples",
        section="Telemetry",
        meaning=("One row is one reading of one GPU's sensors. Filled by the stage telemetry."),
        columns=(
            column("time_ns", "int64", "ns", False, "When the reading was taken, on the session's axis."),
            column("device_id", "int32", "id", False, "Device that was read, in `devices`."),
            column(
                "power_w",
                "float64",
                "W",
                True,
                "Power of the whole socket or board as the firmware reports it, averaged over the firmware's own "
                "window; null when not reported.",
            ),
            column(
                "energy_j",
                "float64",
                "J",
                True,
                "The device's energy accumulator; only differences between samples mean anything; null when not "
                "reported.",
            ),
            column(
                "temperature_hotspot_c",
                "float64",
                "degC",
                True,
                "Junction temperature at the hottest spot of the die; null when not reported.",
            ),
            column(
                "temperature_memory_c",
                "float64",
                "degC",
                True,
                "Temperature of the device memory at its hottest stack; null when not reported.",
            ),
            column(
                "gfx_clock_mhz",
                "float64",
                "MHz",
                True,
                "Current engine clock, averaged over the XCCs that report one; null when not reported.",
            ),
            column(
                "memory_clock_mhz",
                "float64",
                "MHz",
                True,
                "Current memory clock, before any data-rate multiplier; null when not reported.",
            ),
            column(
                "gfx_activity_ratio",
                "float64",
                "ratio",
                True,
                "Share of the firmware's own window in which the engine was busy, 0..1; it says nothing of how many "
                "compute units were; null when not reported.",
            ),
            column(
                "memory_activity_ratio",
                "float64",
                "ratio",
                True,
                "Share of the firmware's own window in which the memory controller was busy, 0..1; null when not "
                "reported.",
            ),
            column(
                "memory_used_bytes",
                "int64",
                "bytes",
                True,
                "Device memory in use by all processes together; null when not reported.",
            ),
            column(
                "throttle_reasons",
                "list<string>",
                "name",
                True,
                "Limits that held the clocks down at or since the previous sample, in the driver's names; empty when "
                "none did; null when not reported.",
            ),
        ),
        sort_by=(
            "time_ns",
            "device_id",
        ),
    ),
    Table(
        name="system_samples",
        section="Telemetry",
        meaning=("One row is one reading of the host and of the measured process. Filled by the stage telemetry."),
        columns=(
            column("time_ns", "int64", "ns", False, "When the reading was taken, on the session's axis."),
            column(
                "cpu_ratio",
                "float64",
                "ratio",
                True,
                "Share of all logical CPUs' time that was not idle since the previous sample, 0..1, all processes "
                "together; null in the first sample.",
            ),
            column(
                "process_cpu_ns",
                "int64",
                "ns",
                True,
                "CPU time the measured process has used since it began, user and system, all threads; null when it "
                "could not be read.",
            ),
            column(
                "run_delay_ns",
                "int64",
                "ns",
                True,
                "Time the measured process's threads have been runnable but waiting for a CPU since it began; null "
                "when the kernel does not report it.",
            ),
            column(
                "rss_bytes",
                "int64",
                "bytes",
                True,
                "Resident memory of the measured process, shared pages included; null when it could not be read.",
            ),
            column(
                "voluntary_switches",
                "int64",
                "count",
                True,
                "Times the measured process's threads have given up the CPU to wait since it began; null when it "
                "could not be read.",
            ),
            column(
                "involuntary_switches",
                "int64",
                "count",
                True,
                "Times the measured process's threads have been pushed off the CPU since it began; null when it could "
                "not be read.",
            ),
            column(
                "major_faults",
                "int64",
                "count",
                True,
                "Page faults of the measured process that needed storage since it began; null when it could not be "
                "read.",
            ),
            column(
                "load_1m",
                "float64",
                "count",
                True,
                "The host's load average over one minute, in runnable or blocked tasks; null when it could not be "
                "read.",
            ),
            column(
                "cpu_pressure_ratio",
                "float64",
                "ratio",
                True,
                "Share of the time since the previous sample in which at least one runnable task waited for a CPU, "
                "0..1; null when the kernel does not report it.",
            ),
            column(
                "clock_mhz",
                "float64",
                "MHz",
                True,
                "Current clock averaged over the logical CPUs; null when the host does not report it.",
            ),
        ),
        sort_by=("time_ns",),
    ),
    Table(
        name="scheduler_events",
        section="Telemetry",
        meaning=(
            "One row is one scheduler or interrupt event that touched a thread of the measured process. Filled by the "
            "stage telemetry."
        ),
        columns=(
            column("time_ns", "int64", "ns", False, "When the event happened, on the session's axis."),
            column("cpu", "int32", "id", True, "Logical CPU on which it happened; null when the source does not say."),
            column(
                "thread_id",
                "int64",
                "id",
                True,
                "Operating-system thread it happened to; null for an event of the CPU as a whole.",
            ),
            column(
                "kind",
                "string",
                "name",
                False,
                "Kind of event as its source names it, such as a switch, a wake-up, a migration or an interrupt.",
            ),
            column(
                "duration_ns",
                "int64",
                "ns",
                True,
                "How long the thread was kept from running by the event; null when the event has no extent or its end "
                "was not seen.",
            ),
        ),
        sort_by=(
            "time_ns",
            "cpu",
            "thread_id",
            "kind",
        ),
    ),
)
