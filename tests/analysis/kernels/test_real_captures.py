"""Labels of real kernels: those of known work get the roof that their work implies, and one code gets one label.

No threshold was chosen by these captures: 0.60 and 0.90 are Nsight Compute's, and what the device achieves is its own
benchmark's.
"""

from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture
from tests.places import CONFIGS, SHARED

STAGES: Final = ("capture", "session_environment", "inference_run", "kernel_trace", "timeline", "roofline")
FLOAT2: Final = "HIP_vector_type<float, 2u>"
#: Two results of one instruction: the benchmark's rate of fp32 is without these.
PACKED: Final = (FLOAT2, "__half2")


@cache
def labels(relative: str, lakes: Path) -> pl.DataFrame:
    """name, total_ns, label, runner_up, bound, efficiency_ratio of the kernels of a capture below the shared folder."""
    place = SHARED / relative
    if not place.exists():
        pytest.skip(f"{place} is not there: the shared captures are not part of the repository")
    lake, session = TraceLake(lakes / relative.replace("/", "_")), new_session_id()
    (run,) = discover_runs(place).runs
    with lake.receive_raw(session) as folder:
        copy_capture(run, folder, place.name)
    materialize(Session(lake, session, CONFIGS), (*STAGES, "classification"))
    found = lake.read("bottlenecks", session).filter(pl.col("scope") == "kernel")
    placed = lake.read("roofline", session).filter(pl.col("dispatch_id").is_null())
    return (
        found.select("kernel_id", "label", "runner_up")
        .join(lake.read("kernels", session).select("kernel_id", "name"), on="kernel_id")
        .join(lake.read("kernel_stats", session).select("kernel_id", "total_ns", "p50_ns"), on="kernel_id")
        .join(placed.select("kernel_id", "bound", "efficiency_ratio"), on="kernel_id", how="left")
    )


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakes")


def mixbench(lakes: Path, packed_rate: float) -> pl.DataFrame:
    """Kernels of known work: total_ns, `right`, and `compute`, the time that their operations need by the benchmark.

    Both times are by the algorithm and by the capture's own benchmark; within a tenth of each other either is right.
    `packed_rate` is how often the benchmark's rate of fp32 holds for two results of one instruction.
    """
    found = labels("counters/mixbench/MI200", lakes)
    folder = SHARED / "counters" / "mixbench" / "MI200"
    roofs = pl.read_csv(folder / "roofline.csv").row(0, named=True)
    parts = pl.col("name").str.extract_groups(r"benchmark_func<(?<type>.+), 256, 8u, (?<n>\d+)u>")
    keyed = found.with_columns(parts.alias("parts")).unnest("parts")
    truth = pl.read_csv(folder / "truth.csv").drop_nulls("alg_flops")
    rows = keyed.with_columns(pl.col("n").cast(pl.Int64)).join(truth, on=["type", "n"])
    assert rows.height == 132
    gflops = pl.when(pl.col("type") == "double").then(roofs["FP64Flops"]).otherwise(roofs["FP32Flops"])
    packed = pl.when(pl.col("type").is_in(PACKED)).then(packed_rate).otherwise(1.0)
    memory, compute = pl.col("alg_read_bytes") / roofs["HBMBw"], pl.col("alg_flops") / (gflops * packed)
    return rows.with_columns(memory=memory, compute=compute).with_columns(
        right=((pl.col("label") == "memory_dram") & (pl.col("memory") >= 0.9 * pl.col("compute")))
        | ((pl.col("label") == "compute_vector") & (pl.col("compute") >= 0.9 * pl.col("memory")))
    )


def test_kernels_of_known_work_get_the_roof_that_needed_longer(lakes: Path) -> None:
    rows = mixbench(lakes, packed_rate=2.0)
    assert int(rows.filter("right")["total_ns"].sum()) >= 0.98 * int(rows["total_ns"].sum())


def test_only_a_rate_that_a_kernel_exceeded_itself_speaks_against_its_label(lakes: Path) -> None:
    """Kernels that exceed the rate of unpacked fp32 do not have it as their roof."""
    rows = mixbench(lakes, packed_rate=1.0)
    wrong = rows.filter(~pl.col("right"))
    assert wrong.height
    assert set(wrong["type"]) <= set(PACKED)
    assert (wrong["compute"] > 1.1 * wrong["total_ns"]).all()
    assert (wrong["efficiency_ratio"] >= 0.85).all()
    possible = rows.filter(pl.col("compute") <= 1.1 * pl.col("total_ns"))
    assert possible["right"].all()


def test_the_same_kernels_in_two_captures_never_get_two_labels(lakes: Path) -> None:
    """The second capture counted no memory traffic: there a kernel has the label of the first one, or none."""
    first, second = (labels(f"counters/{name}/MI200", lakes) for name in ("mixbench", "mixbench_SQ"))
    both = first.join(second, on="name", suffix="_2")
    assert both.height == 167
    named = both.drop_nulls("label_2")
    assert named.height >= 20
    assert named["label"].to_list() == named["label_2"].to_list()


@pytest.mark.parametrize(
    ("capture", "label"),
    [
        ("counters/mem_levels_HBM/MI200", "memory_dram"),
        ("counters/vcopy/MI100", "memory_dram"),
        ("counters/vcopy/MI200", "memory_dram"),
        ("counters/vcopy/MI300X_A1_rocpd", None),
        ("gpu_sessions/traces/gemm_bf16_4096.json.gz", "compute_matrix"),
        ("gpu_sessions/traces/elementwise_256mib.json.gz", "memory_dram"),
    ],
)
def test_kernels_with_one_cause_are_named_for_it(capture: str, label: str | None, lakes: Path) -> None:
    assert set(labels(capture, lakes)["label"]) == {label}


@pytest.mark.parametrize("capture", ["counters/mixbench/MI200", "counters/vcopy/MI100"])
def test_label_and_nearest_roof_never_disagree(capture: str, lakes: Path) -> None:
    names = {"dram": "memory_dram", "vector": "compute_vector"}
    names |= dict.fromkeys(("vector_issue", "vector_integer"), "compute_vector")
    found = labels(capture, lakes).filter(pl.col("label").str.contains("^(memory|compute)_"))
    assert found.height
    assert found["label"].to_list() == [names[bound] for bound in found["bound"]]
    assert (found["efficiency_ratio"] >= 0.6).all()
