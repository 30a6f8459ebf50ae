"""Add data from other passes to the base trace: counter values, device samples and program-counter samples.

`base` describes the base trace, its clocks and its numbering.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from aaco_pipeline.capture.merging.base import WALL, Base, renumbered
from aaco_pipeline.capture.merging.parts import EVENTS, NamedReading
from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Ways of matching an execution, as in `counters.matched_by`.
DISPATCH: Final = "dispatch"
EXECUTION: Final = "execution"
KERNEL: Final = "kernel"
#: Evidence item for values matched this way, and its reason.
_MATCHED: Final = {
    EXECUTION: (
        "counter values matched by execution",
        "are of dispatches that their pass numbers otherwise: the n-th of a kernel and grid that ran as often, or "
        "whose first were counted",
    ),
    KERNEL: (
        "counter values matched to dispatches",
        "belong to executions that the base trace numbers otherwise or lacks: they are their kernels', and no single "
        "dispatch's",
    ),
}
_LAUNCH: Final = ("process", "name", "grid", "workgroup")
_RESOURCES: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs")


def counters(parts: Sequence[NamedReading], base: Base) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """Build `counters` of all parts, and add kernels that only a counter pass ran to `kernels`."""
    kernels = base.tables["kernels"]
    of_dispatch = base.tables["dispatches"].select("dispatch_id", "kernel_id")
    found = [empty_table("counters")]
    found_by: dict[str, dict[str, int]] = {EXECUTION: {}, KERNEL: {}}
    for part in parts:
        # Formats with one pass per file do not name the pass.
        named = pl.when(pl.col("pass") == "").then(pl.lit(part.name)).otherwise("pass").alias("pass")
        values = part.table("counters").with_columns(named).drop("kernel_id", "matched_by", "source_dispatch_id")
        if values.is_empty():
            continue
        if part.name in base.dispatch_offsets:
            offset = base.dispatch_offsets[part.name]
            own = part.keys.select(pl.col("dispatch_id") + offset, "source_dispatch_id")
            places = own.join(of_dispatch, on="dispatch_id", how="left").with_columns(
                matched_by=pl.lit(DISPATCH), session_dispatch="dispatch_id"
            )
            values = values.with_columns(pl.col("dispatch_id") + offset)
        else:
            kernels, places = _placed(part, base, kernels)
        placed = values.join(places, on="dispatch_id", how="left", maintain_order="left")
        for how, counts in found_by.items():
            counts[part.name] = placed.filter(pl.col("matched_by") == how).height
        placed = placed.with_columns(dispatch_id="session_dispatch").drop("session_dispatch")
        found.append(to_contract("counters", placed))
    return pl.concat(found), kernels, _evidence(found_by)


def _evidence(found_by: dict[str, dict[str, int]]) -> list[Evidence]:
    """Count, per pass, the values whose dispatch was not found by number."""
    findings = Findings()
    for how, counts in found_by.items():
        count = sum(counts.values())
        item, told = _MATCHED[how]
        passes = ", ".join(name for name, values in counts.items() if values)
        findings.note(count, item, "partial", f"{count} values of {passes} {told}")
    return findings.evidence


def _placed(part: NamedReading, base: Base, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the kernels, and each execution of another pass: session_dispatch, kernel_id, matched_by, its number.

    If the base trace has several processes, an execution is only searched for in the process of its own rank.
    """
    kernels, of_part = _kernels(part, kernels)
    executions = part.keys.join(of_part, on="dispatch_id", how="left").with_columns(_process(part, base))
    # If only first executions were counted, the numbers differ from the trace's.
    by_number = _by_number(executions.clear() if part.counts_first else executions, base.keys)
    by_turn = _by_turn(executions, base.keys, by_number, first=part.counts_first)
    rest = executions.select("dispatch_id").join(pl.concat([by_number, by_turn]), on="dispatch_id", how="anti")
    alone = rest.with_columns(session_dispatch=pl.lit(None, pl.Int32), matched_by=pl.lit(KERNEL))
    places = executions.select("dispatch_id", "source_dispatch_id", "kernel_id").join(
        pl.concat([by_number, by_turn, alone]), on="dispatch_id", how="left"
    )
    of_base = base.tables["dispatches"].select(session_dispatch="dispatch_id", base_kernel="kernel_id")
    places = places.join(of_base, on="session_dispatch", how="left", maintain_order="left")
    return kernels, places.with_columns(kernel_id=pl.coalesce("base_kernel", "kernel_id")).drop("base_kernel")


