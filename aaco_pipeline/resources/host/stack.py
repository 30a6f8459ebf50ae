"""The stack that decides which kernels run and how: driver, ROCm, firmware, libraries and ONNX Runtime of this host.

Everything else about the host is `facts`; no process is started. Programs in interpreters of their own are not seen.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.host.facts import host_facts, rocm_root
from aaco_pipeline.resources.host.kernel_files import text_of

#: Packages by whose version a session's runtime is known.
_RUNTIME: Final = "onnxruntime"
_CATEGORIES: Final = ("rocm", "firmware")
_FIRMWARE_OF_A_CARD: Final = ".vbios_version"
#: Libraries of ROCm that choose or hold kernels, by what their files are called.
_LIBRARIES: Final = ("migraphx", "MIOpen", "hipblaslt", "rocblas", "hipdnn", "rccl", "amdhip64")
_NVIDIA: Final = Path("/proc/driver/nvidia/version")
#: What is looked for by name and not found is absent, and not unknown.
ABSENT: Final = "absent"


def stack_facts() -> dict[str, str | None]:
    """The facts by name, such as `rocm version`; None where one cannot be read, `absent` for what is not installed."""
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
    """Which facts changed, from what to what, in the order of their names; what cannot be read now is no change."""
    return [
        f"{name}: {before.get(name) or 'unknown'} → {value}"
        for name, value in sorted(after.items())
        if value is not None and value != before.get(name) and not (name not in before and value == ABSENT)
    ]


def _library(folder: Path, name: str) -> str | None:
    """The version that the file behind `libNAME.so` carries in its own name."""
    for link in sorted(folder.glob(f"lib{name}*.so")):
        found = re.search(r"\.so\.([\d.]+)$", link.resolve().name)
        if found is not None:
            return found[1]
    return None
