"""The limits of the control groups that a process is in: how much CPU time and memory a container may use.

They become facts of the host in `aaco_pipeline.resources.host.facts`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.host.kernel_files import text_of

#: Version 1 writes a number of about this size where there is no limit.
_UNLIMITED: Final = 1 << 62


def cgroup_limits(memberships: str, mounts: str) -> dict[str, str | None]:
    """The tightest limits on CPU time and memory from this process's control group up to the root.

    CPU: `QUOTA PERIOD` in microseconds, memory: bytes, `max` where unlimited; null where no such controller is found.
    """
    paths: dict[str, str] = {}  # by controller; version 2 has them all in one group, with an empty name
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
    """The folders of the group at `path` and of those above it, as seen below a mount that shows `root`."""
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
