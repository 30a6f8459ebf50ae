"""The architecture of this host's AMD GPUs, as the kernel driver lists them. Nothing is asked of a device."""

import re
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError

_KFD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


def gpu_architecture(device: int) -> str | None:
    """The architecture (such as gfx942) of the `device`th AMD GPU that the kernel driver lists; None when it has none.

    When the listed GPUs are all of one architecture, it is that one, whichever of them are visible.
    """
    found = [name for name in map(_architecture_of, _nodes()) if name is not None]
    if len(set(found)) == 1:
        return found[0]
    return found[device] if device < len(found) else None


def stated(architecture: str | None) -> str:
    """The architecture, for which counters are chosen. UnavailableError, with what to do, where there is none."""
    if architecture is None:
        raise UnavailableError(
            f"counters: {_KFD_NODES} does not tell the GPU's architecture; load the amdgpu driver, or leave "
            "--counters out"
        )
    return architecture


def _nodes() -> list[Path]:
    try:
        return sorted((node for node in _KFD_NODES.iterdir() if node.name.isdigit()), key=lambda node: int(node.name))
    except OSError:
        return []


def _architecture_of(node: Path) -> str | None:
    """The driver's number 90402 is gfx942, 90010 is gfx90a, 110501 is gfx1151; a processor's is 0."""
    try:
        found = re.search(r"^gfx_target_version (\d+)$", (node / "properties").read_text(), re.MULTILINE)
    except OSError:
        return None
    number = int(found[1]) if found else 0
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}" if number else None
