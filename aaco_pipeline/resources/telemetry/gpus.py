"""The GPUs of this host that can be sampled, whoever made them, and why others cannot."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from aaco_pipeline.resources.telemetry import nvml
from aaco_pipeline.resources.telemetry.gpu_metrics import amd_cards, open_sources
from aaco_pipeline.resources.telemetry.gpu_source import GpuSource
from aaco_pipeline.resources.telemetry.sources import UnreadableError

NO_GPU: Final = "this host has no AMD or NVIDIA GPU"
_NVIDIA: Final = "0x10de"
#: A display controller, of whatever kind, by the first digits of its PCI class.
_DISPLAY: Final = "0x03"


class OpenedGpus(NamedTuple):
    """Every GPU that was found, those of them that are open for reading, and why others are not, by GPU."""

    names: tuple[str, ...]
    sources: list[GpuSource[Any]]
    reasons: Mapping[str, str]


def open_gpus(sys: Path = Path("/sys"), nvml_library: str = nvml.LIBRARY) -> OpenedGpus:
    """Open all GPUs: AMD's by their tables in `sys`, NVIDIA's by NVML. Never raises; the caller closes the sources."""
    amd, reasons = open_sources(sys)
    cards = amd_cards(sys)
    try:
        nvidia, refused = nvml.open_devices(nvml_library)
    except UnreadableError as error:
        # A host without the maker's library is as a rule one without its GPUs: nothing is missing there.
        present = nvidia_addresses(sys)
        told = {f"NVIDIA {address}": str(error) for address in present[:1]}
        return OpenedGpus((*cards, *(f"NVIDIA {one}" for one in present)), [*amd], {**reasons, **told})
    names = sorted([*(source.device for source in nvidia), *refused], key=lambda name: (len(name), name))
    return OpenedGpus((*cards, *names), [*amd, *nvidia], {**reasons, **refused})


def nvidia_addresses(sys: Path) -> tuple[str, ...]:
    """Where NVIDIA's GPUs sit on the PCI bus, by what the kernel lists in `sys`."""
    found = []
    for folder in sorted((sys / "bus/pci/devices").glob("*")):
        with suppress(OSError):
            vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_DISPLAY):
                found.append(folder.name)
    return tuple(found)
