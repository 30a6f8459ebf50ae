"""Addresses that are free, taken, or more than there are, each by its outcome."""

import mmap

from aaco_pipeline.optimization.replay import Region, Reservation, plan
from aaco_pipeline.resources.address_reservations import outcome, reserve

#: Far below where a loader puts programs and libraries.
FREE = 0x1000_0000_0000


def test_free_addresses_are_had_exactly_and_larger_ones_than_there_are_fail() -> None:
    planned = plan([Region(base=FREE, size=3 * mmap.PAGESIZE), Region(base=FREE << 1, size=1 << 40)])
    too_much = Reservation(FREE, 1 << 56, ())
    found = reserve([*planned, too_much])
    assert [one.outcome for one in found] == ["exact", "exact", "failed"]
    assert [one.at for one in found] == [FREE, FREE << 1, None]
    assert found[2].reason
    assert outcome(found) == "failed"
    assert outcome(found[:2]) == outcome(()) == "exact"


def test_an_address_that_is_taken_is_relocated() -> None:
    taken = [Reservation(FREE, 1 << 20, ()), Reservation(FREE + 4096, 4096, ())]
    found = reserve(taken)
    assert [one.outcome for one in found] == ["exact", "relocated"]
    assert found[1].at not in (None, FREE + 4096)
    assert outcome(found) == "relocated"
