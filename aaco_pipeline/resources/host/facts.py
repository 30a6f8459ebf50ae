"""Collect facts about this host and its software that can affect a measurement, also for other interpreters.

`aaco_pipeline.resources.host.kernel_files` reads single files of the Linux kernel; `aaco_pipeline.lake` decides which
facts enter the fingerprint. Only querying another interpreter starts a process.
"""

import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.formats.parsing.redaction import MEASURED_VARIABLES, safe_variable
from aaco_pipeline.resources.host.kernel_files import caches, cgroup_limits, identity_of, text_of

#: Packages whose version can affect execution or measurement.
MEASURED_PACKAGES: Final = (
    "aaco_pipeline",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
)
#: Kernel command-line options that affect timing; the rest of the line (disks, addresses) is left out.
_KERNEL_OPTIONS: Final = re.compile(
    r"(mitigations|nosmt|isolcpus|nohz|nohz_full|rcu_nocbs|preempt|threadirqs|idle|processor\.max_cstate|tsc|clocksource"
    r"|intel_idle\.max_cstate|intel_pstate|amd_pstate|cpufreq\.\w+|amd_iommu|intel_iommu|iommu|pcie_aspm|numa_balancing"
    r"|transparent_hugepage|hugepages|hugepagesz|default_hugepagesz|spectre_v2|spec_store_bypass_disable|l1tf|mds|tsx"
    r"|retbleed|haltpoll\.\w+|amdgpu\.\w+|pci)(=|$)"
)
_AMD: Final = "0x1002"
#: Instruction-set extensions that affect how much a core can compute per clock cycle.
_EXTENSIONS: Final = frozenset({"avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"})
#: The scan of a cache stops after this many files.
_CACHE_FILE_LIMIT: Final = 2_000

_CPU: Final = Path("/sys/devices/system/cpu")
_PROC: Final = Path("/proc")
_SYS: Final = Path("/sys")
_DRM: Final = Path("/sys/class/drm")


class _Facts:
    """The growing list of facts; `volatile` facts can differ between two sessions on the same stack."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []

    def add(self, category: str, key: str, value: object, *, volatile: bool = False) -> None:
        text = None if value is None or value == "" else str(value)
        self.facts.append({"category": category, "key": key, "value": text, "volatile": volatile})

    def add_texts(self, category: str, paths: Mapping[str, Path], *, volatile: bool = False) -> None:
        """Add a fact for each key: the content of its file."""
        for key, path in paths.items():
            self.add(category, key, text_of(path), volatile=volatile)


def host_facts(software: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Return `{"facts": [{category, key, value, volatile}], "devices": [...]}`; unreadable values are null.

    `software` has the versions of Python (`python`) and of packages if another interpreter runs the model. Two
    consecutive calls return the same result. `momentary_facts` returns the facts that change constantly.
    """
    facts = _Facts()
    cpu = _first_cpu()
    cpu_model = cpu.get("model name") or platform.processor() or None
    facts.add("host", "name", platform.node())
    _kernel(facts)
    _processor(facts, cpu, cpu_model)
    memory = _memory_fields()
    _memory(facts, memory)
    _container(facts, cpu)
    used = own_software() if software is None else software
    facts.add("python", "version", used["python"])
    for package in MEASURED_PACKAGES:
        facts.add("package", package, used[package])
    for name in MEASURED_VARIABLES:
        value = os.environ.get(name)
        if value is not None:
            facts.add("environment_variable", name, safe_variable(value))
    _checkout(facts)
    _rocm(facts)
    for number, card in enumerate(_amd_cards()):
        _gpu(facts, f"gpu{number}", card)
    # Outside of the fingerprint, so that equal machines remain comparable.
    for (category, key), value in identity_of(cpu_model, _amd_cards()).items():
        facts.add(category, key, value, volatile=True)
    _caches(facts)
    device = {
        "device_id": 0,
        "vendor": cpu.get("vendor_id"),
        "arch": platform.machine(),
        "product": cpu_model,
        "compute_units": os.cpu_count(),
        "memory_bytes": memory.get("MemTotal"),
        "handle": "cpu",
    }
    return {"facts": facts.facts, "devices": [device]}


