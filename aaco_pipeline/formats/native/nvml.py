"""Build `gpu_samples` and `devices` from NVML readings of NVIDIA GPUs, with the same columns as for AMD.

`aaco_pipeline.resources.telemetry.nvml` takes the readings. Units and meanings: NVIDIA's NVML API reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NotRequired

import polars as pl
from typing_extensions import TypedDict

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, table_of
from aaco_pipeline.formats.gpu_metrics.reading import growth
from aaco_pipeline.formats.parsing.json_document import UNFIT, Said, Whole, check_form
from aaco_pipeline.hardware.device_facts import STATED
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, to_contract

LIBRARY: Final = "nvml"
#: Limits by their bit in NVML's clocks event reasons. An idle GPU's low clock (bit 0) is not a limit.
_REASONS: Final = (
    *("applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
)
EVENT_REASONS: Final[Mapping[int, str]] = dict(enumerate(_REASONS, 1))
#: Limits whose time NVML accumulates, in ns.
HELD: Final = (
    *("sw_power_cap", "sync_boost", "board_limit"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
)
_HELD_COLUMN: Final = {name: f"held_{name}_ns" for name in HELD}
_RAW: Final = (
    *("power_mw", "energy_mj", "gpu_temperature_c", "memory_temperature_c", "sm_clock_mhz", "memory_clock_mhz"),
    *("gpu_busy_percent", "memory_busy_percent", "memory_used_bytes", "event_reasons", "pcie_generation", "pcie_lanes"),
    *("ecc_corrected", "ecc_uncorrected", *_HELD_COLUMN.values()),
)
#: Columns of `gpu_samples`, keyed by raw reading.
_AS_READ: Final = ("memory_used_bytes", "pcie_generation", "pcie_lanes", "ecc_corrected", "ecc_uncorrected")
_MADE_OF: Final[Mapping[str, str]] = {
    **{"power_w": "power_mw", "energy_j": "energy_mj"},
    **{"temperature_gpu_c": "gpu_temperature_c", "temperature_memory_c": "memory_temperature_c"},
    **{"gfx_clock_mhz": "sm_clock_mhz", "memory_clock_mhz": "memory_clock_mhz"},
    **{"gfx_activity_ratio": "gpu_busy_percent", "memory_activity_ratio": "memory_busy_percent"},
    **{"throttle_reasons": "event_reasons", **{name: name for name in _AS_READ}},
}
_NO_HOTSPOT: Final = "NVML gives no temperature of the hottest spot; temperature_gpu_c is its sensor of the die"
_MIG: Final = "MIG is on: all readings describe the whole GPU, and NVML does not say how busy its instances are"


class _Facts(TypedDict):
    product: NotRequired[str | None]
    uuid: NotRequired[str | None]
    pci_address: NotRequired[str | None]
    compute_capability: NotRequired[str | None]
    memory_bytes: NotRequired[Whole | None]
    max_sm_clock_mhz: NotRequired[Whole | None]
    max_memory_clock_mhz: NotRequired[Whole | None]
    memory_bus_bits: NotRequired[Whole | None]
    power_limit_mw: NotRequired[Whole | None]
    mig: NotRequired[bool | None]


class _Recording(TypedDict):
    device: str
    library: str
    period_ns: Whole | None
    failure: str | None
    facts: _Facts
    reasons: dict[str, Said]
    turns: NotRequired[dict[str, Whole]]
    times_ns: list[Whole]
    columns: dict[str, list[Any]]


class _Recordings(TypedDict):
    samples: list[_Recording]


def read_recorded(
    recordings: Sequence[Mapping[str, Any]], axis_zero_ns: int, source: str, *, first_device_id: int
) -> CaptureTables:
    """Build `gpu_samples` and `devices` of the recordings, numbered from `first_device_id` in NVML's order.

    `throttle_reasons` are the limits active at the reading or whose accumulated time has grown since the previous
    reading. Detail `between_samples`: device_id, time_ns, elapsed_ns, average_power_w (from the energy counter), and
    for each of `HELD`, as `<name>_ratio`, the fraction of time in which it limited the clocks. All refer to the time
    since the counter was last read and are null if it was not read, and in the first sample.

    CaptureError if the recordings do not have the sampler's format.
    """
    check_form({"samples": list(recordings)}, _Recordings, source)
    frames, between, devices = [], [], []
    evidence: list[Evidence] = []
    for number, recording in enumerate(recordings, first_device_id):
        raw = _raw(recording, axis_zero_ns, source)
        frames.append(_samples(raw, number))
        between.append(_between(raw, number))
        devices.append(_device(recording["facts"], recording["device"], number))
        evidence += _device_evidence(recording, raw.height, source)
    samples = to_contract("gpu_samples", pl.concat(frames)) if frames else empty_table("gpu_samples")
    found = Evidence("gpu samples", "present" if samples.height else "absent", None, source, samples.height)
    return CaptureTables(
        {"gpu_samples": samples, "devices": table_of("devices", devices)},
        (found, *_columns_evidence(recordings, samples, source), *evidence),
        {"between_samples": pl.concat(between)},
    )


def _raw(recording: Mapping[str, Any], zero: int, source: str) -> pl.DataFrame:
    """Return the raw readings at their times on the session's axis; missing columns are null."""
    times, columns = recording["times_ns"], recording["columns"]
    if any(len(values) != len(times) for values in columns.values()):
        raise CaptureError(f"{source}: the readings of {recording['device']} differ in length; the file is damaged")
    nothing = [None] * len(times)
    try:
        raw = pl.DataFrame(
            {"time_ns": times, **{name: columns.get(name, nothing) for name in _RAW}},
            schema={"time_ns": pl.Int64(), **dict.fromkeys(_RAW, pl.Int64())},
        )
    except UNFIT as error:
        reason = str(error).split("\n", 1)[0]
        raise CaptureError(f"{source}: a reading of {recording['device']} is no integer: {reason}") from error
    return raw.with_columns(pl.col("time_ns") - zero).sort("time_ns", maintain_order=True)


