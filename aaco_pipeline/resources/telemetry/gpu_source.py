"""What the readings of a GPU have in common, whoever made it: when they were taken, how many are kept, why they ended.

The makers' own ways are `aaco_pipeline.resources.telemetry.gpu_metrics` (AMD) and
`aaco_pipeline.resources.telemetry.nvml` (NVIDIA).
"""

import time
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

Reading = TypeVar("Reading")

#: The firmware's own averages move about this often; reading sooner tells nothing new.
GPU_PERIOD_NS: Final = 100_000_000
#: Readings kept of one device: above half an hour at the shortest period. Beyond it every second one goes.
READING_LIMIT: Final = 20_000


class GpuSource(ABC, Generic[Reading]):
    """One device whose readings are kept here, with their times: a source of the sampler without columns of its own."""

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
        """One reading. Raises one of UNREADABLE, with why in `failure`, when the device cannot be read any more."""

    @abstractmethod
    def recording(self) -> dict[str, Any]:
        """What was read, for a JSON document."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the device; what was read stays."""

    def read(self) -> tuple[int, ...]:
        """Take one reading. Raises what stands in UNREADABLE, and keeps why in `failure`, when that cannot be done."""
        if self._due_in:
            self._due_in -= 1
            return ()
        self._due_in = self._every - 1
        now = time.monotonic_ns()
        reading = self._taken()
        self._times.append(now)
        self._readings.append(reading)
        if len(self._times) >= self._limit:
            # The counters are cumulative: what is left is a true sampling at twice the period, and so is what follows
            # as long as the reading just taken, the last of an even number, is among those that go.
            del self._times[1::2], self._readings[1::2]
            self._every *= 2
        return ()

    def forget(self) -> None:
        """Drop the readings taken so far: they were trials of what one costs."""
        self._times.clear()
        self._readings.clear()

    def _kept(self) -> dict[str, Any]:
        """The part of the recording that all devices share; the times are on CLOCK_MONOTONIC."""
        return {
            "device": self.device,
            "period_ns": self.period_ns and self.period_ns * self._every,
            "failure": self.failure,
            "times_ns": list(self._times),
        }
