"""Reservations cover all regions, are aligned, and leave each other alone."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.replay.capture import Region
from aaco_pipeline.optimization.replay.plan import plan

REGIONS = st.lists(
    st.builds(Region, base=st.integers(1, 1 << 24), size=st.integers(1, 1 << 16)), min_size=1, max_size=30
)


def test_two_regions_in_a_page_are_one_reservation() -> None:
    near = [Region(base=0x1000, size=16), Region(base=0x1800, size=16)]
    assert [(one.base, one.size, one.regions) for one in plan(near)] == [(0x1000, 0x1000, tuple(near))]


def test_a_granule_of_the_driver_joins_what_pages_keep_apart() -> None:
    apart = [Region(base=0x10_0000, size=4096), Region(base=0x14_0000, size=4096)]
    assert len(plan(apart)) == 2
    assert [(one.base, one.size) for one in plan(apart, 2 << 20)] == [(0, 2 << 20)]


@given(REGIONS, st.sampled_from([4096, 65536, 2 << 20]))
def test_every_byte_is_reserved_once(regions: list[Region], granularity: int) -> None:
    planned = plan(regions, granularity)
    assert sorted(one.base for each in planned for one in each.regions) == sorted(one.base for one in regions)
    for one in planned:
        assert one.base % granularity == 0
        assert one.size % granularity == 0
        assert all(one.base <= region.base and region.end <= one.end for region in one.regions)
        # Nothing more than its regions need.
        assert min(region.base for region in one.regions) - one.base < granularity
        assert one.end - max(region.end for region in one.regions) < granularity
    assert all(before.end < after.base for before, after in pairwise(planned))


@pytest.mark.parametrize("granularity", [0, 1024, 6000, -4096])
def test_a_granularity_that_is_none_is_refused(granularity: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        plan([Region(base=4096, size=1)], granularity)
