"""NVIDIA's Nsight Compute (`ncu`) for a program: the metrics of each set, the command of a pass, reasons of failure.

Only counters are taken from these passes: ncu runs kernels one after another, and repeatedly if the metrics do not fit
into one pass, so its durations are not the program's. Its output is read by `aaco_pipeline.formats.ncu`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from aaco_pipeline.errors import UnavailableError, UsageError

#: Output file of a pass, within its folder.
OUTPUT: Final = "ncu.csv"
NAME: Final = "ncu"
#: Locations to search if it is not on the path; of several releases, the last by name is used.
_INSTALLED: Final = ("/usr/local/cuda/bin/ncu", "/usr/local/cuda-*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_ASK_SECONDS: Final = 60.0
_TENSOR_PATHS: Final = ("fp64", "tf32_dst_fp32", "fp16", "bf16_dst_fp32", "fp8", "int8")
_QUERIED: Final = re.compile(r"^([a-z][a-z0-9]*__[a-z0-9_]+)\s", re.MULTILINE)
_VERSION: Final = re.compile(r"^Version (\S+)", re.MULTILINE)


def _executed(*operations: str) -> tuple[str, ...]:
    """Return metrics of instructions per lane, counting active lanes only; a packed-half instruction counts once."""
    return tuple(f"smsp__sass_thread_inst_executed_op_{operation}_pred_on.sum" for operation in operations)


#: Metrics by set, for the same resources as the AMD counter sets. Metrics that a GPU lacks are not requested.
METRIC_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    # Device utilization and instruction types.
    "basic": (
        "gpc__cycles_elapsed.max",
        "sm__cycles_active.sum",
        "sm__cycles_elapsed.sum",
        "sm__warps_active.sum",
        "smsp__warps_launched.sum",
        "smsp__inst_executed.sum",
        "smsp__inst_issued.sum",
    ),
    # Bytes at every level: shared memory, L1, between the multiprocessors and L2, and memory.
    "memory": (
        "dram__bytes_read.sum",
        "dram__bytes_write.sum",
        "lts__t_sectors_srcunit_tex_op_read.sum",
        "lts__t_sectors_srcunit_tex_op_write.sum",
        "lts__t_sectors_srcunit_tex_op_atom.sum",
        "lts__t_sectors_srcunit_tex_op_red.sum",
        "lts__t_sectors_srcunit_tex_lookup_hit.sum",
        "lts__t_sectors_srcunit_tex_lookup_miss.sum",
        "l1tex__t_bytes.sum",
        "smsp__sass_data_bytes_mem_shared.sum",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    ),
    # Operations by number format on the vector units and the tensor cores, and the utilization of both.
    "compute": (
        *_executed("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma", "integer"),
        *(f"sm__ops_path_tensor_src_{path}.sum" for path in _TENSOR_PATHS),
        "sm__pipe_tensor_cycles_active.sum",
        "sm__cycles_elapsed.sum",
        "smsp__inst_executed.sum",
        "smsp__thread_inst_executed.sum",
        "smsp__thread_inst_executed_pred_on.sum",
    ),
    # Resident warps, and the reasons why the schedulers did not issue.
    "occupancy": (
        "sm__warps_active.sum",
        "sm__cycles_active.sum",
        "smsp__issue_active.sum",
        "smsp__warps_eligible.sum",
        "smsp__warps_launched.sum",
    ),
}


@dataclass(frozen=True)
class Ncu:
    """A working ncu, and the metrics available on the GPU in use, without their roll-ups (`.sum`)."""

    program: Path
    version: str
    metrics: frozenset[str]

    def of_sets(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the metrics of the sets that this GPU has, without duplicates.

        Raises UsageError for an unknown set and UnavailableError if the GPU has none of a set's metrics.
        """
        wanted: dict[str, None] = {}
        for name in names:
            if name not in METRIC_SETS:
                raise UsageError(f"counters: unknown set {name!r}; expected one or several of {', '.join(METRIC_SETS)}")
            known = [one for one in METRIC_SETS[name] if one.partition(".")[0] in self.metrics]
            if not known:
                raise UnavailableError(f"counters: this GPU has none of the metrics of the set {name}; leave it out")
            wanted |= dict.fromkeys(known)
        return tuple(wanted)

    def command(
        self, metrics: Sequence[str], folder: Path, program: Sequence[str], first: int | None = None
    ) -> tuple[str, ...]:
        """Return the command that runs `program` with all its child processes and writes `OUTPUT` into `folder`.

        It counts all executions, or the `first` ones of each kernel; the others run normally. Clocks stay unlocked,
        because locking needs privileges and this pass is not timed. Caches are not flushed, as on AMD: by default ncu
        would flush them before each pass. Units are base units; names are the binary's, as in a trace.
        """
        turns = "|".join(str(turn) for turn in range(1, (first or 0) + 1))
        few = ("--kernel-name-base", "mangled", "--kernel-id", f":::^({turns})$") if turns else ()
        return (
            str(self.program),
            *("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled"),
            *("--metrics", ",".join(metrics)),
            *("--clock-control", "none", "--cache-control", "none", "--replay-mode", "kernel", *few),
            *("--target-processes", "all", "--log-file", str(folder / OUTPUT)),
            *program,
        )


