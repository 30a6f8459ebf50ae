"""What was sampled or observed beside the run: device telemetry, host telemetry and scheduler events.

Events of the workload itself do not belong here; they live in `trace`, and limits that hold for a whole session in
`what_was_run`.
"""

from typing import Final

from aaco_pipeline.lake.declaration import (
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
)
