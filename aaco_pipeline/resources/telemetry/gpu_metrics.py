"""Read GPUs during a run: the common part of all readings, and amdgpu's `gpu_metrics` tables as raw bytes.

`aaco_pipeline.formats.gpu_metrics` decodes the bytes; `nvml` reads NVIDIA's GPUs.
"""

import base64
import os
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from os import pread
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

Reading = TypeVar("Reading")

#: The firmware updates its own averages about this often; reading sooner returns nothing new.
GPU_PERIOD_NS: Final = 100_000_000
#: Readings kept per device: more than half an hour at the shortest period. Beyond it every second one is dropped.
READING_LIMIT: Final = 20_000


class GpuSource(ABC, Generic[Reading]):
    """One device whose readings are kept here with their times: a sampler source without columns of its own."""

    columns: tuple[str, ...] = ()

    def __init__(self, device: str, reading_limit: int) -> None:
        self.device = device
        self.period_ns: int | None = None
        self.failure: str | None = None
        self._limit = reading_limit + reading_limit % 2
        self._times: list[int] = []
        self._readings: list[Reading] = []
        self._every = 1
        self._due_in = 0

    @abstractmethod
    def _taken(self) -> Reading:
        """Take one reading. Raises an error of UNREADABLE, with the reason in `failure`, if that is impossible."""

    @abstractmethod
    def recording(self) -> dict[str, Any]:
        """Return the readings for a JSON document."""

    @abstractmethod
    def close(self) -> None:
        """Release the device; its readings stay."""

    def read(self) -> tuple[int, ...]:
        """Take one reading. Raises an error of UNREADABLE, with the reason in `failure`, if that fails."""
        if self._due_in:
            self._due_in -= 1
            return ()
        self._due_in = self._every - 1
        now = time.monotonic_ns()
        reading = self._taken()
        self._times.append(now)
        self._readings.append(reading)
        if len(self._times) >= self._limit:
            # The counters are cumulative, so the rest is a valid sampling at twice the period. This stays true
            # afterwards if the reading just taken, the last of an even number, is among the dropped ones.
            del self._times[1::2], self._readings[1::2]
            self._every *= 2
        return ()

    def forget(self) -> None:
        """Drop the readings taken so far, which only measured their cost."""
        self._times.clear()
        self._readings.clear()

    def _kept(self) -> dict[str, Any]:
        """Return the part of the recording that all devices share; the times are on CLOCK_MONOTONIC."""
        return {
            "device": self.device,
            "period_ns": self.period_ns and self.period_ns * self._every,
            "failure": self.failure,
            "times_ns": list(self._times),
        }


TABLE_FILE: Final = "gpu_metrics"
_AMD: Final = "0x1002"
_LARGEST_TABLE: Final = 1 << 16
_HEADER_BYTES: Final = 4


class GpuMetricsSource(GpuSource[bytes]):
    """One device's table, opened once and read in place; a reading is stored as its bytes and its time."""

    def __init__(self, folder: Path, device: str, *, reading_limit: int = READING_LIMIT) -> None:
        """Open `folder / "gpu_metrics"`; raises OSError if that fails."""
        super().__init__(device, reading_limit)
        #: The device's bus address: its sysfs folder is a link to one of that name.
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
        """Return the readings for a JSON document: times on CLOCK_MONOTONIC, and the concatenated tables."""
        packed = base64.b64encode(zlib.compress(b"".join(self._readings), 1)).decode()
        return {**self._kept(), "address": self._address, "tables": packed}

    def close(self) -> None:
        """Close the file; its readings stay."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def amd_cards(sys: Path) -> tuple[str, ...]:
    """Return this host's AMD GPUs by their folder in `sys`/class/drm, sorted by number."""
    cards = []
    for vendor in (sys / "class/drm").glob("card[0-9]*/device/vendor"):
        card = vendor.parent.parent.name
        with suppress(OSError):
            if card.removeprefix("card").isdecimal() and vendor.read_text().strip() == _AMD:
                cards.append(card)  # the others are a card's connectors
    return tuple(sorted(cards, key=lambda card: int(card.removeprefix("card"))))


def open_sources(sys: Path) -> tuple[list[GpuMetricsSource], Mapping[str, str]]:
    """Return a source for each AMD GPU with a readable table, and the reason for each other one. Never raises."""
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
