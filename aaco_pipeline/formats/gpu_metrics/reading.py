"""Dumps of `gpu_metrics` tables: find the tables in files, and derive sensor samples from them.

`layouts` describes the binary layout of each version. A field with all bits set is not reported by the device: null.
"""

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, table_of
from aaco_pipeline.formats.gpu_metrics import device_of, dump_files, probe
from aaco_pipeline.formats.gpu_metrics.layouts import (
    CODE_OF,
    HEADER_BYTES,
    NOT_READINGS,
    SELF_DESCRIBING,
    UNKNOWN_ATTRIBUTE,
    VERSIONS,
    Version,
    described,
    dotted,
    header,
    layout,
)
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.regular_files import is_folder
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import to_contract

#: The energy accumulator counts in 2^-16 J, the driver's "15.259 µJ".
ENERGY_UNIT_J: Final = 2.0**-16
FIRMWARE_TICK_NS: Final = 10
#: PCIe generations by lane rate, which the tables state in 0.1 GT/s.
PCIE_GENERATION: Final[Mapping[float, int]] = {25.0: 1, 50.0: 2, 80.0: 3, 160.0: 4, 320.0: 5, 640.0: 6}
#: Limits whose residency the firmware accumulates, on the scale of `accumulation_counter`.
RESIDENCIES: Final = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
#: Bits of `indep_throttle_status`, by the driver's names.
THROTTLE_BITS: Final[Mapping[int, str]] = {
    **dict(enumerate(("PPT0", "PPT1", "PPT2", "PPT3", "SPL", "FPPT", "SPPT", "SPPT_APU"))),
    **dict(enumerate(("TDC_GFX", "TDC_SOC", "TDC_MEM", "TDC_VDD", "TDC_CVIP", "EDC_CPU", "EDC_GFX", "APCC"), 16)),
    **dict(enumerate(("TEMP_GPU", "TEMP_CORE", "TEMP_MEM", "TEMP_EDGE", "TEMP_HOTSPOT", "TEMP_SOC"), 32)),
    **dict(enumerate(("TEMP_VR_GFX", "TEMP_VR_SOC", "TEMP_VR_MEM0", "TEMP_VR_MEM1"), 38)),
    **dict(enumerate(("TEMP_LIQUID0", "TEMP_LIQUID1", "VRHOT0", "VRHOT1", "PROCHOT_CPU", "PROCHOT_GFX"), 42)),
    **dict(enumerate(("PPM", "FIT"), 56)),
}
_COUNTERS: Final = ("gfx_activity_acc", "mem_activity_acc", "accumulation_counter")
_COMMON: Final = pl.Schema(
    {
        "device_id": pl.Int32(),
        "time_ns": pl.Int64(),
        "energy_accumulator": pl.UInt64(),
        **dict.fromkeys(("system_clock_counter", "firmware_timestamp", "indep_throttle_status"), pl.UInt64()),
        **dict.fromkeys(("power_w", "temperature_hotspot_c", "temperature_memory_c"), pl.Float64()),
        **dict.fromkeys(("temperature_gpu_c", "pcie_decigigatransfers", "pcie_lanes"), pl.Float64()),
        **dict.fromkeys(("gfx_clock_mhz", "memory_clock_mhz", "gfx_percent", "memory_percent"), pl.Float64()),
        **{f"{name}_growth": pl.Int64() for name in ("energy", *_COUNTERS, *RESIDENCIES)},
        "elapsed_ns": pl.Int64(),
    }
)


@dataclass(frozen=True)
class Dump:
    """Tables of one device in reading order; `times_ns` if the sampler recorded the times, else None."""

    device: str | None
    tables: Sequence[bytes]
    times_ns: Sequence[int] | None = None


def growth(counter: pl.Expr, bits: int) -> pl.Expr:
    """Return the growth of an unsigned counter of `bits` (at most 64) since the previous row, handling wrap-around.

    A drop by less than half the range is a reset rather than a wrap between two readings, so the growth is unknown:
    null, as in the first row and if either reading is null. Rows are in order of time; the result is int64.
    """
    known = counter.cast(pl.UInt64)
    # Unsigned subtraction wraps at 64 bits; the mask reduces it to the counter's own width.
    difference = (known - known.shift(1)) & pl.lit((1 << bits) - 1, pl.UInt64)
    return pl.when(difference < pl.lit(1 << (bits - 1), pl.UInt64)).then(difference).cast(pl.Int64)


