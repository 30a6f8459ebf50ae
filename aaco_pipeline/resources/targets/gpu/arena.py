"""Where a call's buffers lie in one piece of device memory, and the canary bands around them. All drawn from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: What a driver's own allocations are aligned to; the same in every layout.
ALIGNMENT: Final = 256
#: The least band between two buffers, and before the first and after the last.
BAND_BYTES: Final = 1 << 20
_MOST_STEPS: Final = 1024
_MOST_DECOYS: Final = 3


@dataclass(frozen=True)
class Arena:
    """Offsets of buffers in the order given, bands as (offset, bytes), and the size of all. Bands fill every gap.

    `decoys` is how many copies of the module are loaded before the one that is used, so that its code lies elsewhere.
    """

    offsets: tuple[int, ...]
    bands: tuple[tuple[int, int], ...]
    size: int
    decoys: int


def arrange(sizes: Sequence[int], seed: int) -> Arena:
    """Place buffers of `sizes` bytes: in an order, with paddings and behind decoy modules that `seed` decides."""
    generator = random.Random(seed)
    order = generator.sample(range(len(sizes)), len(sizes))
    offsets = [0] * len(sizes)
    bands = []
    end = 0
    for index in order:
        begin = _aligned(end + BAND_BYTES) + ALIGNMENT * generator.randrange(_MOST_STEPS)
        bands.append((end, begin - end))
        offsets[index] = begin
        end = begin + sizes[index]
    size = _aligned(end + BAND_BYTES)
    bands.append((end, size - end))
    return Arena(tuple(offsets), tuple(bands), size, generator.randint(0, _MOST_DECOYS))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
