"""The recording request: every setting is declared once, for the command, the archive and the capture.

Requests that are known to be invalid are refused here, in one line, before anything is created.
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from aaco_pipeline.errors import UsageError

#: Profilers for the traced pass: whichever this host has, one by name, or none.
TRACES: Final = ("auto", "rocprofv3", "cupti", "off")
#: A recording is read one run at a time.
MOST_RUNS: Final = 10_000
#: ncu is given these numbers one by one.
MOST_COUNTED: Final = 100
#: Characters that only a shell interprets.
_SHELL_SIGNS: Final = ("|", "&&", ";", ">", "<", "$(", "`")
#: Programs that run another program, named by their first non-option word.
_INTERPRETER: Final = re.compile(r"python[\d.]*|sh|bash|torchrun")


def _option(text: str, default: Any, metavar: str | None = None, spelling: str | None = None) -> Any:
    return field(default=default, metadata={"help": text, "metavar": metavar, "spelling": spelling})


@dataclass(frozen=True)
class RecordRequest:
    """One recording. Raises UsageError for impossible settings.

    Each setting's metadata has `help` (its meaning), `metavar` (its value on the command line) and `spelling` (its
    option, if different from its name).
    """

    command: tuple[str, ...]
    runs: int = _option("Runs without a profiler, a fresh process each: the times that count.", 5, "COUNT")
    warmup_runs: int = _option("Runs before those, kept and excluded.", 0, "COUNT")
    timeout_seconds: float | None = _option(
        "Time limit of each run (default: none); SIGTERM to all its processes then, and SIGKILL 5 s later.",
        None,
        "SECONDS",
        "--timeout",
    )
    trace: str = _option("Profiler of one more run, for what the GPU did: auto, rocprofv3, cupti or off.", "auto")
    counters: str | None = _option(
        "Count in further runs after the traced one: one or several of basic, memory, compute, occupancy, separated by "
        "commas. AMD: a run for each group of counters. NVIDIA: one run, each kernel alone and several times: minutes.",
        None,
        "SETS",
    )
    count_first: int | None = _option(
        "NVIDIA: count no more than the first COUNT executions of each kernel (default: all).", None, "COUNT"
    )
    iterations_from: str | None = _option(
        "Ranges (roctx, NVTX) that are iterations, by a pattern such as 'step*'; of the traced run.", None, "PATTERN"
    )
    kernel_plane: bool = _option(
        "Record what the kernel does with the program's threads (switches, wake-ups, faults, interrupts), as `aaco run "
        "--kernel-plane` does, and say why iterations or runs took longer.",
        False,
    )
    workload: str | None = _option("What the program is called in the lake (default: its file's name).", None, "NAME")
    quiet: bool = _option(
        "Keep what the program writes from the terminal; its end is kept all the same.", False, None, "--no-output"
    )

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("record: no program; give it after --, as in `aaco record -- python train.py`")
        if any("\0" in word for word in self.command):
            raise UsageError("record: a word of the program's command line holds a zero byte; leave it out")
        if not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(f"runs is {self.runs}; expected 1 to {MOST_RUNS}")
        if not 0 <= self.warmup_runs <= MOST_RUNS:
            raise UsageError(f"warmup_runs is {self.warmup_runs}; expected 0 to {MOST_RUNS}")
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds <= 365 * 86_400:
            raise UsageError(f"timeout is {self.timeout_seconds:g} s; expected more than 0 and at most a year")
        if self.trace not in TRACES:
            raise UsageError(f"trace is {self.trace!r}; expected one of {', '.join(TRACES)}")
        for name in ("counters", "iterations_from", "workload"):
            given = getattr(self, name)
            if given is not None and (not given.strip() or not given.isprintable()):
                raise UsageError(f"{name} is {given!r}; give a name, or leave it out")
        if self.iterations_from is not None and self.trace == "off":
            raise UsageError("iterations_from: ranges are of the traced run, and --trace is off; leave one of them out")
        if self.count_first is not None and self.counters is None:
            raise UsageError("count_first: nothing is to be counted; give --counters, too, or leave it out")
        if self.count_first is not None and not 1 <= self.count_first <= MOST_COUNTED:
            raise UsageError(f"count_first is {self.count_first}; expected 1 to {MOST_COUNTED}")
        if self.counters is not None and self.trace == "off":
            raise UsageError("counters: the traced run's profiler counts, and --trace is off; leave one of them out")

    @property
    def name(self) -> str:
        """Name of the program: as requested, else the name of its file, or of the script that an interpreter runs."""
        if self.workload is not None:
            return self.workload
        first = Path(self.command[0]).name
        if "-c" in self.command or not _INTERPRETER.fullmatch(first):
            return first
        return next((Path(word).name for word in self.command[1:] if not word.startswith("-")), first)

    def document(self) -> dict[str, Any]:
        """Return the settings for a JSON document, without the command, which is stored separately."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "command"}


def settings() -> "tuple[dataclasses.Field[Any], ...]":
    """Return the settings that a command line offers, in declaration order."""
    return tuple(one for one in dataclasses.fields(RecordRequest) if one.metadata)


def kind_of(setting: "dataclasses.Field[Any]") -> type:
    """Return the type of a setting's value."""
    kind: type = (get_args(setting.type) or (setting.type,))[0]
    return kind


def spelling(setting: "dataclasses.Field[Any]") -> str:
    """Return the option of a setting."""
    return setting.metadata["spelling"] or f"--{setting.name.replace('_', '-')}"


def program_path(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Find the file of a command's first word as a shell would. UsageError if there is none."""
    program = command[0]
    if "/" not in program:
        found = shutil.which(program, path=environment.get("PATH", os.defpath))
        if found is not None:
            return found
        if len(command) == 1 and any(sign in program for sign in (*_SHELL_SIGNS, " ")):
            raise UsageError(
                f"{program}: no such program; give its words apart, and a pipeline to a shell: "
                "aaco record -- sh -c 'a | b'"
            )
        raise UsageError(f"{program}: no such program in PATH; check its name, or give its path")
    path = Path(program)
    if not path.exists():
        raise UsageError(f"{program}: no such file; check the path")
    if path.is_dir():
        raise UsageError(f"{program}: a folder, not a program")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{program}: not executable; chmod +x it, or name its interpreter, as in `python {program}`")
    return program
