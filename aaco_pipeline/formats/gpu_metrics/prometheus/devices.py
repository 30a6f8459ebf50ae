"""Which device each series is of, and what the labels and the constant metrics say of the devices.

An exporter numbers the devices of its host: Omnistat's `card` is the index that HIP gives where all devices are
visible, the exporter's `gpu_id` its own, with a partition's number behind it. Neither is the number that a trace gives
them, so that both are kept as names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.formats.gpu_metrics.prometheus.gathering import Series
from aaco_pipeline.formats.gpu_metrics.prometheus.sensors import COUNTS, INFORMATION
from aaco_pipeline.formats.parsing.redaction import safe_prose
from aaco_pipeline.lake.validation import empty_table, to_contract

#: The detail `device_names`: by what another capture may know the same device.
DEVICE_NAMES: Final = pl.Schema(
    {
        **{"device_id": pl.Int32(), "host": pl.String(), "card": pl.String(), "pci_address": pl.String()},
        **{"uuid": pl.String(), "devices_of_host": pl.Int64()},
    }
)
_PORT: Final = re.compile(r":\d{1,5}$")
_NOT_STATED: Final = ("", "NA", "N/A", "unknown")
_LONGEST_NAME: Final = 120


@dataclass(frozen=True)
class Named:
    """A device as an exporter calls it: host, number, and number of the partition, each None where not stated."""

    host: str | None
    card: str
    partition: str | None

    @property
    def order(self) -> tuple[object, ...]:
        """Hosts by name, devices by number."""
        return (self.host or "", *_natural(self.card), *_natural(self.partition or ""))

    @property
    def called(self) -> str:
        return f"card{self.card}" + (f" partition {self.partition}" if self.partition is not None else "")


def named(series: Series) -> Named | None:
    """The device that a series is of; None for one of no device."""
    labels = series.labels
    if series.metric in COUNTS:
        return None
    card = _stated(labels, "card") or _stated(labels, "gpu_id")
    if card is None:
        return None
    return Named(host_of(labels), card, _stated(labels, "gpu_partition_id") if _is_divided(labels) else None)


def host_of(labels: Mapping[str, str]) -> str | None:
    """The host that a series is of: the exporter's own word before the address that it was scraped at."""
    name = _stated(labels, "hostname") or _stated(labels, "instance")
    return None if name is None else _PORT.sub("", name)


def tables(found: Sequence[Named], series: Sequence[Series], values: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The table `devices` and the detail `device_names`, both in the order of `found`.

    `values` has series and value: sizes, limits and counts are taken where all values of a device are one.
    """
    if not found:
        return empty_table("devices"), pl.DataFrame(schema=DEVICE_NAMES)
    constant = values.group_by("series").agg(
        value=pl.when(pl.col("value").n_unique() == 1).then(pl.col("value").first())
    )
    known = dict(constant.drop_nulls().select("series", "value").iter_rows())
    hosts = len({one.host for one in found})
    rows, names = [], []
    counts = {
        host_of(one.labels): int(known[at])
        for at, one in enumerate(series)
        if one.metric in COUNTS and 0 < known.get(at, 0) < 1 << 20
    }
    of_device: dict[Named, list[int]] = {}
    for at, one in enumerate(series):
        if (device := named(one)) is not None:
            of_device.setdefault(device, []).append(at)
    for number, device in enumerate(found):
        labels: dict[str, str] = {}
        sizes: dict[str, float] = {}
        for at in of_device[device]:
            information = series[at].metric == INFORMATION
            labels = {**labels, **series[at].labels} if information else {**series[at].labels, **labels}
            if at in known:
                sizes.setdefault(series[at].metric, known[at])
        total = sizes.get("rocm_vram_total_bytes", sizes.get("gpu_total_vram", 0) * (1 << 20))
        partition = [mode for part in ("compute", "memory") if (mode := _stated(labels, f"gpu_{part}_partition_type"))]
        called = device.called + (f" of {device.host}" if hosts > 1 else "")
        rows.append(
            {
                "device_id": number,
                "vendor": "AMD",
                "product": _safe(_product(labels)),
                "memory_bytes": int(total) if 0 < total < 1 << 62 else None,
                "partition_mode": _safe("/".join(partition).upper() or None),
                "power_cap_w": sizes.get("rocm_power_cap_watts") or None,
                "handle": _safe(called),
            }
        )
        names.append(
            {
                "device_id": number,
                "host": _safe(device.host),
                "card": _safe(device.called),
                "pci_address": _address(labels),
                "uuid": _uuid(labels),
                "devices_of_host": counts.get(device.host, counts.get(None) if hosts == 1 else None),
            }
        )
    types = {"product": pl.String, "memory_bytes": pl.Int64, "partition_mode": pl.String, "power_cap_w": pl.Float64}
    return (
        to_contract("devices", pl.DataFrame(rows, schema_overrides=types)),
        pl.DataFrame(names, schema=DEVICE_NAMES),
    )


def _is_divided(labels: Mapping[str, str]) -> bool:
    """Whether the device is one of several partitions of a GPU."""
    return _stated(labels, "gpu_compute_partition_type") is not None and (
        labels["gpu_compute_partition_type"].lower() != "spx"
    )


def _product(labels: Mapping[str, str]) -> str | None:
    return _stated(labels, "card_series") or _stated(labels, "type") or _stated(labels, "card_model")


def _address(labels: Mapping[str, str]) -> str | None:
    found = _stated(labels, "pci_address") or _stated(labels, "pcie_bus_id") or _stated(labels, "pci_bus")
    return None if found is None else found[:_LONGEST_NAME].lower()


def _uuid(labels: Mapping[str, str]) -> str | None:
    """The device's UUID; a virtual function's is all zeros, which names nothing."""
    found = (_stated(labels, "gpu_uuid") or "")[:_LONGEST_NAME].lower()
    return found if found.strip("0-") else None


def _stated(labels: Mapping[str, str], name: str) -> str | None:
    text = labels.get(name, "").strip()
    return None if text in _NOT_STATED else text


def _safe(text: str | None) -> str | None:
    return None if text is None else safe_prose(text[:_LONGEST_NAME])


def _natural(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isascii() and text.isdigit() and len(text) < 19 else (1, 0, text)
