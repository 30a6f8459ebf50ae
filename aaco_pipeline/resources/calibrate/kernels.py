"""Choose the kernels that measure this machine's ceilings: their sizes, their CPUs and their processes.

The sizes follow from the caches that the Linux kernel reports. `aaco_pipeline.resources.calibrate.worker` runs the
kernels; `aaco_pipeline.resources.calibrate.calibration` processes the results.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.host.kernel_files import Cache, cpu_list, text_of

_CPUS: Final = Path("/sys/devices/system/cpu")
_MEMORY: Final = Path("/proc/meminfo")
#: Side lengths of square matrices. Processors with many threads need larger ones to keep all threads busy.
_SIDES: Final = (256, 512, 1024, 2048, 4096)
_SIDES_AT_ONCE: Final = 3
_FEW_THREADS: Final = 4
#: Fraction of a cache that a working set may take; the rest is left for other data.
_L1_SHARE: Final = 2 / 3
_CACHE_SHARE: Final = 1 / 2
#: A working set this many times larger than the next smaller cache is mostly served by the intended level.
_OUTGROWN: Final = 2
_DRAM_FACTOR: Final = 8
_LEAST_DRAM_BYTES: Final = 256 << 20
#: Fraction of the currently free memory that the largest working set may take.
_MEMORY_SHARE: Final = 1 / 4
#: OpenBLAS's name for its AVX-512 kernels, and the features that they require. On some processors with these features
#: it selects older kernels of half the width by default.
_WIDE_CORE: Final = "SkylakeX"
_WIDE_FEATURES: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})

Reasons = dict[str, str]


@dataclass(frozen=True)
class Process:
    """One measured process: its display name, its additional environment variables, and its share of the time."""

    name: str
    environment: Mapping[str, str]
    measurements: tuple[Mapping[str, Any], ...]
    time_share: float


def cpus_in_order(usable: Collection[int], folder: Path = _CPUS) -> list[int]:
    """Return the usable CPUs, one per core before the second of any core, so that few threads do not share a core."""
    taken: set[frozenset[int]] = set()
    first: list[int] = []
    later: list[int] = []
    for cpu in sorted(usable):
        (later if (core := _core_of(cpu, folder)) in taken else first).append(cpu)
        taken.add(core)
    return first + later


def cores_of(usable: Collection[int], folder: Path = _CPUS) -> int:
    """Return the number of cores that the usable CPUs belong to."""
    return len({_core_of(cpu, folder) for cpu in usable})


def _core_of(cpu: int, folder: Path) -> frozenset[int]:
    """Return the CPUs of a CPU's core; only the CPU itself if the Linux kernel does not list them."""
    return cpu_list(text_of(folder / f"cpu{cpu}/topology/thread_siblings_list") or "") or frozenset({cpu})


def available_bytes(file: Path = _MEMORY) -> int | None:
    """Return the memory available without swapping, as the Linux kernel reports it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text_of(file) or "", re.MULTILINE)
    return None if found is None else int(found[1]) << 10


def working_sets(
    known: Sequence[Cache], cpus: Sequence[int], memory_bytes: int | None
) -> tuple[dict[str, int], Reasons]:
    """Return the bytes per thread for each memory level, and the reasons why levels have none.

    A working set takes two thirds of the L1, half of a thread's share of the L2 and L3, and in DRAM eight times the
    largest caches of all threads. A level is left out if its set would not outgrow the previous level.
    """
    sets: dict[str, int] = {}
    why: Reasons = {}
    by_level = {cache.level: cache for cache in known}
    smaller = 0
    for level in (1, 2, 3):
        name = f"l{level}"
        if level not in by_level:
            why[name] = "the kernel states no such cache"
            continue
        part = by_level[level].size_bytes / by_level[level].threads_sharing(cpus)
        wanted = int(part * (_L1_SHARE if level == 1 else _CACHE_SHARE)) // 4096 * 4096
        if wanted < max(_OUTGROWN * smaller, 4096):
            why[name] = (
                f"{len(cpus)} threads have {part / 1024:,.0f} KiB of it each, too little beside the caches before it "
                "to be told from them"
            )
        else:
            sets[name] = wanted
        smaller = int(part)
    last = max(known, key=lambda cache: cache.level, default=None)
    largest = 0 if last is None else last.size_bytes * last.touched(cpus)
    most = 0 if memory_bytes is None else int(memory_bytes * _MEMORY_SHARE)
    total = min(max(_DRAM_FACTOR * largest, _LEAST_DRAM_BYTES), most)
    if total < max(_OUTGROWN * largest, _LEAST_DRAM_BYTES // 4):
        why["dram"] = f"only {most / (1 << 20):,.0f} MiB of memory may be used, too little beside the caches"
    else:
        sets["dram"] = total // len(cpus) // 4096 * 4096
    return sets, why


def processes(sets: Mapping[str, int], threads: int, features: Collection[str], models: Path) -> list[Process]:
    """Return the measured processes for one number of threads.

    The runtime and the BLAS library keep idle threads spinning for a while, so they run in separate processes; in the
    memory process, the library must not start threads of its own.
    """
    plain = blas_threads(threads)
    wide = {"OPENBLAS_CORETYPE": _WIDE_CORE} if set(features) >= _WIDE_FEATURES else {}
    sides = sides_for(threads)
    made = [
        Process("memory", {**blas_threads(1), **wide}, memory_measurements(sets), 0.4),
        Process("ONNX Runtime", plain, runtime_measurements(sides, models), 0.36),
        Process("NumPy", plain, product_measurements(sides[:2], "NumPy"), 0.12 if wide else 0.24),
    ]
    if wide:
        label = f"NumPy with OPENBLAS_CORETYPE={_WIDE_CORE}"
        made.append(Process("NumPy, AVX-512", {**plain, **wide}, product_measurements(sides[:2], label), 0.12))
    return [process for process in made if process.measurements]


def blas_threads(threads: int) -> dict[str, str]:
    """Return the variables that set the thread count of the BLAS libraries that NumPy may be built with."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def sides_for(threads: int) -> tuple[int, ...]:
    """Return three matrix sides that grow with the thread count, so that each thread has enough work."""
    first = 0
    while first + _SIDES_AT_ONCE < len(_SIDES) and threads >= _FEW_THREADS ** (first + 1):
        first += 1
    return _SIDES[first : first + _SIDES_AT_ONCE]


