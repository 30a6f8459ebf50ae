"""Read the Linux kernel's files about this host and its processes: caches, control groups and identifiers.

`aaco_pipeline.resources.host.facts` decides which of them become facts of a capture.
"""

import ctypes
import hashlib
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final


def text_of(path: Path) -> str | None:
    """Read a small file and strip white space; None if it is absent, empty or unreadable."""
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None  # the file does not exist here or is not readable: the fact is unknown


_CPUS: Final = Path("/sys/devices/system/cpu")
_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


KFD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


def kfd_gpus() -> list[tuple[str, int]]:
    """Return architecture (such as gfx942) and wavefront size of each AMD GPU, in the kernel driver's order.

    The driver's number 90402 is gfx942, 90010 is gfx90a, 110501 is gfx1151; processors have 0.
    """
    found = []
    nodes = [node for node in KFD_NODES.glob("*") if node.name.isdigit()]
    for node in sorted(nodes, key=lambda node: int(node.name)):
        properties = dict(re.findall(r"^(\w+) (\d+)$", text_of(node / "properties") or "", re.MULTILINE))
        if number := int(properties.get("gfx_target_version", 0)):
            name = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
            found.append((name, int(properties.get("wave_front_size", 0))))
    return found


@dataclass(frozen=True)
class Cache:
    """One cache level: bytes of one cache, and for each cache the CPUs that share it."""

    level: int
    size_bytes: int
    groups: tuple[frozenset[int], ...]

    def threads_sharing(self, cpus: Collection[int]) -> int:
        """Return the largest number of `cpus` that share one cache."""
        return max((len(group & set(cpus)) for group in self.groups), default=0)

    def touched(self, cpus: Collection[int]) -> int:
        """Return the number of caches of this level that `cpus` use in total."""
        return sum(1 for group in self.groups if group & set(cpus))


