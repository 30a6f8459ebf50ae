"""The scaling curve on points whose knee and saturation are known by construction."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.sessions.scaling import scaling_curve


def points(rates: dict[int, float], prompt: int | None = None, tokens: int | None = None) -> pl.DataFrame:
    """Sessions whose throughput is `rates` by batch size; the interval is 10 % to either side of the time."""
    work = tokens or 1
    times = [round(batch * work * 1e9 / rate) for batch, rate in rates.items()]
    return pl.DataFrame(
        {
            "session_id": [f"s{batch}" for batch in rates],
            "batch_size": list(rates),
            "prompt_tokens": [prompt] * len(rates),
            "output_tokens": [tokens] * len(rates),
            "time_ns": times,
            "time_ci_low_ns": [0.9 * time for time in times],
            "time_ci_high_ns": [1.1 * time for time in times],
        },
        schema_overrides={"prompt_tokens": pl.Int32, "output_tokens": pl.Int32},
    )


def landmark(curve: pl.DataFrame, name: str) -> list[int]:
    return curve.filter(pl.col(name)).get_column("batch_size").to_list()


def test_a_curve_that_bends_and_flattens() -> None:
    curve = scaling_curve(points({1: 100, 2: 195, 4: 380, 8: 400, 16: 401}))
    assert landmark(curve, "is_knee") == [4]
    assert landmark(curve, "is_saturated") == [8]
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1, 1.95, 3.8, 4, 4.01], rel=1e-6)
    assert curve.get_column("efficiency_ratio").to_list() == pytest.approx([1, 0.975, 0.95, 0.5, 0.250625], rel=1e-6)


def test_the_first_of_several_that_are_good_enough_is_the_saturated_one() -> None:
    curve = scaling_curve(points({1: 100, 2: 195, 4: 196, 8: 200}))
    assert landmark(curve, "is_saturated") == [2]


def test_growing_to_the_end_is_no_saturation_and_a_straight_line_has_no_knee() -> None:
    curve = scaling_curve(points({1: 100, 2: 200, 4: 400, 8: 800}))
    assert landmark(curve, "is_knee") == landmark(curve, "is_saturated") == []


def test_a_falling_curve_is_saturated_at_its_first_point() -> None:
    curve = scaling_curve(points({1: 100, 2: 90, 4: 50}))
    assert landmark(curve, "is_saturated") == [1]


@pytest.mark.parametrize("rates", [{4: 100.0}, {1: 100.0, 2: 100.0}])
def test_one_point_or_equal_ones_have_no_knee(rates: dict[int, float]) -> None:
    curve = scaling_curve(points(rates))
    assert landmark(curve, "is_knee") == []
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1.0] * len(rates))


def test_each_prompt_length_is_a_curve_of_its_own() -> None:
    both = pl.concat([points({1: 50, 2: 60}, prompt=64, tokens=8), points({1: 100, 2: 190}, prompt=16, tokens=8)])
    curve = scaling_curve(both)
    assert curve.select("point", "prompt_tokens", "batch_size").rows() == [
        (0, 16, 1),
        (1, 16, 2),
        (2, 64, 1),
        (3, 64, 2),
    ]
    assert curve.get_column("speedup_ratio").to_list() == pytest.approx([1, 1.9, 1, 1.2], rel=1e-6)
    assert set(curve.get_column("throughput_unit")) == {"token/s"}


def test_the_interval_of_the_throughput_comes_from_the_times() -> None:
    (row,) = scaling_curve(points({4: 100})).to_dicts()
    assert row["throughput_ci_low_per_s"] == pytest.approx(100 / 1.1)
    assert row["throughput_ci_high_per_s"] == pytest.approx(100 / 0.9)


@given(st.dictionaries(st.integers(1, 4096), st.floats(1, 1e6), min_size=1, max_size=12))
def test_any_curve_has_one_knee_and_one_saturation_at_most(rates: dict[int, float]) -> None:
    curve = scaling_curve(points(rates))
    assert curve.height == len(rates)
    assert len(landmark(curve, "is_knee")) <= 1
    assert len(landmark(curve, "is_saturated")) <= 1
    assert curve.get_column("batch_size").is_sorted()
