"""Thresholds that several halls and the bottleneck rules decide by, each stated once.

A threshold that one module alone uses stands in that module; those of a single rule stand in the rules' file.
"""

from typing import Final

#: A kernel shorter than this is about as long as its launch, which no roof describes: a micro-kernel, as earlier
#: tools called it.
LAUNCH_SIZED_NS: Final = 10_000
#: From this share of the nearest roof on, the roof limits; below it no resource explains the time. As in Nsight
#: Compute's speed-of-light rule.
AT_A_ROOF: Final = 0.60
#: Where the work is the least that shapes imply, a memory roof limits from here on: two thirds of the above, since
#: shapes leave out the lines that a plain store fetches first.
AT_A_ROOF_BY_SHAPES: Final = 0.40
#: The same for an operator that reads in order: where no address depends on data, hardware fetches ahead, and latency
#: is not what holds it up. A quarter of what the best mix of reads and writes reaches, others of the host using it too.
AT_A_ROOF_STREAMING: Final = 0.25
#: How uncertain a share of a roof is: by so much do benchmarks of one roof and the clock of the moment differ (an
#: MI210's reads reach 1,389 GB/s in one benchmark and 1,506 in another; its clock is 1.55 to 1.70 GHz). Within it of
#: the threshold both what the roof and what its absence would make the limit are named.
ROOF_UNCERTAINTY: Final = 0.10
#: A second resource that needed at least this share of the first one's time limits as much (the same rule of Nsight
#: Compute: less than 10 % apart is balanced).
BALANCED: Final = 0.90
#: Of a session of which the machine disturbed a larger share of iterations, figures tell of the machine: no comparison
#: takes it. Every third iteration moves a median.
MOST_DISTURBED: Final = 0.30
#: A unit at work for this share of the time is the longest, or within the above of it, whatever was not counted: no
#: other can have needed more than all of the time.
NOTHING_ELSE_NEEDS_LONGER: Final = BALANCED