def _samples(raw: pl.DataFrame, device_id: int) -> pl.DataFrame:
    """Build one device's rows of `gpu_samples`, in order of time."""
    bits = pl.col("event_reasons")
    holds = [
        pl.when((bits.floordiv(1 << bit) % 2 == 1) | (_grown(name) > 0 if name in HELD else False)).then(pl.lit(name))
        for bit, name in EVENT_REASONS.items()
    ]
    known = pl.any_horizontal(bits.is_not_null(), *(_grown(name).is_not_null() for name in HELD))
    return raw.select(
        "time_ns",
        pl.lit(device_id, pl.Int32()).alias("device_id"),
        *(_scaled(column, 1e-3) for column in ("power_w", "energy_j")),
        *(_scaled(column, 1.0) for column in ("temperature_gpu_c", "temperature_memory_c")),
        *(_scaled(column, 1.0) for column in ("gfx_clock_mhz", "memory_clock_mhz")),
        *(_ratio(column) for column in ("gfx_activity_ratio", "memory_activity_ratio")),
        *_AS_READ,
        throttle_reasons=pl.when(known).then(pl.concat_list(holds).list.drop_nulls()),
    )


def _scaled(column: str, factor: float) -> pl.Expr:
    return (pl.col(_MADE_OF[column]).cast(pl.Float64) * factor).alias(column)


def _ratio(column: str) -> pl.Expr:
    """Convert a percentage to a ratio; values above 100 become null."""
    percent = pl.col(_MADE_OF[column])
    return pl.when(percent.is_between(0, 100)).then(percent / 100).alias(column)


def _grown(name: str) -> pl.Expr:
    """Return the additional time in ns that a limit was active since the last reading; null if it was not read."""
    return _growth(_HELD_COLUMN[name])


def _growth(counter: str) -> pl.Expr:
    """Return a counter's growth since its last reading; null if it was not read."""
    return pl.when(pl.col(counter).is_not_null()).then(growth(pl.col(counter).forward_fill(), 64))


def _passed(counter: str) -> pl.Expr:
    """Return the time since the counter's last reading; null if there is none."""
    known = pl.when(pl.col(counter).is_not_null()).then(pl.col("time_ns"))
    passed = known - known.forward_fill().shift(1)
    return pl.when(passed > 0).then(passed)


def _between(raw: pl.DataFrame, device_id: int) -> pl.DataFrame:
    return raw.select(
        pl.lit(device_id, pl.Int32()).alias("device_id"),
        "time_ns",
        elapsed_ns=pl.col("time_ns").diff(),
        average_power_w=_growth("energy_mj") * 1e6 / _passed("energy_mj"),
        **{f"{name}_ratio": _grown(name) / _passed(_HELD_COLUMN[name]) for name in HELD},
    )


def _device(facts: Mapping[str, Any], called: str, number: int) -> dict[str, Any]:
    """Build a row of `devices`."""
    capability, limit = facts.get("compute_capability"), facts.get("power_limit_mw")
    return {
        "device_id": number,
        "vendor": "NVIDIA",
        "arch": None if capability is None else f"sm_{capability.replace('.', '')}",
        "arch_source": None if capability is None else STATED,
        "product": facts.get("product"),
        "max_clock_mhz": facts.get("max_sm_clock_mhz"),
        "memory_clock_mhz": facts.get("max_memory_clock_mhz"),
        "memory_bytes": facts.get("memory_bytes"),
        "memory_bus_bits": facts.get("memory_bus_bits"),
        "partition_mode": "MIG" if facts.get("mig") else None,
        "power_cap_w": None if limit is None else limit / 1000,
        "handle": facts.get("uuid") or facts.get("pci_address") or called,
    }


def _device_evidence(recording: Mapping[str, Any], rows: int, source: str) -> Iterator[Evidence]:
    """Report how often a device was read, and why reading stopped."""
    item, failure, period_ns = f"gpu samples of {recording['device']}", recording["failure"], recording["period_ns"]
    if failure:
        yield Evidence(item, "partial", f"{failure}; {rows} readings were taken before", source, rows)
    elif period_ns is not None:
        told = f"read every {period_ns / 1e6:.3g} ms, as often as the cost of a reading allows"
        yield Evidence(item, "present", told, source, rows)
    for name, turn in recording.get("turns", {}).items():
        told = f"made at one reading in {turn}, for it takes long; null in between"
        yield Evidence(f"NVML's call for {name} of {recording['device']}", "present", told, source)
    if recording["facts"].get("mig"):
        yield Evidence(f"instances of {recording['device']}", "absent", _MIG, source)


def _columns_evidence(
    recordings: Sequence[Mapping[str, Any]], samples: pl.DataFrame, source: str
) -> Iterator[Evidence]:
    """Report why a column of `gpu_samples` is empty, in NVML's words."""
    for column in samples.columns if samples.height else ():
        if samples.get_column(column).count():
            continue
        origin = _MADE_OF.get(column)
        said = [reason for one in recordings if (reason := one["reasons"].get(origin))]
        why = _NO_HOTSPOT if origin is None else "; ".join(dict.fromkeys(said)) or "NVML gave no value"
        yield Evidence(f"gpu_samples.{column}", "absent", why, source, 0)
