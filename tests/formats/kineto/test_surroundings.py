"""Which of the devices that a trace describes are those of its activities."""

from typing import Any

import pytest

from aaco_pipeline.formats.kineto.surroundings import device_rows, properties_of


def entry(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": "AMD Instinct MI300X", "numSms": 304, **more}


def test_rocms_agent_number_of_the_one_device_is_that_device() -> None:
    assert set(properties_of([9], {0: entry(0)}, True)) == {9}
    assert properties_of([9], {0: entry(0)}, True)[9]["numSms"] == 304


def test_of_devices_that_are_alike_any_has_the_properties_and_of_others_none() -> None:
    alike = {0: entry(0), 1: entry(1)}
    assert set(properties_of([1, 8], alike, True)) == {0, 1, 8}
    unlike = {0: entry(0), 1: entry(1, numSms=228)}
    assert properties_of([8], unlike, True) == unlike


@pytest.mark.parametrize(
    ("seen", "amd"),
    [
        ([0], True),  # described by the same number
        ([9], False),  # CUDA numbers both alike
        ([-1], True),  # no number at all
        ([], True),
    ],
)
def test_otherwise_what_is_described_stays_as_it_is(seen: list[int], amd: bool) -> None:
    assert properties_of(seen, {0: entry(0)}, amd) == {0: entry(0)}


def test_two_strange_devices_are_not_the_one_that_is_described() -> None:
    assert set(properties_of([2, 3], {0: entry(0)}, True)) == {0}


@pytest.mark.parametrize(
    ("amd", "major", "minor", "arch"),
    [
        (True, 9, 4, "gfx942"),
        (True, 9, 5, "gfx950"),
        (True, 9, 0, None),
        (False, 9, 0, "sm_90"),
        (None, 9, 0, None),
        (False, None, None, None),
    ],
)
def test_capability_numbers_name_an_architecture_where_one_alone_has_them(
    *, amd: bool | None, major: int | None, minor: int | None, arch: str | None
) -> None:
    rows = device_rows({0: 0}, {0: entry(0, computeMajor=major, computeMinor=minor)}, amd)
    assert rows.item(0, "arch") == arch
