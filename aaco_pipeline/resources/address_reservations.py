"""Reserve planned address ranges in a fresh process on this host, and report the result of each reservation.

Host mode: `mmap` without access permissions, with the wanted address as a hint, like a GPU driver's own reservation.
`aaco_pipeline.optimization.replay` plans the ranges.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.replay import Reservation

Outcome = Literal["exact", "relocated", "failed"]
#: Runs in a process that has loaded as little as possible. All ranges are held until the last one has been tried: two
#: conflicting ranges must not both be reported as exact.
_RESERVE: Final = """
import ctypes, json, mmap, os, sys
call = ctypes.CDLL(None, use_errno=True).mmap
call.restype = ctypes.c_void_p
call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
found = []
for base, size in json.load(sys.stdin):
    at = call(base, size, 0, flags, -1, 0)
    failed = at is None or at == ctypes.c_void_p(-1).value
    found.append([None, os.strerror(ctypes.get_errno())] if failed else [at, None])
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Reserved:
    """The result of one reservation: `at` is the address that the host returned, or null with the `reason`."""

    reservation: Reservation
    outcome: Outcome
    at: int | None
    reason: str | None


def reserve(planned: Sequence[Reservation]) -> tuple[Reserved, ...]:
    """Try all ranges in one fresh process, which releases them when it exits."""
    asked = json.dumps([[one.base, one.size] for one in planned])
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _RESERVE],
            input=asked,
            capture_output=True,
            text=True,
            check=True,
            env={},
        )
        answers = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UnavailableError(f"the process that reserves addresses did not answer: {error}") from error
    return tuple(
        Reserved(one, "failed" if at is None else "exact" if at == one.base else "relocated", at, reason)
        for one, (at, reason) in zip(planned, answers, strict=True)
    )


def outcome(reserved: Sequence[Reserved]) -> Outcome:
    """Return the worst outcome: failed before relocated before exact."""
    order: tuple[Outcome, ...] = ("failed", "relocated", "exact")
    return min((one.outcome for one in reserved), key=order.index, default="exact")
