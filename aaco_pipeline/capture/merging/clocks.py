"""The clocks of a run's parts on one axis: what is added to each part's times, and how sure that is.

Parts of one stated host share a clock; those in CLOCK_MONOTONIC, one count since the host's start, lie to each other
exactly as their times say, whatever wall-clock each of them read. Others are placed by wall-clock where each states
it, for hosts keep that alike to some unknown difference; without it each stated host begins where the first one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

WALL: Final = "realtime"
#: What readers call times in the host's CLOCK_MONOTONIC.
MONOTONIC: Final = "monotonic"
#: Readings of wall-clock that are further apart tell of another start of the host, or of another host of that name.
_ONE_BOOT_NS: Final = 1_000_000_000
_OWN: Final = "the capture's own clock; zero is its earliest event"
_FRAME_ORDER: Final = ("domain", "offset_ns", "uncertainty_ns", "anchor")


@dataclass(frozen=True)
class PartTimes:
    """A part's clocks as its reader gave them, with its first and last instant in its own times; None without any."""

    name: str
    host: str | None
    clock_domains: pl.DataFrame
    first_ns: int | None
    last_ns: int | None

    @property
    def domain(self) -> str:
        own = self.clock_domains.filter(pl.col("domain") != WALL)
        return str(own.item(0, "domain")) if own.height else "capture"

    @property
    def wall(self) -> dict[str, object] | None:
        """The row that ties its times to wall-clock."""
        found = self.clock_domains.filter((pl.col("domain") == WALL) & pl.col("offset_ns").is_not_null())
        return found.row(0, named=True) if found.height else None

    @property
    def epoch_ns(self) -> int | None:
        """What its times count from, in ns after the Unix epoch."""
        offset = None if self.wall is None else self.wall["offset_ns"]
        return -offset if isinstance(offset, int) else None

    @property
    def clock(self) -> tuple[str, ...]:
        """Equal where two parts' times were read from one clock: of one stated host, or of the part itself."""
        return ("part", self.name) if self.host is None else ("host", self.host, self.domain)


@dataclass(frozen=True)
class Placed:
    """The table `clock_domains`, what to add to each part's times, and each part's clock."""

    clock_domains: pl.DataFrame
    offsets: Mapping[str, int]
    clocks: Mapping[str, tuple[str, ...]]
    evidence: tuple[Evidence, ...]


def placed(parts: Sequence[PartTimes]) -> Placed:
    """All parts on an axis whose zero is the earliest event of those that can be placed beside each other.

    An uncertainty is 0 for the clock of the first part, and null for every other clock: how far the hosts' wall-clocks
    are apart is not stated.
    """
    parts = _on_one_count(parts)
    zeros: dict[tuple[object, ...], int] = {}
    for part in parts:
        if part.first_ns is not None:
            zero = part.first_ns + (part.epoch_ns or 0)
            zeros[_frame_of(part)] = min(zero, zeros.get(_frame_of(part), zero))
    offsets = {part.name: (part.epoch_ns or 0) - zeros.get(_frame_of(part), part.epoch_ns or 0) for part in parts}
    timed = [part for part in parts if part.first_ns is not None]
    rows, evidence = _rows(timed, offsets)
    frame = to_contract("clock_domains", pl.DataFrame(rows)) if rows else empty_table("clock_domains")
    evidence += _apart(timed, offsets)
    return Placed(frame, offsets, {part.name: part.clock for part in parts}, tuple(evidence))


def _on_one_count(parts: Sequence[PartTimes]) -> list[PartTimes]:
    """The parts, those in one host's CLOCK_MONOTONIC with the wall-clock that the first of them read."""
    firsts: list[PartTimes] = []
    found = []
    for part in parts:
        epoch = part.epoch_ns
        if part.domain == MONOTONIC and part.host is not None and epoch is not None:
            alike = (one for one in firsts if one.host == part.host and _near(one.epoch_ns, epoch))
            if first := next(alike, None):
                part = replace(part, clock_domains=first.clock_domains)  # noqa: PLW2901 - the same part
            else:
                firsts.append(part)
        found.append(part)
    return found


