"""GPU sensor series in Prometheus formats, from Omnistat or AMD's device-metrics-exporter.

Four formats are read: exporter text, scraped once or repeatedly into one or several files; the JSON response of
`/api/v1/query_range` or `/api/v1/query`; the lines of VictoriaMetrics' `/api/v1/export`; and the CSV files of
`omnistat-query --export`. Not read: VictoriaMetrics' `/api/v1/export/csv`, which has no header and user-defined
columns, its `/api/v1/export/native`, and the databases themselves.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import first_bytes

#: Throttled time for each limit, as named by `gpu_metrics`, with the exporter's names.
RESIDENCIES: Final[Mapping[str, str]] = {
    "prochot": "gpu_violation_processor_hot_residency_accumulated",
    "ppt": "gpu_violation_ppt_residency_accumulated",
    "socket_thm": "gpu_violation_socket_thermal_residency_accumulated",
    "vr_thm": "gpu_violation_vr_thermal_residency_accumulated",
    "hbm_thm": "gpu_violation_hbm_thermal_residency_accumulated",
}
#: Default prefix of the exporter's names since version 1.3.
PREFIX: Final = "amd_"
MIB: Final = float(1 << 20)


@dataclass(frozen=True)
class Sensor:
    """The column that a metric becomes, in the column's unit after multiplying by `factor`.

    `where` is a label with its required values; other instances of the metric measure other things. Several instances
    on one device (engines or stacks) are combined by `over`. If two metrics give one column, the lower `turn` wins.
    `zero_is_nothing`: the exporter writes 0 if it could not read the sensor, or for partitions without one.
    """

    column: str
    factor: float = 1.0
    where: tuple[str, tuple[str, ...]] | None = None
    over: Literal["mean", "max"] = "mean"
    turn: int = 0
    zero_is_nothing: bool = False

    def is_of(self, labels: Mapping[str, str]) -> bool:
        """Return whether the metric's instance with these labels measures this column."""
        if self.where is None:
            return True
        label, values = self.where
        return labels.get(label, "").lower().removeprefix("gpu_clock_type_") in values


_HOTSPOT: Final = ("location", ("junction", "hotspot"))
_HOTTEST_MEMORY: Final = ("location", ("vram",))
SENSORS: Final[Mapping[str, Sensor]] = {
    "rocm_average_socket_power_watts": Sensor("power_w", zero_is_nothing=True),
    "rocm_energy_joules": Sensor("energy_j", zero_is_nothing=True),
    "rocm_temperature_celsius": Sensor("temperature_hotspot_c", where=_HOTSPOT, zero_is_nothing=True),
    "rocm_temperature_memory_celsius": Sensor("temperature_memory_c", where=_HOTTEST_MEMORY, zero_is_nothing=True),
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
#: A metric whose instances belong to two columns, distinguished by a label.
MEMORY_CLOCK: Final = Sensor("memory_clock_mhz", where=("clock_type", ("memory",)))
#: Metrics without a device that give the number of devices on the host.
COUNTS: Final = ("rocm_num_gpus", "gpu_nodes_total")
#: A metric that describes a device by its labels, not its value.
INFORMATION: Final = "rocm_version_info"
#: All metrics that are read, by their plain names.
METRICS: Final = (*SENSORS, *COUNTS, INFORMATION)
#: The names as written in files.
WRITTEN: Final = frozenset((*METRICS, *(f"{PREFIX}{name}" for name in METRICS if name.startswith("gpu_"))))


def plain(metric: str) -> str:
    """Strip the exporter's prefix from a metric's name."""
    return metric.removeprefix(PREFIX) if metric.startswith(f"{PREFIX}gpu_") else metric


def sensor_of(metric: str, labels: Mapping[str, str]) -> Sensor | None:
    """Return the sensor for an instance of a metric, by its plain name; None if it fits no column."""
    for one in (SENSORS.get(metric), MEMORY_CLOCK if metric == "gpu_clock" else None):
        if one is not None and one.is_of(labels):
            return one
    return None


FORMAT: Final = "gpu-series"
#: Distance into the file to search for the first sensor, after metrics of the Go and Python runtimes.
_LOOKED_AT: Final = 256 << 10
Form = Literal["text", "query", "lines", "csv"]
_DETAIL: Final[dict[Form, str]] = {
    "text": "Prometheus text of GPU sensors",
    "query": "answer of a Prometheus query, as JSON",
    "lines": "JSON lines of a VictoriaMetrics export",
    "csv": "CSV of omnistat-query --export",
}
_ANSWER: Final = re.compile(rb'\A\s*\{[^\[]{0,4096}?"resultType"\s*:\s*"(?:matrix|vector)"')
_ANSWER_BACKWARDS: Final = re.compile(rb'\A\s*\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"result"\s*:\s*\[')
_LINE: Final = re.compile(rb'\A\s*\{\s*"metric"\s*:\s*\{\s*"')
_NAME_AT_A_LINES_BEGIN: Final = re.compile(rb"^[ \t]*([A-Za-z_:][A-Za-z0-9_:]*)(?=\{|[ \t]+[-+]?[0-9.])", re.MULTILINE)
_CSV: Final = re.compile(rb'\A(?:\xef\xbb\xbf)?"?metric"?,')


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a file by its first 256 KiB; None for anything else."""
    form = form_of(first_bytes(path, _LOOKED_AT))
    return None if form is None else DetectedFormat(FORMAT, _DETAIL[form])


def form_of(head: bytes) -> Form | None:
    """Return the format of a file that begins like this, or None."""
    if b"\0" in head:
        return None
    if _ANSWER.match(head) or _ANSWER_BACKWARDS.match(head):
        return "query"
    if _LINE.match(head):
        return "lines"
    if _CSV.match(head):
        cells = head.partition(b"\n")[0].decode("utf-8", "replace").replace('"', "").strip().split(",")
        return "csv" if WRITTEN.intersection(cells) else None
    if head.lstrip()[:1] in (b"{", b"[", b"<"):
        return None
    known = (match[1].decode() in WRITTEN for match in _NAME_AT_A_LINES_BEGIN.finditer(head))
    return "text" if any(known) else None


DOCUMENTATION: Final = FormatRow(
    "Omnistat and AMD's device-metrics-exporter: scraped text, JSON of a Prometheus query, JSON lines of "
    "VictoriaMetrics' export, CSV of `omnistat-query --export`; also gzip",
    "names of their metrics, or the form of the answer",
    "GPU samples",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one file, like `read_run`."""
    return read_run([path], limits)


def read_run(paths: Sequence[Path], limits: Limits | None = None) -> CaptureTables:
    """Read the files of one folder, which cover the same devices.

    Tables: `gpu_samples` by device and time, `devices`, `clock_domains`: wall clock, zero at the earliest sample.
    Details: `device_names` (device_id, host, card: the exporter's name for it, pci_address, uuid, devices_of_host:
    number of devices stated by the exporter), `unplaced_samples` (like `gpu_samples`, for values without a time;
    `scrape`, the number of the scrape, replaces `time_ns`), and `source_rows`. CaptureError for a file that is damaged,
    too large, or has no sensors of either exporter.
    """
    from aaco_pipeline.formats.prometheus import reading

    return reading.read_run(paths, limits or Limits())
