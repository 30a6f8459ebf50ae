"""Proposers that keep a kernel's statements: `__restrict__`, launch bounds, unrolling pragmas, workgroup size."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, indent, place_of, replaced, subject_of
from aaco_pipeline.optimization.source import Kernel, Loop, parse
from aaco_pipeline.optimization.source.kernels import RESTRICT
from aaco_pipeline.optimization.source.tokens import Token
from aaco_pipeline.optimization.source.tree import descend, text_of


class Restrict:
    """Adds `__restrict__` to all pointers at once, which promises that no pointer reads data written through another.

    A harness's buffers never overlap (each `targets.Buffer` is an allocation of its own), so the promise holds for
    every call of a harness. It changes neither the types of the signature nor how the kernel is called.
    """

    name: Final = "restrict"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        subject = subject_of(task)
        pointers = [index for index, parameter in enumerate(subject.kernel.parameters) if parameter.pointer]
        if len(pointers) < 2:
            yield NotApplicable(self.name, "the kernel has fewer than two pointers, which nothing can overlap with")
            return
        if (reason := _shares(subject, pointers)) is not None:
            yield NotApplicable(self.name, reason)
            return
        changes, changed = list[tuple[int, int, str]](), list[str]()
        for index in pointers:
            words = _tokens(subject, index)
            if any(word.text in RESTRICT for word in words):
                continue
            name = subject.kernel.parameters[index].name
            place = next((word for word in reversed(words) if word.text == name), None)
            if place is None or words[words.index(place) - 1].text not in ("*", "const"):
                what = f"the parameter {name or index + 1} is not written as a plain pointer with a name"
                yield NotApplicable(self.name, what)
                return
            changes.append((place.start, place.start, "__restrict__ "))
            changed.append(name)
        if not changes:
            yield NotApplicable(self.name, "every pointer of the kernel has __restrict__ already")
            return
        what, source = f"__restrict__ on {', '.join(changed)}", replaced(task.source, changes)
        candidate = task.candidate(self.name, what, source, {"pointers": len(changed)})
        yield replace(candidate, signature=("restrict",))


def _tokens(subject: Subject, index: int) -> list[Token]:
    start, end = subject.kernel.parameter_spans[index]
    return [token for token in subject.tokens if start <= token.start < end]


def _shares(subject: Subject, pointers: list[int]) -> str | None:
    """Explain why a launch in this file may pass one buffer twice; None if all arguments differ."""
    source = subject.task.source
    for launch in subject.unit.launches:
        called = source[slice(*launch.kernel)].decode("latin-1").split("<")[0].split("::")[-1].strip(" ()")
        if called != subject.kernel.name:
            continue
        given = [source[slice(*launch.arguments[index])] for index in pointers if index < len(launch.arguments)]
        if len(set(given)) < len(pointers):
            return f"line {launch.line} launches the kernel with one buffer for two pointers"
    return None


_RESIDENT: Final = (None, 2, 4)


def with_launch_bounds(source: bytes, kernel: Kernel, work_items: int, resident: int | None) -> bytes:
    """Set the kernel's bounds: replace existing ones, else insert them in front of its name."""
    bounds = f"__launch_bounds__({work_items}{'' if resident is None else f', {resident}'})"
    if kernel.launch_bounds is not None:
        return replaced(source, [(*kernel.launch_bounds.span, bounds)])
    at = kernel.name_span.start
    return replaced(source, [(at, at, f"{bounds} ")])


class LaunchBounds:
    """Bounds of exactly the workgroup that is launched, alone and with a second value.

    Without them the compiler provides for 1024 work-items. The second value is the least number of wavefronts on each
    SIMD to AMD's compilers, of workgroups on each multiprocessor to NVIDIA's; a larger one asks for fewer registers.
    """

    name: Final = "launch_bounds"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
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
            source = with_launch_bounds(task.source, kernel, work_items, resident)
            second, parameters = ("", {}) if resident is None else (f", {resident}", {"resident": resident})
            what = f"launch bounds {work_items}{second}"
            candidate = task.candidate(self.name, what, source, {"work_items": work_items, **parameters})
            yield replace(candidate, signature=("launch_bounds",))


