"""Dumps of the amdgpu driver's `gpu_metrics` tables: one table a file, several one after another, or a folder of them.

The tables' layouts are `aaco_pipeline.formats.gpu_metrics.layouts`; taking readings beside a run is
`aaco_pipeline.resources.telemetry.gpu_metrics`. A value that is all ones is one the device does not report: null.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits, unpacked
from aaco_pipeline.formats.gpu_metrics.decoding import Decoded, Dump, between, gpu_samples
from aaco_pipeline.formats.gpu_metrics.layouts import (
    HEADER_BYTES,
    SELF_DESCRIBING,
    VERSIONS,
    Version,
    described,
    dotted,
    header,
    layout,
)
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

FORMAT: Final = "amdgpu-gpu-metrics"
_LARGEST_TABLE: Final = 1 << 16
_CARD: Final = re.compile(r"card\d{1,4}(?!\d)")


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a dump by the header of its first table, a folder by its first dump; None for anything else.

    A table of a version that cannot be read is recognized too, so that `read` can refuse it by name.
    """
    try:
        if path.is_dir():
            first = next((file for file in _files(path)), None)
            found = probe(first) if first is not None and first.is_file() else None
            return DetectedFormat(FORMAT, f"folder of dumps: {found.detail}") if found is not None else None
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            head = stream.read(_LARGEST_TABLE)
    except (OSError, ValueError):
        return None
    if len(head) <= HEADER_BYTES:
        return None
    size, version = header(head)
    if version == SELF_DESCRIBING:
        try:
            known = described(head[:size]) is not None and len(head) >= size
        except ValueError:
            known = False
    elif version in VERSIONS:
        known = size == layout(version).itemsize
    else:
        known = size == len(head) and 1 <= version[0] <= 3 and version[1] <= 32
    return DetectedFormat(FORMAT, f"gpu_metrics table of version {dotted(version)}") if known else None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """A dump, or a folder of dumps whose names or folders begin with `card<n>` where they are of several devices.

    Tables: `gpu_samples` in order of device and time, `devices`, `clock_domains`. Times are the tables' own:
    CLOCK_BOOTTIME as the driver noted it, else the firmware's timestamp; a table with neither cannot be placed and is
    told. Details: `fields_<version>` (device_id, time_ns and every field, 64-bit counters exact; values of several
    instances as arrays, those of partitions as `xcp_<field>`, partition after partition), `between_samples` as in
    `between`, and `source_rows`. CaptureError for what is no such table, of an unknown version, or not of its size.
    """
    limits = limits or Limits()
    dumps, remarks = _dumps(path, limits)
    decoded = Decoded(path.name, dumps)
    samples, fields, items = decoded.placed()
    items = [*items, *remarks]
    clock = decoded.clock
    clocks = [{"domain": clock[0], "offset_ns": 0, "uncertainty_ns": 0, "anchor": clock[1]}] if clock else []
    devices = [{"device_id": number, "vendor": "AMD", "handle": one.device} for number, one in enumerate(dumps)]
    count = sum(len(one.tables) for one in dumps)
    rows = pl.DataFrame(
        {"item": ["gpu_metrics tables"], "rows_in": [count], "rows_out": [samples.height]},
        schema={"item": pl.String(), "rows_in": pl.Int64(), "rows_out": pl.Int64()},
    )
    tables = {
        "gpu_samples": gpu_samples(samples),
        "devices": to_contract("devices", pl.DataFrame(devices)) if devices else empty_table("devices"),
        "clock_domains": to_contract("clock_domains", pl.DataFrame(clocks)) if clocks else empty_table("clock_domains"),
    }
    return CaptureTables(tables, tuple(items), {**fields, "between_samples": between(samples), "source_rows": rows})


def read_recorded(
    recordings: Any, axis_zero_ns: int, source: str, *, first_device_id: int = 0, limits: Limits | None = None
) -> CaptureTables:
    """What `gpu_metrics_sampling` recorded: as `read`, at the times it took the readings, less `axis_zero_ns`.

    The devices are numbered from `first_device_id`. Gives no `clock_domains`: the caller knows the clock. CaptureError
    when the recordings are not what the sampler writes.
    """
    limits = limits or Limits()
    try:
        dumps = [_recorded(one, axis_zero_ns, limits) for one in recordings]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, zlib.error, binascii.Error) as error:
        raise CaptureError(f"{source}: its GPU samples are not in the expected form: {error}") from error
    decoded = Decoded(source, dumps, first_device_id)
    samples, fields, items = decoded.placed()
    for one, dump in zip(recordings, dumps, strict=True):
        if one["failure"]:
            why = f"{one['failure']}; {len(dump.tables)} readings were taken before"
            items.append(Evidence(f"gpu samples of {dump.device}", "partial", why, source, len(dump.tables)))
        elif type(one["period_ns"]) is int:
            told = f"read every {one['period_ns'] / 1e6:.3g} ms, as often as the cost of a reading allows"
            items.append(Evidence(f"gpu samples of {dump.device}", "present", told, source, len(dump.tables)))
    devices = [
        {"device_id": first_device_id + at, "vendor": "AMD", "handle": dump.device} for at, dump in enumerate(dumps)
    ]
    frame = to_contract("devices", pl.DataFrame(devices)) if devices else empty_table("devices")
    return CaptureTables(
        {"gpu_samples": gpu_samples(samples), "devices": frame},
        tuple(items),
        {**fields, "between_samples": between(samples)},
    )


