"""Document of one kernel: its bottleneck, its rate and roof, how it was launched, and its view.

The page of a kernel is in `page`, its instructions in `instructions`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from operator import itemgetter
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.formatting import (
    DECIMAL,
    counted,
    duration,
    grouped,
    in_a_line,
    listed,
    number,
    prefixed,
    share,
    shortened,
    size,
)
from aaco_pipeline.report.optimization.search import search_in_a_line
from aaco_pipeline.report.session import bottlenecks
from aaco_pipeline.report.session.bottlenecks import bottleneck_fields
from aaco_pipeline.report.session.document import read_parts
from aaco_pipeline.report.session.sentences import Document, Row
from aaco_pipeline.report.session.statements import statements
from aaco_pipeline.report.session.view import headed, kernel_in_words
from aaco_pipeline.report.view import Columns, Part, Table, View, sentences

_NAMED: Final = 5
_LONGEST_NAME: Final = 70


def kernel_document(lake: TraceLake, session: str, wanted: str) -> Document:
    """Collect everything known about the kernel matched by `wanted`, as JSON-able values; UsageError without a unique
    match.

    `kernel`, `roofline`, `occupancy` and `critical_path` are objects, or null if no stage has such a row; the others
    are lists, with `searches` for this kernel. The verdict's fields are the same as in `aaco show`.
    """
    from aaco_pipeline.report.optimization.document import searches_of  # Polars is not needed for help texts

    every = dict(statements("kernel"))
    names = read_parts(lake, session, {"names": every.pop("names").format(session=session)})["names"]
    kernel = find_kernel(names, wanted)
    fields = {"session": session, "kernel": kernel}
    parts = read_parts(lake, session, {name: text.format(**fields) for name, text in every.items()})
    facts = parts.pop("session")
    single = {name: _only(parts.pop(name)) for name in ("kernel", "roofline", "occupancy", "critical_path")}
    return {
        **(facts[0] if facts else {"session_id": session}),
        **bottleneck_fields(parts["bottleneck"]),
        **single,
        **parts,
        "searches": [] if single["kernel"] is None else searches_of(lake, session, single["kernel"]["name"]),
        "progress": lake.progress(session).as_document(),
    }


def find_kernel(names: list[Row], wanted: str) -> int:
    """Return the number of the kernel that `wanted` matches: a name, short name or symbol, a unique prefix or part, or
    the number.

    `names` has kernel_id, name, short_name and symbol, longest kernel first. Only complete names are case-sensitive.
    """
    asked = wanted.casefold()
    keys = ("name", "short_name", "symbol")
    rules: tuple[Callable[[Row], bool], ...] = (
        lambda row: wanted.removesuffix(".kd") in [row[key] for key in keys] or wanted in [row[key] for key in keys],
        lambda row: wanted == str(row["kernel_id"]),
        lambda row: any((row[key] or "").casefold().startswith(asked) for key in keys),
        lambda row: any(asked in (row[key] or "").casefold() for key in keys),
    )
    for rule in rules:
        found = [row for row in names if rule(row)]
        if len(found) == 1:
            return int(found[0]["kernel_id"])
        if found:
            raise UsageError(_ambiguous(wanted, found))
    raise UsageError(_unknown(wanted, names))


def _ambiguous(wanted: str, found: list[Row]) -> str:
    listed = "; ".join(f"{row['kernel_id']}: {_brief(row['name'])}" for row in found[:_NAMED])
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f"{wanted!r} names {counted(len(found), 'kernel')}: {listed}{more}; give more of the name, or the number"


def _unknown(wanted: str, names: list[Row]) -> str:
    if not names:
        return f"no kernel {wanted!r}: the session has no kernels"
    by_name = {row["short_name"].casefold(): row["short_name"] for row in reversed(names)}
    near = [by_name[name] for name in get_close_matches(wanted.casefold(), by_name, n=3, cutoff=0.4)]
    named = near or list(by_name.values())[::-1][:3]
    return f"no kernel {wanted!r}; {'near it' if near else 'the longest'}: {', '.join(map(_brief, named))}"


def _brief(name: str) -> str:
    return shortened(in_a_line(name), _LONGEST_NAME)


def _only(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None


#: Sources of ceilings, most trusted first; a unit's own busy-cycle count needs none.
SOURCES: Final[Mapping[str, str]] = {
    "busy": "own count",
    "measured": "measured",
    "reported": "reported",
    "spec": "published",
}
_OF: Final[Mapping[str, str]] = {
    "busy": "busy by its own count",
    "measured": "of the measured ceiling",
    "reported": "of what such devices are reported to reach",
    "spec": "of the published ceiling",
}
_COUNTED: Final[Mapping[str, str]] = {
    "utilization": "utilization",
    "occupancy": "the occupancy achieved",
    "levels": "the bytes at every level of memory",
}
#: Smaller differences between fractions of a time are ignored.
_SAME: Final = 0.0005
_UNITS: Final[Mapping[str, str]] = {"byte": "B/s", "flop": "FLOP/s", "op": "OP/s", "issue slot": "instructions/s"}


def kernel_answer(kernel: Row, judged: Sequence[Row]) -> str:
    """State how long the kernel takes and what limits it, or that this was not judged.

    `kernel` has total_ns, dispatch_count and share_ratio; `judged` has at most one row of `bottlenecks`.
    """
    sentences = []
    if kernel["total_ns"] is not None:
        part = f", {share(kernel['share_ratio'])} of the kernel time" if kernel["share_ratio"] is not None else ""
        count = kernel["dispatch_count"]
        sentences.append(f"It takes {duration(kernel['total_ns'])} in {counted(count, 'dispatch', 'es')}{part}")
    said = [bottlenecks.verdict(row, "kernel") for row in judged]
    return (
        ". ".join([*sentences, *(said or ["What limits it was not judged: no stage published a verdict for it"])]) + "."
    )


def against_roof(kernel: Row, bounds: Sequence[Row]) -> str | None:
    """State the kernel's rate and the fraction of its nearest roof; None if no roof is known.

    `kernel` is a row of `roofline` with counted_ns for its duration, `bounds` its rows of `resource_bounds`.
    """
    near, roof = kernel["efficiency_ratio"], bottlenecks.resource(kernel["bound"])
    known = [row for row in bounds if row["share_ratio"] is not None]
    own = [row for row in known if row["resource"] == kernel["bound"]]
    if near is None or not own:
        return None
    row = min(own, key=lambda one: abs(one["share_ratio"] - near))
    rate = None if row["unit"] == "ns" else rate_text(row["work"], row["unit"], kernel["counted_ns"])
    least = "at least " if row["work_source"] == "model" else ""
    at = f"It reaches {least}{rate} at its nearest roof, {roof}" if rate else f"Its nearest roof is that of {roof}"
    # If several resources share a roof, the count of another one may have decided.
    if abs(row["share_ratio"] - near) > _SAME and any(
        abs(one["share_ratio"] - near) <= _SAME and one["ceiling_source"] == "busy" for one in known
    ):
        row = {**row, "ceiling_source": "busy"}
    return f"{at}: {share(near)} {_OF[row['ceiling_source']]}."


def rate_text(work: float | None, unit: str, time_ns: int | None) -> str | None:
    """Format work over time with a decimal prefix: `1.39 TB/s`; None if either is unknown or the time is zero."""
    if work is None or not time_ns:
        return None
    rate = work / time_ns * 1e9
    prefix, least = prefixed(rate, DECIMAL, "")
    return f"{number(float(f'{rate / least:.3g}'))} {prefix}{_UNITS.get(unit, f'{unit}/s')}"


def launch_facts(kernel: Row) -> list[tuple[str, str]]:
    """List the compiler's choices: registers, LDS and scratch, as far as the capture states them."""
    found: list[tuple[str, str | None]] = [
        *((label, kernel[key]) for label, key in (("Kind of work", "family"), ("Library", "library"))),
        *((label, kernel[key]) for label, key in (("Number format", "dtype"), ("Tile", "tile"))),
        ("Registers", _registers(kernel)),
        ("LDS", _bytes(kernel["static_lds_bytes"], "workgroup")),
        ("Scratch", _bytes(kernel["static_scratch_bytes"], "work-item")),
    ]
    return [(label, text) for label, text in found if text]


