"""Placement of parts' clocks on the session's axis, and recognition of one clock."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline import ranks
from aaco_pipeline.analysis.timeline.collectives import matched
from aaco_pipeline.capture.merging.base import PartTimes, placed
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform, to_contract

KEY = "20260101T000000Z-00000000"
EPOCH = 1_767_189_312_000_000_000


def part(
    name: str, first: int | None, *, host: str | None = None, base: int | None = None, domain: str = "kineto"
) -> PartTimes:
    """A part whose events last 100 ns, with times that count from `base` after the Unix epoch."""
    rows: list[dict[str, object]] = [{"domain": domain, "offset_ns": 0, "uncertainty_ns": 0, "anchor": "own"}]
    if base is not None:
        rows.append({"domain": "realtime", "offset_ns": -base, "uncertainty_ns": None, "anchor": "stated"})
    clocks = to_contract("clock_domains", pl.DataFrame(rows))
    return PartTimes(name, host, clocks, first, None if first is None else first + 100)


def methods(parts: list[PartTimes]) -> list[str]:
    """Methods that place the clocks of the parts' processes, without any collective."""
    processes = to_contract(
        "processes",
        pl.DataFrame(
            {"process_id": range(len(parts)), "host": [one.host for one in parts], "rank": range(len(parts))},
            schema_overrides={"host": pl.String},
        ),
    )
    none = matched(
        pl.DataFrame(
            schema={
                **dict.fromkeys(("dispatch_id", "process_id", "device_id"), pl.Int32),
                **dict.fromkeys(("start_ns", "end_ns", "group_size", "sequence", "size_bytes"), pl.Int64),
                **dict.fromkeys(("name", "communicator"), pl.String),
            }
        )
    )
    return ranks.rank_clocks(processes, placed(parts).clock_domains, none).get_column("method").to_list()


@given(st.lists(st.tuples(st.integers(-(2**50), 2**50), st.integers(0, 2**40)), min_size=1, max_size=5))
def test_wall_clock_differences_are_kept_to_the_nanosecond(given_parts: list[tuple[int, int]]) -> None:
    parts = [part(f"p{i}", first, base=EPOCH + base) for i, (first, base) in enumerate(given_parts)]
    found = placed(parts)
    conform(contract("clock_domains"), found.clock_domains, KEY)
    walls = [first + EPOCH + base for first, base in given_parts]
    on_axis = [first + found.offsets[one.name] for one, (first, _) in zip(parts, given_parts, strict=True)]
    assert on_axis == [wall - min(walls) for wall in walls]
    (realtime,) = found.clock_domains.filter(pl.col("domain") == "realtime").to_dicts()
    assert realtime["offset_ns"] == -min(walls)
    own = found.clock_domains.filter(pl.col("domain") != "realtime")
    assert own.get_column("uncertainty_ns").to_list() == [0, *[None] * (len(parts) - 1)]
    assert own.get_column("offset_ns").to_list() == [found.offsets[one.name] for one in parts]


def test_files_of_one_stated_host_are_one_clock_whatever_they_count_from() -> None:
    parts = [part("a", 1000, host="node", base=EPOCH), part("b", 500, host="node", base=EPOCH + 550)]
    found = placed(parts)
    assert found.offsets == {"a": -1000, "b": -450}
    assert found.clocks["a"] == found.clocks["b"]
    own = found.clock_domains.filter(pl.col("domain") != "realtime")
    assert own.select("domain", "uncertainty_ns").rows() == [("kineto", 0), ("kineto of b", 0)]
    assert not found.evidence
    assert methods(parts) == ["same_process", "same_host"]


def test_files_of_one_host_in_monotonic_time_lie_as_their_times_say_whatever_wall_clock_they_read() -> None:
    def monotonic(name: str, first: int, base: int, host: str = "node") -> PartTimes:
        return part(name, first, host=host, base=EPOCH + base, domain="monotonic")

    found = placed([monotonic("a", 1000, 0), monotonic("b", 1500, 700), monotonic("c", 900, -80_000)])
    assert found.offsets == dict.fromkeys("abc", -900)
    assert found.clock_domains.filter(pl.col("domain") != "realtime").height == 1
    # On another host, and after another start of the host, monotonic time counts from another instant.
    assert placed([monotonic("a", 0, 0), monotonic("b", 0, 700, "other")]).offsets == {"a": 0, "b": 700}
    later = 3_600_000_000_000
    assert placed([monotonic("a", 0, 0), monotonic("b", 0, later)]).offsets == {"a": 0, "b": later}


def test_another_host_is_another_clock_also_where_wall_clock_is_known() -> None:
    places = (("a", "one", 0), ("b", "two", 40), ("c", "two", 40))
    parts = [part(name, 0, host=host, base=EPOCH + later) for name, host, later in places]
    found = placed(parts)
    assert found.offsets == {"a": 0, "b": 40, "c": 40}
    assert found.clocks["b"] == found.clocks["c"] != found.clocks["a"]
    own = found.clock_domains.filter(pl.col("domain") != "realtime")
    assert own.select("domain", "uncertainty_ns").rows() == [("kineto", 0), ("kineto of two", None)]
    assert [item.item for item in found.evidence] == ["clock of two"]
    assert methods(parts) == ["same_process", "none", "none"]


def test_files_without_a_host_are_clocks_of_their_own() -> None:
    parts = [part("a", 50, base=EPOCH), part("b", 50, base=EPOCH)]
    assert placed(parts).clocks["a"] != placed(parts).clocks["b"]
    assert methods(parts) == ["same_process", "none"]
    # Without wall-clock their times stay to each other as they were captured, and nothing is claimed.
    unplaced = placed([part("a", 50), part("b", 80)])
    assert unplaced.offsets == {"a": -50, "b": -50}
    assert unplaced.clock_domains.get_column("uncertainty_ns").to_list() == [0, None]
    assert "not known to be one" in (unplaced.evidence[0].reason or "")


def test_without_wall_clock_hosts_begin_together() -> None:
    found = placed([part("a", 50, host="one"), part("b", 9_000, host="two"), part("c", None, host="one")])
    assert found.offsets == {"a": -50, "b": -9_000, "c": -50}
    assert "put at the same beginning" in found.clock_domains.item(1, "anchor")


def test_parts_that_share_no_instant_are_told() -> None:
    def told(*firsts: int) -> list[str]:
        found = placed([part(str(i), first, base=EPOCH) for i, first in enumerate(firsts)])
        return [item.item for item in found.evidence if item.item == "parts at the same time"]

    assert told(0, 100) == []
    assert told(0, 101) == ["parts at the same time"]
    assert told(0) == []


def test_what_is_unsure_is_told_once_for_all_files_without_a_host() -> None:
    parts = [part("a", 0, base=EPOCH), part("b", 0, base=EPOCH), part("c", 0), part("d", 0, host="node")]
    told = {item.item: item for item in placed(parts).evidence}
    assert list(told) == ["clocks of files without a host", "clock of node"]
    assert told["clocks of files without a host"].rows == 2
    assert (told["clocks of files without a host"].reason or "").count("placed by wall-clock") == 1
