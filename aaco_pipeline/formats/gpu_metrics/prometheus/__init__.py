"""Sensors of GPUs as Prometheus keeps them: what Omnistat and AMD's device-metrics-exporter measured, second by second.

Four forms are read: the text that an exporter shows, scraped once or often into one file or several; the answer of
`/api/v1/query_range` or `/api/v1/query` as JSON; the lines of VictoriaMetrics' `/api/v1/export`; and the CSV files of
`omnistat-query --export`. Not read: VictoriaMetrics' `/api/v1/export/csv`, which has no header and columns of one's own
choice, its `/api/v1/export/native`, and the databases themselves.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.formats.capture_tables import CaptureTables, FormatRow, Limits
from aaco_pipeline.formats.gpu_metrics.prometheus.signs import probe

__all__ = ["DOCUMENTATION", "probe", "read", "read_run"]

DOCUMENTATION: Final = FormatRow(
    "Omnistat and AMD's device-metrics-exporter: scraped text, JSON of a Prometheus query, JSON lines of "
    "VictoriaMetrics' export, CSV of `omnistat-query --export`; also gzip",
    "names of their metrics, or the form of the answer",
    "GPU samples",
)


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """One file: as `read_run`."""
    return read_run([path], limits)


def read_run(paths: Sequence[Path], limits: Limits | None = None) -> CaptureTables:
    """The files of one folder, which are of the same devices.

    Tables: `gpu_samples` by device and time, `devices`, `clock_domains`: wall-clock, zero at the earliest sample.
    Details: `device_names` (device_id, host, card: what the exporter calls it, pci_address, uuid, devices_of_host: how
    many the exporter says there are), `unplaced_samples` (as `gpu_samples`, for values that come without a time:
    `scrape`, which of the scrapes they are of, in the place of `time_ns`), and `source_rows`. CaptureError for a file
    that is damaged, too large, or without any of the two exporters' sensors.
    """
    from aaco_pipeline.formats.gpu_metrics.prometheus import reading

    return reading.read_run(paths, limits or Limits())
