"""AMD's rocprofv3 around a program's traced run.

How it is asked, release by release, is `aaco_pipeline.resources.rocprofv3.command`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    Release,
    find_tool,
    installed_release,
    rocprofv3_command,
)
from aaco_pipeline.resources.telemetry.gpu_metrics import amd_cards

NAME: Final = "rocprofv3"
_SYS: Final = Path("/sys")


@dataclass(frozen=True)
class Rocprofv3:
    """The rocprofv3 of this host."""

    tool: Path
    version: str
    release: Release

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command of the base pass over `program`: kernels, HIP calls, memory copies and markers."""
        _, *arguments = rocprofv3_command(self.release, BASE_PASS, folder, program)
        return (str(self.tool), *arguments)

    def environment(self, folder: Path) -> dict[str, str]:
        """Nothing: all is said on the command line."""
        return {}


def prepared(environment: Mapping[str, str], sys: Path = _SYS) -> Rocprofv3:
    """The tool of this host, asked for its version. UnavailableError without one, or without a GPU that it sees."""
    if not amd_cards(sys):
        raise UnavailableError(f"rocprofv3: this host has no AMD GPU (none in {sys}/class/drm)")
    tool = find_tool(environment)
    version, release = installed_release(tool)
    return Rocprofv3(tool, version, release)
