"""Pairs of stretches that meet, and unions, against a plain loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.delays.intervals import meetings, union

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1])), max_size=8
)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(spans, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@given(SPANS)
def test_a_union_holds_the_same_instants_in_order(spans: list[tuple[int, int]]) -> None:
    start, end = union(*columns(spans))
    covered = {at for first, last in zip(start.tolist(), end.tolist(), strict=True) for at in range(first, last)}
    assert covered == {at for first, last in spans for at in range(first, last)}
    assert (start[1:] > end[:-1]).all()
    assert (end > start).all()


@given(SPANS, SPANS)
def test_every_pair_that_shares_time_is_found_once(spans: list[tuple[int, int]], pieces: list[tuple[int, int]]) -> None:
    ordered = list(zip(*(side.tolist() for side in union(*columns(pieces))), strict=True))
    met = meetings(*columns(spans), *columns(ordered))
    found = sorted(zip(*(side.tolist() for side in met), strict=True))
    wanted = [
        (i, j, max(a, c), min(b, d))
        for i, (a, b) in enumerate(spans)
        for j, (c, d) in enumerate(ordered)
        if a < b and max(a, c) < min(b, d)
    ]
    assert [one for one in found if one[2] < one[3]] == sorted(wanted)
