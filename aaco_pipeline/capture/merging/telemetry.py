"""Samples of devices beside a trace: on its axis where both state one clock, of its devices where both name them alike.

Nothing is guessed: neither a shift between clocks, nor that the first card is the first device.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging.base import Base
from aaco_pipeline.capture.merging.clocks import WALL
from aaco_pipeline.capture.merging.parts import EVENTS, NamedReading
from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

Placed = tuple[pl.DataFrame, pl.DataFrame, list[Evidence], dict[str, pl.DataFrame]]
#: What of a sampled device the trace's reader need not have stated.
_FILLED: Final = ("product", "memory_bytes", "partition_mode", "power_cap_w")


def placed(parts: Sequence[NamedReading], base: Base) -> Placed:
    """`gpu_samples` on the session's axis, `devices` with those sampled, evidence, and details.

    Samples of a part of the base are on its axis. Those of another part are moved onto it by the clock that both state
    (wall-clock, or one of the same name), and of them those are kept that the trace's time lies between. A sampled
    device is the trace's where PCI address or UUID are the same, or where host and trace have one each; else it is a
    device of its own. Detail `unplaced_gpu_samples`: the samples that no clock ties to the axis, in their own times.
    """
    findings = Findings()
    devices = base.tables["devices"]
    taken: list[pl.DataFrame] = []
    unplaced: list[pl.DataFrame] = []
    for part in parts:
        samples = part.table("gpu_samples")
        if part.name in base.time_offsets:
            taken.append(samples.with_columns(pl.col("time_ns") + base.time_offsets[part.name]))
            continue
        if not samples.height:
            continue
        shift = _shift(part.table("clock_domains"), base.tables["clock_domains"])
        if shift is None:
            told = "the trace does not tie its clock to the samples' (wall-clock of each): they are not on its axis"
            findings.say("gpu samples", "partial", told, samples.height, part.name)
            unplaced.append(samples)
            continue
        moved = samples.with_columns(pl.col("time_ns") + shift)
        kept = _around(moved, base)
        left = samples.height - kept.height
        if not kept.height:
            findings.say("gpu samples", "absent", _apart(moved, base), 0, part.name)
            continue
        findings.note(left, "gpu samples before and after", "partial", "not of the trace's time: left out", part.name)
        findings.say("gpu samples", "partial", "placed by wall-clock, which may differ between hosts", kept.height)
        mapping = _same_devices(part, base)
        devices, numbers = _with_sampled(devices, part, mapping, kept, findings)
        taken.append(kept.with_columns(pl.col("device_id").replace_strict(numbers, return_dtype=pl.Int32)))
    together = pl.concat(taken) if taken else empty_table("gpu_samples")
    details = {"unplaced_gpu_samples": pl.concat(unplaced)} if unplaced else {}
    return together.sort("time_ns", "device_id", maintain_order=True), devices, findings.evidence, details


def _shift(own: pl.DataFrame, session: pl.DataFrame) -> int | None:
    """What is added to a part's times to get the session's, by the first clock that both tie to theirs."""
    mine, theirs = (
        dict(clocks.drop_nulls("offset_ns").select("domain", "offset_ns").iter_rows()) for clocks in (own, session)
    )
    for domain in sorted(mine.keys() & theirs.keys(), key=lambda name: name != WALL):
        return int(theirs[domain] - mine[domain])
    return None


def _span(base: Base) -> tuple[int, int] | None:
    """The first and last instant of the trace."""
    spans = [base.tables[name].select("start_ns", "end_ns") for name in EVENTS if base.tables[name].height]
    if not spans:
        return None
    first, last = pl.concat(spans).select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return (first, first if last is None else last) if first is not None else None


def _around(samples: pl.DataFrame, base: Base) -> pl.DataFrame:
    """Each device's samples during the trace, with the last before and the first after it.

    None of a device that was only sampled before the trace, or only after it.
    """
    span = _span(base)
    if span is None:
        return samples
    first, last = (pl.lit(time, pl.Int64) for time in span)
    time = pl.col("time_ns")
    before = time.filter(time <= first).max().over("device_id")
    after = time.filter(time >= last).min().over("device_id")
    sampled = (time.max().over("device_id") >= first) & (time.min().over("device_id") <= last)
    return samples.filter(sampled & (time >= pl.coalesce(before, first)) & (time <= pl.coalesce(after, last)))


def _apart(samples: pl.DataFrame, base: Base) -> str:
    first, last = _span(base) or (0, 0)
    begin, end = samples.select(pl.col("time_ns").min().alias("begin"), pl.col("time_ns").max().alias("end")).row(0)
    if begin > last:
        return f"all were taken after the trace: the first {(begin - last) / 1e9:.3g} s behind its end"
    return f"none was taken during the trace: the last {(first - end) / 1e9:.3g} s before it"


def _same_devices(part: NamedReading, base: Base) -> Mapping[int, int]:
    """Of the part's devices those that are the trace's, with their numbers there."""
    names = part.reading.details.get("device_names")
    if names is None:
        return {}
    known = {address.lower(): device for device, address in base.addresses.items()}
    gpus = base.tables["devices"].filter(pl.col("device_id").is_in(_used(base))).get_column("device_id").to_list()
    hosts = {_short(host) for host in base.tables["processes"].get_column("host").drop_nulls().to_list()}
    found: dict[int, int] = {}
    for row in names.iter_rows(named=True):
        same = next((known[name] for name in (row["pci_address"], row["uuid"]) if name and name in known), None)
        alone = row["devices_of_host"] == names.height == len(gpus) == 1
        if same is None and alone and (row["host"] is None or not hosts or hosts == {_short(row["host"])}):
            same = gpus[0]
        if same is not None and same not in found.values():
            found[row["device_id"]] = same
    return found


def _used(base: Base) -> list[int]:
    """The devices that ran a kernel or a copy."""
    columns = (("dispatches", "device_id"), ("memory_copies", "source_device_id"))
    frames = [base.tables[table].select(pl.col(column).alias("device_id")) for table, column in columns]
    return pl.concat(frames).drop_nulls().unique().to_series().to_list() if not frames[0].is_empty() else []


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _with_sampled(
    devices: pl.DataFrame, part: NamedReading, same: Mapping[int, int], samples: pl.DataFrame, findings: Findings
) -> tuple[pl.DataFrame, dict[int, int]]:
    """The devices with what the samples' part states of them, further ones behind; the session's number of each."""
    sampled = samples.get_column("device_id").unique().sort().to_list()
    stated = part.table("devices").filter(pl.col("device_id").is_in(sampled))
    own = [device for device in sampled if device not in same]
    highest = devices.get_column("device_id").max()
    begin = highest + 1 if isinstance(highest, int) else 0
    numbers = {**{one: same[one] for one in sampled if one in same}, **{one: begin + i for i, one in enumerate(own)}}
    facts = stated.with_columns(pl.col("device_id").replace_strict(numbers, default=None, return_dtype=pl.Int32))
    filled = devices.join(facts.select("device_id", *_FILLED), on="device_id", how="left", suffix="_sampled")
    filled = filled.with_columns(pl.coalesce(name, f"{name}_sampled").alias(name) for name in _FILLED)
    further = facts.filter(pl.col("device_id") >= begin)
    if own:
        told = (
            f"what the samples call {', '.join(map(str, further.get_column('handle').head(3).to_list()))} is not said "
            "to be any of the trace's devices (no PCI address or UUID in both): they are devices of their own"
        )
        findings.say("devices of gpu samples", "partial", told, len(own), part.name)
    rows = pl.concat([filled.select(devices.columns), further.select(devices.columns)])
    return to_contract("devices", rows), numbers
