"""Gather one kernel's document and describe it: what limits it, its rate against its roof, and how it was launched.

The page of a kernel is `page`, its terminal output `screen`.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.formatting import counted, duration, in_a_line, number, prefixed, share, shortened, size
from aaco_pipeline.report.session import bottlenecks
from aaco_pipeline.report.session.bottlenecks import bottleneck_fields
from aaco_pipeline.report.session.document import read_parts
from aaco_pipeline.report.session.sentences import Document
from aaco_pipeline.report.session.sentences import Row as Row_sentences

_NAMED: Final = 5
_LONGEST_NAME: Final = 70

_NAMES: Final = (
    "SELECT k.kernel_id, k.name, k.short_name, k.symbol FROM kernels AS k "
    "LEFT JOIN kernel_stats AS t USING (session_id, kernel_id) "
    "WHERE session_id = '{session}' ORDER BY t.total_ns DESC NULLS LAST, kernel_id"
)
_OF_KERNEL: Final = "WHERE session_id = '{session}' AND kernel_id = {kernel}"
_COSTS: Final = "count(*) AS instructions, " + ", ".join(
    f"sum({name}) AS {name}"
    for name in ("hits", "latency_cycles", "stall_cycles", "idle_cycles", "charged_stall_cycles", "samples")
)
_STATEMENTS: Final[Mapping[str, str]] = {
    "session": "SELECT * FROM sessions WHERE session_id = '{session}'",
    "kernel": (
        "SELECT k.* EXCLUDE (session_id), t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, "
        "t.max_ns, t.share_ratio FROM kernels AS k LEFT JOIN kernel_stats AS t USING (session_id, kernel_id) "
        + _OF_KERNEL
    ),
    "bottleneck": (
        "SELECT label, score, runner_up, recommendation, evidence, missing AS missing_signals FROM bottlenecks "
        f"{_OF_KERNEL} AND scope = 'kernel' ORDER BY ALL"
    ),
    "roofline": f"SELECT * EXCLUDE (session_id) FROM roofline {_OF_KERNEL} AND dispatch_id IS NULL ORDER BY ALL",
    "resource_bounds": (
        f"SELECT * EXCLUDE (session_id, kernel_id) FROM resource_bounds {_OF_KERNEL} "
        "ORDER BY lower_bound_ns DESC, resource, dtype, ceiling_source"
    ),
    "occupancy": f"SELECT * EXCLUDE (session_id) FROM occupancy {_OF_KERNEL} AND dispatch_id IS NULL ORDER BY ALL",
    "counter_metrics": f"SELECT * EXCLUDE (session_id, kernel_id) FROM counter_metrics {_OF_KERNEL} ORDER BY ALL",
    "critical_path": (
        "SELECT count(*) AS dispatch_count, count_if(c.is_critical) AS critical_count, "
        "sum(d.self_ns) FILTER (c.is_critical) AS critical_ns, max(c.criticality) AS criticality "
        "FROM (SELECT * FROM critical_path WHERE session_id = '{session}' AND activity_kind = 'dispatch') AS c "
        f"JOIN (SELECT dispatch_id, self_ns FROM dispatches {_OF_KERNEL}) AS d ON d.dispatch_id = c.activity_id "
        "HAVING count(*) > 0"
    ),
    "what_if": f"SELECT * EXCLUDE (session_id, kernel_id) FROM what_if {_OF_KERNEL} ORDER BY speedup_ratio",
    "operators": (
        "SELECT coalesce(n.name, o.operator) AS name, coalesce(n.op_type, o.outermost_operator) AS op_type, "
        'o.dispatch_count, o.total_ns, o."match", o.score '
        f"FROM (SELECT * FROM operator_kernels {_OF_KERNEL}) AS o "
        "LEFT JOIN (SELECT * FROM model_nodes WHERE session_id = '{session}') AS n USING (node_id) "
        'ORDER BY o.total_ns DESC, name, op_type, o.dispatch_count, o."match", o.score'
    ),
    "instructions": (
        f"SELECT * EXCLUDE (session_id) FROM att_instructions {_OF_KERNEL} "
        "ORDER BY dispatch_id, capture, code_object_id, address, line, instruction"
    ),
    "instruction_classes": (
        f"SELECT dispatch_id, capture, instruction_class, {_COSTS} FROM att_instructions {_OF_KERNEL} GROUP BY ALL "
        "ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, instruction_class"
    ),
    "source_lines": (
        f"SELECT dispatch_id, capture, source, {_COSTS} FROM att_instructions {_OF_KERNEL} AND source IS NOT NULL "
        "GROUP BY ALL ORDER BY dispatch_id, capture, stall_cycles DESC NULLS LAST, samples DESC NULLS LAST, source"
    ),
    "stall_reasons": (
        f"SELECT * EXCLUDE (session_id) FROM att_stalls {_OF_KERNEL} "
        "ORDER BY dispatch_id, capture, share_ratio DESC, reason"
    ),
}


def kernel_document(lake: TraceLake, session: str, wanted: str) -> Document:
    """All that is known of the kernel that `wanted` names, as JSON-able values; UsageError unless it names one.

    `kernel`, `roofline`, `occupancy` and `critical_path` are one object, or null where no stage has such a row; the
    others are lists, `searches` of those made to make it faster. The verdict's fields are those of `aaco show`.
    """
    from aaco_pipeline.report.optimization.document import searches_of  # Polars, which a command's help does not need

    names = read_parts(lake, session, {"names": _NAMES.format(session=session)})["names"]
    kernel = find_kernel(names, wanted)
    fields = {"session": session, "kernel": kernel}
    parts = read_parts(lake, session, {name: text.format(**fields) for name, text in _STATEMENTS.items()})
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


def find_kernel(names: list[Row_sentences], wanted: str) -> int:
    """The number of the kernel that `wanted` means: a name, short name or symbol, a unique beginning or part, or the
    number.

    `names` has kernel_id, name, short_name and symbol, the longest kernel first. Letters' case only counts in a whole
    name.
    """
    asked = wanted.casefold()
    keys = ("name", "short_name", "symbol")
    rules: tuple[Callable[[Row_sentences], bool], ...] = (
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


def _ambiguous(wanted: str, found: list[Row_sentences]) -> str:
    listed = "; ".join(f"{row['kernel_id']}: {_brief(row['name'])}" for row in found[:_NAMED])
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f"{wanted!r} names {counted(len(found), 'kernel')}: {listed}{more}; give more of the name, or the number"


def _unknown(wanted: str, names: list[Row_sentences]) -> str:
    if not names:
        return f"no kernel {wanted!r}: the session has no kernels"
    by_name = {row["short_name"].casefold(): row["short_name"] for row in reversed(names)}
    near = [by_name[name] for name in get_close_matches(wanted.casefold(), by_name, n=3, cutoff=0.4)]
    listed = near or list(by_name.values())[::-1][:3]
    return f"no kernel {wanted!r}; {'near it' if near else 'the longest'}: {', '.join(map(_brief, listed))}"


def _brief(name: str) -> str:
    return shortened(in_a_line(name), _LONGEST_NAME)


def _only(rows: list[Row_sentences]) -> Row_sentences | None:
    return rows[0] if rows else None


Row = Mapping[str, Any]

#: Whose figure a ceiling is, the best first; a unit's own count of its busy cycles needs none.
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
#: Shares of a time that differ by less are one.
_SAME: Final = 0.0005
_PREFIXES: Final = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
_UNITS: Final[Mapping[str, str]] = {"byte": "B/s", "flop": "FLOP/s", "op": "OP/s", "issue slot": "instructions/s"}


def kernel_answer(kernel: Row, judged: Sequence[Row]) -> str:
    """What limits the kernel, and how long it takes; what was not judged is named.

    `kernel` has total_ns, dispatch_count and share_ratio, `judged` at most one row of `bottlenecks`.
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
    """What it achieves at its nearest roof and what share of that roof this is; None where no roof is known.

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
    # Of a roof that several resources share, another one's own count may be what decided.
    if abs(row["share_ratio"] - near) > _SAME and any(
        abs(one["share_ratio"] - near) <= _SAME and one["ceiling_source"] == "busy" for one in known
    ):
        row = {**row, "ceiling_source": "busy"}
    return f"{at}: {share(near)} {_OF[row['ceiling_source']]}."


def rate_text(work: float | None, unit: str, time_ns: int | None) -> str | None:
    """Work over time with a decimal prefix: `1.39 TB/s`; None where either is not known or no time passed."""
    if work is None or not time_ns:
        return None
    rate = work / time_ns * 1e9
    prefix, least = prefixed(rate, _PREFIXES, "")
    return f"{number(float(f'{rate / least:.3g}'))} {prefix}{_UNITS.get(unit, f'{unit}/s')}"


def launch_facts(kernel: Row) -> list[tuple[str, str]]:
    """What the compiler fixed of it: registers, LDS and scratch, as far as the capture states them."""
    registers = (("arch_vgprs", "vector"), ("accum_vgprs", "accumulation"), ("sgprs", "scalar"))
    stated = ", ".join(f"{kernel[key]} {name}" for key, name in registers if kernel[key] is not None)
    found: list[tuple[str, str | None]] = [
        *((label, kernel[key]) for label, key in (("Kind of work", "family"), ("Library", "library"))),
        *((label, kernel[key]) for label, key in (("Number format", "dtype"), ("Tile", "tile"))),
        ("Registers", stated),
        ("LDS", _bytes(kernel["static_lds_bytes"], "workgroup")),
        ("Scratch", _bytes(kernel["static_scratch_bytes"], "work-item")),
    ]
    return [(label, text) for label, text in found if text]


def launch_in_words(launch: Row, kernel: Row) -> str:
    """A launch: `304 workgroups of 256 work-items`, with LDS and scratch where they are not what the compiler fixed."""
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
    """What the page of a kernel does not show for lack of evidence, each with the command that records it.

    `lacks` names what is not there: `durations`, `utilization`, `occupancy`, `levels`, `stalls`, `operators`,
    `ceilings`. Counters and thread traces are AMD's, so that of another vendor's device they are not asked for.
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


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _extent(extents: Sequence[int]) -> str:
    """The extents along x, y and z as far as any is above one."""
    used = max((place for place, one in enumerate(extents) if one > 1), default=0) + 1
    return " × ".join(f"{one:,}" for one in extents[:used])


def _bytes(amount: int | None, of: str) -> str | None:
    return None if amount is None else f"{size(amount)} a {of}" if amount else "none"
