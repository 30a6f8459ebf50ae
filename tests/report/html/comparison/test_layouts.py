"""Where layouts lie: on the paper, the faster the further right, and the least gain that counts between them."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.report.html.comparison.layouts import placed_layouts

RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)


def timing(ratios: list[float], **more: Any) -> dict[str, Any]:
    known = {"attempt": 0, "step": "search", "speedup_ratio": None, "ci_low": None, "ci_high": None}
    return {**known, "layouts": ratios, **more}


@given(first=RATIOS, second=RATIOS, threshold=st.floats(0, 1))
def test_every_layout_lies_on_one_axis_in_the_order_of_its_ratio(
    first: list[float], second: list[float], threshold: float
) -> None:
    drawn = placed_layouts([timing(first), timing(second)], threshold)
    assert drawn is not None
    dots = [dot for row in drawn["rows"] for dot in row["dots"]]
    assert [ratio for _, ratio in dots] == [*first, *second]
    places = [(ratio, place) for place, ratio in dots] + [(1.0, drawn["one"]), (1 + threshold, drawn["threshold"])]
    assert all(0 < place < 100 for _, place in places)
    assert [place for _, place in sorted(places)] == sorted(place for _, place in places)


@given(ratios=RATIOS)
def test_ticks_are_apart_and_one_is_always_among_them(ratios: list[float]) -> None:
    drawn = placed_layouts([timing(ratios)], 0.02)
    assert drawn is not None
    places = [place for place, _ in drawn["ticks"]]
    assert 1 in [tick for _, tick in drawn["ticks"]]
    assert all(after - before >= 10 for before, after in pairwise(places))


def test_too_few_layouts_have_no_interval_and_nothing_timed_has_no_plot() -> None:
    drawn = placed_layouts([timing([1.1], speedup_ratio=1.1), timing([1.2], ci_low=1.1, ci_high=1.3)], 0.02)
    assert drawn is not None
    assert [row["span"] is None for row in drawn["rows"]] == [True, False]
    assert drawn["rows"][1]["span"][0] < drawn["rows"][1]["dots"][0][0] < drawn["rows"][1]["span"][1]
    assert placed_layouts([], 0.02) is None