def between(samples: pl.DataFrame) -> pl.DataFrame:
    """Derive changes since the device's previous sample from counters; null in its first sample.

    Columns: device_id, time_ns, elapsed_ns, average_power_w (from the energy accumulator), gfx_activity_growth,
    memory_activity_growth, accumulation_growth (the firmware's own units), and for each limit `<name>_ratio`: the
    fraction of the firmware's accumulation time in which it throttled the device.
    """
    accumulation = pl.col("accumulation_counter_growth")
    return samples.select(
        "device_id",
        "time_ns",
        "elapsed_ns",
        average_power_w=pl.when(pl.col("elapsed_ns") > 0).then(
            pl.col("energy_growth") * ENERGY_UNIT_J * 1e9 / pl.col("elapsed_ns")
        ),
        gfx_activity_growth="gfx_activity_acc_growth",
        memory_activity_growth="mem_activity_acc_growth",
        accumulation_growth=accumulation,
        **{
            f"{one}_ratio": pl.when(accumulation > 0).then(pl.col(f"{one}_growth") / accumulation)
            for one in RESIDENCIES
        },
    )


def gpu_samples(samples: pl.DataFrame) -> pl.DataFrame:
    """Build the canonical table from decoded samples. `memory_used_bytes` is null: these tables do not contain it."""
    held = [pl.when(pl.col(f"{name}_growth") > 0).then(pl.lit(name)) for name in RESIDENCIES]
    grown = pl.any_horizontal(pl.col(f"{name}_growth").is_not_null() for name in RESIDENCIES)
    states = samples.get_column("indep_throttle_status").unique().drop_nulls()
    flags = pl.Series("flags", [_throttling(state) for state in states], pl.List(pl.String))
    joined = samples.join(
        states.to_frame().with_columns(flags), on="indep_throttle_status", how="left", maintain_order="left"
    )
    generation = pl.col("pcie_decigigatransfers").replace_strict(PCIE_GENERATION, default=None, return_dtype=pl.Int64)
    return to_contract(
        "gpu_samples",
        joined.select(
            *("time_ns", "device_id", "power_w", "temperature_hotspot_c", "temperature_memory_c", "gfx_clock_mhz"),
            *("memory_clock_mhz", "temperature_gpu_c", "pcie_lanes"),
            pcie_generation=generation,
            energy_j=pl.col("energy_accumulator") * ENERGY_UNIT_J,
            gfx_activity_ratio=_ratio("gfx_percent"),
            memory_activity_ratio=_ratio("memory_percent"),
            throttle_reasons=pl.coalesce("flags", pl.when(grown).then(pl.concat_list(held).list.drop_nulls())),
        ),
    )


def _ratio(percent: str) -> pl.Expr:
    """Convert a percentage to a ratio; values above 100 become null."""
    return pl.when(pl.col(percent) <= 100).then(pl.col(percent) / 100)


def _throttling(state: int) -> list[str]:
    return [THROTTLE_BITS.get(bit, f"bit {bit}") for bit in range(64) if state >> bit & 1]


