"""How much of real kernel time has its work by shapes, and what the shapes of a million launches cost.

`python benchmarks/accuracy/operator_shapes.py` reads the traces of whole models in the shared data (found beside the checkout,
or where AACO_SHARED says) and prints for each how much of the linked kernel time outside collectives has operations or
bytes, a row of the roofline, and a bound. Then it generates a million launches below nested operators, of four hundred
distinct operators and shapes, and prints the CPU time of the table and of the kernels' work. It exits with 1 below nine
tenths of any trace's time, where a launch counts twice or not at all, or above three CPU seconds.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names, with_operators
from aaco_pipeline.analysis.model.launching_operators import launched, launching_operators
from aaco_pipeline.analysis.roofline.framework_work import framework_work
from aaco_pipeline.analysis.roofline.operators.launches import operator_launches
from aaco_pipeline.analysis.roofline.operators.shape_table import operator_shapes
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.formats import kineto
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.lake.validation import empty_table, to_contract

LAUNCHES: Final = 1_000_000
DISTINCT: Final = 200
THREADS: Final = 2
CPU_SECONDS: Final = 3.0
LEAST_SHARE: Final = 0.9
BF16: Final = "c10::BFloat16"
TRACES: Final = ("mi300x_qwen1.5_0.5b", "mi300x_sglang_qwen3_8b", "mi300x_resnet_train_ddp", "h100_qwen1.5_0.5b")


def report_trace(path: Path) -> bool:
    """Print the shares of one trace; whether all are large enough and nothing counts twice."""
    tables = kineto.read(path).tables
    dispatches, calls = tables["dispatches"], tables["api_calls"]
    owners = launching_operators(dispatches, calls).rename({"duration_ns": "total_ns"})
    kernels = with_operators(classify_names(tables["kernels"]), owners)
    found = operator_launches(dispatches, tables["memory_copies"], calls, tables["operator_inputs"], kernels)
    ceilings = to_contract("ceilings", spec_ceilings(tables["devices"]))
    caches = cache_bytes(tables["devices"])
    placed = placement(framework_work(found, dispatches, caches, ceilings), ceilings).roofline
    compute = kernels.filter(~pl.col("name").str.contains("(?i)nccl")).select("kernel_id")
    linked = launched(dispatches.join(compute, on="kernel_id", how="semi"), calls)
    total = int((linked.get_column("end_ns") - linked.get_column("start_ns")).sum())
    rows = operator_shapes(found, caches, ceilings)
    known = rows.filter(pl.col("flops").is_not_null() | pl.col("least_bytes").is_not_null())
    bound = placed.filter(pl.col("bound").is_not_null())
    shares = [
        frame.get_column(name).sum() / total
        for frame, name in ((known, "kernel_ns"), (placed, "duration_ns"), (bound, "duration_ns"))
    ]
    print(f"{path.name.removesuffix('.json.gz'):26}" + "".join(f" {share:9.1%}" for share in shares))
    return min(shares[:2]) >= LEAST_SHARE and rows.get_column("kernel_ns").sum() <= total


def generated(count: int) -> dict[str, pl.DataFrame]:
    """Launches of a linear layer's product, and of a function of elements, by turns, from two threads."""
    of_launch = pl.DataFrame({"at": range(count)}).with_columns(
        start=pl.col("at") * 1000, thread=pl.col("at") % THREADS, product=pl.col("at") // THREADS % 2 == 0
    )
    size = 64 * (1 + pl.col("at") // (2 * THREADS) % DISTINCT)
    name = pl.when("product").then(pl.lit("aten::mm")).otherwise(pl.lit("aten::mul"))
    nested = [
        of_launch.select("thread", start="start", end=pl.col("start") + 900, name=pl.lit("aten::linear"), domain=1),
        of_launch.select("thread", start=pl.col("start") + 100, end=pl.col("start") + 800, name=name, domain=1),
        of_launch.select(
            "thread",
            pl.col("start") + 200,
            pl.col("start").alias("end") + 250,
            pl.lit("hipLaunchKernel").alias("name"),
            domain=0,
        ),
    ]
    api_calls = pl.concat(nested).select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("call_id"),
        pl.lit(0, pl.Int32).alias("process_id"),
        pl.col("thread").cast(pl.Int64).alias("thread_id"),
        pl.when(pl.col("domain") == 1).then(pl.lit("operator")).otherwise(pl.lit("hip_runtime")).alias("domain"),
        "name",
        pl.when(pl.col("domain") == 0)
        .then(pl.int_range(pl.len()) - 2 * count + 1)
        .cast(pl.UInt64)
        .alias("correlation_id"),
        pl.col("start").alias("start_ns"),
        pl.col("end").alias("end_ns"),
    )
    shapes = pl.format("[[{}, 512], [512, 256]]", size)
    pair = pl.format("[[{}, 512], [{}, 512]]", size, size)
    both = [
        of_launch.select(
            (pl.col("at") + place * count).cast(pl.Int32).alias("call_id"),
            operator.alias("operator"),
            pl.when("product").then(shapes).otherwise(pair).alias("shapes"),
            pl.lit(json.dumps([BF16, BF16])).alias("types"),
            pl.lit("[[512, 1], [256, 1]]").alias("strides"),
            pl.lit('["", ""]').alias("values"),
        )
        for place, operator in enumerate((pl.lit("aten::linear"), name))
    ]
    dispatches = of_launch.select(
        pl.col("at").cast(pl.Int32).alias("dispatch_id"),
        (pl.col("at") % 100).cast(pl.Int32).alias("kernel_id"),
        (pl.col("at") + 1).cast(pl.UInt64).alias("correlation_id"),
        (pl.col("start") + 5000).alias("start_ns"),
        (pl.col("start") + 5700).alias("end_ns"),
        process_id=pl.lit(0, pl.Int32),
        device_id=pl.lit(0, pl.Int32),
        below_resolution=pl.lit(False),
    )
    kernels = pl.DataFrame({"kernel_id": range(100), "role": ["main"] * 100}, schema_overrides={"kernel_id": pl.Int32})
    return {
        "dispatches": to_contract("dispatches", dispatches),
        "memory_copies": empty_table("memory_copies"),
        "api_calls": to_contract("api_calls", api_calls),
        "operator_inputs": to_contract("operator_inputs", pl.concat(both)),
        "kernels": kernels,
    }


