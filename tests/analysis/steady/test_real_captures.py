"""The steady part of real captures, compared with a reading of the raw files.

The thresholds were chosen with the captures of `CHOSEN_WITH` in sight; those of `KEPT_APART` had no part in that, but
for the first and for `b00_extra_launches`, whose marks were stripped while rules were made. Of the captures that have
functions of their own, those of an MI210, of RPD and of 43,915 dispatches gave rise to rules; the others did not.
"""

from functools import cache
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.steady.parts import Repetition, SteadyPart
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import read_run
from tests.analysis.steady.made_up import Tables, judged, lacking
from tests.places import SHARED

TRACES: Final = "gpu_sessions/traces"
#: Steady throughout, with their marked iterations and the activities of each.
CHOSEN_WITH: Final = {
    "kineto/h100_qwen1.5_0.5b.json.gz": (1, 1_198),
    "kineto/mi300x_resnet_train_ddp.json.gz": (3, 895),
    f"{TRACES}/gemm_bf16_4096.json.gz": (3, 20),
    f"{TRACES}/graph_replay.json.gz": (3, 4_000),
    f"{TRACES}/item_each_kernel.json.gz": (3, 800),
    f"{TRACES}/transformer_b1.json.gz": (3, 132),
    "gpu_sessions/sessions/b00_baseline.json.trace.json.gz": (3, 72),
}
KEPT_APART: Final = {
    "kineto/mi300x_qwen1.5_0.5b.json.gz": (1, 1_054),
    f"{TRACES}/elementwise_256mib.json.gz": (3, 10),
    f"{TRACES}/host_work_between.json.gz": (3, 20),
    f"{TRACES}/pageable_copies.json.gz": (3, 10),
    f"{TRACES}/tiny_kernels_500.json.gz": (3, 500),
    f"{TRACES}/two_streams_overlap.json.gz": (3, 21),
    "gpu_sessions/sessions/b00_extra_launches.json.trace.json.gz": (3, 112),
    "gpu_sessions/sessions/b05_host_delay.json.trace.json.gz": (3, 72),
}
WHOLE: Final = {**CHOSEN_WITH, **KEPT_APART}


@cache
def tables_of(relative: str) -> Tables:
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"{path} is not there: the shared captures are not part of the repository")
    return dict(read_run(discover_runs(path).runs[0]).tables)


def of(relative: str) -> SteadyPart:
    return judged(tables_of(relative))


def repetition(found: SteadyPart) -> Repetition:
    assert found.repetition is not None
    return found.repetition


def milliseconds(found: SteadyPart) -> list[tuple[str, float]]:
    length = (pl.col("end_ns") - pl.col("start_ns")) / 1e6
    return [(part, round(ms, 2)) for part, ms in found.parts.select("part", length).rows()]


@pytest.mark.parametrize("relative", WHOLE)
def test_marked_iterations_are_steady_throughout(relative: str) -> None:
    found = of(relative)
    assert found.parts.get_column("part").to_list() == ["steady"]
    own = repetition(found)
    assert (own.repetitions, own.period_activities) == WHOLE[relative]
    assert found.first_calls.height == 0


@pytest.mark.parametrize("relative", WHOLE)
def test_the_same_captures_without_marks_are_steady_but_for_rare_silences(relative: str) -> None:
    tables = dict(tables_of(relative))
    tables["iterations"] = tables["iterations"].clear()
    tables["dispatches"] = tables["dispatches"].with_columns(iteration=pl.lit(None, pl.Int32))
    found = judged(tables)
    assert set(found.parts.get_column("part")) <= {"steady", "interruption"}
    repetition(found)


def test_the_training_steps_that_no_mark_shows_are_found() -> None:
    """The recording began while the device was at the step before the three that are marked."""
    tables = dict(tables_of("kineto/mi300x_resnet_train_ddp.json.gz"))
    tables["iterations"] = tables["iterations"].clear()
    own = repetition(judged(tables))
    assert (own.repetitions, own.period_activities) == (4, 895)


