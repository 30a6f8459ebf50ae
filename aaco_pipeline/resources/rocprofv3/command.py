"""Build rocprofv3's command for one pass over a program, for each release, and name its output files.

Only `rocprofv3 --version` is run here; `aaco_pipeline.resources.rocprofv3.passes` runs the passes of a session.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.host.kernel_files import KFD_NODES, kfd_gpus

Kind = Literal["base", "counters", "thread_trace"]
#: Prefix of all output file names; the tool inserts its process number.
OUTPUT_NAME: Final = "out_%pid%"
_COUNTER_INPUT: Final = "counters.txt"
_USUAL_ROOT: Final = "/opt/rocm"
_INSTALL: Final = (
    "install ROCm's packages rocprofiler-sdk and rocprofiler-sdk-rocpd, and put rocprofv3 in PATH or set ROCM_PATH"
)
_VERSION_TIMEOUT_SECONDS: Final = 60.0
_REGEX_CHARACTERS: Final = re.compile(r"([\\^$.|?*+()\[\]{}])")


@dataclass(frozen=True)
class Release:
    """Features of one ROCm release that differ between releases.

    `sdk` is the version of its rocprofiler-sdk. `pmc_option`: counters are given on the command line, otherwise in a
    file. `decoder_included`: the thread trace's decoder is part of the release.
    """

    name: str
    sdk: str
    pmc_option: bool = True
    rocpd: bool = True
    thread_trace: bool = True
    decoder_included: bool = False

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.name.split("."))

    @property
    def output_format(self) -> str:
        return "rocpd" if self.rocpd else "csv"


#: All differences between releases, oldest release first.
RELEASES: Final = (
    Release("6.2", "0.4", pmc_option=False, rocpd=False, thread_trace=False),
    Release("6.3", "0.5", rocpd=False, thread_trace=False),
    Release("6.4", "0.6", rocpd=False, thread_trace=False),
    Release("7.0", "1.0"),
    Release("7.1", "1.1"),
    Release("7.2", "1.1"),
    Release("7.13", "1.3", decoder_included=True),
)


@dataclass(frozen=True)
class ProfilerPass:
    """One run of the program under rocprofv3. `counters` are used by a counter pass.

    `kernel` and `execution` are used by a thread trace: the kernel's full name, and the number of its execution, from
    1.
    """

    name: str
    kind: Kind
    counters: tuple[str, ...] = ()
    kernel: str | None = None
    execution: int = 1


BASE_PASS: Final = ProfilerPass("base", "base")


def counter_passes(groups: Sequence[Sequence[str]]) -> tuple[ProfilerPass, ...]:
    """One pass for each group of counters."""
    return tuple(ProfilerPass(f"counters_{n}", "counters", tuple(group)) for n, group in enumerate(groups, start=1))


def folder_name(number: int) -> str:
    """Return the folder of the `number`th pass, from 1; readers recognize the passes of one run by these names."""
    return f"pass_{number}"


def known_release(version: str) -> Release:
    """Return the newest known release that is not newer than `version`, such as 7.1 or 7.1.1.

    Raises UsageError if it is not a version, and UnavailableError if it is older than any known release.
    """
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})(\.\d+)*", version)
    if found is None:
        raise UsageError(f"release: {version!r} is no ROCm release; expected one such as {RELEASES[-1].name}")
    wanted = (int(found[1]), int(found[2]))
    fitting = [release for release in RELEASES if release.version <= wanted]
    if not fitting:
        raise UnavailableError(
            f"rocprofv3 of ROCm {version}: not supported; install ROCm {RELEASES[0].name} or newer, or profile with "
            "the older one's own tools and read the output with `aaco ingest`"
        )
    return fitting[-1]


def stated_release(text: str) -> str | None:
    """Return the ROCm version in the output of `rocprofv3 --version`, else its SDK's version, else None."""
    stated: dict[str, str] = dict(re.findall(r"^\s*(\w+)\s*:\s*(\d+\.\d+(?:\.\d+)*)", text, re.MULTILINE))
    if "rocm_version" in stated:
        return stated["rocm_version"]
    sdk = stated.get("version", "")
    return next((release.name for release in RELEASES if f"{sdk}.".startswith(f"{release.sdk}.")), None)


def rocprofv3_command(
    release: Release,
    profiler_pass: ProfilerPass,
    output_folder: Path | str,
    program: Sequence[str],
    tool: Path | str = "rocprofv3",
) -> tuple[str, ...]:
    """Return the command that runs `program` in one pass and writes its files to `output_folder`.

    If the release reads counters from a file (see `counter_input`), that file must be in the folder. Raises
    UnavailableError for a thread trace if the release does not support it.
    """
    return (
        str(tool),
        *_asked(release, profiler_pass, output_folder),
        *("-d", str(output_folder), "-o", OUTPUT_NAME, "--output-format", release.output_format),
        *("--", *program),
    )