def _process(part: NamedReading, base: Base) -> pl.Expr:
    """Return the base trace's process for each of the part's processes; null if unknown."""
    processes = base.tables["processes"]
    if processes.height <= 1:
        return pl.col("process")
    ranks = dict(processes.drop_nulls("rank").unique("rank", keep="none").select("rank", "process_id").iter_rows())
    own = {number: ranks.get(rank) for number, rank in part.table("processes").select("process_id", "rank").iter_rows()}
    return pl.col("process").replace_strict(own, default=None, return_dtype=pl.Int32)


def _by_number(executions: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Match executions to dispatches by number, kernel and grid: dispatch_id, session_dispatch, matched_by.

    Excludes a kernel and grid that ran equally often in both passes with numbers that do not all agree: an equal number
    would then be a coincidence.
    """
    theirs = keys.select("process", "source_dispatch_id", "name", session_dispatch="dispatch_id", base_grid="grid")
    theirs = theirs.unique(["process", "source_dispatch_id", "name"], keep="none")
    alike = executions.join(theirs, on=["process", "source_dispatch_id", "name"], how="left", maintain_order="left")
    differs = (pl.col("grid") != pl.col("base_grid")).fill_null(False)
    alike = alike.with_columns(session_dispatch=pl.when(~differs).then("session_dispatch"))
    often = keys.group_by(_LAUNCH).agg(base_count=pl.len())
    alike = alike.join(often, on=_LAUNCH, how="left", nulls_equal=True, maintain_order="left").with_columns(
        count=pl.len().over(_LAUNCH), whole=pl.col("session_dispatch").is_not_null().all().over(_LAUNCH)
    )
    shifted = (pl.col("count") == pl.col("base_count")).fill_null(False) & ~pl.col("whole")
    return alike.filter(pl.col("session_dispatch").is_not_null() & ~shifted).select(
        "dispatch_id", "session_dispatch", matched_by=pl.lit(DISPATCH)
    )


def _by_turn(executions: pl.DataFrame, keys: pl.DataFrame, taken: pl.DataFrame, *, first: bool) -> pl.DataFrame:
    """Match the n-th execution of a kernel and grid to the n-th in the base trace, if both ran equally often.

    With `first`, it is enough that the base trace ran at least as often.
    """
    known = pl.col("process").is_not_null() & pl.col("grid").is_not_null()
    turn = pl.int_range(pl.len(), dtype=pl.Int32).over(_LAUNCH)
    ordered = pl.col("source_dispatch_id")

    def turns(frame: pl.DataFrame) -> pl.DataFrame:
        return (
            frame.filter(known)
            .sort(ordered, "dispatch_id", nulls_last=True)
            .with_columns(turn=turn, count=pl.len().over(_LAUNCH))
        )

    left = executions.join(taken, on="dispatch_id", how="anti", maintain_order="left")
    free = keys.join(taken.select(dispatch_id="session_dispatch"), on="dispatch_id", how="anti", maintain_order="left")
    theirs = turns(free).select(*_LAUNCH, "turn", base_count="count", session_dispatch="dispatch_id")
    as_often = pl.col("count") <= pl.col("base_count") if first else pl.col("count") == pl.col("base_count")
    return (
        turns(left)
        .join(theirs, on=[*_LAUNCH, "turn"], how="inner", nulls_equal=True)
        .filter(as_often)
        .select("dispatch_id", "session_dispatch", matched_by=pl.lit(EXECUTION))
    )


def _kernels(part: NamedReading, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the kernels that only this part has, and return the kernel of each of its executions.

    A kernel is matched to the session's kernel with the same name and registers, else to the first with the same name.
    """
    used = part.executions.select("dispatch_id", own="kernel_id")
    counted = part.table("counters").select("dispatch_id").unique()
    used = used.join(counted, on="dispatch_id", how="semi", maintain_order="left")
    own = part.table("kernels").join(used.select(kernel_id="own").unique(), on="kernel_id", how="semi")
    by_name = kernels.unique("name", keep="first", maintain_order=True)
    new = own.join(by_name, on="name", how="anti", maintain_order="left")
    new = new.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32) + kernels.height)
    kernels = pl.concat([kernels, new.select(kernels.columns)])
    exact = kernels.unique(_RESOURCES, keep="first", maintain_order=True).select(*_RESOURCES, exact="kernel_id")
    named = kernels.unique("name", keep="first", maintain_order=True).select("name", named="kernel_id")
    numbers = (
        own.select(*_RESOURCES, own="kernel_id")
        .join(exact, on=_RESOURCES, how="left", nulls_equal=True)
        .join(named, on="name", how="left")
        .select("own", kernel_id=pl.coalesce("exact", "named"))
    )
    return kernels, used.join(numbers, on="own", how="left", maintain_order="left").drop("own")


