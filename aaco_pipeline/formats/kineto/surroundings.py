"""What a Kineto trace says of where it was taken: whose devices, their properties, its clock, and versions.

Its events are `aaco_pipeline.formats.kineto.tables`'s.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.formats.parsing.redaction import safe_value
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Below this a time without a base cannot be microseconds since the Unix epoch: it is before the year 2001.
_EPOCH_FLOOR_NS: Final = 10**18
#: Versions that the trace of one vendor's tracer states.
_AMD_VERSIONS: Final = ("hip_runtime_version", "hip_driver_version", "roctracer_version")
_NVIDIA_VERSIONS: Final = ("cuda_runtime_version", "cuda_driver_version", "cupti_version")
#: HIP's capability numbers that one architecture alone has; 9.0 stands for gfx900 to gfx90a, 11.0 for gfx1100 to 1103.
_ONLY_ONE: Final = {"9.4": "gfx942", "9.5": "gfx950"}


def is_amd(metadata: Mapping[str, Any], calls: pl.DataFrame) -> bool | None:
    """Whether the devices are AMD's; None when nothing says."""
    if not metadata.keys().isdisjoint(_AMD_VERSIONS):
        return True
    if not metadata.keys().isdisjoint(_NVIDIA_VERSIONS):
        return False
    names = calls.filter(pl.col("cat") == "cuda_runtime").get_column("name").unique().cast(pl.String)
    return bool(names.str.starts_with("hip").any()) if len(names) else None


def described_devices(metadata: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """What the trace states of devices, by its own numbers."""
    listed = metadata.get("deviceProperties")
    return {
        number: entry
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict) and (number := whole(entry.get("id"))) is not None
    }


def properties_of(
    seen: Iterable[int], described: Mapping[int, Mapping[str, Any]], amd: bool | None
) -> dict[int, Mapping[str, Any]]:
    """What is stated of each device with activities, by its number there; devices without activities beside them.

    ROCm's tracer numbers a device among all agents of the host, its CPUs first, the properties among the devices alone:
    a number without properties is one of the described devices. Where these are alike, so are its properties; a single
    one is the device itself.
    """
    stated = dict(described)
    strange = sorted(set(seen) - set(described))
    if amd is False or not strange or -1 in strange or len(strange) > len(described):
        return stated
    entries = [{key: value for key, value in entry.items() if key != "id"} for entry in described.values()]
    if any(entry != entries[0] for entry in entries):
        return stated
    if len(described) == 1 and len(strange) == 1 and not set(seen) & set(described):
        return {strange[0]: entries[0]}
    return stated | dict.fromkeys(strange, entries[0])


def device_rows(
    numbers: Mapping[int, int], described: Mapping[int, Mapping[str, Any]], amd: bool | None
) -> pl.DataFrame:
    """The table `devices`; `numbers` are its numbers by the trace's, which are -1 for a device without one."""
    rows = []
    for number, place in numbers.items():
        entry = described.get(number, {})
        major, minor = whole(entry.get("computeMajor")), whole(entry.get("computeMinor"))
        shared = entry.get("sharedMemPerMultiprocessor", entry.get("maxSharedMemoryPerMultiProcessor"))
        name = entry.get("name")
        rows.append(
            {
                "device_id": place,
                "vendor": {True: "AMD", False: "NVIDIA", None: None}[amd],
                "arch": _architecture(amd, major, minor),
                "product": name if isinstance(name, str) and name else None,
                "compute_units": whole(entry.get("numSms")),
                "wavefront_size": whole(entry.get("warpSize")),
                "memory_bytes": whole(entry.get("totalGlobalMem")),
                "lds_bytes": whole(shared),
                "handle": str(number) if number >= 0 else None,
            }
        )
    return to_contract("devices", pl.DataFrame(rows)) if rows else empty_table("devices")


def _architecture(amd: bool | None, major: int | None, minor: int | None) -> str | None:
    """The architecture that capability numbers name: CUDA's always do, HIP's where only one has them."""
    if amd:
        return _ONLY_ONE.get(f"{major}.{minor}")
    return f"sm_{major}{minor}" if amd is False and None not in (major, minor) else None


def clocks(metadata: Mapping[str, Any], starts: Iterable[pl.Series]) -> tuple[pl.DataFrame, bool]:
    """The table `clock_domains`: the trace's clock, and wall-clock where the trace ties it; and whether it does."""
    base, first = whole(metadata.get("baseTimeNanoseconds")), pl.concat(starts).min()
    rows: list[tuple[str, int, int | None, str]] = []
    if base is not None:
        rows.append(("realtime", -base, None, f"the trace's times count from baseTimeNanoseconds {base}"))
        origin = f"from baseTimeNanoseconds {base} after the Unix epoch"
    elif isinstance(first, int) and first > _EPOCH_FLOOR_NS:
        rows.append(("realtime", 0, None, "the trace has no base: its times count from the Unix epoch"))
        origin = "from the Unix epoch"
    else:
        origin = "from where it does not say"
    rows.insert(0, ("kineto", 0, 0, f"the trace's own times, counted {origin}"))
    frame = pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row")
    return to_contract("clock_domains", frame), len(rows) > 1


def versions(metadata: Mapping[str, Any]) -> pl.DataFrame:
    """The table `environment`: the versions that the trace states."""
    rows = [
        {"category": "library", "key": key, "value": safe_value(key, str(value)), "in_fingerprint": True}
        for key, value in sorted(metadata.items())
        if key.endswith("_version") and isinstance(value, int | float | str) and len(key) <= 64
    ]
    return to_contract("environment", pl.DataFrame(rows)) if rows else empty_table("environment")
