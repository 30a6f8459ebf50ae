"""Workgroups of another size, for kernels whose work-items know nothing of each other.

The source stays as it is: the candidate is launched in other workgroups (`Candidate.block`), in as many of them as the
harness says that it needs.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, subject_of
from aaco_pipeline.optimization.source.grammar import descend, text_of

SIZES: Final = (256, 128, 64, 512, 1024)
_PLACES: Final = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_GLOBAL_INDEX: Final = frozenset({"blockIdx.x*blockDim.x+threadIdx.x", "threadIdx.x+blockIdx.x*blockDim.x"})
_PRODUCTS: Final = {"blockDim.x*blockIdx.x": "blockIdx.x*blockDim.x"}


class BlockSize:
    """Sizes from one wavefront to 1024 work-items, where the tree proves that only the global index is used."""

    name: Final = "block_size"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        try:
            most = _most_work_items(subject_of(task))
        except Otherwise as error:
            yield NotApplicable(self.name, str(error))
            return
        sizes = [one for one in SIZES if one != prod(task.block) and one <= most and one % task.wavefront_size == 0]
        if not sizes:
            yield NotApplicable(self.name, f"launch bounds of {most} leave no other size")
        for size in sizes:
            yield Candidate(
                task.kernel,
                task.source,
                self.name,
                f"workgroups of {size}",
                bit_exact=True,
                block=(size, 1, 1),
                parameters={"work_items": size},
            )


def _most_work_items(subject: Subject) -> int:
    """The largest workgroup that the bounds allow. Otherwise, where another size may change what is computed."""
    kernel = subject.kernel
    if subject.task.block[1:] != (1, 1):
        raise Otherwise("the kernel is launched in workgroups of more than one dimension")
    for lines, what in (
        (kernel.barriers, "synchronizes its workgroup"),
        (kernel.cross_lane, "exchanges values between lanes"),
        (kernel.atomics, "has an atomic operation, whose order depends on the workgroups"),
    ):
        if lines:
            raise Otherwise(f"line {lines[0]} {what}")
    if kernel.dynamic_lds or any(text_of(node) == "__shared__" for node in descend(subject.body)):
        raise Otherwise("the kernel has local data share, which its workgroup divides")
    others = [one.span for one in subject.unit.kernels]
    for token in (*subject.tokens, *(token for directive in subject.directives for token in directive.tokens)):
        if _is_place(token.text) and not any(span.start <= token.start < span.end for span in others):
            raise Otherwise("a function or macro of this file asks for its place in the workgroup")
    indices = [node for node in descend(subject.body) if _is_global_index(text_of(node))]
    for node in descend(subject.body):
        if node.type != "identifier" or not _is_place(text_of(node)):
            continue
        if not any(one.start_byte <= node.start_byte and node.end_byte <= one.end_byte for one in indices):
            raise Otherwise(f"line {subject.line(node)} uses {text_of(node)} for more than the global index")
    if not indices:
        raise Otherwise("the kernel does not compute a global index")
    if kernel.launch_bounds is None:
        return 1024
    if kernel.launch_bounds.threads is None:
        raise Otherwise("the kernel's launch bounds are no constants of this file")
    return kernel.launch_bounds.threads


def _is_place(word: str) -> bool:
    return word in _PLACES or word.startswith(("hipThreadIdx_", "hipBlockIdx_", "hipBlockDim_", "hipGridDim_"))


def _is_global_index(text: str) -> bool:
    plain = "".join(text.split())
    for written, usual in _PRODUCTS.items():
        plain = plain.replace(written, usual)
    return plain in _GLOBAL_INDEX