Placed = tuple[pl.DataFrame, pl.DataFrame, list[Evidence], dict[str, pl.DataFrame]]
#: Facts about a sampled device that the trace's reader may lack.
_FILLED: Final = ("product", "memory_bytes", "partition_mode", "power_cap_w")


def placed(parts: Sequence[NamedReading], base: Base) -> Placed:
    """Return `gpu_samples` on the session's axis, `devices` including the sampled ones, evidence and details.

    Samples from a base part are already on its axis. Those of another part are shifted by a clock that both state (the
    wall clock, or one of the same name), and only samples around the trace's time are kept. A sampled device is
    identified with the trace's if PCI address or UUID agree, or if host and trace have one each; otherwise it is a
    separate device. Detail `unplaced_gpu_samples`: samples that no clock ties to the axis, in their own times.
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
    """Return the offset from a part's times to the session's, by the first clock that both of them state."""
    mine, theirs = (
        dict(clocks.drop_nulls("offset_ns").select("domain", "offset_ns").iter_rows()) for clocks in (own, session)
    )
    for domain in sorted(mine.keys() & theirs.keys(), key=lambda name: name != WALL):
        return int(theirs[domain] - mine[domain])
    return None


def _span(base: Base) -> tuple[int, int] | None:
    """Return the first and last instant of the trace."""
    spans = [base.tables[name].select("start_ns", "end_ns") for name in EVENTS if base.tables[name].height]
    if not spans:
        return None
    first, last = pl.concat(spans).select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return (first, first if last is None else last) if first is not None else None


def _around(samples: pl.DataFrame, base: Base) -> pl.DataFrame:
    """Keep each device's samples during the trace, plus the last one before and the first one after it.

    Drops a device that was only sampled before the trace, or only after it.
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
    """Map the part's devices to the trace's numbers if they are the same."""
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
    """List the devices that ran a kernel or a copy."""
    columns = (("dispatches", "device_id"), ("memory_copies", "source_device_id"))
    frames = [base.tables[table].select(pl.col(column).alias("device_id")) for table, column in columns]
    return pl.concat(frames).drop_nulls().unique().to_series().to_list() if not frames[0].is_empty() else []


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _with_sampled(
    devices: pl.DataFrame, part: NamedReading, same: Mapping[int, int], samples: pl.DataFrame, findings: Findings
) -> tuple[pl.DataFrame, dict[int, int]]:
    """Add facts from the samples' part to the devices, and any new devices; return the session's numbers."""
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


def pc_samples(parts: Sequence[NamedReading], base: Base) -> pl.DataFrame:
    """Combine all program-counter samples, numbered part after part."""
    found = []
    for part in parts:
        samples = part.table("pc_samples")
        if part.name in base.dispatch_offsets:
            offsets = {"dispatch_id": base.dispatch_offsets[part.name], "time_ns": base.time_offsets[part.name]}
            found.append(renumbered(samples, offsets, {}))
        else:
            # Times from another run's clock have no place on this axis.
            found.append(samples.with_columns(time_ns=pl.lit(None, pl.Int64), dispatch_id=pl.lit(None, pl.Int32)))
    return pl.concat(found).with_columns(sample_id=pl.int_range(pl.len(), dtype=pl.Int32))
