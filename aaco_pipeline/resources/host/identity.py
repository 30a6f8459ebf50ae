"""Which machine, which boot of it and which GPUs these are: what tells equal machines, and sessions of one boot, apart.

What they are like is `facts`. No process is started.
"""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.host.kernel_files import text_of

_PROC: Final = Path("/proc")
_MACHINE: Final = Path("/etc/machine-id")


def identity_of(cpu_model: str | None, amd_cards: Sequence[Path]) -> dict[tuple[str, str], str | None]:
    """The boot, the machine and its GPUs by category and key of `environment`; what cannot be read is None.

    Sessions of one boot share its memory layout and its neighbours: what holds on two is worth more. A machine's id is
    confidential and enters as a digest, together with the processor's model. Containers of one image may share an id,
    and are one machine here.
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
    """When this host booted, in UTC by its clock as it goes now, to the second."""
    found = re.search(r"^btime (\d+)$", text_of(_PROC / "stat") or "", re.MULTILINE)
    return found and datetime.fromtimestamp(int(found[1]), UTC).isoformat()