def _near(one: int | None, other: int) -> bool:
    return one is not None and abs(one - other) <= _ONE_BOOT_NS


def _frame_of(part: PartTimes) -> tuple[object, ...]:
    """Equal for parts whose times can be put beside each other by adding numbers that the captures state."""
    return (WALL,) if part.epoch_ns is not None else (part.host, part.domain)


def _rows(parts: Sequence[PartTimes], offsets: Mapping[str, int]) -> tuple[list[dict[str, object]], list[Evidence]]:
    """The rows of `clock_domains`: one for each clock, and one of wall-clock.

    Files of the first part's host that count from different instants have a row each. Another host has one row, of its
    first file: clocks without an uncertainty are as many as hosts whose clocks are not aligned.
    """
    rows: list[dict[str, object]] = []
    unsure: dict[str, list[str]] = {}
    seen: set[tuple[object, ...]] = set()
    for part in parts:
        same = part.clock == parts[0].clock
        key = (part.clock, part.epoch_ns if same else None)
        if key in seen:
            continue
        seen.add(key)
        name, anchor = part.domain, _OWN if len(parts) == 1 or part.epoch_ns is None else _by_wall(part)
        if len(seen) > 1:
            name = f"{part.domain} of {part.host if part.host is not None and not same else part.name}"
        if not same:
            reason, placing = _unsure(part, parts[0])
            anchor = f"{anchor}; {placing}"
            item = "clocks of files without a host" if part.host is None else f"clock of {part.host}"
            unsure.setdefault(item, []).append(reason)
        rows.append(
            {"domain": name, "offset_ns": offsets[part.name], "uncertainty_ns": 0 if same else None, "anchor": anchor}
        )
    walls = [(part, part.wall) for part in parts if part.wall is not None]
    if walls:
        part, wall = walls[0]
        rows.append({**wall, "offset_ns": offsets[part.name] - (part.epoch_ns or 0)})
    evidence = [
        Evidence(item, "partial", "; ".join(dict.fromkeys(reasons)), None, len(reasons))
        for item, reasons in unsure.items()
    ]
    return [{key: row[key] for key in _FRAME_ORDER} for row in rows], evidence


def _by_wall(part: PartTimes) -> str:
    return f"the capture's own clock, counted from {part.epoch_ns} ns after the Unix epoch; zero is the earliest event"


def _unsure(part: PartTimes, first: PartTimes) -> tuple[str, str]:
    """What is not known of a clock beside the first part's, for the evidence and for its row."""
    who = "hosts' clocks" if part.host is not None and first.host is not None else "clocks of files without a host"
    if part.epoch_ns is not None and first.epoch_ns is not None:
        reason = f"placed by wall-clock, which may differ between hosts: {who} are not aligned any closer"
        return f"{reason}; times of different ones cannot be compared", "placed by wall-clock, which may differ"
    if _frame_of(part) == _frame_of(first):
        reason = f"{who} are not known to be one: times are kept as if they were, and cannot be compared"
        return reason, "not known to be the others' clock"
    reason = f"{who} are not aligned: times of different hosts cannot be compared"
    return reason, "not aligned with the other hosts': put at the same beginning"


def _apart(parts: Sequence[PartTimes], offsets: Mapping[str, int]) -> list[Evidence]:
    """Whether parts placed by wall-clock ran at different times, as ranks of one job do not."""
    spans = [
        (part.first_ns + offsets[part.name], part.last_ns + offsets[part.name])
        for part in parts
        if part.epoch_ns is not None and part.first_ns is not None and part.last_ns is not None
    ]
    if len(spans) < 2 or max(first for first, _ in spans) <= min(last for _, last in spans):
        return []
    reason = "by wall-clock their events share no instant: they may be of different runs, or wall-clocks differ"
    return [Evidence("parts at the same time", "partial", reason, None, len(spans))]
