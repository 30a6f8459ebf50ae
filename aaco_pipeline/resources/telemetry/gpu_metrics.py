"""Readings of the amdgpu driver's `gpu_metrics` tables beside a run: raw bytes with their times, decoded afterwards.

What the bytes mean is `aaco_pipeline.formats.gpu_metrics`; when a reading is due, and how often one may be taken within
its cost, is the sampler's business (`aaco_pipeline.resources.telemetry.sampler`). One reading is one transfer of a
table from the firmware, so it is neither free nor instant.
"""

import base64
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from os import pread
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.telemetry.gpu_source import READING_LIMIT, GpuSource

TABLE_FILE: Final = "gpu_metrics"
_AMD: Final = "0x1002"
_LARGEST_TABLE: Final = 1 << 16
_HEADER_BYTES: Final = 4


class GpuMetricsSource(GpuSource[bytes]):
    """One device's table, opened once and read in place; a reading is kept as the bytes it gave and when."""

    def __init__(self, folder: Path, device: str, *, reading_limit: int = READING_LIMIT) -> None:
        """Opens `folder / "gpu_metrics"`; raises OSError when that cannot be done."""
        super().__init__(device, reading_limit)
        #: Where the device sits on its bus: its folder in sysfs is a link to one of that name.
        self._address = folder.resolve().name
        self._descriptor: int | None = os.open(folder / TABLE_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def _taken(self) -> bytes:
        try:
            if self._descriptor is None:
                raise ValueError("the file is closed")
            table = pread(self._descriptor, _LARGEST_TABLE, 0)
            if len(table) <= _HEADER_BYTES or int.from_bytes(table[:2], "little") != len(table):
                raise ValueError(f"gave {len(table)} bytes, which is not the size that the table states")
        except (OSError, ValueError) as error:
            self.failure = f"{TABLE_FILE} of {self.device}: {getattr(error, 'strerror', None) or error}"
            raise
        return table

    def recording(self) -> dict[str, Any]:
        """What was read, for a JSON document: the times on CLOCK_MONOTONIC, and the tables one after another."""
        packed = base64.b64encode(zlib.compress(b"".join(self._readings), 1)).decode()
        return {**self._kept(), "address": self._address, "tables": packed}

    def close(self) -> None:
        """Close the file; what was read stays."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def amd_cards(sys: Path) -> tuple[str, ...]:
    """The AMD GPUs of this host by their folder in `sys`/class/drm, in order of number."""
    cards = []
    for vendor in (sys / "class/drm").glob("card[0-9]*/device/vendor"):
        card = vendor.parent.parent.name
        with suppress(OSError):
            if card.removeprefix("card").isdecimal() and vendor.read_text().strip() == _AMD:
                cards.append(card)  # the others are a card's connectors
    return tuple(sorted(cards, key=lambda card: int(card.removeprefix("card"))))


def open_sources(sys: Path) -> tuple[list[GpuMetricsSource], Mapping[str, str]]:
    """A source for each AMD GPU that gives out its table, and for each other one why it has none. Never raises."""
    sources: list[GpuMetricsSource] = []
    reasons: dict[str, str] = {}
    for card in amd_cards(sys):
        try:
            sources.append(GpuMetricsSource(sys / "class/drm" / card / "device", card))
        except FileNotFoundError:
            reasons[card] = f"the driver of {card} does not read its sensors out in one table ({TABLE_FILE})"
        except OSError as error:
            reasons[card] = f"{TABLE_FILE} of {card}: {error.strerror or error}"
    return sources, reasons