def caches(cpus: Collection[int], folder: Path = _CPUS) -> tuple[Cache, ...]:
    """Return the data and unified caches of these CPUs by level, as the Linux kernel reports them, or nothing."""
    found: dict[int, tuple[int, set[frozenset[int]]]] = {}
    for cpu in sorted(cpus):
        for index in sorted((folder / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
            level, size = _text(index / "level"), _SIZE.fullmatch(_text(index / "size"))
            shared = cpu_list(_text(index / "shared_cpu_list"))
            if _text(index / "type") in ("Data", "Unified") and level.isdigit() and size is not None and cpu in shared:
                amount = int(size[1]) * _FACTORS[size[2]]
                known, groups = found.setdefault(int(level), (amount, set()))
                # On hybrid processors, cores have caches of different sizes: use the smaller one, which fits all.
                found[int(level)] = (min(known, amount), groups | {shared})
    return tuple(
        Cache(level, size, tuple(sorted(groups, key=min))) for level, (size, groups) in sorted(found.items()) if size
    )


def cpu_list(text: str) -> frozenset[int]:
    """Return the numbers that the Linux kernel writes as `0-3,8`; empty for any other format."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return frozenset()
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _text(path: Path) -> str:
    return text_of(path) or ""


#: Version 1 reports a number of about this size if there is no limit.
_UNLIMITED: Final = 1 << 62


def cgroup_limits(memberships: str, mounts: str) -> dict[str, str | None]:
    """Return the tightest CPU-time and memory limits from this process's control group up to the root.

    CPU: `QUOTA PERIOD` in microseconds; memory: bytes; `max` if unlimited; null if the controller is not found.
    """
    paths: dict[str, str] = {}  # by controller; version 2 has a single group for all, with an empty name
    for line in memberships.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    quotas: list[tuple[float, str]] = []
    memory: list[tuple[float, str]] = []
    for line in mounts.splitlines():
        fields, _, kind = line.partition(" - ")
        root, mount = (fields.split() + [""] * 5)[3:5]
        kind, _, options = kind.partition(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = (
            [""]
            if kind == "cgroup2"
            else [name for name in ("cpu", "memory") if name in options.split()[-1].split(",")]
        )
        for name in names:
            if name in paths:
                for folder in _groups(Path(mount), root, paths[name]):
                    quotas += _cpu_quota(folder)
                    memory += _memory_limit(folder)
    return {"cpu": min(quotas)[1] if quotas else None, "memory": min(memory)[1] if memory else None}


def _groups(mount: Path, root: str, path: str) -> Iterator[Path]:
    """Return the folders of the group at `path` and of its parents, as seen below a mount that shows `root`."""
    inside = path.removeprefix(root.rstrip("/")).strip("/")
    folder = mount / inside if ".." not in inside.split("/") else mount
    yield folder
    while folder != mount:
        folder = folder.parent
        yield folder


def _cpu_quota(folder: Path) -> Iterator[tuple[float, str]]:
    text = text_of(folder / "cpu.max")
    if text is None:
        quota, period = text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us")
        text = f"{'max' if quota.startswith('-') else quota} {period}" if quota and period else None
    parts = (text or "").split()
    if text is not None and len(parts) == 2 and parts[1].isdigit() and int(parts[1]):
        if parts[0] == "max":
            yield float("inf"), text
        elif parts[0].isdigit():
            yield int(parts[0]) / int(parts[1]), text


def _memory_limit(folder: Path) -> Iterator[tuple[float, str]]:
    text = text_of(folder / "memory.max") or text_of(folder / "memory.limit_in_bytes")
    if text is not None and text.isdigit() and int(text) < _UNLIMITED:
        yield int(text), text
    elif text is not None:
        yield float("inf"), "max"


_PROC: Final = Path("/proc")
_MACHINE: Final = Path("/etc/machine-id")


def identity_of(cpu_model: str | None, amd_cards: Sequence[Path]) -> dict[tuple[str, str], str | None]:
    """Return identifiers of boot, machine and GPUs by category and key of `environment`; None if unreadable.

    Sessions of one boot share its memory layout and its neighbours, so a result confirmed on two boots is stronger. A
    machine's id is confidential and is stored as a digest together with the processor's model. Containers of one image
    may share an id and then count as one machine.
    """
    machine = text_of(_MACHINE)
    told = machine and hashlib.sha256(f"aaco_pipeline\0{cpu_model}\0{machine}".encode()).hexdigest()[:16]
    found = {
        ("boot", "id"): text_of(_PROC / "sys/kernel/random/boot_id"),
        ("boot", "time"): _boot_time(),
        ("identity", "machine"): told,
    }
    for number, card in enumerate(amd_cards):
        found["identity", f"gpu{number}.unique_id"] = text_of(card / "unique_id")
    for number, file in enumerate(sorted((_PROC / "driver/nvidia/gpus").glob("*/information"))):
        stated = re.search(r"^GPU UUID:\s*(\S+)", text_of(file) or "", re.MULTILINE)
        found["identity", f"nvidia{number}.uuid"] = stated and stated[1]
    return found


def _boot_time() -> str | None:
    """Return this host's boot time in UTC by its current clock, to the second."""
    found = re.search(r"^btime (\d+)$", text_of(_PROC / "stat") or "", re.MULTILINE)
    return found and datetime.fromtimestamp(int(found[1]), UTC).isoformat()


#: Tags below `.dagster/` are meant for programs; the interface does not list them among a run's tags.
TAG_PREFIX: Final = ".dagster/aaco/process/"
HOST_TAG: Final = ".dagster/aaco/process/host"
PID_TAG: Final = ".dagster/aaco/process/pid"
_STARTED_TAG: Final = ".dagster/aaco/process/started"
_BOOT_TAG: Final = ".dagster/aaco/process/boot"


def process_tags() -> dict[str, str]:
    """Return tags for this process: host, boot, process number and start time."""
    pid = os.getpid()
    return {
        HOST_TAG: platform.node(),
        _BOOT_TAG: _boot_id(),
        PID_TAG: str(pid),
        _STARTED_TAG: _process_started(pid) or "",
    }


def process_is_gone(tags: Mapping[str, str]) -> bool | None:
    """Return whether the process in `tags` has ended; None if they contain none, or one of another host."""
    if not tags.get(PID_TAG, "").isdecimal() or tags.get(HOST_TAG) != platform.node():
        return None
    if tags.get(_BOOT_TAG) != _boot_id():
        return True
    return _process_started(int(tags[PID_TAG])) != tags.get(_STARTED_TAG)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _process_started(pid: int) -> str | None:
    """Return the process's start in clock ticks since boot (field 22 of its stat); None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the preceding name may contain spaces and parentheses
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def give_back_memory() -> None:
    """Return freed memory to the system; does nothing with C libraries other than GNU's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
