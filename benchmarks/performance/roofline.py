"""What it costs to come from counters to labels, from rows of a table and from a capture's files.

`python benchmarks/performance/roofline.py` makes a million counter rows in the shape of the table `counters` by repeating those of
a real capture (mixbench on MI200, found beside the checkout or where AACO_SHARED says) for more dispatches, once with
all its counters and once with only those that the formulas read, which is many more dispatches. It computes work,
roofline, bounds, figures, occupancy and the labels of kernels and session from them. Then it takes the files of one
folder (vcopy on MI300X) into an empty lake, through every stage up to the labels, each published. Imports are done
before. It prints CPU seconds and their ratio to the budgets, and exits with 1 above one.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.bottlenecks.classification import INPUTS, classify
from aaco_pipeline.analysis.bottlenecks.rule_file import RULES_FILE
from aaco_pipeline.analysis.bottlenecks.rules import Rules
from aaco_pipeline.analysis.kernels.statistics import kernel_stats
from aaco_pipeline.analysis.roofline.counter_work import needed_counters, work_of
from aaco_pipeline.analysis.roofline.derived_metrics import counted as counted_dispatches
from aaco_pipeline.analysis.roofline.derived_metrics import metrics_of
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.assets.classification import load_bottleneck_rules
from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture import discovery as detection
from aaco_pipeline.capture import merging as assembly
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.counters import plain_name
from aaco_pipeline.hardware.kernel_occupancy import kernel_occupancy
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.resources.ingestion import copy_capture

ROWS: Final = 1_000_000
ROWS_CPU_SECONDS: Final = 3.0
FOLDER_CPU_SECONDS: Final = 0.5
REPEATS: Final = 5


def read(folder: Path) -> dict[str, pl.DataFrame]:
    """The canonical tables of a capture's folder."""
    parts = detection.discover_runs(folder).runs[0].parts
    run = assembly.merge_parts([assembly.NamedReading(part.name, part.read(Limits())) for part in parts])
    return dict(run.tables)


def judged(tables: dict[str, pl.DataFrame], rules: Rules) -> pl.DataFrame:
    """Work, roofline, figures, occupancy and labels from canonical tables."""
    table = counted_dispatches(tables["counters"], tables["dispatches"], tables["devices"])
    counted = work_of(table)
    ceilings = spec_ceilings(tables["devices"])
    placed = placement(counted, ceilings)
    achieved = counted.select("dispatch_id", "achieved_occupancy_ratio")
    found = {
        "ceilings": ceilings,
        "roofline": placed.roofline,
        "resource_bounds": placed.bounds,
        "counter_metrics": metrics_of(table),
        "occupancy": kernel_occupancy(tables["dispatches"], tables["kernels"], tables["devices"], achieved),
        "kernel_stats": kernel_stats(tables["dispatches"]),
    }
    rows = {name: empty_table(name) for name in INPUTS} | tables | found
    return classify(rows, rules)


CONFIGS: Final = Path(__file__).parents[2] / "configs"


def taken_in(folder: Path) -> float:
    """CPU seconds from a folder's files to published labels, in an empty lake."""
    with tempfile.TemporaryDirectory() as place:
        lake, session = TraceLake(Path(place) / "lake"), new_session_id()
        start = time.process_time()
        with lake.receive_raw(session) as raw:
            copy_capture(detection.discover_runs(folder).runs[0], raw, None)
        materialize(Session(lake, session, CONFIGS))
        return time.process_time() - start


def repeated(tables: dict[str, pl.DataFrame], rows: int) -> dict[str, pl.DataFrame]:
    """The tables with at least `rows` counter rows: the same dispatches of the same kernels again, renumbered."""
    times = -(-rows // tables["counters"].height)
    count = tables["dispatches"].height

    def again(table: str) -> pl.DataFrame:
        numbered = [tables[table].with_columns(pl.col("dispatch_id") + count * i) for i in range(times)]
        return pl.concat(numbered).cast({"dispatch_id": pl.Int32}).rechunk()

    return tables | {table: again(table) for table in ("counters", "dispatches")}


def cpu_seconds(tables: dict[str, pl.DataFrame], rules: Rules) -> float:
    """CPU seconds of all threads for the labels: the best of a few."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        judged(tables, rules)
        found.append(time.process_time() - start)
    return min(found)


def main() -> int:
    """Measure both; 1 above a budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[3] / "shared")
    parser.add_argument("--folder", type=Path, default=beside / "counters")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    rules = load_bottleneck_rules(Path("configs") / RULES_FILE)
    whole = read(folder / "mixbench" / "MI200")
    plain = pl.col("counter").map_elements(plain_name, pl.String)
    only_read = whole["counters"].filter(plain.is_in(list(needed_counters())))
    slowest = 0.0
    for counters in (whole["counters"], only_read):
        many = repeated(whole | {"counters": counters}, arguments.rows)
        seconds = cpu_seconds(many, rules)
        slowest = max(slowest, seconds)
        print(
            f"{many['counters'].height} counter rows of {many['dispatches'].height} dispatches: {seconds:.2f} s CPU, "
            f"{seconds / ROWS_CPU_SECONDS:.2f} of the budget"
        )
    best = [taken_in(folder / "vcopy" / "MI300X_A1") for _ in range(REPEATS)]
    told = f"{best[0]:.2f} s CPU the first time and {min(best):.2f} s at best, {min(best) / FOLDER_CPU_SECONDS:.2f}"
    print(f"vcopy/MI300X_A1 from its files to published labels: {told} of the budget")
    within = slowest <= ROWS_CPU_SECONDS and min(best) <= FOLDER_CPU_SECONDS
    print("within the budgets" if within else "above a budget")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
