"""The programs of this folder and what each is slow by: by construction, not by measurement.

Standard library alone, for it is read on the GPU machine too.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Program:
    """One program, the truth about it, and how often it repeats its step.

    `classes`: the classes of an answer that are right, `resources`: those of the device's time, none where it is not
    the device that limits. `removed`: what `--fixed` does instead. `bounded`: that is just what the answer's
    `saves_at_most` bounds: the cause goes, and nothing else. Steps are so many that the capture stays below 2 MiB.
    Programs of `COSTS` are there for what tracing costs: nothing is removed from them, and nothing of them is kept.
    """

    name: str
    language: str
    steps: int
    cause: str
    removed: str
    classes: tuple[str, ...]
    resources: tuple[str, ...] = ()
    bounded: bool = False

    @property
    def source(self) -> str:
        """Its file in this folder."""
        return _SOURCES[self.language]


CUDA: Final = "CUDA C++"
TORCH: Final = "PyTorch"
_SOURCES: Final = {CUDA: "device_programs.cu", TORCH: "torch_programs.py"}
_DEVICE: Final = ("device",)

PROGRAMS: Final = (
    Program(
        *("gemm_fp32", TORCH, 40, "products of 4096² matrices on the vector units", "TF32, on the matrix units"),
        *(_DEVICE, ("compute_vector",)),
    ),
    Program(
        *("gemm_tf32", TORCH, 60, "products of 8192² matrices in TF32", "bfloat16"),
        *(_DEVICE, ("compute_matrix",)),
    ),
    Program(
        *("gemm_bf16", TORCH, 80, "products of 8192² matrices in bfloat16", "8-bit floating point"),
        *(_DEVICE, ("compute_matrix",)),
    ),
    Program(
        *("stream", CUDA, 100, "two passes over 1 GiB arrays", "both in one pass"),
        *(_DEVICE, ("memory_dram",)),
    ),
    Program(
        *("random_gather", CUDA, 60, "single floats from all over 1 GiB", "the same, in order"),
        *(_DEVICE, ("memory_dram", "memory_l2", "latency")),
    ),
    Program(
        *("atomics_one_address", CUDA, 60, "4 Mi atomic additions to one address", "one of each block"),
        *(_DEVICE, ("atomics", "latency")),
    ),
    Program(
        *("tiny_kernels", CUDA, 40, "200 launches of kernels shorter than a launch", "a CUDA graph of them"),
        *(("launch",),),
        bounded=True,
    ),
    Program(
        *("cuda_graph", CUDA, 60, "a CUDA graph of 200 dependent tiny kernels", "one kernel that does it all"),
        *(("device", "launch"),),
    ),
    Program(
        *("host_sleeps", TORCH, 60, "4 ms of sleep between steps, with the device's work done", "no sleep"),
        *(("host",),),
        bounded=True,
    ),
    Program(
        *("item_each_step", TORCH, 300, "a result read back by .item() four times a step", "read back at the end"),
        *(("sync",),),
        bounded=True,
    ),
    Program(
        *("pageable_copies", TORCH, 60, "a pageable copy before the work on it", "pinned, beside the work before it"),
        *(("copy",),),
        bounded=True,
    ),
    Program(
        *("two_streams", CUDA, 100, "kernels of two streams beside each other", "one stream, one after the other"),
        *(_DEVICE,),
    ),
    Program(
        *("allocation_each_step", CUDA, 300, "cudaMalloc and cudaFree in each step", "allocated before the loop"),
        *(("allocation",),),
        bounded=True,
    ),
    Program(
        *("transformer_batch_1", TORCH, 50, "an eager transformer at batch 1: launches", "a CUDA graph of the step"),
        *(("launch",),),
        bounded=True,
    ),
    Program(
        *("training", TORCH, 30, "a convolutional net that waits for its input's preparation", "prepared before"),
        *(("host",),),
        bounded=True,
    ),
    Program(
        *("two_processes", CUDA, 150, "two processes take turns on one GPU", "one process"),
        *(_DEVICE,),
    ),
)

COSTS: Final = (
    Program(
        *("transformer_batch_8", TORCH, 60, "an eager transformer whose products are longer than their launches", ""),
        *(_DEVICE, ("compute_matrix",)),
    ),
    Program(
        *("resnet_inference", TORCH, 60, "ResNet-50 on 128 images at once", ""),
        *(_DEVICE, ("compute_matrix", "memory_dram")),
    ),
    Program(
        *("launches_200k", CUDA, 200, "200,000 launches of a tiny kernel, back to back", ""),
        *(("launch",),),
    ),
    Program(
        *("launches_10m", CUDA, 10_000, "10,000,000 launches of a tiny kernel, back to back", ""),
        *(("launch",),),
    ),
)

SETS: Final = {"programs": PROGRAMS, "costs": COSTS}
