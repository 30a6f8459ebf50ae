"""What limits kernels, in words: the labels, and a sentence on what a recording's kernels are limited by."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aaco_pipeline.report.words.kinds import percent

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
#: A sentence on limits is said where roofs limit at least this part of the kernel time, and names those of this part.
_MOST: Final = 0.5
_WORTH_NAMING: Final = 0.05
_NAMED: Final = 2
_ROOFS: Final = ("compute_", "memory_")


def limits_in_words(labels: Sequence[Mapping[str, Any]]) -> str | None:
    """`DRAM traffic limits 58 % of the kernel time, vector arithmetic 41 %; ...`, without a full stop.

    `labels` are the document's `time_by_limit`, the largest first. None where roofs limit less than half of the time.
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
