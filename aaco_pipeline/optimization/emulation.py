"""A target that executes real machine code without the device: it counts instructions, and measures no time.

What it cannot say anything of speaks neither for a kernel nor against it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from aaco_pipeline.optimization.calls import Call, Execution
from aaco_pipeline.optimization.targets import Build, Layout, Parameter


class NotEmulated(Exception):
    """An instruction or a service that the emulator lacks, or more work than it is given: the reason in one line."""


class EmulatedWorker(Protocol):
    """A fresh confined process with one build loaded."""

    @property
    def instructions(self) -> Mapping[str, int]:
        """Those that wavefronts executed in the last call, by class."""
        ...

    @property
    def unconfined(self) -> Sequence[str]:
        """What the host does not grant of its confinement, in words; empty where it is whole."""
        ...

    def emulate(self, call: Call, *, backwards: bool) -> Execution:
        """One call, with workgroups and wavefronts in the order of their numbers or `backwards`; no duration.

        Refused (`memory`, `result`) for what the kernel did; NotEmulated where nothing can be said of it.
        """
        ...


class EmulatingTarget(Protocol):
    """Builds for a device that is not here, and starts emulations of it."""

    @property
    def executed_on(self) -> str: ...

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile under limits; Refused when it cannot be."""
        ...

    def start(self, build: Build) -> AbstractContextManager[EmulatedWorker]:
        """A fresh confined process with the build. NotEmulated or UnavailableError where there can be none."""
        ...
