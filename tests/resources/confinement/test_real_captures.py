"""Real captures are found, copied without loss and read in confined children, as in this process.

Not beside the tests of misbehaving servers: a server of those answers until their file is done.
"""

from pathlib import Path

import pytest

from aaco_pipeline.capture import discovery
from aaco_pipeline.capture.merging import read_run
from aaco_pipeline.resources.confinement import client
from tests.places import SHARED

CAPTURES = (
    *("captures/mi300x_att_ck_batched_gemm", "captures/mi300x_att_ck_batched_gemm/ui_output_agent_5600_dispatch_2"),
    *("captures/mi350x_rocpd_43915_dispatches", "captures/gfx1151_rocprofv3_csv", "captures/gfx1250_rocpd"),
    *("captures/mi300_pc_sampling_code_json", "captures/mi210_kineto_gpu_only", "counters/vcopy/MI300X_A1_rocpd"),
)


@pytest.mark.parametrize("place", CAPTURES)
def test_a_real_capture_is_the_same_behind_the_doors(place: str, tmp_path: Path) -> None:
    path = SHARED / place
    if not path.exists():
        pytest.skip(f"no {path}: the shared captures are not here")
    (run,) = client.discover_runs(path).runs
    (here,) = discovery.discover_runs(path).runs
    assert run == here
    (tmp_path / "raw").mkdir()
    client.copy_capture(run, tmp_path / "raw", None)
    taken, expected = client.open_capture(tmp_path / "raw").tables(), read_run(here).tables
    rows = {name: frame.height for name, frame in expected.items()}
    assert {name: taken[name].height for name in rows} == rows
    assert sum(rows.values())