def own_software() -> dict[str, str | None]:
    """Return the versions of this interpreter (`python`) and of the packages that can affect execution."""
    return {"python": sys.version.split()[0], **{package: _version(package) for package in MEASURED_PACKAGES}}


def momentary_facts() -> list[dict[str, Any]]:
    """Return momentary facts, in the form of `host_facts` and all volatile: load, pressure, free memory, clock."""
    facts = _Facts()
    load = (text_of(_PROC / "loadavg") or "").split()
    facts.add("moment", "load_1m", load[0] if load else None, volatile=True)
    for resource in ("cpu", "memory", "io"):
        found = re.match(r"some avg10=([\d.]+)", text_of(_PROC / "pressure" / resource) or "")
        ratio = f"{float(found[1]) / 100:g}" if found else None
        facts.add("moment", f"{resource}_pressure_10s_ratio", ratio, volatile=True)
    facts.add("moment", "memory_available_bytes", _memory_fields().get("MemAvailable"), volatile=True)
    facts.add("moment", "cpu0_clock_khz", text_of(_CPU / "cpu0/cpufreq/scaling_cur_freq"), volatile=True)
    return facts.facts


def _kernel(facts: _Facts) -> None:
    facts.add("kernel", "release", platform.release())
    facts.add("kernel", "build", platform.version())
    facts.add("kernel", "machine", platform.machine())
    command_line = text_of(_PROC / "cmdline")
    options = [word for word in (command_line or "").partition(" -- ")[0].split() if _KERNEL_OPTIONS.match(word)]
    facts.add("kernel", "options", None if command_line is None else " ".join(options) or "(none that change timing)")
    clock = _SYS / "devices/system/clocksource/clocksource0/current_clocksource"
    facts.add_texts("kernel", {"clock_source": clock, "numa_balancing": _PROC / "sys/kernel/numa_balancing"})
    facts.add_texts("mitigation", {file.name: file for file in sorted((_CPU / "vulnerabilities").glob("*"))})


def _processor(facts: _Facts, cpu: Mapping[str, str], model: str | None) -> None:
    facts.add("cpu", "model", model)
    named = {"family": "cpu family", "model_number": "model", "stepping": "stepping", "microcode": "microcode"}
    for key, name in named.items():
        facts.add("cpu", key, cpu.get(name))
    facts.add("cpu", "logical_cpus", os.cpu_count())
    facts.add("cpu", "usable_cpus", len(os.sched_getaffinity(0)))
    for cache in caches(os.sched_getaffinity(0)):
        level = "l1d" if cache.level == 1 else f"l{cache.level}"
        facts.add("cpu", f"{level}_cache_bytes", cache.size_bytes)
        facts.add("cpu", f"{level}_caches", len(cache.groups))
    known = set(cpu.get("flags", "").split()) & _EXTENSIONS
    facts.add("cpu", "extensions", " ".join(sorted(known)) if cpu.get("flags") else None)
    frequency = _CPU / "cpu0/cpufreq"
    limits = ("cpuinfo_min", "cpuinfo_max", "scaling_min", "scaling_max")
    facts.add_texts(
        "cpu",
        {
            "simultaneous_multithreading": _CPU / "smt/control",
            "numa_nodes": _SYS / "devices/system/node/online",
            "frequency_driver": frequency / "scaling_driver",
            "governor": frequency / "scaling_governor",
            "energy_preference": frequency / "energy_performance_preference",
            "boost": _CPU / "cpufreq/boost",
            "no_turbo": _CPU / "intel_pstate/no_turbo",
            **{f"{limit}_khz": frequency / f"{limit}_freq" for limit in limits},
            "idle_driver": _CPU / "cpuidle/current_driver",
            "idle_governor": _CPU / "cpuidle/current_governor_ro",
        },
    )


