"""A clock of one's own for processes and all that they start: it can be set while they live, and goes on from there.

Made by libfaketime (package `faketime`) and a shim that a C compiler makes. Monotonic clocks are left alone, so that
durations are real.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_SHIM: Final = Path(__file__).with_name("clock_shim.c")
_FOLDERS: Final = ("/usr/lib", "/usr/local/lib")
_LIBRARY: Final = "libfaketime.so.1"


class ClockError(Exception):
    """This host has nothing to make such a clock with."""


@dataclass(frozen=True)
class Clock:
    """The clock of a process tree; `environment` makes a process live by it."""

    file: Path
    environment: Mapping[str, str]

    def set(self, now: datetime) -> None:
        """Let it be this time from here on."""
        text = f"{now.timestamp() - time.time():+.3f}\n"
        made = self.file.with_suffix(".new")
        made.write_text(text)
        made.replace(self.file)

    def now(self) -> datetime:
        """The time by this clock."""
        return datetime.fromtimestamp(time.time() + float(self.file.read_text()), UTC)


def new_clock(folder: Path) -> Clock:
    """A clock whose files lie in `folder`. ClockError where libfaketime or a compiler is missing."""
    libraries = [one for name in _FOLDERS for one in Path(name).glob(f"**/faketime/{_LIBRARY}")]
    compiler = shutil.which("cc")
    if not libraries or compiler is None:
        lacking = "libfaketime (package faketime)" if not libraries else "a C compiler (cc)"
        raise ClockError(f"there is no {lacking} here, so no time is travelled")
    folder.mkdir(parents=True, exist_ok=True)
    shim = folder / "clock_shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(_SHIM)], check=True)
    file = folder / "clock"
    environment = {
        "LD_PRELOAD": f"{shim}:{libraries[0]}",
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": "UTC",
    }
    clock = Clock(file, {**os.environ, **environment})
    clock.set(datetime.now(UTC))
    return clock