def memory_measurements(sets: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
    """List the measurements of each level.

    `read` and `update` run a whole window in one NumPy call and so also work for small sets. `scale` and `copy` need
    one call per repeat, which is too expensive for sets that take only microseconds.
    """
    kernels = {
        "l1": ("read",),
        "l2": ("read", "update"),
        "l3": ("read", "update", "scale"),
        "dram": ("read", "scale", "copy"),
    }
    return tuple(
        {"resource": level, "dtype": None, "unit": "byte/s", "kernel": kernel, "thread_bytes": size}
        for level, size in sets.items()
        for kernel in kernels[level]
    )


def runtime_measurements(sides: Sequence[int], models: Path) -> tuple[dict[str, Any], ...]:
    """Return ONNX Runtime's matrix products for each side and number format; their models are in folder `models`."""
    return tuple(
        {
            "resource": "vector_integer" if kind.integer else "vector",
            "dtype": kind.dtype,
            "unit": "op/s" if kind.integer else "flop/s",
            "kernel": "runtime",
            "label": f"ONNX Runtime {kind.operator}",
            "side": side,
            "input_dtype": kind.input_dtype,
            "output_dtype": kind.output_dtype,
            "model": str(models / model_name(kind.dtype, side)),
        }
        for kind in PRODUCTS
        for side in sides
    )


def product_measurements(sides: Sequence[int], label: str) -> tuple[dict[str, Any], ...]:
    """Return NumPy's matrix products for each side, in both floating-point formats."""
    return tuple(
        {
            "resource": "vector",
            "dtype": dtype,
            "unit": "flop/s",
            "kernel": "product",
            "label": label,
            "side": side,
            "input_dtype": input_dtype,
        }
        for dtype, input_dtype in (("fp32", "float32"), ("fp64", "float64"))
        for side in sides
    )


@dataclass(frozen=True)
class Product:
    """A matrix product of ONNX Runtime: the formats of the input matrix, the constant matrix and the result."""

    dtype: str
    operator: str
    input_dtype: str
    weight_dtype: str
    output_dtype: str
    integer: bool = False


PRODUCTS: Final = (
    Product("fp32", "MatMul", "float32", "float32", "float32"),
    Product("fp64", "MatMul", "float64", "float64", "float64"),
    Product("int8", "MatMulInteger", "uint8", "int8", "int32", integer=True),
)


def model_name(dtype: str, side: int) -> str:
    """Return the file name of the model that multiplies by a constant matrix of that side."""
    return f"{dtype}-{side}.onnx"


def write_models(folder: Path, sides: Collection[int]) -> None:
    """Write the models of `runtime_measurements`: one product each, with a constant matrix of random numbers.

    The matrix is constant because weights are, and the runtime may pack them in advance.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    random = np.random.default_rng(3)
    for kind in PRODUCTS:
        for side in sides:
            if kind.integer:
                weights = random.integers(-128, 127, (side, side), kind.weight_dtype, endpoint=True)
            else:
                weights = random.standard_normal((side, side), np.float32).astype(kind.weight_dtype)
            element = helper.np_dtype_to_tensor_dtype
            graph = helper.make_graph(
                [helper.make_node(kind.operator, ["a", "b"], ["y"])],
                "product",
                [helper.make_tensor_value_info("a", element(np.dtype(kind.input_dtype)), (side, side))],
                [helper.make_tensor_value_info("y", element(np.dtype(kind.output_dtype)), (side, side))],
                [numpy_helper.from_array(weights, "b")],
            )
            model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
            (folder / model_name(kind.dtype, side)).write_bytes(model.SerializeToString())


def cache_documents(known: Sequence[Cache]) -> list[dict[str, Any]]:
    """Return the caches for a calibration's file: level, bytes of each, count, and CPUs that share one."""
    return [
        {
            "level": cache.level,
            "size_bytes": cache.size_bytes,
            "instances": len(cache.groups),
            "cpus_sharing": max(len(group) for group in cache.groups),
        }
        for cache in known
    ]