# --- Finding the tables -----------------------------------------------------------------------------------------------


def _dumps(path: Path, limits: Limits) -> tuple[list[Dump], list[Evidence]]:
    """One dump for each device; remarks on files that are cut or are no dumps."""
    remarks: list[Evidence] = []
    if not path.is_dir():
        tables, cut = _tables(path, unpacked(path, limits), limits)
        remarks += [_cut(path.name, cut, len(tables))] if cut else []
        return [Dump(_device(path.name), tables)], remarks
    found: dict[str | None, list[bytes]] = {}
    strangers = []
    count = size = 0
    try:
        files = list(_files(path))
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error
    for file in files:
        if not file.is_file() or not file.resolve().is_relative_to(path.resolve()) or probe(file) is None:
            strangers.append(file.name)
            continue
        content = unpacked(file, limits)
        size += len(content)
        tables, cut = _tables(file, content, limits)
        count += len(tables)
        if count > limits.events or size > limits.file_bytes:
            raise CaptureError(f"{path}: more than {limits.events} tables or {limits.file_bytes} bytes; not read")
        remarks += [_cut(str(file.relative_to(path)), cut, len(tables))] if cut else []
        found.setdefault(_device(str(file.relative_to(path))), []).extend(tables)
    if not found:
        raise CaptureError(f"{path}: holds no dump of gpu_metrics; give a file or folder of such dumps")
    if strangers:
        why = f"{len(strangers)} files are no gpu_metrics tables and were not read, such as {strangers[0][:80]}"
        remarks.append(Evidence("other files", "partial", why, path.name, len(strangers)))
    return [Dump(device, found[device]) for device in sorted(found, key=_natural)], remarks


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and of its folders named for cards, in order of name."""
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            yield entry
        elif _CARD.match(entry.name):
            yield from (file for file in sorted(entry.iterdir()) if not file.is_dir())


def _device(name: str) -> str | None:
    match = _CARD.match(name)
    return match[0] if match is not None else None


def _natural(device: str | None) -> tuple[int, int]:
    return (0, 0) if device is None else (1, int(device.removeprefix("card")))


def _tables(path: Path, content: bytes, limits: Limits) -> tuple[list[bytes], int]:
    """The tables one after another in `content`, and how many bytes are left of a cut one at the end."""
    tables: list[bytes] = []
    at = 0
    while at + HEADER_BYTES <= len(content):
        size, version = header(content[at : at + HEADER_BYTES])
        _check(path, size, version, at)
        if at + size > len(content):
            break
        tables.append(content[at : at + size])
        at += size
        if len(tables) > limits.events:
            raise CaptureError(f"{path}: more than {limits.events} tables; raise the limit on events")
    if not tables:
        raise CaptureError(f"{path}: holds no whole gpu_metrics table; dump it again")
    return tables, len(content) - at


def _check(path: Path, size: int, version: Version, at: int) -> None:
    if version not in VERSIONS:
        readable = f"{dotted(VERSIONS[0])} to {dotted(VERSIONS[-1])}"
        raise CaptureError(
            f"{path}: at byte {at} is no gpu_metrics table of a known version: it says {dotted(version)}, and "
            f"{readable} can be read"
        )
    expected = layout(version).itemsize if version != SELF_DESCRIBING else max(size, 9)
    if size != expected:
        raise CaptureError(
            f"{path}: the gpu_metrics table at byte {at} states {size} bytes, and version {dotted(version)} has "
            f"{expected}; dump it again"
        )


def _cut(name: str, left: int, whole: int) -> Evidence:
    return Evidence(f"end of {name}", "partial", f"the last table is cut off after {left} bytes", name, whole)


def _recorded(recording: Mapping[str, Any], axis_zero_ns: int, limits: Limits) -> Dump:
    packed = base64.b64decode(recording["tables"], validate=True)
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(packed, limits.file_bytes)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("its tables cannot be unpacked")
    device = str(recording["device"])
    times = [int(time) - axis_zero_ns for time in recording["times_ns"]]
    if any(abs(time) >= 1 << 62 for time in times):
        raise ValueError("a time is out of range")
    tables, cut = _tables(Path(device), content, limits) if content else ([], 0)
    if cut or len(tables) != len(times):
        raise ValueError(f"{device} has {len(tables)} tables and {len(times)} times")
    return Dump(device, tables, times)