def report_cost() -> bool:
    """Print what a million launches cost; whether that is within the budget and each counted once."""
    tables = generated(LAUNCHES)
    devices = to_contract(
        "devices", pl.DataFrame([{"device_id": 0, "arch": "gfx942", "product": "AMD Instinct MI300X"}])
    )
    ceilings, caches = to_contract("ceilings", spec_ceilings(devices)), cache_bytes(devices)
    before = time.process_time()
    found = operator_launches(*tables.values())
    rows = operator_shapes(found, caches, ceilings)
    table_s = time.process_time() - before
    work = framework_work(found, tables["dispatches"], caches, ceilings)
    total_s = time.process_time() - before
    launches = int(rows.get_column("launch_count").sum())
    print(f"{LAUNCHES:,} launches, {rows.height} rows: {table_s:.2f} CPU s, with the kernels' work {total_s:.2f} CPU s")
    once = (
        launches == LAUNCHES == work.get_column("dispatch_count").sum() and rows.get_column("flops").null_count() == 0
    )
    return once and rows.height == 2 * DISTINCT and table_s <= CPU_SECONDS


def main() -> int:
    """Print both; 1 where a promise is not kept."""
    shared = Path(os.environ.get("AACO_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    print(f"{'trace':26} {'work':>9} {'roofline':>9} {'bound':>9}")
    paths = [shared / "kineto" / f"{name}.json.gz" for name in TRACES]
    kept = min([report_trace(path) for path in paths if path.is_file()], default=True)
    return 0 if report_cost() and kept else 1


if __name__ == "__main__":
    sys.exit(main())
