"""What it costs to place kernels on the roofline, from counter rows and from a capture's files.

`python benchmarks/roofline.py` makes a million counter rows in the shape of the table `counters` by repeating those of
a real capture (mixbench on MI200, found beside the checkout or where AACO_SHARED says) for more dispatches, once with
all its counters and once with only those that the formulas read, which is many more dispatches. It computes work,
roofline and bounds from them, and then from the files of one folder (vcopy on MI300X), imports aside. It prints CPU
seconds and their ratio to the budgets, and exits with 1 above one.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.counter_work import needed_counters, work
from aaco_pipeline.analysis.roofline import Placement, placement
from aaco_pipeline.formats import assembly, detection
from aaco_pipeline.formats.reading import Limits
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.counter_formulas import plain_name

ROWS: Final = 1_000_000
ROWS_CPU_SECONDS: Final = 2.0
FOLDER_CPU_SECONDS: Final = 0.5
REPEATS: Final = 5


def read(folder: Path) -> dict[str, pl.DataFrame]:
    """The canonical tables of a capture's folder."""
    parts = detection.survey(folder).runs[0].parts
    run = assembly.assemble([assembly.NamedReading(part.name, part.read(Limits())) for part in parts])
    return dict(run.tables)


def place(tables: dict[str, pl.DataFrame]) -> Placement:
    """Work, roofline and bounds from canonical tables."""
    counted = work(tables["counters"], tables["dispatches"], tables["devices"])
    return placement(counted, spec_ceilings(tables["devices"]))


def repeated(tables: dict[str, pl.DataFrame], rows: int) -> dict[str, pl.DataFrame]:
    """The tables with at least `rows` counter rows: the same dispatches of the same kernels again, renumbered."""
    times = -(-rows // tables["counters"].height)
    count = tables["dispatches"].height

    def again(table: str) -> pl.DataFrame:
        numbered = [tables[table].with_columns(pl.col("dispatch_id") + count * i) for i in range(times)]
        return pl.concat(numbered).cast({"dispatch_id": pl.Int32}).rechunk()

    return tables | {table: again(table) for table in ("counters", "dispatches")}


def cpu_seconds(tables: dict[str, pl.DataFrame]) -> float:
    """CPU seconds of all threads for one placement: the best of a few."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        place(tables)
        found.append(time.process_time() - start)
    return min(found)


def main() -> int:
    """Measure both; 1 above a budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[2] / "shared")
    parser.add_argument("--folder", type=Path, default=beside / "counters")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    whole = read(folder / "mixbench" / "MI200")
    plain = pl.col("counter").map_elements(plain_name, pl.String)
    only_read = whole["counters"].filter(plain.is_in(list(needed_counters())))
    slowest = 0.0
    for counters in (whole["counters"], only_read):
        many = repeated(whole | {"counters": counters}, arguments.rows)
        seconds = cpu_seconds(many)
        slowest = max(slowest, seconds)
        print(
            f"{many['counters'].height} counter rows of {many['dispatches'].height} dispatches: {seconds:.2f} s CPU, "
            f"{seconds / ROWS_CPU_SECONDS:.2f} of the budget"
        )
    best = []
    for _ in range(REPEATS):
        start = time.process_time()
        place(read(folder / "vcopy" / "MI300X_A1"))
        best.append(time.process_time() - start)
    print(f"vcopy/MI300X_A1 from its files: {min(best):.2f} s CPU, {min(best) / FOLDER_CPU_SECONDS:.2f} of the budget")
    within = slowest <= ROWS_CPU_SECONDS and min(best) <= FOLDER_CPU_SECONDS
    print("within the budgets" if within else "above a budget")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