class Decoded:
    """All tables of a capture as frames: one per form of table, and their common columns."""

    def __init__(self, source: str, dumps: Sequence[Dump], first_device_id: int = 0) -> None:
        self._source, self._dumps, self._first = source, dumps, first_device_id
        self.clock: tuple[str, str] | None = None
        self._versions: dict[str, set[str]] = {}
        self._fields: dict[str, list[pl.DataFrame]] = {}
        self._own_times = all(one.times_ns is None for one in dumps)

    def placed(self) -> tuple[pl.DataFrame, dict[str, pl.DataFrame], list[Evidence]]:
        """Return the samples in `_COMMON` by device and time, the details of all fields, and evidence."""
        common = []
        for number, dump in enumerate(self._dumps):
            for version, fields in self._forms(dump):
                fields.insert_column(0, pl.Series("device_id", [self._first + number] * fields.height, pl.Int32))
                self._fields.setdefault(dotted(version), []).append(fields)
                self._versions.setdefault(dotted(version), set()).add(dump.device or "the device")
        every = [frame for frames in self._fields.values() for frame in frames]
        clock = self._choose_clock(every)
        details: dict[str, pl.DataFrame] = {}
        for dotted_version, frames in self._fields.items():
            timed = [_timed(frame, clock) for frame in frames]
            common += [_common(frame) for frame in timed]
            # Self-describing tables of two forms differ in columns or types, so each form gets its own frame.
            forms = list(dict.fromkeys(tuple(frame.schema.items()) for frame in timed))
            for number, form in enumerate(forms, 1):
                name = f"fields_{dotted_version}" + (f"_{number}" if number > 1 else "")
                details[name] = pl.concat([frame for frame in timed if tuple(frame.schema.items()) == form])
        whole = pl.concat(common) if common else pl.DataFrame(schema=_COMMON)
        samples = whole.filter(pl.col("time_ns").is_not_null()).sort("device_id", "time_ns", maintain_order=True)
        return samples, details, list(self._evidence(whole, samples))

    def _forms(self, dump: Dump) -> Iterator[tuple[Version, pl.DataFrame]]:
        """Yield the fields of the dump's tables, grouped by form."""
        groups: dict[bytes, list[int]] = {}
        for at, table in enumerate(dump.tables):
            groups.setdefault(table[:HEADER_BYTES], []).append(at)
        for head, members in groups.items():
            size, version = header(head)
            raw = np.frombuffer(b"".join(dump.tables[at] for at in members), np.uint8).reshape(len(members), size)
            positions = np.asarray(members)
            while len(positions):
                form, same = self._form(version, raw)
                rows = np.ascontiguousarray(raw[same]).view(form)[:, 0]
                frame = pl.DataFrame([pl.Series("order", positions[same], pl.Int64), *_columns(rows)])
                if dump.times_ns is not None:
                    times = np.asarray(dump.times_ns, np.int64)[positions[same]]
                    frame = frame.with_columns(pl.Series("taken_ns", times, pl.Int64))
                yield version, frame
                raw, positions = raw[~same], positions[~same]

    def _form(self, version: Version, raw: npt.NDArray[np.uint8]) -> tuple[np.dtype[Any], npt.NDArray[np.bool_]]:
        """Return the data type of the first table, and a mask of the tables that share it."""
        if version != SELF_DESCRIBING:
            return layout(version), np.ones(len(raw), np.bool_)
        try:
            form = described(raw[0].tobytes())
        except ValueError as error:
            raise CaptureError(f"{self._source}: a gpu_metrics table of version 1.9 is damaged: {error}") from error
        codes = [name for name in form.names or () if name.startswith(CODE_OF) or name == "attr_count"]
        rows = raw.view(form)[:, 0]
        return form, np.logical_and.reduce([rows[name] == rows[name][0] for name in codes], initial=True)

    def _choose_clock(self, frames: Sequence[pl.DataFrame]) -> str | None:
        """Choose one clock for all samples: the driver's if any table has it."""
        if not self._own_times:
            return "taken_ns"
        clocks = (
            ("system_clock_counter", "boottime", "the driver's CLOCK_BOOTTIME in each gpu_metrics table"),
            ("firmware_timestamp", "gpu_firmware", "the firmware's own timestamp, of 10 ns, in each gpu_metrics table"),
        )
        for name, domain, anchor in clocks:
            if any(_is_clock(frame, name) and frame.get_column(name).count() for frame in frames):
                self.clock = (domain, anchor)
                return name
        return None

    def _evidence(self, whole: pl.DataFrame, samples: pl.DataFrame) -> Iterator[Evidence]:
        lost = whole.height - samples.height
        status: Status = "present" if samples.height and not lost else "partial" if samples.height else "absent"
        why = None if samples.height else "no table was read"
        if lost:
            why = f"{lost} of {whole.height} tables hold no time, so they cannot be placed"
        yield Evidence("gpu samples", status, why, self._source, samples.height)
        for version, devices in sorted(self._versions.items()):
            told = f"version {version} from {', '.join(sorted(devices))}"
            yield Evidence(f"gpu_metrics tables {version}", "present", told, self._source)
        said = set()
        for percent, column in (("gfx_percent", "gfx_activity_ratio"), ("memory_percent", "memory_activity_ratio")):
            above = samples.filter(pl.col(percent) > 100).height
            if above:
                said.add(column)
                told = f"{above} of {samples.height} readings are above 100 %, which no share can be; they are null"
                yield Evidence(f"gpu_samples.{column}", "invalid", told, self._source, samples.height - above)
        unknown = {name for frames in self._fields.values() for one in frames for name in one.columns}
        unknown = {name for name in unknown if name.startswith(UNKNOWN_ATTRIBUTE)}
        if unknown:
            told = f"values without a known name are kept by number: {', '.join(sorted(unknown)[:8])}"
            yield Evidence("unknown gpu_metrics values", "partial", told, self._source, len(unknown))
        table = gpu_samples(samples)
        for column in table.columns if samples.height else ():
            if table.get_column(column).count() or column in said:
                continue
            why = "the device reports it as not supported, or its tables do not hold it"
            if column in ("memory_used_bytes", "ecc_corrected", "ecc_uncorrected"):
                why = "gpu_metrics tables do not hold it"
            elif column == "throttle_reasons" and {"1.4", "1.5"} & self._versions.keys():
                why = "the throttle status of versions 1.4 and 1.5 differs by chip, so its bits are not named"
            yield Evidence(f"gpu_samples.{column}", "absent", why, self._source, 0)