def _registers(kernel: Row) -> str:
    known = (("arch_vgprs", "vector"), ("accum_vgprs", "accumulation"), ("sgprs", "scalar"))
    return ", ".join(f"{kernel[key]} {name}" for key, name in known if kernel[key] is not None)


def launch_in_words(launch: Row, kernel: Row) -> str:
    """Format a launch: `304 workgroups of 256 work-items`, with LDS and scratch if they differ from the compiler's
    values.
    """
    grid, group = ([launch[f"{what}_{axis}"] for axis in "xyz"] for what in ("grid", "workgroup"))
    parts = []
    if None not in (*grid, *group) and all(group):
        groups = [-(-whole // each) for whole, each in zip(grid, group, strict=True)]
        several = "workgroup" if _extent(groups) == "1" else "workgroups"
        parts.append(f"{_extent(groups)} {several} of {_extent(group)} work-items")
    elif launch["grid_work_items"] is not None and launch["workgroup_work_items"]:
        each = launch["workgroup_work_items"]
        parts.append(f"{-(-launch['grid_work_items'] // each):,} workgroups of {each:,} work-items")
    elif launch["grid_work_items"] is not None:
        parts.append(f"{launch['grid_work_items']:,} work-items")
    for name, key, of in (("LDS", "lds_allocated_bytes", "workgroup"), ("scratch", "scratch_bytes", "work-item")):
        amount, fixed = _bytes(launch[key], of), kernel[f"static_{key.replace('_allocated', '')}"]
        parts += [f"{name} {amount}"] if amount and launch[key] != fixed else []
    return ", ".join(parts)


def lacking_evidence(document: Document, lacks: Sequence[str]) -> list[tuple[str, str]]:
    """List missing evidence for a kernel's page, each with the command that records it.

    `lacks` names missing items: `durations`, `utilization`, `occupancy`, `levels`, `stalls`, `operators`, `ceilings`.
    Counters and thread traces are only suggested for AMD devices.
    """
    if document.get("provider") == CPU_PROVIDER:
        return [("how near it comes to what this machine reaches", "aaco calibrate")] if "ceilings" in lacks else []
    found = []
    if "NVIDIA" not in {row["vendor"] for row in document["devices"]}:
        if "durations" in lacks:
            found.append(("when and how long it ran", "rocprofv3 --kernel-trace -- COMMAND"))
        counters = [words for name, words in _COUNTED.items() if name in lacks]
        if counters:
            found.append(
                (
                    listed(counters),
                    "aaco capture --print --counters basic,memory,compute -- COMMAND, and run what it prints",
                )
            )
        if "stalls" in lacks:
            found.append(("stalls and instructions", "rocprofv3 --att --kernel-include-regex KERNEL -- COMMAND"))
    if "operators" in lacks:
        found.append(("the operators and shapes it ran for", "torch.profiler.profile(record_shapes=True)"))
    return found


def _extent(extents: Sequence[int]) -> str:
    """Format the extents along x, y and z, without trailing ones."""
    used = max((place for place, one in enumerate(extents) if one > 1), default=0) + 1
    return " × ".join(f"{one:,}" for one in extents[:used])


def _bytes(amount: int | None, of: str) -> str | None:
    return None if amount is None else f"{size(amount)} a {of}" if amount else "none"


_BAR: Final = 24
_NAME: Final = 120
_FULL_NAME: Final = 600
_OPERATORS: Final = 10
_COSTS: Final = 20
_METRICS_SHOWN: Final = 12
_SEARCHES: Final = 3
#: Counter figures, most informative first: is it busy, does it wait, is its data close.
_METRICS: Final = (
    *("cu_busy_ratio", "valu_busy_ratio", "matrix_busy_ratio", "ipc", "dependency_wait_ratio", "issue_wait_ratio"),
    *("active_threads", "vl1d_hit_ratio", "l2_hit_ratio", "fabric_bandwidth", "coalescing_ratio"),
    *("lds_bank_conflict_ratio", "lds_busy_ratio", "fabric_read_latency", "vmem_latency", "l1i_hit_ratio", "clock"),
    *("instructions_per_wavefront", "wavefronts"),
)
_COST_COLUMNS: Final = {
    "*hits": "hits",
    "*latency": "latency_cycles",
    "*stalled": "stall_cycles",
    "*idle before": "idle_cycles",
    "*waited for": "charged_stall_cycles",
    "*samples": "samples",
}


def _ends(row: Row) -> str | None:
    """Format the range of a figure over dispatches, with the unit once; None for a single dispatch."""
    if row["n"] < 2:
        return None
    low, high = (bottlenecks.measure(row[end], row["unit"]) for end in ("min", "max"))
    return f"{low.split()[0] if low.split()[1:] == high.split()[1:] else low} … {high}"


_FACTS: Final[Columns] = {"what": lambda fact: fact[0], "is": lambda fact: fact[1]}
_EVIDENCE: Final[Columns] = {
    "signal": lambda row: bottlenecks.signal(row["signal"]),
    "*value": bottlenecks.amount,
    "*threshold": lambda row: None if row["threshold"] is None else bottlenecks.measure(row["threshold"], row["unit"]),
    "*weight": lambda row: number(row["weight"]),
    "from": lambda row: row["source"],
}
_FIGURES: Final[Columns] = {
    "figure": lambda row: row["metric"].removesuffix("_ratio").replace("_", " "),
    "*value": lambda row: bottlenecks.measure(row["value"], row["unit"]),
    "*smallest … largest": _ends,
    "*dispatches": lambda row: grouped(row["n"]),
    "caveats": lambda row: bottlenecks.flags(row["quality_flags"]),
}
_OPERATOR: Final[Columns] = {
    "operator": lambda row: row["name"] or "unattributed",
    "type": lambda row: row["op_type"],
    "*time": lambda row: duration(row["total_ns"]),
    "*dispatches": lambda row: grouped(row["dispatch_count"]),
    "matched by": lambda row: row["match"],
}


def kernel_view(document: Document) -> View:
    """Lay out the facts about one kernel: the answer first, then the evidence."""
    kernel, operators, lacking = document["kernel"], document["operators"], document["missing_signals"]
    called = kernel_in_words({"name": kernel["name"], "operator": kernel["short_name"]})
    facts = [(name, text) for name, text in _facts(document) if text]
    more = f", the longest {_OPERATORS} of {len(operators)}" if len(operators) > _OPERATORS else ""
    parts = [
        Table(_FACTS, facts, "What it is"),
        _bounds(document),
        Table(_EVIDENCE, document["top_evidence"], "Evidence for the label"),
        *sentences([f"Not measured: {', '.join(bottlenecks.unmeasured(lacking))}"] if lacking else [], "aside"),
        _metrics(document),
        Table(
            *(_OPERATOR, operators[:_OPERATORS], f"Operators it ran for{more}"),
            names=("operator",),
            spare=("matched by", "type"),
        ),
        _costs(document["instruction_classes"], "instruction_class", "By class of instruction"),
        _costs(document["source_lines"], "source", "By line of the source"),
        *(_instructions(document) if document["instructions"] else ()),
    ]
    text = kernel_answer(kernel, document["bottleneck"][:1])
    return headed(document, text, parts, shortened(in_a_line(called), _NAME))


def _facts(document: Document) -> Iterable[tuple[str, str | None]]:
    kernel = document["kernel"]
    source = {"op": " (by its operator)", "name": " (by its name)"}.get(kernel["family_source"], "")
    scratch, lds, mean = (kernel[key] for key in ("static_scratch_bytes", "static_lds_bytes", "mean_ns"))
    ends = f"{duration(kernel['min_ns'])} to {duration(kernel['max_ns'])}"
    return (
        ("name", shortened(kernel["name"], _FULL_NAME)),
        ("family", kernel["family"] and kernel["family"] + source),
        *(
            (label, kernel[key])
            for label, key in (("number format", "dtype"), ("tile", "tile"), ("library", "library"))
        ),
        ("registers", _registers(kernel)),
        ("scratch", None if scratch is None else f"{scratch:,} bytes per work-item"),
        ("LDS", None if lds is None else f"{lds:,} bytes per workgroup"),
        ("per dispatch", None if mean is None else f"{duration(mean)} on average, {ends}"),
        *(_roof(document["roofline"]) if document["roofline"] is not None else ()),
        *(_occupancy(document["occupancy"]) if document["occupancy"] is not None else ()),
        *(_path(document["critical_path"]) if document["critical_path"] is not None else ()),
        *(
            (
                f"{row['speedup_ratio']:g} times as fast",
                f"the path is {duration(row['saved_ns'])} shorter ({share(row['saved_ratio']) or '–'} of the window)",
            )
            for row in document["what_if"]
        ),
        *(("made faster", search_in_a_line(row)) for row in document["searches"][:_SEARCHES]),
    )


def _roof(row: Row) -> Iterable[tuple[str, str | None]]:
    roof = bottlenecks.resource(row["bound"])
    return (
        ("nearest roof", roof and f"{roof}, {share(row['efficiency_ratio'])} of it reached"),
        ("caveats", bottlenecks.flags(row["quality_flags"])),
    )


def _occupancy(row: Row) -> Iterable[tuple[str, str | None]]:
    after, waves, tail = share(row["next_ratio"]), number(row["grid_waves_ratio"]), share(row["tail_ratio"])
    idle = f", {tail} of the slots idle in the last round" if tail else ""
    return (
        ("occupancy", bottlenecks.occupied(row)),
        ("next step", after and f"{row['next_step']} allows {after}"),
        ("grid", waves and f"{waves} times what the device holds at once{idle}"),
    )


def _path(row: Row) -> Iterable[tuple[str, str]]:
    taken = f", {duration(row['critical_ns'])}" if row["critical_ns"] is not None else ""
    return (("critical path", f"{row['critical_count']:,} of {row['dispatch_count']:,} dispatches are on it{taken}"),)


#: Sources of lower bounds, best first, and their columns.
_BOUND_SOURCES: Final = {
    "busy": "*busy by its own count",
    "measured": "*at least (measured ceiling)",
    "reported": "*at least (reported of such devices)",
    "spec": "*at least (published)",
}


def _bounds(document: Document) -> Table:
    """List the minimum time of each resource by its own count and each kind of ceiling, with a bar for its share."""
    by_resource: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in document["resource_bounds"]:
        by_resource.setdefault((row["resource"], row["dtype"]), {})[row["ceiling_source"]] = row
    rows = [
        {**next(sources[kind] for kind in _BOUND_SOURCES if kind in sources), "sources": sources}
        for sources in by_resource.values()
    ]
    kinds = {kind: name for kind, name in _BOUND_SOURCES.items() if any(kind in row["sources"] for row in rows)}

    def least(source: str, row: Row) -> str | None:
        return duration(row["sources"][source]["lower_bound_ns"]) if source in row["sources"] else None

    names = {"counters": "counted", "model": "by the model"}
    columns: Columns = {
        "resource": lambda row: bottlenecks.resource(row["resource"], row["dtype"]),
        "*work": lambda row: _work(row["work"], row["unit"]),
        **{name: partial(least, kind) for kind, name in kinds.items()},
        "*of its time": lambda row: share(row["share_ratio"]),
        "": lambda row: "█" * round(_BAR * min(1.0, row["share_ratio"] or 0.0)),
        "work is": lambda row: names.get(row["work_source"], row["work_source"]),
    }
    return Table(columns, rows, "The shortest time each resource needs for the kernel's work", spare=("", "work is"))


def _work(amount: float, unit: str) -> str:
    if unit == "byte":
        return bottlenecks.measure(amount, unit)
    prefix, least = prefixed(amount, {"T ": 1e12, "G ": 1e9, "M ": 1e6}, "")
    return f"{number(amount / least)} {prefix}{unit}"


def _metrics(document: Document) -> Table:
    known = {row["metric"]: row for row in document["counter_metrics"] if row["value"] is not None}
    shown = [known[name] for name in _METRICS if name in known][:_METRICS_SHOWN]
    more = f", {len(shown)} of {len(known)}; all with --json" if len(known) > len(shown) else ""
    spare = ("*dispatches", "*smallest … largest", "caveats")
    return Table(_FIGURES, shown, f"From hardware counters{more}", spare=spare)


def _costs(rows: Sequence[Row], column: str, title: str) -> Table:
    """List cycles and samples by class or line, most stalled first; latency includes stalled cycles."""
    shown = {label: key for label, key in _COST_COLUMNS.items() if any(row[key] is not None for row in rows)}
    columns: Columns = {
        "*dispatch": lambda row: grouped(row["dispatch_id"]),
        "thread trace": itemgetter("capture"),
        column.replace("_", " "): itemgetter(column),
        **{label: lambda row, key=key: grouped(row[key]) for label, key in shown.items()},  # type: ignore[misc]
    }
    spare = ("*idle before", "*hits", "*dispatch", "thread trace")
    return Table(columns, rows[:_COSTS], f"{title}, cycles of the traced wavefronts", names=("source",), spare=spare)


def _instructions(document: Document) -> list[Part]:
    # Polars is only loaded for a kernel with a listing.
    from aaco_pipeline.report.kernel.instructions import listing_parts, listings_of_rows

    first, *more = listings_of_rows(document["instructions"], document["stall_reasons"], [document["kernel"]])
    further = f"{counted(len(more), 'further listing')} of this kernel in --json"
    return [*listing_parts(first), *sentences([further] if more else [])]
