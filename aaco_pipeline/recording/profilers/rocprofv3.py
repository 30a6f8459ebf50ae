"""AMD's rocprofv3 for a program: the traced run, and one further run for each group of counters.

`aaco_pipeline.resources.rocprofv3.command` builds the command for each release;
`aaco_pipeline.resources.rocprofv3.counter_groups` groups the counters of a set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.rocprofv3.command import (
    BASE_PASS,
    ProfilerPass,
    Release,
    counter_input,
    counter_passes,
    expected_outputs,
    find_tool,
    gpu_architecture,
    installed_release,
    rocprofv3_command,
    stated,
)
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets
from aaco_pipeline.resources.telemetry.gpu_metrics import amd_cards

NAME: Final = "rocprofv3"
_SYS: Final = Path("/sys")
_LONGEST_WORDS: Final = 300


@dataclass(frozen=True)
class Rocprofv3:
    """This host's rocprofv3."""

    tool: Path
    version: str
    release: Release

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command of the base pass over `program`: kernels, HIP calls, memory copies and markers."""
        return rocprofv3_command(self.release, BASE_PASS, folder, program, self.tool)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return no variables: the command line is sufficient."""
        return {}

    def counting(
        self, sets: str, first: int | None, known: Callable[[], CounterSets], environment: Mapping[str, str]
    ) -> "tuple[Counting, ...]":
        """Return a run for each counter group of the sets on this host's GPUs. AacoError if a set has no counter."""
        if first is not None:
            raise UsageError("count_first: rocprofv3 counts every launch, and runs none of them again; leave it out")
        groups = known().groups(sets, stated(gpu_architecture(0)))
        return tuple(Counting(self, one) for one in counter_passes(groups))


@dataclass(frozen=True)
class Counting:
    """A run that counts one group of counters; its kernels run one after another."""

    profiler: Rocprofv3
    group: ProfilerPass
    name: ClassVar[str] = NAME

    @property
    def version(self) -> str:
        return self.profiler.version

    @property
    def counters(self) -> tuple[str, ...]:
        return self.group.counters

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command of the pass; write the counter file into the folder for releases that read one."""
        given = counter_input(self.profiler.release, self.group)
        if given is not None:
            (folder / given[0]).write_text(given[1])
        return rocprofv3_command(self.profiler.release, self.group, folder, program, self.profiler.tool)

    def environment(self, folder: Path) -> dict[str, str]:
        return {}

    def why_failed(self, folder: Path, said: str) -> str | None:
        """Return the output file that rocprofv3 did not write, with the last line of its output, or None."""
        expected = expected_outputs(self.profiler.release, self.group, None)
        missing = next((one for one in expected if next(folder.rglob(one), None) is None), None)
        if missing is None:
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        words = f"; the last words were: {lines[-1][:_LONGEST_WORDS]}" if lines else ""
        return f"counters: rocprofv3 left no {missing} of {', '.join(self.counters)}{words}"


def prepared(environment: Mapping[str, str], sys: Path = _SYS) -> Rocprofv3:
    """Find this host's tool and its version. UnavailableError without one, or if it sees no GPU."""
    if not amd_cards(sys):
        raise UnavailableError(f"rocprofv3: this host has no AMD GPU (none in {sys}/class/drm)")
    tool = find_tool(environment)
    version, release = installed_release(tool)
    return Rocprofv3(tool, version, release)
