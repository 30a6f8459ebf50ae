"""`__launch_bounds__` of the workgroup that is launched: how many registers the compiler may give a work-item.

Without it the compiler provides for 1024 work-items a workgroup. The second value means, to AMD's compilers, the least
number of wavefronts that each SIMD is to hold, and to NVIDIA's the least number of workgroups on each multiprocessor;
either way a larger one asks for fewer registers.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import replaced
from aaco_pipeline.optimization.source import Kernel, parse

_RESIDENT: Final = (None, 2, 4)


def with_launch_bounds(source: bytes, kernel: Kernel, work_items: int, resident: int | None) -> bytes:
    """The source with the kernel's bounds set: in place of those that it has, else in front of its name."""
    bounds = f"__launch_bounds__({work_items}{'' if resident is None else f', {resident}'})"
    if kernel.launch_bounds is not None:
        return replaced(source, [(*kernel.launch_bounds.span, bounds)])
    at = kernel.name_span.start
    return replaced(source, [(at, at, f"{bounds} ")])


class LaunchBounds:
    """Bounds of exactly the workgroup that is launched, alone and with a second value."""

    name: Final = "launch_bounds"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        kernel = parse(task.source).kernel(task.kernel)
        work_items, present = prod(task.block), kernel.launch_bounds
        if work_items % task.wavefront_size:
            reason = f"a workgroup of {work_items} is no multiple of the wavefront of {task.wavefront_size}"
            yield NotApplicable(self.name, reason)
            return
        if present is not None and present.threads is None:
            yield NotApplicable(self.name, "the kernel's launch bounds are no constants of this file")
            return
        for resident in _RESIDENT:
            if present is not None and (present.threads, present.blocks) == (work_items, resident):
                continue
            yield Candidate(
                task.kernel,
                with_launch_bounds(task.source, kernel, work_items, resident),
                self.name,
                f"launch bounds {work_items}{'' if resident is None else f', {resident}'}",
                bit_exact=True,
                parameters={"work_items": work_items, **({} if resident is None else {"resident": resident})},
                signature=("launch_bounds",),
            )
