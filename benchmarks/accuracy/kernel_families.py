"""Accuracy of kernel families that names alone give, beside launching operators, on the shared corpus of names.

FBGEMM's operators and Inductor's generated kernels say nothing about a name and are scored apart. Exits with 1 below a
target.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names
from benchmarks.common import SHARED

SEED: Final = 20261121
LEAST_BY_NAME: Final = 0.97
LEAST_BY_TIME: Final = 0.99
LEAST_DECODED: Final = 0.95


def corpus(folder: Path) -> pl.DataFrame:
    """Described rows of the corpus with `label`, `held_out`, `independent` and the time in microseconds."""
    rows = pl.read_csv(folder / "kernel_names.csv.gz", infer_schema_length=None).rename({"op_family": "label"})
    names = np.array(sorted(rows["name"].unique()), dtype=object)
    held_out = names[np.random.default_rng(SEED).permutation(len(names))[: len(names) // 3]]
    operator = pl.col("parent_op").fill_null("")
    return classify_names(rows).with_columns(
        held_out=pl.col("name").is_in(list(held_out)),
        independent=~operator.str.contains(r"\bfb(gemm)?::|fbgemm_gpu") & (operator != pl.col("name")),
    )


def accuracy(rows: pl.DataFrame) -> tuple[int, float, int, float, float]:
    """Rows and their accuracy, distinct names and theirs, and that of the time; a missing family is an error.

    A name counts with the label it spent most time under.
    """
    right = rows.with_columns(right=(pl.col("family") == pl.col("label")).fill_null(False))
    by_label = right.group_by("name", "label").agg(pl.col("total_us").sum(), pl.col("right").first())
    names = by_label.sort("total_us", "label", descending=True).unique("name", keep="first")
    time_right = float((right["total_us"] * right["right"]).sum()) / max(float(right["total_us"].sum()), 1e-9)
    return right.height, _mean(right["right"]), names.height, _mean(names["right"]), time_right


def _mean(values: pl.Series) -> float:
    """The share of true values."""
    return float(values.sum()) / max(len(values), 1)


def report_accuracy(rows: pl.DataFrame) -> bool:
    """Print accuracies for all labels and for those independent of the name; whether the latter reach the targets."""
    scored = rows.filter(pl.col("label").is_not_null(), pl.col("main_frac") >= 0.5)
    reached = True
    for labels, part in (("all labels", scored), ("independent labels", scored.filter("independent"))):
        for split, chosen in (
            ("written for", part.filter(~pl.col("held_out"))),
            ("held out", part.filter("held_out")),
            ("together", part),
        ):
            count, by_row, names, by_name, by_time = accuracy(chosen)
            print(
                f"{labels:20} {split:12} {count:5} rows {by_row:7.2%}   {names:4} names {by_name:7.2%}"
                f"   by time {by_time:7.2%}"
            )
            if labels == "independent labels":
                reached &= by_name >= LEAST_BY_NAME and by_time >= LEAST_BY_TIME
    return reached


def report_decoding(rows: pl.DataFrame) -> bool:
    """Print the share of Tensile and igemm names whose number format and tile were read; whether they reach it."""
    names = rows.unique("name").filter(pl.col("name").str.contains(r"^(Cijk_|igemm_)"))
    reached = True
    for prefix in ("Cijk_", "igemm_"):
        part = names.filter(pl.col("name").str.starts_with(prefix))
        shares = {column: _mean(part[column].is_not_null()) for column in ("dtype", "tile", "architecture")}
        print(f"{prefix:8} {part.height:4} names  " + "  ".join(f"{key} {share:7.2%}" for key, share in shares.items()))
        reached &= min(shares["dtype"], shares["tile"]) >= LEAST_DECODED
    return reached


def main() -> int:
    """Run every report; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=SHARED / "kernels")
    rows = corpus(parser.parse_args().folder)
    results = [report_accuracy(rows), report_decoding(rows)]
    print("\ntargets", "reached" if all(results) else "missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
