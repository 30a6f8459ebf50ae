"""Inputs of operators as a profiler records them, for tests."""

import json
from typing import Any, Final

from aaco_pipeline.analysis.roofline.operators.formulas import work_of
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Work

BF16: Final = "c10::BFloat16"
FP8: Final = "c10::Float8_e4m3fnuz"


def work(operator: str, *inputs: Any, strides: list[Any] | None = None, without_values: bool = False) -> Work:
    """The work of a call: a list is a bf16 tensor, a pair of list and type another, anything else a value."""
    dims, types, values = [], [], []
    for one in inputs:
        shape, kind = (one, BF16) if isinstance(one, list) else one if isinstance(one, tuple) else ([], "Scalar")
        dims.append(shape)
        types.append("" if one is None else kind)
        values.append("" if one is None or isinstance(one, list | tuple) else str(one))
    recorded = None if without_values else json.dumps(values)
    stated = None if strides is None else json.dumps(strides)
    return work_of(operator, Inputs(json.dumps(dims), json.dumps(types), stated, recorded))


def figures(found: Work) -> tuple[float | None, float | None]:
    """Operations and least bytes."""
    return found.flops, found.least_bytes
