"""Which process did something, as tags that name it beyond doubt, and whether that very process still lives.

What a dead process leaves behind, and who cleans up, is decided in `aaco_pipeline.automation.runs`.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Tags below `.dagster/` are not listed among a run's tags in the interface: they are for programs.
TAG_PREFIX: Final = ".dagster/aaco/process/"
HOST_TAG: Final = ".dagster/aaco/process/host"
PID_TAG: Final = ".dagster/aaco/process/pid"
_STARTED_TAG: Final = ".dagster/aaco/process/started"
_BOOT_TAG: Final = ".dagster/aaco/process/boot"


def process_tags() -> dict[str, str]:
    """Tags for this process: host, boot, process number, and when the process started."""
    pid = os.getpid()
    return {
        HOST_TAG: platform.node(),
        _BOOT_TAG: _boot_id(),
        PID_TAG: str(pid),
        _STARTED_TAG: _process_started(pid) or "",
    }


def process_is_gone(tags: Mapping[str, str]) -> bool | None:
    """Whether the process that `tags` name has ended; None when they name none, or one of another host."""
    if not tags.get(PID_TAG, "").isdecimal() or tags.get(HOST_TAG) != platform.node():
        return None
    if tags.get(_BOOT_TAG) != _boot_id():
        return True
    return _process_started(int(tags[PID_TAG])) != tags.get(_STARTED_TAG)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _process_started(pid: int) -> str | None:
    """Start of the process in clock ticks since boot (field 22 of its stat); None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started
