"""Swap one thing in a real trace's tables for a real alternative, for `causes.py`.

Replacement names are kernels that the same operator launched elsewhere, from the shared list of names.
"""

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.analysis.kernels.names import classify_names

Tables = dict[str, pl.DataFrame]
#: Environment facts that a swap of caches or versions changes: category, key, before, after, kind.
_FACTS: Final = (
    ("cache", "miopen_user_database", "present", "empty", "cache"),
    ("cache", "hipblaslt", "present", "absent", "cache"),
    ("cache", "triton_digest", "4f1c", "9a0b", "cache"),
    ("cache", "code_objects", "empty", "present", "cache"),
    ("cache", "migraphx_problems_files", "120", "3", "cache"),
    ("library", "hipblaslt", "0.10.0", "0.12.1", "library_version"),
    ("library", "miopen", "3.2.0", "3.4.0", "library_version"),
    ("package", "onnxruntime-migraphx", "1.20.0", "1.21.0", "library_version"),
    ("package", "torch", "2.6.0", "2.7.1", "library_version"),
    ("library", "rccl", "2.20.5", "2.22.3", "library_version"),
)
_OF_SESSIONS: Final = (
    ("provider", "MIGraphXExecutionProvider", "CPUExecutionProvider", "execution_provider"),
    ("provider", "ROCMExecutionProvider", "MIGraphXExecutionProvider", "execution_provider"),
    ("provider", "CUDAExecutionProvider", "TensorrtExecutionProvider", "execution_provider"),
    ("precision", "float16", "float32", "precision"),
    ("precision", "bfloat16", "float8", "precision"),
    ("backend", "vllm", "sglang", "backend"),
)


@dataclass(frozen=True)
class Swap:
    """A swap that was put in: the two sides' tables, and the kind and the two values that the first finding names."""

    name: str
    before: Tables
    after: Tables
    kinds: tuple[str, ...]
    values: tuple[str, str] | None


def known_names(path: Path) -> pl.DataFrame:
    """Names of kernels with the operator that launched them and what the product reads in them."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "kernel" and row["parent_op"]]
    frame = pl.DataFrame(rows).select("name", "parent_op", "vendor").unique("name", maintain_order=True)
    return classify_names(frame)


def kernel_swaps(label: str, before: Tables, after: Tables, names: pl.DataFrame, most: int) -> Iterator[Swap]:
    """Kernels of a real trace under other real names of their operator: of each kind up to `most`.

    `before` and `after` are two sessions of one workload, or one twice. The swap is put into `after`.
    """
    operators = after["operator_kernels"].with_columns(pl.col("operator").cast(pl.String))
    kernels = after["kernels"].with_columns(pl.col(pl.Categorical).cast(pl.String))
    own, ran_before = set(kernels.get_column("name")), set(before["kernels"].get_column("name").cast(pl.String))
    done: dict[str, int] = {}
    for row in operators.sort("total_ns", descending=True).iter_rows(named=True):
        old = kernels.filter(pl.col("kernel_id") == row["kernel_id"]).row(0, named=True)
        if old["name"] not in ran_before:
            continue  # added work under another name is still added work
        alike = (
            pl.col("parent_op") == row["operator"] if row["operator"] else pl.col("family").eq_missing(old["family"])
        )
        for new in names.filter(alike).iter_rows(named=True):
            kind = _kind(old, new)
            if new["name"] in own or done.get(kind, 0) >= most:
                continue
            done[kind] = done.get(kind, 0) + 1
            changed = {**after, "kernels": renamed(kernels, row["kernel_id"], new)}
            yield Swap(
                f"{label}: {kind} at {row['operator'] or old['family']}",
                before,
                changed,
                (kind,),
                (old["name"], new["name"]),
            )
            break


def renamed(kernels: pl.DataFrame, kernel: int, new: Mapping[str, object]) -> pl.DataFrame:
    """The kernels with one of them under another name, and what is read in that."""
    is_it = pl.col("kernel_id") == kernel
    columns = ("name", "short_name", "library", "dtype", "tile")
    return kernels.with_columns(
        *(pl.when(is_it).then(pl.lit(new[one], pl.String)).otherwise(pl.col(one)).alias(one) for one in columns)
    )


def without_operators(swap: Swap) -> Swap:
    """The same swap where nothing tells the operators: the position in the step is left."""
    before, after = (
        {**side, "operator_kernels": side["operator_kernels"].clear()} for side in (swap.before, swap.after)
    )
    return Swap(f"{swap.name}, without operators", before, after, swap.kinds, swap.values)


def fusions(label: str, before: Tables, after: Tables, most: int) -> Iterator[Swap]:
    """Two kernels that follow each other become one under a new name: the second's dispatches are gone."""
    kernels = after["kernels"].with_columns(pl.col(pl.Categorical).cast(pl.String))
    order = after["dispatches"].sort("start_ns").select("kernel_id", following=pl.col("kernel_id").shift(-1))
    pairs = (
        order.drop_nulls().group_by("kernel_id", "following").len().filter(pl.col("kernel_id") != pl.col("following"))
    )
    runs = dict(after["dispatches"].group_by("kernel_id").len().iter_rows())
    always = [
        (a, b)
        for a, b, count in pairs.sort("len", "kernel_id", descending=True).iter_rows()
        if runs[a] == runs[b] == count
    ]
    for first, second in always[:most]:
        rows = {one: kernels.filter(pl.col("kernel_id") == one).row(0, named=True) for one in (first, second)}
        name = f"triton_poi_fused_{rows[first]['short_name']}_{rows[second]['short_name']}"
        new = {"name": name, "short_name": name, "library": rows[first]["library"], "dtype": None, "tile": None}
        changed = {
            **after,
            "kernels": renamed(kernels, first, new),
            "dispatches": after["dispatches"].filter(pl.col("kernel_id") != second),
            "operator_kernels": after["operator_kernels"].clear(),
        }
        plain = {**before, "operator_kernels": before["operator_kernels"].clear()}
        yield Swap(f"{label}: two kernels fused", plain, changed, ("fusion",), (rows[first]["short_name"], name))