def test_a_benchmark_with_one_silence() -> None:
    found = of("captures/mi300x_att_ck_batched_gemm")
    own = repetition(found)
    assert (own.repetitions, own.period_activities) == (150, 1)
    parts = milliseconds(found)
    assert [part for part, _ in parts] == ["set_up", "steady", "interruption", "steady"]
    assert parts[2][1] == 1.72
    gemm = tables_of("captures/mi300x_att_ck_batched_gemm")["dispatches"].filter(pl.col("kernel_id") == 1)
    assert gemm.filter(pl.col("start_ns") < found.parts.item(2, "start_ns")).height == 83
    busy = gemm.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() / 1e6
    assert busy / (parts[1][1] + parts[3][1]) == pytest.approx(0.96, abs=0.01)
    length = (pl.col("end_ns") - pl.col("start_ns")) / 1e6
    copies = found.first_calls.filter(pl.col("kind").str.ends_with("copy")).select("kind", length.round(0)).rows()
    assert copies == [("set_up_copy", 121), ("set_up_copy", 10), ("read_back_copy", 14)]
    assert "the first launch of its kernel" in " ".join(found.first_calls.get_column("reason"))


def test_first_calls_throughout_are_a_cold_start() -> None:
    found = of("kineto/a100_alexnet_cudasync.json.gz")
    assert lacking(found) == "cold_start"
    long = found.first_calls.filter(pl.col("end_ns") - pl.col("start_ns") > 3_000_000_000)
    assert long.select("name", (pl.col("end_ns") - pl.col("start_ns")) // 100_000_000).rows() == [
        ("cudaDeviceGetStreamPriorityRange", 299),
        ("cudaFree", 60),
        ("cudaLaunchKernel", 30),
    ]


def test_single_values_read_back_at_the_end_are_no_steady_part() -> None:
    assert lacking(of("captures/rpd_not_rocprofv3")) == "cold_start"


@pytest.mark.parametrize(
    "relative", ["kineto/a100_event_sync.json.gz", "captures/gfx1250_rocpd", "captures/mi300x_rocpd_pmc_passes"]
)
def test_a_handful_of_kernels_is_incomplete(relative: str) -> None:
    assert lacking(of(relative)) == "incomplete"


def test_a_step_behind_a_blocking_copy() -> None:
    """36 layers; what the copy waits for was launched before the recording."""
    found = of("kineto/mi300x_sglang_qwen3_8b.json.gz")
    assert [part for part, _ in milliseconds(found)] == ["set_up", "steady"]
    assert milliseconds(found)[0][1] == pytest.approx(494, abs=1)
    own = repetition(found)
    assert (own.repetitions, own.period_activities) == (36, 14)
    assert found.first_calls.get_column("kind").unique().to_list() == ["set_up_copy"]


def test_a_single_training_step_without_marks_is_steady() -> None:
    found = of("captures/mi210_kineto_gpu_only")
    assert found.parts.get_column("part").to_list() == ["steady"]
    assert found.repetition is None


def test_decoding_is_steady_from_its_tokens() -> None:
    found = of("captures/gfx1151_rocprofv3_csv")
    assert found.parts.get_column("part").to_list() == ["steady"]
    own = repetition(found)
    assert (own.repetitions, own.period_activities) == (6, 24)


def test_collectives_without_host_calls_repeat() -> None:
    found = of("captures/mi350x_rocpd_43915_dispatches")
    own = repetition(found)
    # The first of 50 took eight seconds and is set-up.
    assert (own.repetitions, own.period_activities) == (49, 822)
    started = (pl.col("start_ns") - pl.col("start_ns").min()) / 1e9
    steady = found.parts.with_columns(started=started).filter(pl.col("part") == "steady")
    assert steady.get_column("started").round(1).to_list() == [12.5]
    assert found.parts.get_column("phase").drop_nulls().len() == 3
