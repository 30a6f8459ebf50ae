"""Thresholds that several halls and the bottleneck rules decide by, each stated once.

A threshold that one module alone uses stands in that module; those of a single rule stand in the rules' file.
"""

from collections.abc import Mapping
from typing import Final

#: A kernel shorter than this is about as long as its launch, which no roof describes: a micro-kernel, as earlier
#: tools called it.
LAUNCH_SIZED_NS: Final = 10_000
#: From this share of the nearest roof on, the roof limits; below it no resource explains the time. As in Nsight
#: Compute's speed-of-light rule.
AT_A_ROOF: Final = 0.60
#: A second resource that needed at least this share of the first one's time limits as much (the same rule: less than
#: 10 % apart is balanced).
BALANCED: Final = 0.90
#: By the name under which a rule refers to them.
THRESHOLDS: Final[Mapping[str, float]] = {
    "launch_sized_ns": LAUNCH_SIZED_NS,
    "at_a_roof": AT_A_ROOF,
    "at_two_roofs": BALANCED * AT_A_ROOF,
}