def counter_input(release: Release, profiler_pass: ProfilerPass) -> tuple[str, str] | None:
    """Return name and content of the counter file that this release reads in a counter pass; None if there is none."""
    if profiler_pass.kind != "counters" or release.pmc_option:
        return None
    return _COUNTER_INPUT, f"pmc: {' '.join(profiler_pass.counters)}\n"


def check_thread_trace(release: Release) -> None:
    """Raise UnavailableError if the release has no thread trace."""
    if not release.thread_trace:
        first = next(one.name for one in RELEASES if one.thread_trace)
        raise UnavailableError(
            f"thread trace: rocprofv3 of ROCm {release.name} has none; install ROCm {first} or newer, or leave "
            "--thread-trace out"
        )


def escaped(name: str) -> str:
    """Return a kernel's name as a regular expression; only characters that are special in C++ are escaped."""
    return _REGEX_CHARACTERS.sub(r"\\\1", name)


def expected_outputs(release: Release, profiler_pass: ProfilerPass, process_id: int | None) -> tuple[str, ...]:
    """Return patterns, relative to the pass's folder, for the output files of a successful run of that process.

    None stands for any process: it is not known which of a program's processes use a GPU.
    """
    prefix = OUTPUT_NAME.replace("%pid%", "*" if process_id is None else str(process_id))
    if profiler_pass.kind == "thread_trace":
        return ("ui_output_agent_*_dispatch_*/filenames.json",)
    if release.rocpd:
        return (f"{prefix}_results.db",)
    return (f"{prefix}_{'kernel_trace' if profiler_pass.kind == 'base' else 'counter_collection'}.csv",)


def find_tool(environment: Mapping[str, str] | None = None) -> Path:
    """Find rocprofv3 in PATH, else in ROCM_PATH/bin, else in /opt/rocm/bin. UnavailableError if it is in none."""
    known = os.environ if environment is None else environment
    roots = [known["ROCM_PATH"]] if known.get("ROCM_PATH") else []
    folders = [known.get("PATH", ""), *(f"{root}/bin" for root in (*roots, _USUAL_ROOT))]
    found = shutil.which("rocprofv3", path=os.pathsep.join(folder for folder in folders if folder))
    if found is None:
        raise UnavailableError(f"rocprofv3: not found; {_INSTALL}, or run without --profile")
    return Path(found).absolute()


def installed_release(tool: Path) -> tuple[str, Release]:
    """Return rocprofv3's own version and the known release it is treated as. UnavailableError without a version.

    If the tool prints no version, the file `.info/version` of its ROCm is used.
    """
    try:
        answer = subprocess.run(
            [str(tool), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
        )
        text, reason = answer.stdout, _last(answer.stderr) or f"it ended with status {answer.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        text, reason = "", " ".join(str(error).split())
    version = stated_release(text) or _release_of_installation(tool)
    if version is None:
        raise UnavailableError(f"{tool}: `--version` names no release ({reason}); {_INSTALL}")
    return version, known_release(version)


def gpu_architecture(device: int) -> str | None:
    """Return the architecture (such as gfx942) of the `device`th AMD GPU in the kernel driver's list, or None.

    If all listed GPUs have the same architecture, it is returned regardless of which GPUs are visible.
    """
    found = [name for name, _ in kfd_gpus()]
    if len(set(found)) == 1:
        return found[0]
    return found[device] if device < len(found) else None


def stated(architecture: str | None) -> str:
    """Return the architecture to choose counters for. UnavailableError, with the remedy, if there is none."""
    if architecture is None:
        raise UnavailableError(
            f"counters: {KFD_NODES} does not tell the GPU's architecture; load the amdgpu driver, or leave "
            "--counters out"
        )
    return architecture


def _asked(release: Release, profiler_pass: ProfilerPass, output_folder: Path | str) -> tuple[str, ...]:
    if profiler_pass.kind == "base":
        return ("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace")
    if profiler_pass.kind == "counters":
        if release.pmc_option:
            return ("--pmc", *profiler_pass.counters)
        return ("-i", str(Path(output_folder) / _COUNTER_INPUT))
    check_thread_trace(release)
    assert profiler_pass.kernel is not None
    return (
        *("--att", "--kernel-include-regex", escaped(profiler_pass.kernel)),
        *("--kernel-iteration-range", f"[{profiler_pass.execution}]"),
    )


def _release_of_installation(tool: Path) -> str | None:
    try:
        text = (tool.resolve().parent.parent / ".info" / "version").read_text(errors="replace")
    except OSError:
        return None
    found = re.match(r"\d+\.\d+(\.\d+)*", text.strip())
    return found[0] if found else None


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return " ".join(lines[-1].split())[:500] if lines else ""
