"""How much of real kernel time has its launching operator, and what attributing a million dispatches costs.

`python benchmarks/operator_kernels.py` reads every trace with framework operators in the shared data (found beside the
checkout, or where AACO_SHARED says). It prints for each the share of dispatches whose launch was recorded, and of
dispatches and of kernel time that have an operator. What is launched outside every operator (a replayed graph, a kernel
of a program's own) has none. Then it generates a million dispatches below nested operators, and as many of a compiled
model, and prints the CPU time of both ways. It exits with 1 where time is not conserved, to the nanosecond, or above
the budget.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names
from aaco_pipeline.analysis.model.attribution import DeviceTrace, map_device_kernels
from aaco_pipeline.analysis.model.launching_operators import operator_kernels, operators_of_dispatches
from aaco_pipeline.analysis.timeline.activities import kernel_stats
from aaco_pipeline.formats import kineto
from aaco_pipeline.lake.validation import to_contract

DISPATCHES: Final = 1_000_000
BLOCKS: Final = 100
LAUNCHES_PER_ITERATION: Final = 4 * BLOCKS
THREADS: Final = 4
CPU_SECONDS: Final = 10.0
FOLDERS: Final = ("kineto", "gpu_sessions/traces")


def report_traces(shared: Path) -> bool:
    """Print the shares of each real trace; whether time is conserved in all."""
    print(f"{'trace':36} {'dispatches':>10} {'launch known':>12} {'attributed':>10} {'of linked':>9} {'of time':>8}")
    conserved = True
    for path in sorted(path for folder in FOLDERS for path in (shared / folder).glob("*.json.gz")):
        tables = kineto.read(path).tables
        dispatches, calls = tables["dispatches"], tables["api_calls"]
        parts = operators_of_dispatches(dispatches, calls)
        rows = operator_kernels(parts)
        conserved &= is_conserved(rows, dispatches)
        launches = calls.filter(pl.col("domain") != "operator").select("process_id", "correlation_id").drop_nulls()
        linked = dispatches.join(launches, on=["process_id", "correlation_id"], how="semi").height
        known = parts.filter(pl.col("match") == "correlation").height
        total = int(rows.get_column("total_ns").sum())
        of_time = int(rows.filter(pl.col("match") == "correlation").get_column("total_ns").sum())
        print(
            f"{path.name.removesuffix('.json.gz'):36} {dispatches.height:10} {share(linked, dispatches.height):>12} "
            f"{share(known, dispatches.height):>10} {share(known, linked):>9} {share(of_time, total):>8}"
        )
    return conserved


def share(part: int, whole: int) -> str:
    """A percentage; a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "–"


def is_conserved(rows: pl.DataFrame, dispatches: pl.DataFrame) -> bool:
    """Whether time and count of every kernel are those of its statistics."""
    again = rows.group_by("kernel_id").agg(pl.col("dispatch_count", "total_ns").sum()).sort("kernel_id")
    return again.equals(kernel_stats(dispatches).select("kernel_id", "dispatch_count", "total_ns"))


def generated(count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Dispatches of a hundred kernels in iterations, each launched 100 ns after the one before from threads by turns.

    Every launch lies in an operator of its own, and each hundred of a thread's in an outer one.
    """
    number = pl.int_range(count, eager=True)
    thread, place = number % THREADS, number // THREADS
    dispatches = pl.DataFrame(
        {
            "dispatch_id": number,
            "correlation_id": number,
            "start_ns": 1_000_000 + number * 100,
            "end_ns": 1_000_050 + number * 100,
            "kernel_id": number % BLOCKS,
            "iteration": number // LAUNCHES_PER_ITERATION,
        }
    ).with_columns(process_id=0, device_id=0, self_ns=pl.lit(50), below_resolution=pl.lit(False))
    frame = pl.DataFrame({"thread_id": thread, "place": place, "correlation_id": number})
    start = pl.col("place") * 100
    calls = [
        frame.select(
            "thread_id", "correlation_id", name=pl.lit("hipLaunchKernel"), start_ns=start + 10, end_ns=start + 20
        ),
        frame.select("thread_id", name=pl.lit("aten::mm"), start_ns=start + 5, end_ns=start + 40),
        frame.filter(pl.col("place") % 100 == 0).select(
            "thread_id", name=pl.lit("aten::linear"), start_ns=start, end_ns=start + 10_000
        ),
    ]
    domains = ("hip_runtime", "operator", "operator")
    both = pl.concat(
        [one.with_columns(domain=pl.lit(domain)) for one, domain in zip(calls, domains, strict=True)], how="diagonal"
    ).with_columns(process_id=0)
    return to_contract("dispatches", dispatches), to_contract("api_calls", both.with_row_index("call_id"))


def compiled(dispatches: pl.DataFrame, calls: pl.DataFrame) -> tuple[DeviceTrace, pl.DataFrame]:
    """The dispatches as those of a chain of products, sums and activations, each block of which is one kernel."""
    names = pl.Series("name", [f"mlir_dot_add_relu_kernel_{number}" for number in range(BLOCKS)])
    kernels = classify_names(names).select("short_name", "family", "role").with_columns(names, fingerprint=pl.lit("f"))
    kernels = kernels.with_row_index("kernel_id").with_columns(family_source=pl.lit("name"))
    markers = pl.DataFrame(
        {"marker_id": [0], "process_id": 0, "thread_id": 0, "name": "n0", "start_ns": 0, "end_ns": 50}
    )
    nodes = [
        (f"n{3 * block + part}", op_type, [f"t{3 * block + part - 1}", "w"], [f"t{3 * block + part}"])
        for block in range(LAUNCHES_PER_ITERATION)
        for part, op_type in enumerate(("MatMul", "Add", "Relu"))
    ]
    graph = pl.DataFrame(nodes, schema=["name", "op_type", "inputs", "outputs"], orient="row").with_columns(
        domain=pl.lit("ai.onnx"), parent_node_id=pl.lit(None, pl.Int32), body=pl.lit(None, pl.String)
    )
    trace = DeviceTrace(dispatches, to_contract("kernels", kernels), calls, to_contract("markers", markers))
    return trace, graph.with_row_index("node_id")


def timed(title: str, dispatches: pl.DataFrame, attribute: Callable[[], pl.DataFrame]) -> bool:
    """Print the CPU time of an attribution and its attributed share; whether it conserves time within the budget."""
    start, begun = time.process_time(), time.perf_counter()
    rows = attribute()
    seconds, wall = time.process_time() - start, time.perf_counter() - begun
    found = int(rows.filter(pl.col("match") != "unattributed").get_column("dispatch_count").sum())
    print(
        f"{title}: {dispatches.height:,} dispatches, {share(found, dispatches.height)} attributed: "
        f"{seconds:.2f} s CPU, {wall:.2f} s"
    )
    return seconds <= CPU_SECONDS and is_conserved(rows, dispatches)


def main() -> int:
    """Run every report; 1 where time is lost or a budget is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[2] / "shared")
    parser.add_argument("--shared", type=Path, default=beside)
    parser.add_argument("--dispatches", type=int, default=DISPATCHES)
    options = parser.parse_args()
    results = [report_traces(options.shared)]
    print("conserved to the nanosecond in all" if results[0] else "time is lost")
    dispatches, calls = generated(options.dispatches)
    results.append(
        timed(
            "framework operators, generated",
            dispatches,
            lambda: operator_kernels(operators_of_dispatches(dispatches, calls)),
        )
    )
    trace, graph = compiled(dispatches, calls)
    results.append(
        timed("compiled model, generated", dispatches, lambda: map_device_kernels(trace, graph).operator_kernels)
    )
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
