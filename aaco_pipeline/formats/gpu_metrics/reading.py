"""Files, folders and recordings of `gpu_metrics` tables, cut into tables and put together as one reading.

What the tables mean is `aaco_pipeline.formats.gpu_metrics.decoding`'s.
"""

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.gpu_metrics.decoding import Decoded, Dump, between, gpu_samples
from aaco_pipeline.formats.gpu_metrics.layouts import (
    HEADER_BYTES,
    SELF_DESCRIBING,
    VERSIONS,
    Version,
    dotted,
    header,
    layout,
)
from aaco_pipeline.formats.gpu_metrics.signs import device_of, dump_files, probe
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.regular_files import is_folder
from aaco_pipeline.lake.validation import empty_table, to_contract


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.gpu_metrics.read`."""
    findings = Findings(path.name)
    dumps = _dumps(path, limits, findings)
    decoded = Decoded(path.name, dumps)
    reading, samples = _tables_of(decoded, dumps, 0)
    clock = decoded.clock
    clocks = [{"domain": clock[0], "offset_ns": 0, "uncertainty_ns": 0, "anchor": clock[1]}] if clock else []
    domains = to_contract("clock_domains", pl.DataFrame(clocks)) if clocks else empty_table("clock_domains")
    findings.took("gpu_metrics tables", sum(len(one.tables) for one in dumps), samples)
    return CaptureTables(
        {**reading.tables, "clock_domains": domains},
        (*reading.evidence, *findings.evidence),
        {**reading.details, "source_rows": findings.source_rows()},
    )


def _tables_of(decoded: Decoded, dumps: Sequence[Dump], first_device_id: int) -> tuple[CaptureTables, int]:
    """The tables and details of dumps, however they were come by, and how many samples there are."""
    samples, fields, items = decoded.placed()
    devices = [
        {"device_id": at, "vendor": "AMD", "handle": one.device} for at, one in enumerate(dumps, first_device_id)
    ]
    tables = {
        "gpu_samples": gpu_samples(samples),
        "devices": to_contract("devices", pl.DataFrame(devices)) if devices else empty_table("devices"),
    }
    return CaptureTables(tables, tuple(items), {**fields, "between_samples": between(samples)}), samples.height


def read_recorded(
    recordings: Any, axis_zero_ns: int, source: str, first_device_id: int, limits: Limits
) -> CaptureTables:
    """See `aaco_pipeline.formats.gpu_metrics.read_recorded`."""
    try:
        dumps = [_recorded(one, axis_zero_ns, limits) for one in recordings]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, zlib.error, binascii.Error) as error:
        raise CaptureError(f"{source}: its GPU samples are not in the expected form: {error}") from error
    decoded = Decoded(source, dumps, first_device_id)
    reading, _ = _tables_of(decoded, dumps, first_device_id)
    findings = Findings(source)
    for one, dump in zip(recordings, dumps, strict=True):
        item, count = f"gpu samples of {dump.device}", len(dump.tables)
        failure, period_ns = one.get("failure"), one.get("period_ns")
        if failure:
            findings.say(item, "partial", f"{failure}; {count} readings were taken before", count)
        elif type(period_ns) is int and abs(period_ns) < 1 << 62:
            told = f"read every {period_ns / 1e6:.3g} ms, as often as the cost of a reading allows"
            findings.say(item, "present", told, count)
    return CaptureTables(reading.tables, (*reading.evidence, *findings.evidence), reading.details)


def _dumps(path: Path, limits: Limits, findings: Findings) -> list[Dump]:
    """One dump for each device; says what is cut or no dump."""
    if not is_folder(path):
        tables, cut = _tables(path, read_decompressed(path, limits), limits)
        _say_cut(findings, path.name, cut, len(tables))
        return [Dump(device_of(path.name), tables)]
    found: dict[str | None, list[bytes]] = {}
    strangers = []
    count = size = 0
    try:
        files = list(dump_files(path))
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error
    for file in files:
        if probe(file) is None:
            strangers.append(file.name)
            continue
        content = read_decompressed(file, limits)
        size += len(content)
        tables, cut = _tables(file, content, limits)
        count += len(tables)
        if count > limits.events or size > limits.file_bytes:
            raise CaptureError(f"{path}: more than {limits.events} tables or {limits.file_bytes} bytes; not read")
        name = str(file.relative_to(path))
        _say_cut(findings, name, cut, len(tables))
        found.setdefault(device_of(name), []).extend(tables)
    if not found:
        raise CaptureError(f"{path}: holds no dump of gpu_metrics; give a file or folder of such dumps")
    if strangers:
        why = f"{len(strangers)} files are no gpu_metrics tables and were not read, such as {strangers[0][:80]}"
        findings.say("other files", "partial", why, len(strangers))
    return [Dump(device, found[device]) for device in sorted(found, key=_natural)]


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


def _say_cut(findings: Findings, name: str, left: int, whole: int) -> None:
    if left:
        findings.say(f"end of {name}", "partial", f"the last table is cut off after {left} bytes", whole, name)


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
