"""The processes of a rocpd database, joined into one reading.

The tables of one process are `aaco_pipeline.formats.rocpd.tables`'.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Limits, described_kernels
from aaco_pipeline.formats.rocpd.database import opened
from aaco_pipeline.formats.rocpd.evidence import findings_of
from aaco_pipeline.formats.rocpd.process import Parts
from aaco_pipeline.formats.rocpd.tables import parts
from aaco_pipeline.lake.validation import to_contract

_CLOCK: Final = "boottime"
_UNIQUE_KERNEL: Final = ("name", "arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes", "static_scratch_bytes")
#: Ids that are dense within one process's tables and are moved on when several processes become one reading.
_NUMBERED: Final = {
    "process_id": "processes",
    "device_id": "devices",
    "source_device_id": "devices",
    "destination_device_id": "devices",
    "queue_id": "queues",
    "stream_id": "streams",
    "kernel_id": "kernels",
    "dispatch_id": "dispatches",
    "call_id": "api_calls",
    "marker_id": "markers",
    "copy_id": "memory_copies",
    "allocation_id": "memory_allocations",
}
_TABLES: Final = (
    *("processes", "devices", "dispatches", "api_calls", "memory_copies", "markers", "counters"),
    *("memory_allocations", "environment"),
)
_DETAILS: Final = ("dispatch_keys", "kernel_keys", "device_keys", "queues", "streams", "code_objects")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocpd.read`."""
    with opened(path, limits) as database:
        sets = database.sets()
        found = [parts(database, one, limits, _pass_name(path)) for one in sets]
    frames = _merged(found)
    kernels, frames["dispatches"], frames["kernel_keys"] = _distinct(
        frames.pop("kernels"), frames["dispatches"], frames["kernel_keys"]
    )
    hosts = list(dict.fromkeys(host for one in found for host in one.hosts))
    tables = {name: to_contract(name, frames.get(name, pl.DataFrame())) for name in _TABLES}
    tables["environment"] = tables["environment"].unique(["category", "key"], keep="first", maintain_order=True)
    symbols = frames["kernel_keys"].select("kernel_id", pl.col("symbol").str.strip_suffix(".kd"))
    symbols = symbols.drop_nulls().unique("kernel_id", keep="first", maintain_order=True)
    tables["kernels"] = described_kernels(kernels.join(symbols, on="kernel_id", how="left", maintain_order="left"))
    tables["clock_domains"] = _clocks(hosts)
    details = {name: frames[name] for name in _DETAILS}
    findings = findings_of(path.name, sets, found, tables, hosts)
    details["source_rows"] = findings.source_rows()
    return CaptureTables(tables, tuple(findings.evidence), details)


def _pass_name(path: Path) -> str:
    """The replay pass the database is of: the `pass_n` folder it lies in, or its own name."""
    folder = next((one.name for one in path.parents if re.fullmatch(r"pass_\d+", one.name)), None)
    return folder or path.name.removesuffix(".gz").removesuffix(".db")


def _merged(found: Sequence[Parts]) -> dict[str, pl.DataFrame]:
    """The frames of all processes, ids moved on so that they stay dense and distinct."""
    if len(found) == 1:
        return dict(found[0].frames)
    bases: Counter[str] = Counter()
    collected: dict[str, list[pl.DataFrame]] = {}
    for one in found:
        for name, frame in one.frames.items():
            moved = [
                (pl.col(column) + bases[table]).cast(pl.Int32)
                for column, table in _NUMBERED.items()
                if column in frame.columns and bases[table]
            ]
            collected.setdefault(name, []).append(frame.with_columns(moved))
        bases.update({name: frame.height for name, frame in one.frames.items()})
    return {name: pl.concat(frames) for name, frames in collected.items()}


def _distinct(
    kernels: pl.DataFrame, dispatches: pl.DataFrame, keys: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """One row a kernel over all processes, and what names kernels following it."""
    unique = kernels.unique(_UNIQUE_KERNEL, keep="first", maintain_order=True)
    if unique.height == kernels.height:
        return kernels, dispatches, keys
    unique = unique.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    same = kernels.join(unique, on=_UNIQUE_KERNEL, nulls_equal=True, how="left", maintain_order="left")
    places = same["kernel_id_right"]
    return (
        unique,
        dispatches.with_columns(places.gather(dispatches["kernel_id"]).alias("kernel_id")),
        keys.with_columns(places.gather(keys["kernel_id"]).alias("kernel_id")),
    )


def _clocks(hosts: Sequence[str]) -> pl.DataFrame:
    """The clock of the capture; that of every further host is another one, tied to nothing."""
    rows: list[dict[str, object]] = [
        {
            "domain": _CLOCK,
            "offset_ns": 0,
            "uncertainty_ns": 0,
            "anchor": "CLOCK_BOOTTIME of the profiled host, as the capture's own times; it defines their axis",
        }
    ]
    rows += [
        {"domain": f"{_CLOCK} of {host}", "offset_ns": None, "uncertainty_ns": None, "anchor": None}
        for host in hosts[1:]
    ]
    return to_contract("clock_domains", pl.DataFrame(rows))
