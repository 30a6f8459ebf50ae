"""Why a device was idle, in words."""

from collections.abc import Mapping
from typing import Final

#: By `gaps.cause`.
CAUSES: Final[Mapping[str, str]] = {
    "sync": "sync: the host waited in a blocking call",
    "host_wait": "host wait: the next launch came late",
    "launch_latency": "launch latency: the launch was on its way",
    "dependency": "dependency: it waited for another stream",
    "kernel_kernel": "kernel to kernel: the device's own turnaround",
    "unknown": "unknown",
}
