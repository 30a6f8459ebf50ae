"""Which metrics of Omnistat and of AMD's device-metrics-exporter are which column of `gpu_samples`, and in what unit.

Names and units: Omnistat's docs/metrics.md and collectors (ROCm/omnistat e93110f), the exporter's
docs/configuration/metricslist.md and internal/metricsmap.md (ROCm/device-metrics-exporter afd0fe8). What the exporter
calls MB is 2^20 bytes: its source, `amdsmi_get_gpu_vram_usage`, divides by 1024 * 1024.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

#: The time spent held back by each limit, as `gpu_metrics` names them, with the exporter's names.
RESIDENCIES: Final[Mapping[str, str]] = {
    "prochot": "gpu_violation_processor_hot_residency_accumulated",
    "ppt": "gpu_violation_ppt_residency_accumulated",
    "socket_thm": "gpu_violation_socket_thermal_residency_accumulated",
    "vr_thm": "gpu_violation_vr_thermal_residency_accumulated",
    "hbm_thm": "gpu_violation_hbm_thermal_residency_accumulated",
}
#: What the exporter puts before its names since version 1.3, unless it is told otherwise.
PREFIX: Final = "amd_"
MIB: Final = float(1 << 20)


@dataclass(frozen=True)
class Sensor:
    """What a metric becomes: `column` in its unit times `factor`.

    `where` is a label with the values that it has to have: other instances of the metric are of other things.
    Of several instances on one device (`over` engines or stacks) the column has their mean or their highest. Where two
    metrics give one column, that of the lower `turn` is taken. `zero_is_nothing`: 0 is what the exporter writes where
    it could not read the sensor, or on partitions that have none.
    """

    column: str
    factor: float = 1.0
    where: tuple[str, tuple[str, ...]] | None = None
    over: Literal["mean", "max"] = "mean"
    turn: int = 0
    zero_is_nothing: bool = False

    def is_of(self, labels: Mapping[str, str]) -> bool:
        """Whether an instance of the metric with these labels is what the column is about."""
        if self.where is None:
            return True
        label, values = self.where
        return labels.get(label, "").lower().removeprefix("gpu_clock_type_") in values


_HOTSPOT: Final = ("location", ("junction", "hotspot"))
SENSORS: Final[Mapping[str, Sensor]] = {
    "rocm_average_socket_power_watts": Sensor("power_w", zero_is_nothing=True),
    "rocm_energy_joules": Sensor("energy_j", zero_is_nothing=True),
    "rocm_temperature_celsius": Sensor("temperature_hotspot_c", where=_HOTSPOT, zero_is_nothing=True),
    "rocm_temperature_memory_celsius": Sensor(
        "temperature_memory_c", where=("location", ("vram",)), zero_is_nothing=True
    ),
    "rocm_sclk_clock_mhz": Sensor("gfx_clock_mhz"),
    "rocm_mclk_clock_mhz": Sensor("memory_clock_mhz"),
    "rocm_utilization_percentage": Sensor("gfx_activity_percent"),
    "rocm_vram_busy_percentage": Sensor("memory_activity_percent"),
    "rocm_vram_used_percentage": Sensor("vram_used_percent"),
    "rocm_vram_total_bytes": Sensor("vram_total_bytes", zero_is_nothing=True),
    "rocm_power_cap_watts": Sensor("power_cap_w", zero_is_nothing=True),
    "gpu_package_power": Sensor("power_w", zero_is_nothing=True),
    "gpu_average_package_power": Sensor("power_w", turn=1, zero_is_nothing=True),
    "gpu_power_usage": Sensor("power_w", turn=2, zero_is_nothing=True),
    "gpu_energy_consumed": Sensor("energy_j", 1e-6, zero_is_nothing=True),
    "gpu_junction_temperature": Sensor("temperature_hotspot_c", zero_is_nothing=True),
    "gpu_memory_temperature": Sensor("temperature_memory_c", zero_is_nothing=True),
    "gpu_hbm_temperature": Sensor("temperature_memory_c", over="max", turn=1, zero_is_nothing=True),
    "gpu_clock": Sensor("gfx_clock_mhz", where=("clock_type", ("system",))),
    "gpu_gfx_activity": Sensor("gfx_activity_percent"),
    "gpu_umc_activity": Sensor("memory_activity_percent"),
    "gpu_used_vram": Sensor("memory_used_bytes", MIB),
    "gpu_total_vram": Sensor("vram_total_bytes", MIB, zero_is_nothing=True),
    **{metric: Sensor(name) for name, metric in RESIDENCIES.items()},
}
#: A metric whose instances are of two columns, told apart by a label.
MEMORY_CLOCK: Final = Sensor("memory_clock_mhz", where=("clock_type", ("memory",)))
#: Metrics of no device that say how many the host has.
COUNTS: Final = ("rocm_num_gpus", "gpu_nodes_total")
#: A metric whose labels, not its value, say what a device is.
INFORMATION: Final = "rocm_version_info"
#: All metrics that are read, by their plain names.
METRICS: Final = (*SENSORS, *COUNTS, INFORMATION)
#: The names as they stand in files.
WRITTEN: Final = frozenset((*METRICS, *(f"{PREFIX}{name}" for name in METRICS if name.startswith("gpu_"))))


def plain(metric: str) -> str:
    """A metric's name without what an exporter puts before it."""
    return metric.removeprefix(PREFIX) if metric.startswith(f"{PREFIX}gpu_") else metric


def sensor_of(metric: str, labels: Mapping[str, str]) -> Sensor | None:
    """What an instance of a metric measures, by its plain name; None where no column is about it."""
    for one in (SENSORS.get(metric), MEMORY_CLOCK if metric == "gpu_clock" else None):
        if one is not None and one.is_of(labels):
            return one
    return None
