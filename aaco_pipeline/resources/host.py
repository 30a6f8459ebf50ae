"""Facts about this host that can change a measured number, read from the kernel's files and installed packages.

Reading them happens here, once for each capture; which of them enter the fingerprint is decided in
`aaco_pipeline.analysis.environment`. No process is started and no secret is read.
"""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

#: Packages whose version can change what is run or how it is measured.
MEASURED_PACKAGES: Final = (
    "aaco_pipeline",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
)
_ROCM: Final = Path("/opt/rocm")
_CPU: Final = Path("/sys/devices/system/cpu")


def host_facts() -> dict[str, Any]:
    """`{"facts": [{category, key, value}], "devices": [...]}`; a fact that cannot be read has the value null."""
    facts: list[dict[str, str | None]] = []

    def fact(category: str, key: str, value: object) -> None:
        facts.append({"category": category, "key": key, "value": None if value is None else str(value)})

    cpu_model = _cpu_model()
    fact("host", "name", platform.node())
    fact("kernel", "release", platform.release())
    fact("kernel", "machine", platform.machine())
    fact("cpu", "model", cpu_model)
    fact("cpu", "logical_cpus", os.cpu_count())
    fact("cpu", "usable_cpus", len(os.sched_getaffinity(0)))
    fact("cpu", "simultaneous_multithreading", _text(_CPU / "smt/control"))
    fact("cpu", "governor", _text(_CPU / "cpu0/cpufreq/scaling_governor"))
    fact("cpu", "boost", _text(_CPU / "cpufreq/boost"))
    fact("memory", "total_bytes", _memory_bytes())
    fact("memory", "transparent_huge_pages", _text(Path("/sys/kernel/mm/transparent_hugepage/enabled")))
    fact("container", "cgroup_cpu_max", _text(Path("/sys/fs/cgroup/cpu.max")))
    fact("container", "cgroup_memory_max", _text(Path("/sys/fs/cgroup/memory.max")))
    fact("python", "version", sys.version.split()[0])
    for package in MEASURED_PACKAGES:
        fact("package", package, _version(package))
    fact("rocm", "version", _text(_ROCM / ".info/version"))
    fact("rocm", "amdgpu_driver", _text(Path("/sys/module/amdgpu/version")))
    device = {
        "device_id": 0,
        "vendor": _cpu_field("vendor_id"),
        "arch": platform.machine(),
        "product": cpu_model,
        "compute_units": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "handle": "cpu",
    }
    return {"facts": facts, "devices": [device]}


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None  # the kernel has no such file here, or does not let us read it: the fact is unknown


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_field(name: str) -> str | None:
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip() or None
    return None


def _cpu_model() -> str | None:
    return _cpu_field("model name") or platform.processor() or None


def _memory_bytes() -> int | None:
    for line in (_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
