"""The programs of this folder and the cause that each was built to have. Standard library alone."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Program:
    """One program, the truth about it, and how often it repeats its step.

    `classes`: the classes of an answer that are right, `resources`: those of the device's time, none where it is not
    the device that limits. `removed`: what `--fixed` does instead. `bounded`: that is just what the answer's
    `saves_at_most` bounds: the cause goes, and nothing else. Steps are so many that the capture stays below 2 MiB.
    Programs of `COSTS` are there for what tracing costs, nothing is removed from them. Those of `HELD_OUT` were written
    without sight of the analysis and are run once, when it is done; `why` is why the cause is what it is.
    """

    name: str
    language: str
    steps: int
    cause: str
    removed: str
    classes: tuple[str, ...]
    resources: tuple[str, ...] = ()
    bounded: bool = False
    why: str = ""

    @property
    def source(self) -> str:
        """Its file in this folder."""
        return (_HELD_OUT_SOURCES if self in HELD_OUT else _SOURCES)[self.language]


CUDA: Final = "CUDA C++"
TORCH: Final = "PyTorch"
_SOURCES: Final = {CUDA: "device_programs.cu", TORCH: "torch_programs.py"}
_HELD_OUT_SOURCES: Final = {CUDA: "held_out.cu", TORCH: "held_out.py"}
_DEVICE: Final = ("device",)

PROGRAMS: Final = (
    Program(
        *("gemm_fp32", TORCH, 40, "products of 4096² matrices on the vector units", "TF32, on the matrix units"),
        *(_DEVICE, ("compute_vector",)),
    ),
    Program(
        *("gemm_tf32", TORCH, 60, "products of 8192² matrices in TF32", "bfloat16"), *(_DEVICE, ("compute_matrix",))
    ),
    Program(
        *("gemm_bf16", TORCH, 80, "products of 8192² matrices in bfloat16", "8-bit floating point"),
        *(_DEVICE, ("compute_matrix",)),
    ),
    Program(*("stream", CUDA, 100, "two passes over 1 GiB arrays", "both in one pass"), *(_DEVICE, ("memory_dram",))),
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
    Program(*("two_processes", CUDA, 150, "two processes take turns on one GPU", "one process"), *(_DEVICE,)),
)

COSTS: Final = (
    Program(
        *("transformer_batch_8", TORCH, 100, "an eager transformer whose products are longer than their launches", ""),
        *(_DEVICE, ("compute_matrix",)),
    ),
    Program(
        *("resnet_inference", TORCH, 100, "ResNet-50 on 128 images at once", ""),
        *(_DEVICE, ("compute_matrix", "memory_dram")),
    ),
    Program(*("launches_200k", CUDA, 200, "200,000 launches of a tiny kernel, back to back", ""), *(("launch",),)),
    Program(*("launches_10m", CUDA, 10_000, "10,000,000 launches of a tiny kernel, back to back", ""), *(("launch",),)),
)

HELD_OUT: Final = (
    Program(
        *("synced_kernels", CUDA, 150, "the host waits for each of 16 short kernels", "it waits for none"),
        *(("sync",),),
        bounded=True,
        why="Kernels of 5 us are queued in 2, so without the waits, some 10 us each, the device is never idle.",
    ),
    Program(
        *("results_in_the_way", CUDA, 100, "pinned copies in the default stream, which other streams wait for"),
        *("copies in a stream of their own, beside the next kernel",),
        *(("copy",),),
        bounded=True,
        why="Nothing waits on the host, and the device copies half the time, in which it could compute.",
    ),
    Program(
        *("pinned_each_step", CUDA, 100, "16 MiB of pinned memory taken and given back in each step"),
        *("taken before the loop",),
        *(("allocation",),),
        bounded=True,
        why="Pinning 4,096 pages takes milliseconds in which nothing is queued; the copy and the kernel take 0.4 ms.",
    ),
    Program(
        *("lock_between_threads", CUDA, 150, "launches wait for a lock under which another thread keeps books"),
        *("that thread has a lock of its own",),
        *(("host",),),
        bounded=True,
        why="The lock is fair: one kernel of 20 us is launched in each 100 us that the other thread holds it.",
    ),
    Program(
        *("small_copies", CUDA, 100, "64 pageable copies of 4 KiB before a kernel", "packed, one copy of 256 KiB"),
        *(("copy",),),
        bounded=True,
        why="Each copy moves what takes the link a tenth of a microsecond, and costs a call of several.",
    ),
    Program(
        *("pauses_and_launches", CUDA, 30, "two pauses of the host of 1.5 ms and 500 launches of tiny kernels"),
        *("no pauses; the launches stay",),
        *(("host",),),
        bounded=True,
        why="Of two causes the pauses are 3 ms of a step and the launches about 1.2, and the device is idle in both.",
    ),
    Program(
        *("strided_transpose", CUDA, 100, "a transposition that writes a line apart", "by way of shared memory"),
        *(_DEVICE, ("memory_dram", "memory_l2", "latency")),
        why="One kernel a step of half a millisecond, queued ahead; each warp writes 32 sectors where 4 would do.",
    ),
    Program(
        *("one_block", CUDA, 100, "a sum by one block on one of 132 multiprocessors", "by 1,024 blocks"),
        *(_DEVICE, ("latency",)),
        why="The device always has a kernel, and of it 131 multiprocessors have nothing to do.",
    ),
    Program(
        *("gradient_norms", TORCH, 60, "norms of 24 parameters and gradients, each read by .item() for a log"),
        *("norms, not read",),
        *(("sync",),),
        bounded=True,
        why="The host waits for each of 48 norms, kernels of a few us, with nothing else queued, over half of a step.",
    ),
    Program(
        *("lstm_by_hand", TORCH, 15, "an eager LSTM: a Python loop over 64 times, twelve tiny operators each"),
        *("a CUDA graph of the step",),
        *(("launch",),),
        bounded=True,
        why="Operators on 32 rows of 128 run for less time than their launch takes, and each needs the one before.",
    ),
    Program(
        *("numpy_preparation", TORCH, 40, "NumPy scales and clips each batch, results are read in each step"),
        *("the next batches are prepared by six threads meanwhile",),
        *(("host",),),
        bounded=True,
        why="The result of a batch is read before the next is prepared, so the device is idle while NumPy works.",
    ),
    Program(
        *("emptied_cache", TORCH, 60, "torch.cuda.empty_cache() at the end of each step", "the cache is kept"),
        *(("allocation",),),
        bounded=True,
        why="512 MiB are given back to the driver and taken from it again in each step, whose kernels take half a ms.",
    ),
    Program(
        *("products_and_a_read", TORCH, 50, "products of 8192² bfloat16 matrices; one .item() behind each four"),
        *("no .item(): a gap of tens of us in 6 ms, which is not the cause",),
        *(_DEVICE, ("compute_matrix",)),
        why="The wait costs the device less than 1 % of its time, the rest of which it multiplies.",
    ),
)

SETS: Final = {"programs": PROGRAMS, "held_out": HELD_OUT, "costs": COSTS}
