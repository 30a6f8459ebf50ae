"""A kernel's traffic by level of memory: widths, what is said beside each arrow, and what is left hollow."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.html.memory_chart import memory_levels

MIB = 2**20
KERNEL: dict[str, Any] = {
    "lds_traffic_bytes": 0,
    "vl1d_traffic_bytes": 64 * MIB,
    "l2_traffic_bytes": 32 * MIB,
    "fabric_read_bytes": 12 * MIB,
    "fabric_write_bytes": 4 * MIB,
    "counted_ns": 10_000,
    "counted": 2,
    "quality_flags": [],
}
BOUNDS: list[dict[str, Any]] = [
    {"resource": resource, "unit": "byte", "work": work * MIB, "share_ratio": ratio, "ceiling_source": source}
    | {"work_source": "counters"}
    for resource, work, ratio, source in (
        *(("dram", 16, 0.5, "spec"), ("dram", 16, 0.6, "measured"), ("fabric", 16, 0.4, "spec")),
        *(("l2", 32, 0.2, "reported"), ("vl1d", 64, 0.1, "measured")),
    )
]


def by_key(kernel: dict[str, Any], metrics: dict[str, float] | None = None) -> dict[str, Any]:
    return {level.key: level for level in memory_levels(kernel, BOUNDS, metrics or {})}


def test_every_level_has_its_bytes_a_dispatch_its_rate_and_its_share_of_the_best_ceiling() -> None:
    levels = by_key(KERNEL, {"l2_hit_ratio": 0.75})
    assert [*levels] == ["lds", "vl1d", "l2", "fabric", "dram"]
    assert levels["vl1d"].said == ("32.0 MiB a dispatch", "6.71 TB/s", "10.0 % of measured")
    assert levels["l2"].said[-1] == "20.0 % of reported"
    assert levels["fabric"].said[-1] == "40.0 % of published"
    assert levels["fabric"].inside == ("6.0 MiB read, 2.0 MiB written",)
    assert levels["dram"].said == ("8.0 MiB a dispatch", "1.68 TB/s", "60.0 % of measured")
    assert (levels["l2"].inside, levels["vl1d"].inside) == (("75.0 % hits",), ())
    assert levels["lds"].said == ("nothing passed",)


def test_arrows_are_as_wide_as_the_bytes() -> None:
    levels = by_key(KERNEL)
    assert levels["vl1d"].width == pytest.approx(2 * levels["l2"].width) == pytest.approx(4 * levels["dram"].width)


@pytest.mark.parametrize("missing", ["lds_traffic_bytes", "vl1d_traffic_bytes", "l2_traffic_bytes"])
def test_what_was_not_counted_says_so_and_is_no_zero(missing: str) -> None:
    level = by_key({**KERNEL, missing: None})[missing.removesuffix("_traffic_bytes")]
    assert (level.bytes_, level.said) == (None, ("not counted",))


def test_one_direction_alone_is_named_as_such() -> None:
    assert by_key({**KERNEL, "fabric_write_bytes": None})["fabric"].inside == ("6.0 MiB read",)


def test_bytes_of_shapes_and_of_no_counter_give_no_chart() -> None:
    assert memory_levels({**KERNEL, "quality_flags": ["model_based"]}, BOUNDS, {}) == []
    nothing = dict.fromkeys(name for name in KERNEL if name.endswith("_bytes"))
    assert memory_levels({**KERNEL, **nothing}, [], {}) == []
    assert memory_levels({**KERNEL, **nothing}, [{**BOUNDS[0], "work_source": "model"}], {}) == []


def test_dram_behind_an_infinity_cache_is_an_assumption_that_is_said() -> None:
    cached = {**KERNEL, "quality_flags": ["infinity_cache_not_excluded"]}
    bounds = [*BOUNDS, {**BOUNDS[2], "resource": "infinity_cache"}]
    levels = {level.key: level for level in memory_levels(cached, bounds, {})}
    assert levels["fabric"].name == "Fabric and Infinity Cache"
    assert levels["dram"].inside == ("if the Infinity Cache served none",)


@given(st.lists(st.none() | st.integers(0, 2**50), min_size=4, max_size=4), st.integers(0, 5))
def test_no_arrow_is_wider_than_the_widest_and_none_without_bytes_has_figures(
    amounts: list[int | None], counted: int
) -> None:
    names = ("lds_traffic_bytes", "vl1d_traffic_bytes", "l2_traffic_bytes", "fabric_read_bytes")
    kernel = {**KERNEL, **dict(zip(names, amounts, strict=True)), "fabric_write_bytes": None, "counted": counted}
    levels = memory_levels(kernel, [], {})
    assert bool(levels) == any(amount is not None for amount in amounts)
    for level in levels:
        assert 2 <= level.width <= 40
        assert (level.said == ("not counted",)) == (level.bytes_ is None)
    known = [level.bytes_ for level in levels if level.bytes_ is not None]
    widths = [level.width for level in levels if level.bytes_ is not None]
    assert sorted(range(len(known)), key=known.__getitem__) == sorted(
        range(len(known)), key=lambda at: (widths[at], known[at])
    )
