"""Which kernel of a session has most to gain, whether a source has it, and what becomes of a target that is missing."""

import polars as pl
import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import to_contract
from aaco_pipeline.optimization.first_to_fix import same_kernel
from aaco_pipeline.pipeline.optimizing import asking
from aaco_pipeline.pipeline.optimizing.asking import choose_target, evidence_of, ranked_kernels

SESSION = "20250102T030405Z-0a1b2c3d"


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    """A session of three kernels: one critical and near its roof, one with less time and far from it, one unknown."""
    number = {"kernel_id": [0, 1, 2]}
    named = {"name": ["near(float*)", "void far<4>(float*)", "unknown.kd"], "short_name": ["near", "far", "unknown"]}
    times = {"total_ns": [900, 400, 290], "dispatch_count": [1, 1, 1], "share_ratio": [0.6, 0.25, 0.15]}
    each = dict.fromkeys(("mean_ns", "min_ns", "p50_ns", "p99_ns", "max_ns"), times["total_ns"])
    path = {"activity_kind": ["dispatch"] * 3, "activity_id": [0, 1, 2], "criticality": [1.0, 1.0, 1.0]}
    edges = {"slack_ns": [0] * 3, "free_slack_ns": [0] * 3, "is_critical": [True] * 3, "binding_edge": ["queue"] * 3}
    ran = {"dispatch_id": [0, 1, 2], "process_id": [0] * 3, "device_id": [0] * 3, "below_resolution": [False] * 3}
    tables = {
        "dispatches": pl.DataFrame(ran | number),
        "kernels": pl.DataFrame(number | named | {"role": ["main"] * 3, "family_source": ["none"] * 3}),
        "kernel_stats": pl.DataFrame(number | times | each),
        "critical_path": pl.DataFrame(path | edges | {"unexplained_wait_ns": [0] * 3}),
        "roofline": pl.DataFrame(
            {
                "kernel_id": [0, 1],
                "efficiency_ratio": [0.9, 0.25],
                "bound": ["memory", "compute"],
                "duration_ns": [10, 10],
                "quality_flags": [[], []],
            },
            schema_overrides={"quality_flags": pl.List(pl.String)},
        ),
    }
    for name, frame in tables.items():
        empty_lake.publish(SESSION, name, {name: _filled(name, frame)})
    return empty_lake


def _filled(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    return to_contract(table, frame)


def test_most_is_to_gain_where_critical_time_is_far_from_its_roof(lake: TraceLake) -> None:
    # far from its roof by three quarters of 400 ns; what has no roof may save all of its 290 ns
    assert ranked_kernels(lake, SESSION) == ["void far<4>(float*)", "unknown.kd", "near(float*)"]


def test_evidence_is_what_the_session_says_and_nothing_else(lake: TraceLake) -> None:
    assert evidence_of(lake, SESSION, "far") == {"bound": "compute", "efficiency_ratio": 0.25}
    assert evidence_of(lake, SESSION, "elsewhere") == {}


@pytest.mark.parametrize(
    ("recorded", "is_it"),
    [
        ("row_dot", True),
        ("row_dot.kd", True),
        ("void row_dot<256, float>(float const*, int)", True),
        ("(anonymous namespace)::row_dot(int)", True),
        ("mine::row_dot(float*)", True),
        ("row_dot2(float*)", False),
        ("my_row_dot", False),
    ],
)
def test_a_kernel_is_known_as_it_was_recorded(recorded: str, is_it: bool) -> None:
    assert same_kernel(recorded, "row_dot") is is_it


def test_without_a_gpu_auto_is_the_cpu_and_what_was_named_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UnavailableError(f"target {name}: none")

    monkeypatch.setattr(asking, "find_gpu", missing)
    monkeypatch.setattr(asking, "_cpu", lambda: "the processor")
    assert str(choose_target("auto")) == "the processor"
    with pytest.raises(UnavailableError, match="target amd: none"):
        choose_target("amd")