#: In the order of trial: powers of two first, because they leave the smallest remainder.
FACTORS: Final = (4, 8, 2, 6, 3, 5, 7)
#: Compilers fully unroll a constant loop this short by themselves: a factor could only reduce that.
_UNROLLED_BY_THE_COMPILER: Final = 8


def unrolled(source: bytes, loop: Loop, factor: int) -> bytes:
    """Put `#pragma unroll factor` on a separate line in front of the loop."""
    start = loop.span.start
    margin = indent(source, start)
    is_first = not source[source.rfind(b"\n", 0, start) + 1 : start].strip()
    pragma = f"{'' if is_first else chr(10)}#pragma unroll {factor}\n{margin}"
    return source[:start] + pragma.encode() + source[start:]


class Unrolling:
    """Unrolls every safe loop by each useful factor, innermost loops and likely factors first.

    The compiler keeps the order of floating-point operations, so outputs must equal the baseline's bits.
    """

    name: Final = "unrolling"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        kernel = parse(task.source).kernel(task.kernel)
        if not kernel.loops:
            yield NotApplicable(self.name, f"the kernel {task.kernel} has no loop")
        chosen: list[tuple[Loop, tuple[int, ...]]] = []
        for loop in sorted(kernel.loops, key=lambda one: not one.innermost):
            if not loop.safe:
                yield NotApplicable(self.name, f"{loop.identifier} is not safe to unroll: {loop.reason}")
            elif loop.trip_count is not None and loop.trip_count <= _UNROLLED_BY_THE_COMPILER:
                reason = f"makes {loop.trip_count} trips, known to the compiler, which unrolls it wholly by itself"
                yield NotApplicable(self.name, f"{loop.identifier} {reason}")
            else:
                chosen.append((loop, factors(loop.trip_count)))
        for place in range(len(FACTORS)):
            for loop, order in chosen:
                what, source = f"unroll {loop.identifier} by {order[place]}", unrolled(task.source, loop, order[place])
                yield task.candidate(self.name, what, source, place_of(loop) | {"factor": order[place]})


def factors(trip_count: int | None) -> tuple[int, ...]:
    """Return all factors in the order in which to try them: divisors of a known trip count first."""
    if trip_count is None:
        return FACTORS
    return tuple(sorted(FACTORS, key=lambda factor: trip_count % factor != 0))


SIZES: Final = (256, 128, 64, 512, 1024)
_PLACES: Final = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_GLOBAL_INDEX: Final = frozenset({"blockIdx.x*blockDim.x+threadIdx.x", "threadIdx.x+blockIdx.x*blockDim.x"})


class BlockSize:
    """Workgroups of one wavefront to 1024 work-items, where the tree proves that only the global index is used.

    The source is unchanged: the candidate is launched with as many workgroups as the harness computes.
    """

    name: Final = "block_size"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Yield candidates, and the reasons if there are none. Refused if the source has no such kernel."""
        try:
            most = _most_work_items(subject_of(task))
        except Otherwise as error:
            yield NotApplicable(self.name, str(error))
            return
        sizes = [one for one in SIZES if one != prod(task.block) and one <= most and one % task.wavefront_size == 0]
        if not sizes:
            yield NotApplicable(self.name, f"launch bounds of {most} leave no other size")
        for size in sizes:
            candidate = task.candidate(self.name, f"workgroups of {size}", task.source, {"work_items": size})
            yield replace(candidate, block=(size, 1, 1))


def _most_work_items(subject: Subject) -> int:
    """Return the largest workgroup that the bounds allow. Raises Otherwise if another size may change it."""
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
    return "".join(text.split()).replace("blockDim.x*blockIdx.x", "blockIdx.x*blockDim.x") in _GLOBAL_INDEX
