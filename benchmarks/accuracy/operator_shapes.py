"""Share of linked kernel time whose work follows from operator shapes.

Exits with 1 below 90 % of any trace's time, or when a launch counts twice or not at all.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names, with_operators
from aaco_pipeline.analysis.model.launching_operators import launched, launching_operators
from aaco_pipeline.analysis.roofline.framework_work import framework_work, operator_launches, operator_shapes
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.formats import kineto
from aaco_pipeline.hardware.ceilings import spec_ceilings
from aaco_pipeline.hardware.device_facts import cache_bytes
from aaco_pipeline.lake.validation import to_contract
from benchmarks.common import SHARED

LEAST_SHARE: Final = 0.9
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


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{'trace':26} {'work':>9} {'roofline':>9} {'bound':>9}")
    paths = [SHARED / "kineto" / f"{name}.json.gz" for name in TRACES]
    kept = min([report_trace(path) for path in paths if path.is_file()], default=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
