"""Inputs of operators as a profiler records them, for tests.

A run of framework operators that launch kernels, copies and fills, as canonical tables.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.roofline.framework_work import OperatorLaunches, operator_launches
from aaco_pipeline.analysis.roofline.operators.formulas import work_of
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Work
from aaco_pipeline.lake.validation import empty_table, to_contract

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


CACHES: Final = pl.DataFrame({"device_id": [0], "bytes": [0]}, schema={"device_id": pl.Int32, "bytes": pl.Int64})
CEILINGS: Final = to_contract(
    "ceilings",
    pl.DataFrame(
        [("matrix", "bf16", 1e12, "flop/s"), ("vector", "fp32", 1e11, "flop/s"), ("dram", None, 1e12, "byte/s")],
        schema=["resource", "dtype", "value", "unit"],
        orient="row",
    ).with_columns(device_id=pl.lit(0, pl.Int32), source=pl.lit("spec"), reference=pl.lit("made up")),
)


@dataclass
class Run:
    """Operators are given by their times on the host; what they launch by the time of the launch."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    auxiliary: list[int] = field(default_factory=list)

    def operator(self, name: str, start: int, end: int, *shapes: list[int], thread: int = 1) -> "Run":
        """An operator with bf16 tensors of these shapes as its inputs; without any, none are recorded."""
        self._call(start, end, thread, domain="operator", name=name)
        if shapes:
            texts = {"shapes": json.dumps(shapes), "types": json.dumps([BF16] * len(shapes))}
            self.inputs.append({"call_id": len(self.calls) - 1, "operator": name, **texts, "values": "[]"})
        return self

    def kernel(self, at: int, took: int, kernel: int = 0, *, device: int = 0, thread: int = 1) -> "Run":
        """A kernel launched at a moment."""
        row = {"dispatch_id": len(self.kernels), "kernel_id": kernel, "below_resolution": False}
        self.kernels.append(row | self._activity(at, took, device, thread))
        return self

    def copy(self, at: int, took: int, direction: str = "fill") -> "Run":
        """A copy or fill launched at a moment."""
        row = {"copy_id": len(self.copies), "direction": direction, "size_bytes": 8}
        self.copies.append(row | self._activity(at, took, 0, 1))
        return self

    @property
    def dispatches(self) -> pl.DataFrame:
        """The table of the kernels."""
        return to_contract("dispatches", pl.DataFrame(self.kernels))

    def launches(self) -> OperatorLaunches:
        """Whose launches they are, and their work."""
        copies = (
            to_contract("memory_copies", pl.DataFrame(self.copies)) if self.copies else empty_table("memory_copies")
        )
        inputs = (
            to_contract("operator_inputs", pl.DataFrame(self.inputs)) if self.inputs else empty_table("operator_inputs")
        )
        calls = to_contract("api_calls", pl.DataFrame(self.calls))
        return operator_launches(self.dispatches, copies, calls, inputs, self._kernel_names())

    def _kernel_names(self) -> pl.DataFrame:
        numbers = self.dispatches.get_column("kernel_id").unique().sort().to_list()
        roles = ["auxiliary" if number in self.auxiliary else "main" for number in numbers]
        return pl.DataFrame({"kernel_id": numbers, "role": roles}, schema_overrides={"kernel_id": pl.Int32})

    def _call(self, start: int, end: int, thread: int, **facts: Any) -> None:
        when = {"thread_id": thread, "start_ns": start, "end_ns": end}
        self.calls.append({"call_id": len(self.calls), "process_id": 0, "correlation_id": None, **when, **facts})

    def _activity(self, at: int, took: int, device: int, thread: int) -> dict[str, Any]:
        correlation = 1 + len(self.kernels) + len(self.copies)
        self._call(at, at + 1, thread, domain="hip_runtime", name="hipLaunchKernel", correlation_id=correlation)
        start = 10_000 + 100_000 * correlation
        where = {"process_id": 0, "device_id": device, "correlation_id": correlation}
        return where | {"start_ns": start, "end_ns": start + took}