def graph_swap(label: str, before: Tables, after: Tables) -> Swap:
    """The kernels are replayed by a graph: each dispatch is one of its nodes."""
    nodes = after["dispatches"].with_columns(graph_node_id=(pl.col("dispatch_id") + 1).cast(pl.UInt64))
    return Swap(
        f"{label}: graph replay",
        before,
        {**after, "dispatches": nodes},
        ("graph_replay",),
        ("single launches", "graph replay"),
    )


def fact_swaps(label: str, before: Tables, after: Tables) -> Iterator[Swap]:
    """Caches in another state, libraries in another version, another provider or precision of the session."""
    for category, key, was, became, kind in _FACTS:
        old, new = (
            {**side, "environment": _with_fact(side["environment"], category, key, value)}
            for side, value in ((before, was), (after, became))
        )
        yield Swap(f"{label}: {kind} {key}", old, new, (kind,), None)
    for column, was, became, kind in _OF_SESSIONS:
        old, new = (
            {**side, "sessions": side["sessions"].with_columns(pl.lit(value).alias(column))}
            for side, value in ((before, was), (after, became))
        )
        yield Swap(f"{label}: {kind} {was} to {became}", old, new, (kind,), (was, became))


def placement_swaps(label: str, before: Tables, after: Tables, numbers: tuple[int, ...]) -> Iterator[Swap]:
    """Operators of a model that another execution provider took, so many of them."""
    kernels = after["kernels"].with_columns(pl.col(pl.Categorical).cast(pl.String))
    for number in numbers:
        moved = pl.when(pl.col("kernel_id") < number).then(pl.lit("onnxruntime CUDA")).otherwise(pl.col("library"))
        changed = {**after, "kernels": kernels.with_columns(library=moved)}
        yield Swap(
            f"{label}: {number} operators on another provider", before, changed, ("node_placement",), ("CPU", "CUDA")
        )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _kind(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Classify a swap of one name for the other, by what is known of both."""
    attention = "attention" in (old["family"], new["family"])
    if old["library"] and new["library"] and old["library"] != new["library"]:
        return "attention_backend" if attention else "gemm_backend" if old["family"] == "gemm" else "library"
    return "datatype" if old["dtype"] and new["dtype"] and old["dtype"] != new["dtype"] else "kernel"


def _with_fact(environment: pl.DataFrame, category: str, key: str, value: str) -> pl.DataFrame:
    plain = environment.with_columns(pl.col(pl.Categorical).cast(pl.String))
    row = pl.DataFrame({"category": category, "key": key, "value": value, "in_fingerprint": True})
    return pl.concat(
        [plain.filter((pl.col("category") != category) | (pl.col("key") != key)), row], how="diagonal_relaxed"
    )