def _memory(facts: _Facts, memory: Mapping[str, int]) -> None:
    for key, name in {
        "total_bytes": "MemTotal",
        "swap_bytes": "SwapTotal",
        "huge_page_bytes": "Hugepagesize",
        "huge_pages": "HugePages_Total",
    }.items():
        facts.add("memory", key, memory.get(name))
    huge = _SYS / "kernel/mm/transparent_hugepage"
    settings = {"transparent_huge_pages": huge / "enabled", "transparent_huge_pages_defrag": huge / "defrag"}
    facts.add_texts("memory", settings)


def _container(facts: _Facts, cpu: Mapping[str, str]) -> None:
    memberships = text_of(_PROC / "self/cgroup")
    limits = cgroup_limits(memberships or "", text_of(_PROC / "self/mountinfo") or "")
    facts.add("container", "cgroup_cpu_max", limits["cpu"])
    facts.add("container", "cgroup_memory_max", limits["memory"])
    facts.add("container", "kind", _container_kind(memberships))
    if cpu:
        facts.add("container", "virtual_machine", "yes" if "hypervisor" in cpu.get("flags", "").split() else "no")
    else:
        facts.add("container", "virtual_machine", None)
    names = [text_of(_SYS / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    facts.add("container", "machine", " ".join(name for name in names if name))
    facts.add("container", "hypervisor", text_of(_SYS / "hypervisor/type"))


def _container_kind(memberships: str | None) -> str | None:
    """Return the kind of container, `none` without a sign of one; null if nothing is readable."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    stated = text_of(Path("/run/systemd/container"))
    if stated or memberships is None:
        return stated
    found = re.search(r"kubepods|docker|containerd|libpod|lxc|garden", memberships)
    return found[0] if found else "none"


def _checkout(facts: _Facts) -> None:
    """Return the commit of the current checkout by reading its files; git is not started."""
    try:
        here = Path.cwd()
    except OSError:
        return
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)
    if top is None:
        facts.add("git", "commit", None, volatile=True)
        return
    folder = top / ".git"
    pointer = text_of(folder) if folder.is_file() else None  # a linked work tree, or a submodule
    if pointer and pointer.startswith("gitdir: "):
        folder = top / pointer.removeprefix("gitdir: ")
    head = text_of(folder / "HEAD") or ""
    branch = head.removeprefix("ref: ") if head.startswith("ref: ") else None
    common = folder / (text_of(folder / "commondir") or ".")
    commit = head or None
    if branch is not None:
        commit = text_of(folder / branch) or text_of(common / branch) or _packed_reference(common, branch)
    facts.add("git", "commit", commit, volatile=True)
    facts.add("git", "branch", branch and branch.removeprefix("refs/heads/"), volatile=True)
    # Finding files that differ from the commit would require comparing all of them, so this is not determined.
    facts.add("git", "dirty", None, volatile=True)


def _packed_reference(folder: Path, name: str) -> str | None:
    for line in (text_of(folder / "packed-refs") or "").splitlines():
        commit, _, reference = line.partition(" ")
        if reference == name:
            return commit
    return None


def rocm_root() -> Path:
    """Return the folder of the ROCm installation that programs use here; it need not exist."""
    return Path(os.environ.get("ROCM_PATH") or "/opt/rocm")


def _rocm(facts: _Facts) -> None:
    root = rocm_root()
    facts.add("rocm", "version", text_of(root / ".info/version") or text_of(root / ".info/version-dev"))
    driver = text_of(_SYS / "module/amdgpu/version")
    if driver is None and text_of(_SYS / "module/amdgpu/initstate") is not None:
        driver = f"in the kernel {platform.release()}"  # the in-tree driver has no version of its own
    facts.add("rocm", "amdgpu_driver", driver)


def _amd_cards() -> list[Path]:
    """Return the AMD GPUs' device folders by PCI address, because card numbers change between boots."""
    devices = [card / "device" for card in _DRM.glob("card[0-9]*") if card.name[4:].isdigit()]
    return sorted({device.resolve() for device in devices if text_of(device / "vendor") == _AMD})


def _gpu(facts: _Facts, name: str, device: Path) -> None:
    lasting = (
        *("device", "revision", "subsystem_device", "vbios_version", "numa_node"),
        *("current_compute_partition", "current_memory_partition", "power_dpm_force_performance_level"),
        *("mem_info_vram_total", "max_link_speed", "max_link_width"),
    )
    facts.add_texts("gpu", {f"{name}.{key}": device / key for key in lasting})
    links = ("current_link_speed", "current_link_width")  # the link slows down when the device idles
    facts.add_texts("gpu", {f"{name}.{key}": device / key for key in links}, volatile=True)
    for file in sorted(device.glob("hwmon/hwmon*/power1_cap")):
        microwatts = text_of(file)
        facts.add("gpu", f"{name}.power_cap_w", int(microwatts) / 1e6 if microwatts and microwatts.isdigit() else None)
        break
    firmware = sorted((device / "fw_version").glob("*_fw_version"))
    facts.add_texts("firmware", {f"{name}.{file.name.removesuffix('_fw_version')}": file for file in firmware})


def _caches(facts: _Facts) -> None:
    """Describe the caches of compiled and tuned kernels: a first run fills them, which makes later runs faster."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - unlike Path.home(), never fails
    environ = os.environ
    places = {
        "miopen_user_database": environ.get("MIOPEN_USER_DB_PATH") or home / ".config/miopen",
        "miopen_kernels": environ.get("MIOPEN_CUSTOM_CACHE_DIR") or home / ".cache/miopen",
        "hipblaslt": environ.get("HIPBLASLT_TUNING_OVERRIDE_FILE") or home / ".cache/hipblaslt",
        "triton": environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or home) / ".triton/cache",
        "migraphx_models": environ.get("ORT_MIGRAPHX_MODEL_CACHE_PATH") or environ.get("ORT_MIGRAPHX_CACHE_PATH"),
        "migraphx_problems": environ.get("MIGRAPHX_PROBLEM_CACHE"),
        "code_objects": environ.get("AMD_COMGR_CACHE_DIR") or home / ".cache/comgr",
    }
    for name, place in places.items():
        files = None if place is None else _files(Path(place))
        if files is None:
            facts.add("cache", name, "not set" if place is None else "absent", volatile=True)
            continue
        complete = len(files) <= _CACHE_FILE_LIMIT
        facts.add("cache", name, "present" if files else "empty", volatile=True)
        facts.add("cache", f"{name}_files", len(files) if complete else f"over {_CACHE_FILE_LIMIT}", volatile=True)
        listing = "".join(f"{path}\0{size}\n" for path, size in sorted(files)).encode()
        digest = hashlib.sha256(listing).hexdigest()[:16] if complete else None
        facts.add("cache", f"{name}_digest", digest, volatile=True)


def _files(place: Path) -> list[tuple[str, int]] | None:
    """Return names and sizes of the files below `place`, at most one more than the limit; None if it does not exist."""
    try:
        if stat.S_ISREG(place.stat().st_mode):
            return [(place.name, place.stat().st_size)]
        found: list[tuple[str, int]] = []
        folders = [str(place)]
        while folders:
            folder = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found.append((os.path.relpath(entry.path, place), entry.stat(follow_symlinks=False).st_size))
                        if len(found) > _CACHE_FILE_LIMIT:
                            return found
    except OSError:
        return None  # missing, or not readable by this user
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_cpu() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first logical CPU."""
    first = (text_of(_PROC / "cpuinfo") or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}


def _memory_fields() -> dict[str, int]:
    """Return the fields of /proc/meminfo: sizes in bytes, page counts unchanged."""
    fields: dict[str, int] = {}
    for line in (text_of(_PROC / "meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        number, *unit = rest.split()
        fields[key] = int(number) * (1024 if unit == ["kB"] else 1)
    return fields


_SECONDS: Final = 60.0
#: Runs in the other interpreter, so it uses only the standard library.
_ASK: Final = """
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version.split()[0], **{name: version(name) for name in sys.argv[1:]}}))
"""


def software_of(interpreter: str) -> dict[str, str | None]:
    """Return the versions of `python` and of packages that can affect execution; None for a package not installed.

    The version of aaco_pipeline is this process's, because its loop runs there too. Raises UsageError if the program
    does not exist, and UnavailableError if it is not a Python with NumPy and onnxruntime.
    """
    if not Path(interpreter).is_file():
        raise UsageError(f"{interpreter}: no such file; give the path of a Python, as .venv/bin/python is")
    try:
        asked = subprocess.run(
            [interpreter, "-P", "-c", _ASK, *MEASURED_PACKAGES],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
        found = json.loads(asked.stdout)
        software: dict[str, str | None] = {name: found[name] for name in ("python", *MEASURED_PACKAGES)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"{interpreter}: does not answer as a Python of 3.11 or newer does ({type(error).__name__}); try "
            f"`{interpreter} -P -c 'import onnxruntime'`"
        ) from error
    if software.get("numpy") is None or not any(name.startswith("onnxruntime") and software[name] for name in software):
        raise UnavailableError(f"{interpreter}: numpy or onnxruntime is missing; install both into its environment")
    return {**software, "aaco_pipeline": own_software()["aaco_pipeline"]}


#: Packages whose version identifies a session's runtime.
_RUNTIME: Final = "onnxruntime"
_CATEGORIES: Final = ("rocm", "firmware")
_FIRMWARE_OF_A_CARD: Final = ".vbios_version"
#: ROCm libraries that select or contain kernels, by file name.
_LIBRARIES: Final = ("migraphx", "MIOpen", "hipblaslt", "rocblas", "hipdnn", "rccl", "amdhip64")
_NVIDIA: Final = Path("/proc/driver/nvidia/version")
#: A library that is searched by name and not found is absent, not unknown.
ABSENT: Final = "absent"


def stack_facts() -> dict[str, str | None]:
    """Return the facts by name, such as `rocm version`; None if unreadable, `absent` if not installed."""
    found: dict[str, str | None] = {}
    for fact in host_facts()["facts"]:
        category, key, value = fact["category"], fact["key"], fact["value"]
        if category in _CATEGORIES or (category == "gpu" and key.endswith(_FIRMWARE_OF_A_CARD)):
            found[f"{category} {key}"] = value
        elif category == "package" and key.startswith(_RUNTIME):
            found[f"package {key}"] = value or ABSENT
    for name in _LIBRARIES:
        found[f"library {name}"] = _library(rocm_root() / "lib", name) or ABSENT
    stated = re.search(r"Kernel Module\D*([\d.]+)", text_of(_NVIDIA) or "")
    found["nvidia driver"] = stated and stated[1]
    return found


def changes_of_stack(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> list[str]:
    """List the changed facts with old and new values, sorted by name; an unreadable fact is not a change."""
    return [
        f"{name}: {before.get(name) or 'unknown'} → {value}"
        for name, value in sorted(after.items())
        if value is not None and value != before.get(name) and not (name not in before and value == ABSENT)
    ]


def _library(folder: Path, name: str) -> str | None:
    """Return the version in the name of the file that `libNAME.so` links to."""
    for link in sorted(folder.glob(f"lib{name}*.so")):
        found = re.search(r"\.so\.([\d.]+)$", link.resolve().name)
        if found is not None:
            return found[1]
    return None
