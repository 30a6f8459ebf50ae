"""Which address ranges must be reserved so that every captured pointer stays valid."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.replay.capture import Region

#: What a page is where nothing else is known. ROCm's own granularity for virtual memory can be larger.
LEAST_GRANULARITY_BYTES: Final = 4096


@dataclass(frozen=True)
class Reservation:
    """One range of whole granules, and the regions that lie in it, in the order of their addresses."""

    base: int
    size: int
    regions: tuple[Region, ...]

    @property
    def end(self) -> int:
        return self.base + self.size


def plan(regions: Iterable[Region], granularity_bytes: int = LEAST_GRANULARITY_BYTES) -> tuple[Reservation, ...]:
    """Reservations that cover all regions: aligned, disjoint, in the order of their addresses.

    Regions that share a granule, overlap or touch are one reservation: a second one in the same granule would fail.
    UsageError when the granularity is no power of two of at least 4,096 bytes.
    """
    if granularity_bytes < LEAST_GRANULARITY_BYTES or granularity_bytes & (granularity_bytes - 1):
        raise UsageError(f"granularity {granularity_bytes}: give a power of two from {LEAST_GRANULARITY_BYTES} on")
    planned: list[Reservation] = []
    for region in sorted(regions, key=lambda one: (one.base, one.size)):
        base = region.base & -granularity_bytes
        end = -(-region.end // granularity_bytes) * granularity_bytes
        if planned and base <= planned[-1].end:
            last = planned[-1]
            planned[-1] = Reservation(last.base, max(last.end, end) - last.base, (*last.regions, region))
        else:
            planned.append(Reservation(base, end - base, (region,)))
    return tuple(planned)
