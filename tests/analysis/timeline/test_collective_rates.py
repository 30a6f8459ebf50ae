"""Bandwidths of collectives by nccl-tests' factors, and what a rate far below the links' says."""

from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.timeline.collective_rates import LATE_OR_BROKEN, with_rates

LINKS: Final = pl.DataFrame(
    {"device_id": [0], "links": [7], "link_bytes_per_s": [64e9]}, schema_overrides={"device_id": pl.Int32}
)


def rated(
    name: str | None, size: int | None, ranks: int | None, took_ns: int, links: pl.DataFrame = LINKS
) -> tuple[float | None, float | None, float | None, str | None]:
    """Algorithm bandwidth, bus bandwidth, share of the links, remark."""
    part = pl.DataFrame(
        {"dispatch_id": [0], "name": [name], "size_bytes": [size], "expected_participants": [ranks]},
        schema={
            **{"dispatch_id": pl.Int32, "name": pl.String},
            **{"size_bytes": pl.Int64, "expected_participants": pl.Int64},
        },
    )
    dispatch = pl.DataFrame(
        {"dispatch_id": [0], "device_id": [0], "start_ns": [1000], "end_ns": [1000 + took_ns]},
        schema_overrides={"dispatch_id": pl.Int32, "device_id": pl.Int32},
    )
    (row,) = with_rates(part, dispatch, links).rows(named=True)
    assert row["duration_ns"] == took_ns
    return row["algorithm_bytes_per_s"], row["bus_bytes_per_s"], row["share_ratio"], row["remark"]


@pytest.mark.parametrize(
    ("name", "algorithm", "bus"),
    [
        ("all_reduce", 8e9, 2 * 7 / 8 * 8e9),
        ("reduce_scatter", 8e9, 7 / 8 * 8e9),
        # A rank puts in one part of eight.
        ("all_gather", 64e9, 7 / 8 * 64e9),
        ("all_to_all", 8e9, 7 / 8 * 8e9),
        ("broadcast", 8e9, 8e9),
        ("reduce", 8e9, 8e9),
        ("send", 8e9, None),
    ],
)
def test_the_factors_are_those_of_nccl_tests(name: str, algorithm: float, bus: float | None) -> None:
    found = rated(name, 8_000_000, 8, 1_000_000)
    assert found[0] == pytest.approx(algorithm)
    assert found[1] == (None if bus is None else pytest.approx(bus))


def test_a_rate_below_a_tenth_of_the_links_says_what_it_may_be() -> None:
    # 17.6 MB in 9 ms, as a real data-parallel step took.
    _, bus, share, remark = rated("all_reduce", 17_632_384, 8, 9_000_000)
    assert bus == pytest.approx(3.43e9, rel=0.01)
    assert share == pytest.approx(0.0077, rel=0.01)
    assert remark == LATE_OR_BROKEN
    assert rated("all_reduce", 17_632_384, 8, 100_000)[3] is None


def test_a_small_message_is_not_accused_of_its_latency() -> None:
    assert rated("all_reduce", 40_000, 8, 14_000)[3] == "too small for its rate to tell anything"


def test_without_a_known_fabric_there_is_no_share_and_a_reason() -> None:
    assert rated("all_reduce", 8_000_000, 8, 10**9, LINKS.clear())[2:] == (
        None,
        "the rate of the links between such devices is not known",
    )
    assert rated("all_reduce", 8_000_000, 16, 10**9)[2:] == (
        None,
        "more ranks than a device has peers: the rate of the network is not known",
    )


@pytest.mark.parametrize("part", [(None, 8, 8), ("all_reduce", None, 8), ("all_reduce", 8, None)])
def test_what_is_not_stated_gives_no_rate(part: tuple[str | None, int | None, int | None]) -> None:
    assert rated(*part, 1000)[1:] == (None, None, None)
