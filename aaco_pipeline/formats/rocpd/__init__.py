"""rocprofv3's rocpd databases (SQLite, possibly gzip-compressed) to canonical tables.

Schema 3 and 3.0.0 to 3.0.5 of ROCm 7, also with several processes merged into one database, and as rocprofiler-systems
writes it; a newer schema is read by the names of its columns as far as they are known. Databases of rocmProfileData,
which call themselves rocpd too, are refused.
"""

import gzip
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits, described_kernels
from aaco_pipeline.formats.rocpd.database import MAGIC, RPD_TABLES, opened
from aaco_pipeline.formats.rocpd.evidence import evidence
from aaco_pipeline.formats.rocpd.tables import Parts, parts
from aaco_pipeline.lake.validation import to_contract

_PROBED_BYTES: Final = 256 << 10
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


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a database by its tables' names: `rocpd`, or `rpd` for one of rocmProfileData, which `read` refuses."""
    try:
        with path.open("rb") as stream:
            head = stream.read(len(MAGIC))
        if head == MAGIC:
            names = _listed(path)
        elif head.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(path) as stream:
                names = _spelled(stream.read(_PROBED_BYTES))
        else:
            return None
    except (OSError, EOFError, zlib.error, ValueError):
        return None
    if any(name.startswith(("rocpd_kernel_dispatch", "rocpd_metadata_")) for name in names):
        return DetectedFormat("rocpd", "rocpd database of rocprofv3 (SQLite)")
    if names & RPD_TABLES:
        return DetectedFormat("rpd", "RPD database of rocmProfileData: not read; convert it or capture with rocprofv3")
    return None


def _listed(path: Path) -> set[str]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            return {
                str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd%'")
            }
    except sqlite3.Error:  # damaged: its reader says how, if it is one
        with path.open("rb") as stream:
            return _spelled(stream.read(_PROBED_BYTES))


def _spelled(head: bytes) -> set[str]:
    if not head.startswith(MAGIC):
        return set()
    return {name.decode() for name in re.findall(rb"rocpd_[A-Za-z0-9_]+", head)}


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one database. Times are int64 ns of the host's CLOCK_BOOTTIME, ids dense from 0 in the source's order.

    Tables: `processes`, `devices` (GPUs, and whatever else dispatches name), `clock_domains`, `environment`, `kernels`
    (those dispatched), `dispatches`, `api_calls`, `memory_copies`, `markers`, `counters`, `memory_allocations`.

    Details: `dispatch_keys` and `source_rows` as for every reader; `kernel_keys` (kernel_id, source_kernel_id,
    code_object_id, symbol: the mangled name), `device_keys` (device_id, host, handle, agent_id, absolute_index,
    type_index, pci_address: the same in every process of a host, unlike the handle), `queues` and `streams` (the dense
    id, the source's and its name) and `code_objects` (code_object_id, device_id, uri, load_base, load_size).

    Raises CaptureError for what is no such database, is cut or damaged, not yet finished, or over the limits.
    """
    limits = limits or Limits()
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
    tables["kernels"] = described_kernels(kernels)
    tables["clock_domains"] = _clocks(hosts)
    details = {name: frames[name] for name in _DETAILS}
    details["source_rows"] = _source_rows(found)
    return CaptureTables(tables, evidence(path.name, sets, found, tables, hosts), details)


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


def _source_rows(found: Sequence[Parts]) -> pl.DataFrame:
    taken: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for one in found:
        for kind, (rows_in, rows_out) in one.rows.items():
            taken[kind] += rows_in
            given[kind] += rows_out
    kinds = sorted(taken)
    return pl.DataFrame(
        {
            "item": [f"rocpd_{kind}" for kind in kinds],
            "rows_in": pl.Series([taken[kind] for kind in kinds], dtype=pl.Int64),
            "rows_out": pl.Series([given[kind] for kind in kinds], dtype=pl.Int64),
        },
        schema_overrides={"item": pl.String},
    )
