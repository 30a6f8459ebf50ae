"""One kernel in sentences: what limits it, its rate against its roof, how it was launched, and what would tell more."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.providers import CPU_PROVIDER
from aaco_pipeline.report.words import bottleneck_text
from aaco_pipeline.report.words.session import Document
from aaco_pipeline.report.words.units import counted, duration, number, prefixed, share, size

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
    said = [bottleneck_text.verdict(row, "kernel") for row in judged]
    return (
        ". ".join([*sentences, *(said or ["What limits it was not judged: no stage published a verdict for it"])]) + "."
    )


def against_roof(kernel: Row, bounds: Sequence[Row]) -> str | None:
    """What it achieves at its nearest roof and what share of that roof this is; None where no roof is known.

    `kernel` is a row of `roofline` with counted_ns for its duration, `bounds` its rows of `resource_bounds`.
    """
    near, roof = kernel["efficiency_ratio"], bottleneck_text.resource(kernel["bound"])
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
