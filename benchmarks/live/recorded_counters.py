"""Compare counters from `aaco record --counters` with the known work of counted_kernels.cu or matrix_products.py.

    python -m benchmarks.live.recorded_counters FOLDER…

Operations within 0.5 %, bytes within 2 %; with --count-first so many executions of each kernel.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.roofline.counter_metrics import counted
from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture

#: What the programs print, by the column of `with_work`.
AMOUNTS: Final = {
    "fp16_operations": "valu_fp16_flops",
    "fp32_operations": "valu_fp32_flops",
    "fp64_operations": "valu_fp64_flops",
    "dram_read_bytes": "fabric_read_bytes",
    "dram_write_bytes": "fabric_write_bytes",
    "shared_bytes": "lds_bytes",
}
#: True work times this is what is counted, and docs/counters.md says why.
KNOWN: Final = {("multiply_adds_half", "fp16_operations"): 2.0, ("sparse_stream", "dram_read_bytes"): 2.0}
MATRIX: Final = ("matrix_fp64_flops", "matrix_xf32_flops", "matrix_fp16_flops", "matrix_bf16_flops", "matrix_fp8_flops")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare recorded counters with known work.")
    parser.add_argument("folders", type=Path, nargs="+")
    good = True
    for folder in parser.parse_args().folders:
        with tempfile.TemporaryDirectory(prefix="aaco-counters-") as scratch:
            good &= judge(folder, TraceLake(Path(scratch) / "lake"))
    return 0 if good else 1


def judge(folder: Path, lake: TraceLake) -> bool:
    """Return whether every amount of a recording is right; each that was looked at is printed."""
    session = new_session_id()
    (run,) = discover_runs(folder).runs
    with lake.receive_raw(session) as raw:
        copy_capture(run, raw, None)
    capture = open_capture(lake.raw(session))
    tables = capture.tables()
    print(f"{folder}")
    for item in capture.evidence("trace"):
        if "counter" in item.item:
            print(f"  {item.item}: {item.status}, {item.rows} rows{f', {item.reason}' if item.reason else ''}")
    first = json.loads((folder / "capture.json").read_text())["request"]["count_first"]
    if first is not None:
        return _first_ones(tables, first)
    work = counted(tables["counters"], tables["dispatches"], tables["devices"])
    names = tables["kernels"].select("kernel_id", kernel="name")
    rows = work.filter(pl.col("dispatch_id").is_not_null()).join(names, on="kernel_id", how="left").sort("dispatch_id")
    document = json.loads((folder / "run_1" / "stdout_tail").read_text())
    found = _products(rows, document) if "products" in document else _kernels(rows, document)
    good = True
    for what, amount, true, seen, allowed in found:
        fits = seen is not None and abs(seen - true) <= allowed
        good &= fits
        ratio = "" if not true or seen is None else f"  {seen / true:.4f}"
        print(f"  {'ok ' if fits else 'OFF'} {what} {amount}: {seen} of {true:.0f}{ratio}")
    return good


def _kernels(rows: pl.DataFrame, document: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float | None, float]]:
    """What, amount, true and counted value, and how far they may be apart, of counted_kernels.cu."""
    for one, row in zip(document["kernels"], rows.iter_rows(named=True), strict=True):
        name = one["kernel"]
        assert name in row["kernel"], (name, row["kernel"])
        for key, column in AMOUNTS.items():
            if key in one:
                true = one[key] * KNOWN.get((name, key), 1.0)
                allowed = 0.005 * true if "operations" in key else 0.02 * (true or document["stream_bytes"])
                yield name, key, true, row[column], allowed
        if {"l2_read_bytes", "l2_write_bytes"} <= set(one) and name != "sparse_stream":
            true = one["l2_read_bytes"] + one["l2_write_bytes"]
            yield name, "l2_bytes", true, row["l2_bytes"], 0.02 * true


def _products(rows: pl.DataFrame, document: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float | None, float]]:
    """The same of matrix_products.py: of each format all that its product's kernels did."""
    for one, column in zip(document["products"], MATRIX, strict=True):
        true = one["operations"]
        yield one["format"], column, true, float(rows.get_column(column).fill_null(0).sum()), 0.005 * true


def _first_ones(tables: Mapping[str, pl.DataFrame], first: int) -> bool:
    """Return whether as many executions of every kernel of the trace were counted as asked for, each at a dispatch."""
    dispatches = tables["dispatches"].select("dispatch_id", "kernel_id")
    ran = dispatches.group_by("kernel_id").agg(ran=pl.len())
    seen = tables["counters"].drop_nulls("dispatch_id").group_by("kernel_id").agg(pl.col("dispatch_id").n_unique())
    names = tables["kernels"].select("kernel_id", "name")
    both = ran.join(seen, on="kernel_id", how="left").join(names, on="kernel_id", how="left").sort("kernel_id")
    for name, times, counts in both.select("name", "ran", "dispatch_id").iter_rows():
        print(f"  {'ok ' if counts == min(times, first) else 'OFF'} {name}: {counts} of {times} executions")
    return bool((both["dispatch_id"] == both["ran"].clip(upper_bound=first)).fill_null(False).all())


if __name__ == "__main__":
    sys.exit(main())