def _columns(rows: npt.NDArray[Any], prefix: str = "") -> Iterator[pl.Series]:
    """Yield every field of the structured `rows`, null if all bits are set; an array if it has several instances."""
    count = len(rows)
    for name in rows.dtype.names or ():
        if name in NOT_READINGS or name.startswith(CODE_OF):
            continue
        values = rows[name]
        if values.dtype.names:
            yield from _columns(values.reshape(count, -1), "xcp_")
            continue
        flat = np.ascontiguousarray(values.reshape(-1))
        all_ones = np.iinfo(flat.dtype).max if flat.dtype.kind == "u" else -1
        series = pl.Series(f"{prefix}{name}", flat.astype(flat.dtype.newbyteorder("=")))
        series = series.to_frame().select(pl.when(pl.first() != all_ones).then(pl.first())).to_series()
        yield series if values.ndim == 1 else series.reshape((count, flat.size // count))


def _is_clock(fields: pl.DataFrame, name: str) -> bool:
    return name in fields.columns and fields.schema[name] in (pl.Int64(), pl.UInt64())


def _timed(fields: pl.DataFrame, clock: str | None) -> pl.DataFrame:
    """Add `time_ns` by the chosen clock as second column, and sort by it."""
    time = pl.lit(None, pl.Int64)
    if clock is not None and _is_clock(fields, clock):
        tick = FIRMWARE_TICK_NS if clock == "firmware_timestamp" else 1
        plausible = pl.col(clock).is_between(-(1 << 62), (1 << 62) // tick)
        time = pl.when(plausible).then(pl.col(clock)).cast(pl.Int64) * tick
    placed = fields.select("device_id", time.alias("time_ns"), pl.exclude("device_id", "taken_ns"))
    return placed.sort("time_ns", "order", nulls_last=True).drop("order")


def _common(fields: pl.DataFrame) -> pl.DataFrame:
    """Return the `_COMMON` columns of one device's tables of one form, in order of time."""

    def number(name: str) -> pl.Expr:
        """Read a field as a number, averaged over the instances that report it; null if this form lacks it."""
        if name not in fields.columns:
            return pl.lit(None, pl.Float64)
        if fields.schema[name].is_nested():
            return pl.col(name).cast(pl.List(pl.Float64)).list.mean()
        return pl.col(name).cast(pl.Float64)

    def counter(name: str) -> pl.Expr:
        there = name in fields.columns and not fields.schema[name].is_nested()
        return pl.col(name).cast(pl.UInt64, strict=False) if there else pl.lit(None, pl.UInt64)

    def grown(name: str) -> pl.Expr:
        if name not in fields.columns or fields.schema[name] not in _BITS:
            return pl.lit(None, pl.Int64)
        # A table without a time cannot be ordered, so no growth is measured to or from it.
        placed = pl.when(pl.col("time_ns").is_not_null()).then(pl.col(name))
        return growth(placed, _BITS[fields.schema[name]])

    stacks = "temperature_hbm" in fields.columns
    hottest = [pl.col("temperature_hbm").cast(pl.List(pl.Float64)).list.max()] if stacks else []
    accumulated = ("energy_accumulator", "system_clock_counter", "firmware_timestamp", "indep_throttle_status")
    return fields.select(
        "device_id",
        "time_ns",
        **{name: counter(name) for name in accumulated},
        power_w=pl.coalesce(number("curr_socket_power"), number("average_socket_power")),
        temperature_hotspot_c=number("temperature_hotspot"),
        temperature_memory_c=pl.max_horizontal(number("temperature_mem"), *hottest),
        temperature_gpu_c=number("temperature_edge"),
        pcie_decigigatransfers=number("pcie_link_speed"),
        pcie_lanes=number("pcie_link_width"),
        gfx_clock_mhz=number("current_gfxclk"),
        memory_clock_mhz=number("current_uclk"),
        gfx_percent=number("average_gfx_activity"),
        memory_percent=number("average_umc_activity"),
        energy_growth=grown("energy_accumulator"),
        **{f"{name}_growth": grown(name) for name in _COUNTERS},
        **{f"{name}_growth": grown(f"{name}_residency_acc") for name in RESIDENCIES},
        elapsed_ns=pl.col("time_ns").diff(),
    ).select(pl.col(name).cast(dtype) for name, dtype in _COMMON.items())


_BITS: Final[Mapping[Any, int]] = {pl.UInt32(): 32, pl.UInt64(): 64}


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.gpu_metrics.read`."""
    findings = Findings(path.name)
    dumps = _dumps(path, limits, findings)
    decoded = Decoded(path.name, dumps)
    reading, samples = _tables_of(decoded, dumps, 0)
    clocks = [
        {"domain": domain, "offset_ns": 0, "uncertainty_ns": 0, "anchor": anchor}
        for domain, anchor in ([decoded.clock] if decoded.clock else [])
    ]
    findings.took("gpu_metrics tables", sum(len(one.tables) for one in dumps), samples)
    return CaptureTables(
        {**reading.tables, "clock_domains": table_of("clock_domains", clocks)},
        (*reading.evidence, *findings.evidence),
        {**reading.details, "source_rows": findings.source_rows()},
    )


def _tables_of(decoded: Decoded, dumps: Sequence[Dump], first_device_id: int) -> tuple[CaptureTables, int]:
    """Return the tables and details of dumps and the number of samples."""
    samples, fields, items = decoded.placed()
    devices = (
        {"device_id": at, "vendor": "AMD", "handle": one.device} for at, one in enumerate(dumps, first_device_id)
    )
    tables = {"gpu_samples": gpu_samples(samples), "devices": table_of("devices", devices)}
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
    """Return one dump per device; report truncated dumps and other files."""
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
    """Split `content` into consecutive tables; return them and the size of a truncated one at the end."""
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
    found, readable = dotted(version), f"{dotted(VERSIONS[0])} to {dotted(VERSIONS[-1])}"
    if version not in VERSIONS:
        reason = f"no gpu_metrics table of a known version: it says {found}, and {readable} can be read"
        raise CaptureError(f"{path}: at byte {at} is {reason}")
    expected = layout(version).itemsize if version != SELF_DESCRIBING else max(size, 9)
    if size != expected:
        reason = f"states {size} bytes, and version {found} has {expected}; dump it again"
        raise CaptureError(f"{path}: the gpu_metrics table at byte {at} {reason}")


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
