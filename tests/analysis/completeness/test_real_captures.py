"""Whole captures have no fault, what was launched before them is found, and kernels that are removed are missed."""

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.merging import read_run
from tests.analysis.completeness.recordings import examine
from tests.places import ROOT, SHARED

#: Captures without contradictions, by a reading of the raw files.
WHOLE = (
    *(
        "kineto/mi300x_qwen1.5_0.5b.json.gz",
        "kineto/h100_qwen1.5_0.5b.json.gz",
        "kineto/mi300x_resnet_train_ddp.json.gz",
    ),
    *(
        "kineto/mi300x_sglang_qwen3_8b.json.gz",
        "kineto/a100_alexnet_cudasync.json.gz",
        "kineto/a100_event_sync.json.gz",
    ),
    *("gpu_sessions/traces", "gpu_sessions/sessions/b00_baseline.json.trace.json.gz"),
    *("captures/mi210_kineto_gpu_only", "captures/mi300x_att_ck_batched_gemm", "captures/gfx1250_rocpd"),
    *("captures/mi350x_rocpd_43915_dispatches", "captures/mi300x_rocpd_pmc_passes"),
    *(
        "captures/mi300_pc_sampling_code_json",
        "counters/vcopy/MI100",
        "counters/vcopy/MI200",
        "counters/vcopy/MI300A_A1",
    ),
    *("counters/vcopy/MI300X_A1", "counters/vcopy/MI300X_A1_rocpd", "counters/vcopy/MI350", "counters/mixbench/MI200"),
    *("counters/mem_levels_HBM/MI200", "counters/llamacpp_decode/gfx1151", "counters/laplacian_k1/MI250X"),
)
#: Excerpts: launches of which the excerpt holds no record.
CUT = {
    # 180 hipLaunchKernel in the API trace; of 178 the correlation is nowhere in the kernel trace, whose 144 rows are
    # numbered 164 to 4,897.
    "captures/gfx1151_rocprofv3_csv": {"launches_unrecorded": 178},
    # A sample of a HIP trace beside a sample of another program's kernels.
    "captures/documentation_csv": {"no_device_events": 1},
}
BEFORE = {
    "kineto/mi300x_qwen1.5_0.5b.json.gz": (463, 13_318_864),
    "kineto/h100_qwen1.5_0.5b.json.gz": (509, 13_741_827),
    "kineto/mi300x_resnet_train_ddp.json.gz": (968, 31_834_405),
}


@cache
def results(relative: str) -> tuple[Any, ...]:
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"{path} is not here: AACO_SHARED names the folder of real captures")
    reads = [read_run(run) for run in discover_runs(path).runs]
    return tuple(examine({**read.details, **read.tables}, read.evidence) for read in reads)


@pytest.mark.parametrize("capture", WHOLE)
def test_a_whole_capture_has_no_fault(capture: str) -> None:
    rows = [row for result in results(capture) for row in result.findings.to_dicts()]
    assert [(row["finding"], row["evidence"]) for row in rows if row["severity"] == "fault"] == []


@pytest.mark.parametrize("capture", CUT)
def test_an_excerpt_has_the_faults_that_its_files_show(capture: str) -> None:
    rows = [row for result in results(capture) for row in result.findings.to_dicts()]
    assert {row["finding"]: row["records"] for row in rows if row["severity"] == "fault"} == CUT[capture]


@pytest.mark.parametrize("capture", BEFORE)
def test_work_launched_before_the_recording_is_counted_to_the_nanosecond(capture: str) -> None:
    (result,) = results(capture)
    ledger = result.ledger.select("before_recording", "before_recording_ns").sum().row(0)
    assert ledger == BEFORE[capture]
    (row,) = [row for row in result.findings.to_dicts() if row["finding"] == "launched_before_recording"]
    assert (row["severity"], row["grade"], row["records"]) == ("bound", "observed", BEFORE[capture][0])


def test_a_blocking_copy_without_recorded_work_is_inferred_to_wait_for_work_of_before() -> None:
    (result,) = results("kineto/mi300x_sglang_qwen3_8b.json.gz")
    (row,) = result.findings.to_dicts()
    assert (row["finding"], row["severity"], row["grade"]) == ("wait_for_unrecorded_work", "bound", "inferred")
    assert 493_000_000 < row["end_ns"] - row["start_ns"] < 494_000_000
    assert result.ledger.get_column("linked").sum() == 534


def lost_records() -> ModuleType:
    """The benchmark, which does the same more often and on more captures."""
    specification = importlib.util.spec_from_file_location("lost_records", ROOT / "benchmarks/accuracy/lost_records.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "capture", ["gpu_sessions/traces/transformer_b1.json.gz", "gpu_sessions/traces/graph_replay.json.gz"]
)
def test_kernels_removed_at_random_are_missed(capture: str) -> None:
    if not (SHARED / capture).exists():
        pytest.skip(f"{capture} is not here: AACO_SHARED names the folder of real captures")
    benchmark = lost_records()
    tables = benchmark.tables_of(SHARED / capture)
    assert not benchmark.telling(tables)
    tried = list(benchmark.trials(tables, 1, np.random.default_rng(7)))
    assert len(tried) >= 4
    assert [way for way, _, found in tried if not found] == []
