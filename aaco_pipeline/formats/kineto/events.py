"""What a Kineto trace's events are on their way from text to tables: kinds, and frames of a known schema by kind.

How the columns come out of the text is `reading`'s business, what they become `tables`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

#: Categories as Kineto's writer spelled them at first (its `output_json.cpp`), with what they are called since.
FORMER: Final = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime"}
KERNELS: Final = "kernel"
COPIES: Final = ("gpu_memcpy", "gpu_memset")
#: Host calls, of which those of ROCm that launch a kernel state its name and grid.
RUNTIMES: Final = ("cuda_runtime", "cuda_driver")
LAUNCHED_KERNEL: Final = "kernel"
SYNCS: Final = "cuda_sync"
OPERATORS: Final = "cpu_op"
CALLS: Final = (*RUNTIMES, OPERATORS, "python_function")
MARKERS: Final = ("user_annotation", "gpu_user_annotation")
FLOWS: Final = "fwdbwd"
#: The operator whose arguments state what a collective is; its kernels' names often do not.
COLLECTIVE_RECORD: Final = "record_param_comms"
#: Its arguments, by the column that each becomes.
COLLECTIVE_TEXTS: Final = {
    "collective": "Collective name",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "dtype": "dtype",
}
COLLECTIVE_NUMBERS: Final = {"group_size": "Group size", "sequence": "Seq", "elements": "In msg nelems"}
#: An operator's arguments with the shapes and types of its inputs, by key, with the column that each becomes.
SHAPES: Final = {"Input Dims": "shapes", "Input type": "types"}
#: Those that later profilers state besides: strides, and the values of inputs that are no tensors.
MORE_OF_INPUTS: Final = {"Input Strides": "strides", "Concrete Inputs": "values"}
_EVENT: Final = {
    "cat": pl.Categorical(),
    "name": pl.Categorical(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "correlation": pl.UInt64(),
}
_HOST: Final = {**_EVENT, "pid": pl.Int64(), "tid": pl.Int64()}
_DEVICE: Final = {**_EVENT, "device": pl.Int64(), "stream": pl.Int64()}
RATIOS: Final = ("blocks_per_sm", "warps_per_sm", "estimated_occupancy_percent")
AXES: Final = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_SCHEMAS: Final[Mapping[str, pl.Schema]] = {
    "counts": pl.Schema({"ph": pl.String(), "cat": pl.String(), "len": pl.UInt32()}),
    "calls": pl.Schema(_HOST),
    "markers": pl.Schema(_HOST),
    "collectives": pl.Schema(
        {
            **_HOST,
            **dict.fromkeys(COLLECTIVE_TEXTS, pl.String()),
            **dict.fromkeys(COLLECTIVE_NUMBERS, pl.Int64()),
        }
    ),
    "copies": pl.Schema({**_DEVICE, "bytes": pl.Int64()}),
    "kernels": pl.Schema(
        {
            **_DEVICE,
            **dict.fromkeys((*AXES, "lds", "registers_per_thread"), pl.Int64()),
            "graph_node_id": pl.UInt64(),
            **dict.fromkeys(RATIOS, pl.Float64()),
        }
    ),
    "syncs": pl.Schema(
        {**_DEVICE, "kind": pl.String(), "waited_stream": pl.Int64(), "waited_correlation_id": pl.UInt64()}
    ),
    "shapes": pl.Schema(
        {
            "operator": pl.Categorical(),
            "start_ns": pl.Int64(),
            **dict.fromkeys((*SHAPES.values(), *MORE_OF_INPUTS.values()), pl.Categorical()),
        }
    ),
    "launches": pl.Schema({"correlation": pl.UInt64(), "kernel": pl.Categorical(), **dict.fromkeys(AXES, pl.Int64())}),
    "flows": pl.Schema({"flow_id": pl.UInt64(), "role": pl.String(), "thread_id": pl.Int64(), "time_ns": pl.Int64()}),
}


@dataclass
class Collected:
    """What the pieces of a trace gave: frames in file order, and what was odd about the text."""

    counts: list[pl.DataFrame] = field(default_factory=list)
    kernels: list[pl.DataFrame] = field(default_factory=list)
    copies: list[pl.DataFrame] = field(default_factory=list)
    syncs: list[pl.DataFrame] = field(default_factory=list)
    calls: list[pl.DataFrame] = field(default_factory=list)
    markers: list[pl.DataFrame] = field(default_factory=list)
    collectives: list[pl.DataFrame] = field(default_factory=list)
    flows: list[pl.DataFrame] = field(default_factory=list)
    shapes: list[pl.DataFrame] = field(default_factory=list)
    launches: list[pl.DataFrame] = field(default_factory=list)
    events: int = 0
    found: bool = False
    cut: bool = False

    def take(self, name: str) -> pl.DataFrame:
        """One kind's events as a frame; the pieces are given up."""
        frames: list[pl.DataFrame] = getattr(self, name)
        schema = _SCHEMAS[name]
        joined: pl.DataFrame = pl.concat([schema.to_frame(), *(frame.select(schema.names()) for frame in frames)])
        frames.clear()
        return joined
