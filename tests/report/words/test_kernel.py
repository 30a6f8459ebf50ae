"""A kernel in sentences: its rate against its roof, its launch, and what would tell more."""

from typing import Any

import pytest

from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.words.kernel import against_roof, lacking_evidence, launch_in_words, listed, rate_text

DRAM: dict[str, Any] = {"resource": "dram", "dtype": None, "unit": "byte", "work": 4e9, "share_ratio": 0.8}
DRAM |= {"ceiling_source": "measured", "work_source": "counters"}
KERNEL: dict[str, Any] = {"bound": "dram", "efficiency_ratio": 0.8, "counted_ns": 4_000_000}


def test_the_rate_stands_against_the_roof_and_whose_figure_that_is() -> None:
    spec = {**DRAM, "share_ratio": 0.5, "ceiling_source": "spec"}
    said = "It reaches 1 TB/s at its nearest roof, DRAM: 80.0 % of the measured ceiling."
    assert against_roof(KERNEL, [spec, DRAM]) == said
    half = {**KERNEL, "efficiency_ratio": 0.5}
    assert (against_roof(half, [spec, DRAM]) or "").endswith("50.0 % of the published ceiling.")


def test_work_by_shapes_is_the_least_there_was() -> None:
    told = against_roof(KERNEL, [{**DRAM, "work_source": "model", "ceiling_source": "reported"}])
    assert (
        told
        == "It reaches at least 1 TB/s at its nearest roof, DRAM: 80.0 % of what such devices are reported to reach."
    )


def test_a_unit_that_counts_its_own_busy_cycles_needs_no_ceiling() -> None:
    busy = {**DRAM, "resource": "matrix", "unit": "ns", "ceiling_source": "busy"}
    told = against_roof({**KERNEL, "bound": "matrix"}, [busy])
    assert told == "Its nearest roof is that of matrix units: 80.0 % busy by its own count."


def test_another_ones_own_count_may_decide_for_a_roof_that_both_share() -> None:
    integer = {**DRAM, "resource": "vector_integer", "unit": "op", "share_ratio": 0.7, "ceiling_source": "spec"}
    issue = {**DRAM, "resource": "vector_issue", "unit": "ns", "ceiling_source": "busy"}
    told = against_roof({**KERNEL, "bound": "vector_integer"}, [integer, issue])
    assert told == "It reaches 1 TOP/s at its nearest roof, integer units: 80.0 % busy by its own count."


@pytest.mark.parametrize("change", [{"efficiency_ratio": None}, {"bound": None}, {"bound": "l2"}])
def test_without_a_roof_nothing_is_said_of_one(change: dict[str, Any]) -> None:
    assert against_roof({**KERNEL, **change}, [DRAM]) is None


def test_a_rate_needs_work_and_time() -> None:
    assert rate_text(5e8, "flop", 1000) == "500 TFLOP/s"
    assert (rate_text(None, "flop", 1000), rate_text(1.0, "flop", 0), rate_text(1.0, "flop", None)) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "304 workgroups of 256 work-items"),
        ({"grid_y": 6, "workgroup_y": 2}, "304 × 3 workgroups of 256 × 2 work-items"),
        ({"grid_x": 77_825}, "305 workgroups of 256 work-items"),
        ({"grid_x": None, "grid_work_items": 512, "workgroup_work_items": 256}, "2 workgroups of 256 work-items"),
        ({"workgroup_x": None, "grid_work_items": 512}, "512 work-items"),
        (
            {"lds_allocated_bytes": 2048, "scratch_bytes": 0},
            "304 workgroups of 256 work-items, LDS 2.0 KiB a workgroup",
        ),
    ],
)
def test_a_launch_in_words(change: dict[str, Any], told: str) -> None:
    launch = {f"{what}_{axis}": 1 for what in ("grid", "workgroup") for axis in "xyz"}
    launch |= {"grid_x": 77_824, "workgroup_x": 256, "lds_allocated_bytes": 1024, "scratch_bytes": 0}
    none: dict[str, Any] = {"grid_work_items": None, "workgroup_work_items": None}
    fixed = {"static_lds_bytes": 1024, "static_scratch_bytes": 0}
    assert launch_in_words({**launch, **none, **change}, fixed) == told


def test_what_lacks_is_named_with_the_command_that_records_it() -> None:
    everything = ("utilization", "occupancy", "levels", "stalls", "operators", "ceilings")
    on_amd: dict[str, Any] = {"provider": None, "devices": [{"vendor": "AMD"}]}
    told = lacking_evidence(on_amd, everything)
    assert told[0][0] == "utilization, the occupancy achieved and the bytes at every level of memory"
    assert ["--counters" in told[0][1], "--att" in told[1][1], "record_shapes" in told[2][1]] == [True] * 3
    assert lacking_evidence(on_amd, ["durations"])[0][1].startswith("rocprofv3 --kernel-trace")
    assert lacking_evidence(on_amd, ()) == []
    of_nvidia = lacking_evidence({"provider": None, "devices": [{"vendor": "NVIDIA"}]}, everything)
    assert [command for _, command in of_nvidia] == ["torch.profiler.profile(record_shapes=True)"]
    on_cpu = lacking_evidence({"provider": CPU_PROVIDER, "devices": []}, everything)
    assert [command for _, command in on_cpu] == ["aaco calibrate"]


def test_a_list_in_words() -> None:
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
