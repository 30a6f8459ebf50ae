"""What the sampler read of this host's GPUs, AMD's and NVIDIA's, as one reading with one numbering of devices.

The makers' own forms are `aaco_pipeline.formats.gpu_metrics` and `aaco_pipeline.formats.native.nvml`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats import gpu_metrics
from aaco_pipeline.formats.capture_tables import CaptureTables
from aaco_pipeline.formats.native import nvml
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table

#: In a session that was run here device 0 is the CPU, so the GPUs that were read come after it.
FIRST_GPU_ID: Final = 1
_PCI: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?")


def read_gpus(gpu: Mapping[str, Any], zero: int, source: str, device_ids: Mapping[str, int]) -> CaptureTables:
    """`gpu_samples` and `devices` of the GPUs that were read; what was not read, and why, as evidence.

    `gpu` is the part of the sampler's document that is about GPUs. `device_ids` holds the numbers that a trace gives
    its devices, by UUID or PCI address however written: a GPU that is among them has that number, others come behind
    all of these, AMD's first, in the order of their driver. CaptureError when it is not what the sampler writes.
    """
    recordings = gpu["samples"]
    if not recordings:
        absent = Evidence("gpu samples", "absent", str(gpu["reason"]), ", ".join(gpu["sources"]) or None)
        return CaptureTables({"gpu_samples": empty_table("gpu_samples"), "devices": empty_table("devices")}, (absent,))
    nvidia = [one for one in recordings if one.get("library") == nvml.LIBRARY]
    amd = [one for one in recordings if one.get("library") != nvml.LIBRARY]
    readings = []
    if amd:
        readings.append(gpu_metrics.read_recorded(amd, zero, source, first_device_id=0))
    if nvidia:
        readings.append(nvml.read_recorded(nvidia, zero, source, first_device_id=len(amd)))
    numbers = _numbers([*amd, *nvidia], device_ids)
    evidence = list(readings[0].evidence)
    for reading in readings[1:]:
        said = {item.item for item in evidence}
        evidence += (
            replace(one, item=f"{one.item} of NVIDIA devices") if one.item in said else one for one in reading.evidence
        )
    if gpu["reason"]:
        evidence.append(Evidence("gpu samples of other devices", "absent", str(gpu["reason"]), source))
    return CaptureTables(
        {name: _together([one.tables[name] for one in readings], numbers) for name in ("gpu_samples", "devices")},
        tuple(evidence),
        {
            name: _together([one.details[name] for one in readings if name in one.details], numbers)
            for name in dict.fromkeys(name for one in readings for name in one.details)
        },
    )


def _together(frames: Sequence[pl.DataFrame], numbers: Mapping[int, int]) -> pl.DataFrame:
    """Frames of several makers, whose columns may differ, in order of device."""
    whole = pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]
    numbered = whole.with_columns(pl.col("device_id").replace_strict(numbers, return_dtype=pl.Int32))
    return numbered.sort("device_id", maintain_order=True)


def _numbers(recordings: Sequence[Mapping[str, Any]], device_ids: Mapping[str, int]) -> dict[int, int]:
    """The session's number of each recorded device, by its place among the recordings."""
    known = {_identity(name): number for name, number in device_ids.items()}
    following = max([FIRST_GPU_ID, *(number + 1 for number in known.values())])
    numbers: dict[int, int] = {}
    for place, one in enumerate(recordings):
        facts = one["facts"] if one.get("library") == nvml.LIBRARY else {}
        stated = (facts.get("uuid"), facts.get("pci_address"), one.get("address"))
        names = [_identity(name) for name in stated if isinstance(name, str)]
        number = next((known[name] for name in names if name in known), None)
        if number is None or number in numbers.values():
            number, following = following, following + 1
        numbers[place] = number
    return numbers


def _identity(name: str) -> str:
    """A UUID or a PCI address in one spelling: drivers differ in case, in what stands before, and in leading zeros."""
    plain = name.strip().lower().removeprefix("gpu-")
    found = _PCI.fullmatch(plain)
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}" if found is not None else plain
