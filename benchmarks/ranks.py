"""Time the matching of collectives, the alignment of clocks and the waits on an invented job of many ranks.

Every rank reads a clock of its own with an offset and a drift, arrives when it likes, and runs four compute kernels
beside each collective; one rank is late on purpose. Run as `python benchmarks/ranks.py --ranks 8 64`; it prints CPU
seconds by step and time per part against the first size, and exits with 1 when an offset is not within its uncertainty,
a late rank is not found, or a limit is exceeded.
"""

import argparse
import time
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline import collectives
from aaco_pipeline.analysis.timeline.activities import CATEGORIES
from aaco_pipeline.analysis.timeline.ranks import rank_clocks
from aaco_pipeline.lake.validation import to_contract

#: CPU seconds allowed, by number of parts (ranks times collectives).
LIMITS: Final = {640_000: 10.0}
#: How much more a part may take at a larger size than at the first one, which the processor's cache holds.
FLATNESS: Final = 3.0
_PERIOD_NS: Final = 1_000_000
_LATE: Final = 1
_LATE_NS: Final = 250_000
_COMPUTE: Final = 4
_STEPS: Final = ("described", "matched", "clocks", "waits")
Numbers = npt.NDArray[np.int64]


def invented(ranks: int, count: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, Numbers]:
    """Activities, markers and processes of a job, and the true offsets at time zero."""
    random = np.random.default_rng(7)
    starts = np.arange(count) * _PERIOD_NS + random.integers(0, 100_000, (ranks, count))
    starts[_LATE] += _LATE_NS
    ends = starts.max(axis=0) + 50_000 + random.integers(-500, 501, (ranks, count))
    offset = random.integers(-(10**12), 10**12, ranks)
    offset[0] = 0
    drift = np.where(np.arange(ranks) % 2, 1e-6, 0.0)

    def clocked(true: Numbers) -> Numbers:
        return true - offset[:, None] - np.rint(true * drift[:, None]).astype(np.int64)

    process = np.repeat(np.arange(ranks), count)
    kernels = _kernels(process, clocked(starts).ravel(), clocked(ends).ravel(), "communication")
    computing = [
        _kernels(
            process, kernels["start_ns"].to_numpy() + 20_000 * i, kernels["start_ns"].to_numpy() + 20_000 * i + 9_000
        )
        for i in range(_COMPUTE)
    ]
    activities = pl.concat([kernels, *computing]).with_columns(activity_id=pl.int_range(pl.len(), dtype=pl.Int32))
    markers = kernels.select(
        "process_id",
        marker_id=pl.int_range(pl.len()),
        thread_id="call_thread_id",
        name=pl.lit("record_param_comms"),
        start_ns=pl.col("call_start_ns") - 100,
        end_ns=pl.col("call_start_ns") + 100,
        collective=pl.lit("allreduce"),
        communicator=pl.lit("0"),
        group_size=pl.lit(ranks),
        size_bytes=pl.lit(1 << 20),
    )
    processes = pl.DataFrame({"process_id": range(ranks), "rank": range(ranks)}).with_columns(
        host=pl.format("host{}", "rank")
    )
    return activities, to_contract("markers", markers), to_contract("processes", processes), offset


def _kernels(process: Numbers, start: Numbers, end: Numbers, category: str = "compute") -> pl.DataFrame:
    return pl.DataFrame({"process_id": process, "start_ns": start, "end_ns": end}).select(
        pl.col("process_id").cast(pl.Int32),
        "start_ns",
        "end_ns",
        device_id=pl.col("process_id").cast(pl.Int32),
        activity_kind=pl.lit("dispatch"),
        category=pl.lit(category, CATEGORIES),
        call_thread_id=pl.lit(1, pl.Int64),
        call_start_ns=pl.col("start_ns") - 5_000,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--collectives", type=int, default=10_000)
    options = parser.parse_args()
    failed = False
    first = 0.0
    for ranks in options.ranks:
        activities, markers, processes, offsets = invented(ranks, options.collectives)
        calls = to_contract("api_calls", pl.DataFrame())
        domains = pl.DataFrame({"domain": ["boottime"] * ranks, "uncertainty_ns": [0, *[None] * (ranks - 1)]})
        clock = [time.process_time()]
        described = collectives.parts(activities, markers, calls)
        clock.append(time.process_time())
        matched = collectives.matched(described)
        clock.append(time.process_time())
        clocks = rank_clocks(processes, domains, matched)
        clock.append(time.process_time())
        found = collectives.collectives(matched, clocks, activities)
        clock.append(time.process_time())
        total = clock[-1] - clock[0]
        each = total / found.height
        first = first or each
        failed |= total > LIMITS.get(found.height, float("inf")) or each > FLATNESS * first
        failed |= not _right(found, clocks, offsets)
        lengths = [float(length) for length in np.diff(clock)]
        steps = ", ".join(f"{name} {length:.2f}" for name, length in zip(_STEPS, lengths, strict=True))
        print(
            f"{ranks} ranks x {options.collectives} collectives: {total:.2f} s CPU, {each * 1e6:.2f} us a part "
            f"({each / first:.2f} of the first); {steps}"
        )
        print(f"   largest uncertainty {clocks.get_column('uncertainty_ns').fill_null(0).to_numpy().max()} ns")
    print("failed" if failed else "kept")
    return int(failed)


def _right(found: pl.DataFrame, clocks: pl.DataFrame, offsets: Numbers) -> bool:
    """Whether every offset is within its uncertainty, and the late rank, and no other, the straggler."""
    known = clocks.filter(pl.col("offset_ns").is_not_null())
    if known.height < len(offsets):
        return False
    # A drifting offset is put back to the true time zero, when the clock read minus its offset.
    back = (-offsets - clocks.get_column("anchor_ns").fill_null(0).to_numpy()) * clocks.get_column(
        "drift_ratio"
    ).fill_null(0).to_numpy()
    error = np.abs(clocks.get_column("offset_ns").to_numpy() + back - offsets)
    late = found.filter(pl.col("is_straggler"))
    everyone = late.get_column("process_id").unique().to_list() == [_LATE]
    return bool((error <= clocks.get_column("uncertainty_ns").to_numpy() + 2).all()) and (
        everyone and late.height == found.get_column("collective_id").n_unique()
    )


if __name__ == "__main__":
    raise SystemExit(main())
