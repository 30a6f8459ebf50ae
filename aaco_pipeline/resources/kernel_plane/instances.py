"""An instance of the kernel's tracing of our own: made, read and removed, without touching anybody else's.

What is recorded, and for how long, is `recording`'s. The files are documented in the kernel's `ftrace.rst`.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.telemetry.pid_namespace import numbered_as_by_the_kernel

#: Where tracefs is mounted, newer kernels first.
_MOUNTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_NAME: Final = re.compile(r"aaco_(\d+)_(\d+)_\w+")


class NotPossible(Exception):
    """The kernel's events cannot be recorded here: what was met, and what to do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


class Instance:
    """One instance in a tracefs; it records nothing until `turn`ed on. OSError where the kernel refuses something."""

    def __init__(self, tracefs: Path, purpose: str) -> None:
        self.path = tracefs / "instances" / f"aaco_{os.getpid()}_{_start_of(os.getpid())}_{purpose}"
        self.path.mkdir()

    def set(self, file: str, value: str) -> None:
        """Write a setting; the kernel takes it with one write or refuses it."""
        descriptor = os.open(self.path / file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def records(self) -> bool:
        """Whether it still records: whoever may write to tracefs may have turned it off."""
        return (self.path / "tracing_on").read_text().strip() == "1"

    def enable(self, event: str) -> dict[str, object]:
        """Have an event recorded, alone: how its records are laid out, or why there are none."""
        folder = f"events/{event}"
        try:
            text = (self.path / folder / "format").read_text()
            self.set(f"{folder}/enable", "1")
        except FileNotFoundError:
            return {"format": None, "reason": "this kernel does not have the event"}
        except OSError as error:
            return {"format": None, "reason": f"refused: {error.strerror}"}
        return {"format": text, "reason": None}

    def cpus(self) -> list[int]:
        """The CPUs that have a buffer."""
        return sorted(int(one.name.removeprefix("cpu")) for one in (self.path / "per_cpu").iterdir())

    def pages(self, cpu: int) -> int:
        """An open descriptor that gives a CPU's pages as they fill, and never waits."""
        return os.open(self.path / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def stats(self, cpu: int) -> dict[str, int]:
        """What the kernel counted of a CPU's buffer: `overrun` and `dropped events` are losses."""
        lines = (self.path / f"per_cpu/cpu{cpu}/stats").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return {name: int(value) for name, value in pairs if value.strip().isdecimal()}

    def remove(self) -> None:
        """Stop recording and remove the instance; all its descriptors have to be closed before."""
        with suppress(OSError):
            self.set("tracing_on", "0")
        with suppress(FileNotFoundError):
            self.path.rmdir()


def find_tracefs() -> Path:
    """Where instances can be made. NotPossible in one line where they cannot."""
    mounted = [one for one in _MOUNTS if (one / "instances").is_dir()]
    if not mounted:
        if os.geteuid() != 0:
            raise NotPossible("tracefs is not mounted, or not for this user", "run as root")
        raise NotPossible("tracefs is not mounted", "mount -t tracefs nodev /sys/kernel/tracing")
    if not os.access(mounted[0] / "instances", os.W_OK):
        raise NotPossible(f"{mounted[0]} is not writable for this user", "run as root")
    return mounted[0]


def remove_stale() -> list[str]:
    """Remove instances of ours whose process is gone, as a kill leaves them; their names.

    In a container with process numbers of its own the process of every recording beside it would seem to be gone.
    """
    if not numbered_as_by_the_kernel():
        return []
    removed = []
    for mount in _MOUNTS:
        with suppress(OSError):
            for one in stale_of(sorted((mount / "instances").iterdir())):
                with suppress(OSError):  # somebody reads it
                    one.rmdir()
                    removed.append(one.name)
    return removed


def stale_of(instances: Iterable[Path]) -> list[Path]:
    """Those of ours whose process is gone: no process has the number, or one that began at another time."""
    named = ((one, _NAME.fullmatch(one.name)) for one in instances)
    return [one for one, name in named if name is not None and _start_of(int(name[1])) != name[2]]


def _start_of(process: int) -> str:
    """When a process began, in ticks since boot; empty where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
