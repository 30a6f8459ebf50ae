"""Thresholds that several parts of the analysis and the bottleneck rules share, each stated once.

A threshold used by one module alone is in that module; those of a single rule are in the rules' file.
"""

from typing import Final

#: A kernel shorter than this takes about as long as its launch, which no roof describes: a micro-kernel.
LAUNCH_SIZED_NS: Final = 10_000
#: From this share of the nearest roof on, the roof limits; below it no resource explains the time. The same as Nsight
#: Compute's speed-of-light rule.
AT_A_ROOF: Final = 0.60
#: Where the work is the least that shapes imply, a memory roof limits from here on: two thirds of the above, since
#: shapes leave out the lines that a plain store fetches first.
AT_A_ROOF_BY_SHAPES: Final = 0.40
#: The same for an operator that reads in order: where no address depends on data, hardware prefetches, and latency does
#: not limit. A quarter of what the best mix of reads and writes reaches while others use the host, too.
AT_A_ROOF_STREAMING: Final = 0.25
#: The uncertainty of a share of a roof: benchmarks of one roof and the current clock differ by this much (an MI210's
#: reads reach 1,389 GB/s in one benchmark and 1,506 in another; its clock is 1.55 to 1.70 GHz). Within it of the
#: threshold, both the limit by the roof and the limit without it are named.
ROOF_UNCERTAINTY: Final = 0.10
#: A second resource that needed at least this share of the first one's time limits as much (the same rule of Nsight
#: Compute: less than 10 % apart is balanced).
BALANCED: Final = 0.90
#: If the machine disturbed a larger share of a session's iterations, its figures describe the machine: no comparison
#: uses it. Every third iteration moves a median.
MOST_DISTURBED: Final = 0.30
#: A unit busy for this share of the time is the longest, or within the above of it, whatever was not counted: no other
#: can have needed more than all of the time.
NOTHING_ELSE_NEEDS_LONGER: Final = BALANCED
