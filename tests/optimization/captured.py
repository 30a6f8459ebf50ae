"""Captures of a dispatch in both layouts, written the way their tools do."""

import hashlib
import json
from pathlib import Path
from typing import Any

BASE = 0x7F12_3400_0000
CODE = b"\x7fELF of no machine"


def region(base: int, size: int, **more: Any) -> dict[str, Any]:
    return {"base": base, "size": size, "is_pool": True, "is_vmem": False, "contains_kernarg": False} | more


def isolated(folder: Path, regions: list[dict[str, Any]] | None = None, **dispatch: Any) -> Path:
    """Write what rocm-perf-lab's isolate tool leaves: a kernel of two pointers and a count."""
    regions = [region(BASE, 4096), region(BASE + 0x10_0000, 12288)] if regions is None else regions
    (folder / "memory").mkdir(parents=True)
    kernarg = BASE.to_bytes(8, "little") + (BASE + 0x10_0040).to_bytes(8, "little") + (1234).to_bytes(8, "little")
    written = {
        "mangled_name": "_Z4axpyPKfPfi",
        "demangled_name": "axpy(float const*, float*, int)",
        "kernel_object": 140_000,
        "grid": [1000, 1, 1],
        "block": [256, 1, 1],
        "group_segment_size": 0,
        "private_segment_size": 0,
        "kernarg_size": len(kernarg),
        "dispatch_index": 3,
    }
    (folder / "dispatch.json").write_text(json.dumps(written | dispatch))
    (folder / "kernarg.bin").write_bytes(kernarg)
    (folder / "kernel.hsaco").write_bytes(CODE)
    (folder / "memory_regions.json").write_text(json.dumps({"regions": regions}))
    for one in regions:
        if one["size"] < 1 << 20:
            (folder / "memory" / f"region_{one['base']:x}.bin").write_bytes(bytes(one["size"]))
    return folder


def kerncap(folder: Path, **metadata: Any) -> Path:
    """Write what kerncap leaves: the same, and the kernel's arguments by name."""
    isolated(folder, isa_name="amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-", wavefront_size=64, agent_name="gfx942")
    slots = [slot(0, 8, "global_buffer", "x"), slot(8, 8, "global_buffer", "y"), slot(16, 4, "by_value", "n")]
    written = {
        "kernel_name": "axpy(float const*, float*, int)",
        "kernarg_slots": slots,
        "kernarg_segment_size_meta": 24,
        "hsaco_sha256": hashlib.sha256(CODE).hexdigest(),
        "sgpr_count": 16,
        "vgpr_count": 8,
    }
    (folder / "metadata.json").write_text(json.dumps(written | metadata))
    (folder / "capture_complete").write_text("ok\n")
    return folder


def slot(offset: int, size: int, kind: str, name: str) -> dict[str, Any]:
    return {"offset": offset, "size": size, "value_kind": kind, "value_type": "f32", "address_space": "", "name": name}
