"""Thresholds shared by several parts of the analysis and the bottleneck rules.

A threshold used by only one module is defined there; those of a single rule are in the rules' file.
"""

from typing import Final

#: A kernel shorter than this takes about as long as its launch, which no roof describes: a micro-kernel.
LAUNCH_SIZED_NS: Final = 10_000
#: At or above this fraction of the nearest roof, the roof is the limit; below it no resource explains the time. Same as
#: Nsight Compute's speed-of-light rule.
AT_A_ROOF: Final = 0.60
#: A memory roof is the limit from here on if the work is the minimum that shapes imply: two thirds of the above, since
#: shapes omit the lines that a plain store fetches first.
AT_A_ROOF_BY_SHAPES: Final = 0.40
#: The same for operators that read in order: no address depends on data, so hardware prefetches and latency is no
#: limit. A quarter of the best read/write mix measured while others use the host too.
AT_A_ROOF_STREAMING: Final = 0.25
#: Uncertainty of a roof share: benchmarks of one roof, and the current clock, vary by this much (an MI210 reads at
#: 1,389 GB/s in one benchmark and 1,506 in another; its clock is 1.55 to 1.70 GHz). Within this distance of the
#: threshold, both the roof limit and the limit without it are named.
ROOF_UNCERTAINTY: Final = 0.10
#: A second resource that needed at least this fraction of the first one's time is an equal limit (the same rule of
#: Nsight Compute: less than 10 % apart is balanced).
BALANCED: Final = 0.90
#: If the machine disturbed a larger fraction of a session's iterations, its figures describe the machine and no
#: comparison uses it. One disturbed iteration in three moves a median.
MOST_DISTURBED: Final = 0.30
#: A unit busy for this fraction of the time is the longest, or within the above of it, even with uncounted units: no
#: other can have needed more than the total time.
NOTHING_ELSE_NEEDS_LONGER: Final = BALANCED