@dataclass(frozen=True)
class Counting:
    """The counting run: ncu itself runs each kernel as often as the metrics need."""

    ncu: Ncu
    counters: tuple[str, ...]
    first: int | None
    name: ClassVar[str] = NAME

    @property
    def version(self) -> str:
        return self.ncu.version

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        return self.ncu.command(self.counters, folder, program, self.first)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return no variables: the command line is sufficient."""
        return {}

    def why_failed(self, folder: Path, said: str) -> str | None:
        """Return ncu's reason for not counting, from its file or its output, or None."""
        try:
            with (folder / OUTPUT).open(errors="replace") as written:
                said = "".join(line for line in written if line.startswith("==")) + said
        except FileNotFoundError:
            pass
        return why_failed(said)


def counting(sets: str, first: int | None, environment: Mapping[str, str]) -> tuple[Counting]:
    """Return the single run that counts all metrics of the comma-separated sets. AacoError if that is impossible."""
    found = find(environment)
    return (Counting(found, found.of_sets(one.strip() for one in sets.split(",")), first),)


def find(environment: Mapping[str, str] | None = None) -> Ncu:
    """Find ncu on the path or in its installation folders, and the GPU's metrics.

    Raises UnavailableError, in one line with the remedy, if there is none or it does not answer.
    """
    known = os.environ if environment is None else environment
    found = shutil.which(NAME, path=known.get("PATH", os.defpath))
    program = Path(found) if found else _installed()
    if program is None:
        raise UnavailableError(
            "counters: no ncu on the path, and none where CUDA installs it; install NVIDIA Nsight Compute "
            "(it comes with the CUDA toolkit), or leave --counters out"
        )
    version = _VERSION.search(_said([str(program), "--version"]))
    metrics = frozenset(_QUERIED.findall(_said([str(program), "--query-metrics"])))
    if version is None or not metrics:
        raise UnavailableError(
            f"counters: {program} names no metrics; check that `ncu --query-metrics` works on this GPU by hand"
        )
    return Ncu(program, version[1], metrics)


def why_failed(said: str) -> str | None:
    """Find the reason why ncu counted nothing in its output, with the remedy, or None."""
    if "ERR_NVGPUCTRPERM" in said:
        return (
            "counters: the driver keeps GPU counters to administrators; run as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0 (/etc/modprobe.d, then reboot)"
        )
    if "No kernels were profiled" in said:
        return "counters: the program launched no kernel; check that it runs on the GPU, or leave --counters out"
    error = next((line for line in said.splitlines() if line.startswith("==ERROR==")), None)
    return None if error is None else f"counters: ncu says: {error.removeprefix('==ERROR==').strip()}"


def _installed() -> Path | None:
    for pattern in _INSTALLED:
        found = sorted(path for path in Path("/").glob(pattern.lstrip("/")) if os.access(path, os.X_OK))
        if found:
            return found[-1]
    return None


def _said(command: Sequence[str]) -> str:
    """Return the output of a quick command; UnavailableError if it fails or does not end."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"counters: {command[0]} does not answer ({error}); install it again") from error
    if ended.returncode:
        said = why_failed(ended.stdout + ended.stderr)
        raise UnavailableError(said or f"counters: {' '.join(command)} ended with status {ended.returncode}")
    return ended.stdout
