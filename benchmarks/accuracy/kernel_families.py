"""How often a kernel's name alone gives the family of its launching operator, on the shared corpus of names.

FBGEMM's operators and Inductor's generated kernels say nothing about a name and are scored apart. Exits with 1 below a
target or above the time budget.
"""

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names, operator_family, with_operators
from benchmarks.common import SHARED

SEED: Final = 20261121
LEAST_BY_NAME: Final = 0.97
LEAST_BY_TIME: Final = 0.99
LEAST_DECODED: Final = 0.95
CPU_SECONDS: Final = 1.0
DISTINCT_NAMES: Final = 10_000
#: Above and below these shares of launches a kernel is the main one of its operator, or a helper.
MAIN_SHARE: Final = 0.9
HELPER_SHARE: Final = 0.1


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


def report_confusion(rows: pl.DataFrame) -> None:
    """Print how labels and families meet in rows with independent labels, and the errors of all labels."""
    scored = rows.filter(pl.col("label").is_not_null(), pl.col("main_frac") >= 0.5)
    table = (
        scored.filter("independent")
        .with_columns(pl.col("family").fill_null("none"))
        .pivot("family", index="label", values="name", aggregate_function="len", sort_columns=True)
        .sort("label")
        .fill_null(0)
    )
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=220, tbl_hide_dataframe_shape=True, fmt_str_lengths=90):
        print("\nrows by label (down) and family (across), independent labels\n", table)
        wrong = scored.filter(pl.col("family").ne_missing(pl.col("label")))
        columns = ("label", "family", "independent", "held_out")
        print(
            "\nerrors, all labels\n",
            wrong.group_by(*columns, "short_name").agg(us=pl.col("total_us").sum()).sort(*columns, "short_name"),
        )


def report_roles(rows: pl.DataFrame) -> None:
    """Print how roles meet the share of launches in which a kernel is the longest of its operator."""
    told = rows.filter(
        pl.col("label").is_not_null(),
        ~pl.col("source").str.starts_with("tl_csv"),
        (pl.col("main_frac") >= MAIN_SHARE) | (pl.col("main_frac") <= HELPER_SHARE),
    ).with_row_index("kernel_id")
    operators = told.select("kernel_id", operator="parent_op")
    print()
    for title, kernels in (("by name", told), ("with operators", with_operators(told, operators))):
        for kind, chosen, role in (
            ("longest", pl.col("main_frac") >= MAIN_SHARE, "main"),
            ("never longest", pl.col("main_frac") <= HELPER_SHARE, "auxiliary"),
        ):
            part = kernels.filter(chosen)
            print(f"role {title:15} {kind:14} {part.height:5} rows  {_mean(part['role'] == role):7.2%} {role}")


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


def report_cost(rows: pl.DataFrame) -> bool:
    """Print CPU time for many distinct names, made from the real ones by other numbers; whether it is in budget."""
    real = sorted(rows["name"].unique())
    names: dict[str, None] = {}
    for round_number in range(1, 200):
        for name in real:
            names[re.sub(r"(?<=[x ])\d+(?=[x,>])", str(round_number), name) + f"_v{round_number}"] = None
        if len(names) >= DISTINCT_NAMES:
            break
    chosen = pl.Series("name", list(names)[:DISTINCT_NAMES])
    start = time.process_time()
    first = classify_names(chosen)
    seconds = time.process_time() - start
    operators = sorted(rows["parent_op"].drop_nulls().unique())
    start = time.process_time()
    known = sum(operator_family(operator) is not None for operator in operators)
    operator_seconds = time.process_time() - start
    print(
        f"\n{len(chosen)} distinct names of {sum(map(len, chosen)) / len(chosen):.0f} characters: {seconds:.2f} s CPU"
    )
    print(f"{len(operators)} operators: {operator_seconds:.3f} s CPU, family of {known}")
    print(f"same again: {first.equals(classify_names(chosen))}")
    return seconds <= CPU_SECONDS


def main() -> int:
    """Run every report; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = SHARED
    parser.add_argument("--folder", type=Path, default=beside / "kernels")
    rows = corpus(parser.parse_args().folder)
    results = [report_accuracy(rows), report_decoding(rows), report_cost(rows)]
    report_roles(rows)
    report_confusion(rows)
    print("\ntargets", "reached" if all(results) else "missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
