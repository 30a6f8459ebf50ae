"""Name kinds of work, limits and causes of idle time in words.

`session` and `comparing` use these names in sentences.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.formatting import DECIMAL, number, prefixed

Row = Mapping[str, Any]

#: Kinds of work in words; others are shown by name and take a singular verb.
_KINDS: Final[Mapping[str, str]] = {
    "gemm": "matrix products",
    "elementwise_and_copies": "elementwise kernels and copies",
    "convolution": "convolutions",
    "communication": "collectives",
    "reduction": "reductions",
    "gather": "gathers and scatters",
    "sort": "sorts and scans",
    "pool": "pooling",
    "kv_cache": "KV-cache updates",
    "moe_routing": "MoE routing",
    "fft": "FFTs",
    "sparse": "sparse kernels",
    "unnamed": "kernels of no known kind",
}
_SINGULAR: Final = frozenset({"pool", "moe_routing"})
_RESOURCES: Final[Mapping[str, str]] = {"matrix": "matrix", "vector": "vector", "vector_packed": "packed vector"}


_WHOSE: Final[Mapping[str, str]] = {"measured": "measured ", "reported": "achievable ", "spec": "published "}


def kind_in_words(name: str) -> str:
    """Return a kind of work in words."""
    return _KINDS.get(name, name.replace("_", " "))


def rate_alone(kind: Row) -> str | None:
    """Return the rate of a kind's heaviest operator: `466 TFLOP/s`."""
    if kind["rate"] is None:
        return None
    prefix, least = prefixed(kind["rate"], DECIMAL, "")
    scaled = float(f"{kind['rate'] / least:.3g}")
    return f"{number(scaled)} {prefix}{'FLOP/s' if kind['rate_unit'] == 'flop/s' else 'B/s'}"


def roof_counts(kind: Row) -> bool:
    """Return whether the nearest roof limits the kind's rate: operations by arithmetic units, bytes by memory."""
    if kind["roof_ratio"] is None:
        return False
    return kind["roof"] in _RESOURCES if kind["rate_unit"] == "flop/s" else kind["roof"] == "dram"


def rate_in_words(kind: Row) -> str | None:
    """Return the rate of a kind's heaviest operator, and its fraction of the roof.

    Example: `466 TFLOP/s, 36 % of the bf16 matrix peak, 66 % of the best reported rate`. The second percentage relates
    to the best rate reported for the product, the first to the published peak.
    """
    text = rate_alone(kind)
    if text is None or not roof_counts(kind):
        return text
    # Name the roof's source only if it is known.
    whose = _WHOSE.get(kind["roof_source"] or "", "")
    if kind["rate_unit"] != "flop/s":
        # Only bytes that exceed every cache certainly come from memory.
        least = "at least " if kind["operator"] else ""
        return f"{text}, {least}{percent(kind['roof_ratio'])} of the {whose}memory bandwidth"
    name = " ".join(part for part in (kind["dtype"], _RESOURCES[kind["roof"]]) if part)
    if kind["roof_source"] != "reported" or kind["peak_ratio"] is None:
        return f"{text}, {percent(kind['roof_ratio'])} of the {whose}{name} peak"
    peak = percent(kind["peak_ratio"])
    return f"{text}, {peak} of the {name} peak, {percent(kind['roof_ratio'])} of the best reported rate"


def is_one(name: str) -> bool:
    """Return whether a kind of work is singular: attention takes, matrix products take."""
    return name not in _KINDS or name in _SINGULAR


def percent(ratio: float | None) -> str:
    """Format a share for a sentence: whole percentages, below one with one digit."""
    if ratio is None:
        return "an unknown part"
    return f"{100 * ratio:.0f} %" if ratio >= 0.01 or not ratio else f"{100 * ratio:.1g} %"


LABELS: Final = {
    "atomics": "atomic operations",
    "communication": "communication between devices",
    "compute_matrix": "matrix arithmetic",
    "compute_scalar": "scalar instructions",
    "compute_vector": "vector arithmetic",
    "divergence": "diverging lanes",
    "instruction_fetch": "fetching instructions",
    "latency": "latency: neither arithmetic nor bandwidth is near its limit",
    "launch": "launching kernels",
    "lds_bank_conflict": "bank conflicts in LDS",
    "memory_dram": "DRAM traffic",
    "memory_fabric": "traffic between L2 and the memory side",
    "memory_infinity_cache": "Infinity Cache traffic",
    "memory_l1": "L1 traffic",
    "memory_l2": "L2 traffic",
    "memory_l3": "L3 traffic",
    "memory_lds": "LDS traffic",
    "memory_vl1d": "vL1D traffic",
    "occupancy": "too few wavefronts in flight",
    "spill": "register spills",
}
#: Minimum fraction of the kernel time that all roofs must limit for a sentence, and minimum for one roof to be named.
_MOST: Final = 0.5
_WORTH_NAMING: Final = 0.05
_NAMED: Final = 2
_ROOFS: Final = ("compute_", "memory_")


def limits_in_words(labels: Sequence[Mapping[str, Any]]) -> str | None:
    """Describe limits: `DRAM traffic limits 58 % of the kernel time, vector arithmetic 41 %; ...`, without a full stop.

    `labels` are the document's `time_by_limit`, largest first. None if roofs limit less than half of the time.
    """
    roofs = [one for one in labels if one["label"] in LABELS and one["label"].startswith(_ROOFS)]
    if sum(one["share_ratio"] for one in roofs) < _MOST:
        return None
    first, *others = [one for one in roofs if one["share_ratio"] >= _WORTH_NAMING][:_NAMED] or roofs[:1]
    text = f"{LABELS[first['label']]} limits {percent(first['share_ratio'])} of the kernel time"
    text += "".join(f", {LABELS[one['label']]} {percent(one['share_ratio'])}" for one in others)
    heaviest = max(labels, key=lambda one: int(one["heaviest_ns"]))
    if heaviest not in roofs or heaviest["efficiency_ratio"] is None:
        return text
    near = percent(heaviest["efficiency_ratio"])
    return f"{text}; the heaviest kernel, {heaviest['operator']}, is at {near} of its roof"


#: Causes of idle time by `gaps.cause`.
CAUSES: Final[Mapping[str, str]] = {
    "sync": "sync: the host waited in a blocking call",
    "host_wait": "host wait: the next launch came late",
    "launch_latency": "launch latency: the launch was on its way",
    "dependency": "dependency: it waited for another stream",
    "kernel_kernel": "kernel to kernel: the device's own turnaround",
    "unknown": "unknown",
}
