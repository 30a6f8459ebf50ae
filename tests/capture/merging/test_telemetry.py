"""Samples of devices beside a trace: on its axis by a clock that both state, of its devices where both name them."""

from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.capture.merging import NamedReading, merge_parts
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract
from tests.capture.merging.test_merging import reading

#: Samples before, during and after the trace of `trace()`, in ns after the Unix epoch.
BEGIN: Final = 10**18
TIMES: Final = [BEGIN - 2_000, BEGIN - 1_000, BEGIN + 50, BEGIN + 60, BEGIN + 5_000, BEGIN + 6_000]


def trace(*, domain: str = "realtime", address: str = "0000:0c:00.0") -> NamedReading:
    """Dispatches from 0 to 110 ns of an axis whose zero is `BEGIN`."""
    made = reading("trace.db", [0, 100], address=address)
    clocks = pl.DataFrame({"domain": [domain], "offset_ns": [-BEGIN], "uncertainty_ns": [None]})
    clocks = pl.concat([made.reading.tables["clock_domains"], to_contract("clock_domains", clocks)])
    tables = {**made.reading.tables, "clock_domains": clocks}
    return NamedReading(made.name, CaptureTables(tables, made.reading.evidence, made.reading.details))


def series(times: list[int] = TIMES, *, cards: int = 1, **named: Any) -> NamedReading:
    """Samples of `cards` devices, each at all times; zero of their axis is the earliest."""
    rows = [{"device_id": card, "time_ns": at - times[0], "power_w": 5.0} for card in range(cards) for at in times]
    names = [
        {"device_id": card, "host": "node", "card": f"card{card}", "pci_address": None, "uuid": None}
        | {"devices_of_host": None}
        | named
        for card in range(cards)
    ]
    clock = {"domain": "realtime", "offset_ns": -times[0], "uncertainty_ns": 0, "anchor": "x"}
    tables = {
        "gpu_samples": to_contract("gpu_samples", pl.DataFrame(rows)),
        "devices": to_contract(
            "devices",
            pl.DataFrame(
                {
                    "device_id": range(cards),
                    "handle": [f"card{card}" for card in range(cards)],
                    "power_cap_w": [750.0] * cards,
                }
            ),
        ),
        "clock_domains": to_contract("clock_domains", pl.DataFrame([clock])),
    }
    schema = {"pci_address": pl.String, "uuid": pl.String, "devices_of_host": pl.Int64}
    return NamedReading(
        "power.json", CaptureTables(tables, (), {"device_names": pl.DataFrame(names, schema_overrides=schema)})
    )


def evidence_of(together: CaptureTables) -> dict[str, Evidence]:
    return {item.item: item for item in together.evidence}


def test_samples_are_moved_by_wall_clock_and_those_around_the_trace_are_kept() -> None:
    together = merge_parts([trace(), series()])
    assert together.tables["gpu_samples"].get_column("time_ns").to_list() == [-1_000, 50, 60, 5_000]
    told = evidence_of(together)
    assert told["gpu samples before and after"].rows == 2
    assert told["gpu samples"].status == "partial" and "differ between hosts" in str(told["gpu samples"].reason)


def test_a_trace_without_wall_clock_places_none_and_they_are_kept_beside() -> None:
    together = merge_parts([trace(domain="monotonic"), series()])
    assert together.tables["gpu_samples"].height == 0
    assert together.details["unplaced_gpu_samples"].height == len(TIMES)
    told = evidence_of(together)["gpu samples"]
    assert told.rows == len(TIMES) and "wall-clock" in str(told.reason)
    assert together.tables["devices"].height == 1


@pytest.mark.parametrize(("by", "told"), [(-(10**15), "before it"), (10**15, "after the trace")])
def test_samples_of_another_day_are_not_of_the_run(by: int, told: str) -> None:
    together = merge_parts([trace(), series([at + by for at in TIMES])])
    assert together.tables["gpu_samples"].height == 0
    assert evidence_of(together)["gpu samples"].status == "absent"
    assert told in str(evidence_of(together)["gpu samples"].reason)


def test_a_card_that_nothing_identifies_is_a_device_of_its_own() -> None:
    together = merge_parts([trace(), series(cards=2)])
    assert together.tables["devices"].select("device_id", "handle").rows() == [(0, "5600"), (1, "card0"), (2, "card1")]
    assert set(together.tables["gpu_samples"].get_column("device_id")) == {1, 2}
    assert "devices of their own" in str(evidence_of(together)["devices of gpu samples"].reason)


@pytest.mark.parametrize(
    ("named", "same"),
    [
        ({"pci_address": "0000:0c:00.0"}, True),
        ({"uuid": "0000:0C:00.0".lower()}, True),
        ({"pci_address": "0000:0d:00.0"}, False),
        ({"devices_of_host": 1}, True),
        ({"devices_of_host": 2}, False),
        ({"devices_of_host": 1, "host": "other"}, False),
        ({"devices_of_host": 1, "host": "NODE.cluster"}, True),
    ],
)
def test_an_address_or_the_only_device_of_the_host_is_the_traces(named: dict[str, Any], same: bool) -> None:
    together = merge_parts([trace(), series(**named)])
    assert together.tables["devices"].height == (1 if same else 2)
    assert set(together.tables["gpu_samples"].get_column("device_id")) == ({0} if same else {1})
    assert together.tables["devices"].item(-1, "power_cap_w") == 750.0
    assert ("devices of gpu samples" in evidence_of(together)) is not same


def test_samples_alone_are_a_session_from_their_first() -> None:
    together = merge_parts([series()])
    assert together.tables["gpu_samples"].get_column("time_ns").to_list() == [at - TIMES[0] for at in TIMES]
    wall = together.tables["clock_domains"].filter(pl.col("domain") == "realtime")
    assert wall.item(0, "offset_ns") == -TIMES[0]
    assert together.tables["dispatches"].equals(empty_table("dispatches"))
