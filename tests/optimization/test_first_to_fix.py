"""Ranking kernels to work on, from tables made for the purpose."""

from typing import Any

import polars as pl

from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.optimization.first_to_fix import MOST_KERNELS, PROPOSERS_OF, kernels_to_fix
from aaco_pipeline.optimization.proposers import PROPOSERS

READ = ("kernels", "kernel_stats", "dispatches", "critical_path", "what_if", "roofline", "bottlenecks")


def tables(*kernels: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """A session of kernels with one dispatch each: `total`, and where known `criticality`, `roof`, `label`."""
    found = {name: empty_table(name) for name in READ}
    for number, one in enumerate(kernels):
        of = {"kernel_id": number}
        rows: dict[str, dict[str, Any]] = {
            "kernels": of | {"name": f"k{number}", "short_name": f"k{number}", "library": one.get("library")},
            "kernel_stats": of | {"total_ns": one["total"], "share_ratio": one["total"] / 10_000},
            "dispatches": of | {"dispatch_id": number},
        }
        if "criticality" in one:
            rows["critical_path"] = {
                "activity_kind": "dispatch",
                "activity_id": number,
                "criticality": one["criticality"],
            }
        if "roof" in one:
            rows["roofline"] = of | {"dispatch_id": None, "bound": "memory_dram", "efficiency_ratio": one["roof"]}
        if "label" in one:
            rows["bottlenecks"] = of | {"scope": "kernel", "label": one["label"]}
        for name, row in rows.items():
            added = pl.DataFrame([row], infer_schema_length=None)
            found[name] = pl.concat([found[name], added.cast(found[name].select(added.columns).schema)], how="diagonal")
    return found


def test_the_first_is_the_one_whose_going_to_its_roof_saves_most() -> None:
    found = kernels_to_fix(
        tables(
            {"total": 9_000, "criticality": 1.0, "roof": 0.9},  # long, but at its roof
            {"total": 4_000, "criticality": 0.25, "roof": 0.0},  # mostly beside the path
            {"total": 3_000, "criticality": 1.0, "roof": 0.5},
        )
    )
    assert found.get_column("kernel_id").to_list() == [2, 1, 0]
    assert found.get_column("rank").to_list() == [1, 2, 3]
    assert found.get_column("saves_at_most_ns").to_list() == [1_500, 1_000, 900]
    assert found.get_column("critical_ns").to_list() == [3_000, 1_000, 9_000]
    assert to_contract("kernels_to_fix", found).height == 3


def test_what_is_not_known_is_null_with_its_reason_and_never_zero() -> None:
    (row,) = kernels_to_fix(tables({"total": 100})).to_dicts()
    assert [row[one] for one in ("criticality", "critical_ns", "roof_ratio", "headroom_ratio", "saves_at_most_ns")] == [
        None
    ] * 5
    assert len(row["missing"]) == 3
    assert row["proposers"] == []
    (row,) = kernels_to_fix(tables({"total": 100, "criticality": 0.5})).to_dicts()
    assert (row["critical_ns"], row["saves_at_most_ns"]) == (50, None)
    (row,) = kernels_to_fix(tables({"total": 100, "criticality": 0.5, "roof": 0.5, "label": "latency"})).to_dicts()
    assert row["missing"] == []


def test_no_kernel_saves_more_than_its_critical_time_or_than_its_roof_leaves() -> None:
    # Half of its time is critical, and all that is far from the roof may lie in that half.
    (row,) = kernels_to_fix(tables({"total": 1_000, "criticality": 0.5, "roof": 0.6})).to_dicts()
    assert row["saves_at_most_ns"] == 400
    (row,) = kernels_to_fix(tables({"total": 1_000, "criticality": 0.5, "roof": 0.1})).to_dicts()
    assert row["saves_at_most_ns"] == 500


def test_a_kernel_above_its_roof_has_no_headroom_rather_than_less_than_none() -> None:
    (row,) = kernels_to_fix(tables({"total": 100, "criticality": 1.0, "roof": 1.2})).to_dicts()
    assert (row["headroom_ratio"], row["saves_at_most_ns"]) == (0.0, 0)


def test_proposers_follow_from_what_limits_the_kernel() -> None:
    (row,) = kernels_to_fix(tables({"total": 100, "label": "lds_bank_conflict"})).to_dicts()
    assert row["proposers"] == ["lds_padding"]
    (row,) = kernels_to_fix(tables({"total": 100, "label": "divergence"})).to_dicts()
    assert row["proposers"] == []


def test_every_proposer_that_is_named_exists() -> None:
    assert {name for names in PROPOSERS_OF.values() for name in names} <= {one.name for one in PROPOSERS}


def test_no_more_are_listed_than_people_read() -> None:
    found = kernels_to_fix(tables(*({"total": 100 + one} for one in range(MOST_KERNELS + 5))))
    assert found.height == MOST_KERNELS
    assert found.item(0, "total_ns") == 100 + MOST_KERNELS + 4


def test_a_session_without_kernels_has_none_to_fix() -> None:
    assert kernels_to_fix(tables()).is_empty()
