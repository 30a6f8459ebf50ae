"""What the compiler itself says of a kernel: its resources, the loops it unrolled, and those it was to and did not.

Read from LLVM's optimization record (`-fsave-optimization-record`), the remarks of `-Rpass` and `-Wpass-failed` with
their numbers by name: a source can print anything among diagnostics, and nothing into the record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from aaco_pipeline.optimization.guards.resources import (
    FailedTransformation,
    KernelResources,
    UnrolledLoop,
    waves_per_simd,
)

#: The passes whose remarks are asked for.
PASSES: Final = "kernel-resource-usage|loop-unroll|transform-warning"
_LARGEST_BYTES: Final = 16 << 20
_FIGURES: Final = (
    *("NumSGPR", "NumVGPR", "NumAGPR", "ScratchSize", "DynamicStack", "Occupancy", "SGPRSpill", "VGPRSpill"),
    "BytesLDS",
)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_LOADER):  # type: ignore[misc,valid-type]
    """Documents whose tag says what became of the optimization: kept as `kind`."""


def _document(loader: Any, kind: str, node: yaml.MappingNode) -> dict[str, Any]:
    return {"kind": kind, **loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _document)


@dataclass(frozen=True)
class CompilerRemarks:
    """What was said of one kernel. `usage` is by the record's own names, such as NumVGPR."""

    usage: Mapping[str, int]
    unrolled: tuple[UnrolledLoop, ...]
    failed: tuple[FailedTransformation, ...]


def read_remarks(record: bytes, symbol: str, source_name: str) -> CompilerRemarks:
    """The remarks on a function, of loops in the file that is called `source_name` (loops of headers are not told).

    ValueError when the record is none, or does not state the function's resources.
    """
    if len(record) > _LARGEST_BYTES:
        raise ValueError(f"an optimization record of {len(record)} bytes")
    usage: dict[str, int] = {}
    unrolled: dict[UnrolledLoop, None] = {}
    failed: dict[FailedTransformation, None] = {}
    try:
        for one in yaml.load_all(record, Loader=_Loader):
            if one["Function"] != symbol:
                continue
            arguments = {key: value for argument in one.get("Args", ()) for key, value in argument.items()}
            if one["Pass"] == "kernel-resource-usage":
                usage |= {key: _number(value) for key, value in arguments.items() if key in _FIGURES}
                continue
            place = one.get("DebugLoc", {})
            if place.get("File") != source_name:
                continue
            line, column = int(place["Line"]), int(place["Column"])
            if one["kind"] == "Passed" and "UnrollCount" in arguments:
                completely = one["Name"] == "FullyUnrolled"
                unrolled[UnrolledLoop(line, column, int(arguments["UnrollCount"]), completely)] = None
            elif one["kind"] == "Failure":
                failed[FailedTransformation(line, column, str(arguments["String"]))] = None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the compiler's optimization record cannot be read: {error}") from error
    if lacking := [name for name in _FIGURES if name not in usage]:
        raise ValueError(f"the compiler's record does not state {', '.join(lacking)} of {symbol}")
    return CompilerRemarks(usage, tuple(unrolled), tuple(failed))


def disagreements(resources: KernelResources, remarks: CompilerRemarks) -> list[str]:
    """Each figure that is not what the compiler says of it, in words. Both are of the same compilation."""
    usage = remarks.usage
    accumulation = usage["NumAGPR"]
    vector = usage["NumVGPR"]
    ours = {
        "SGPRs": (resources.sgprs, usage["NumSGPR"]),
        # Accumulation registers begin at the next multiple of four of the one file of both.
        "VGPRs": (resources.vgprs, -(-vector // 4) * 4 + accumulation if accumulation else vector),
        "AGPRs": (resources.agprs, accumulation),
        "scratch bytes": (resources.scratch_bytes, usage["ScratchSize"]),
        "dynamic stack": (int(resources.dynamic_stack), usage["DynamicStack"]),
        "occupancy": (waves_per_simd(resources), usage["Occupancy"]),
        "SGPR spills": (resources.sgpr_spills, usage["SGPRSpill"]),
        "VGPR spills": (resources.vgpr_spills, usage["VGPRSpill"]),
        "LDS bytes": (resources.lds_bytes, usage["BytesLDS"]),
    }
    return [f"{name} {mine}, by the compiler {its}" for name, (mine, its) in ours.items() if mine != its]


def _number(value: str) -> int:
    return int(value == "True") if value in ("True", "False") else int(value)
