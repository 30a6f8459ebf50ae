"""Several sums in place of one: additions that need not wait for one another.

The order of additions changes, so results differ in the last bits (whole numbers apart): not bit exact.
"""

from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.reductions import ZEROS, Reduction, body_of, reduction_of
from aaco_pipeline.optimization.proposers.syntax import Otherwise, Subject, indent, replaced, subject_of

WIDTHS: Final = (4, 8, 2)


class Accumulators:
    """Each loop that provably sums, the innermost first, by each number of sums."""

    name: Final = "accumulators"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        subject = subject_of(task)
        if not subject.kernel.loops:
            yield NotApplicable(self.name, f"the kernel {task.kernel} has no loop")
        found: list[Reduction] = []
        for loop in sorted(subject.kernel.loops, key=lambda one: not one.innermost):
            try:
                found.append(reduction_of(subject, loop))
            except Otherwise as error:
                yield NotApplicable(self.name, str(error))
        for width in WIDTHS:
            for one in found:
                if one.loop.trip_count is not None and one.loop.trip_count < width:
                    reason = f"{one.loop.identifier} makes {one.loop.trip_count} trips, fewer than {width} sums"
                    yield NotApplicable(self.name, reason)
                    continue
                yield Candidate(
                    task.kernel,
                    with_accumulators(subject, one, width),
                    self.name,
                    f"{width} accumulators in {one.loop.identifier}",
                    bit_exact=one.type not in ("float", "double"),
                    parameters={"loop": one.loop.identifier, "line": one.loop.line, "accumulators": width},
                )


def with_accumulators(subject: Subject, one: Reduction, width: int) -> bytes:
    """The source with `width` sums in the loop: a loop of `width` steps at a time, then one for what is left.

    The test of the first looks `width - 1` steps ahead in 64 bits, where counters of 32 bits cannot overflow.
    """
    sums = [one.accumulator, *(subject.fresh(f"{one.accumulator.rstrip('_')}_{place}") for place in range(1, width))]
    step = "1" if one.step is None else f"({one.step})"
    margin = indent(subject.task.source, one.loop.span.start)
    further = ", ".join(f"{name} = {ZEROS[one.type]}" for name in sums[1:])
    ahead = f"(long long){one.counter} + {width - 1}LL * {step} {one.operator} (long long)({one.bound})"
    passes = [
        text
        for name in sums
        for text in (body_of(subject, one, [(place, name) for place in one.sums]), f"{one.update};")
    ]
    lines = [
        "{",
        f"  {one.type} {further};",
        f"  {one.begin}",
        f"  while ({ahead}) {{",
        *(f"    {text}" for text in passes),
        "  }",
        f"  while ({one.test}) {{",
        f"    {body_of(subject, one, [])}",
        f"    {one.update};",
        "  }",
        f"  {one.accumulator} += {_tree_of_sums(sums[1:])};",
        "}",
    ]
    text = f"\n{margin}".join(lines)
    return replaced(subject.task.source, [(*one.loop.span, text)])


def _tree_of_sums(names: list[str]) -> str:
    """The sum of sums in pairs, so that it too has few steps that wait."""
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_tree_of_sums(names[:half])} + {_tree_of_sums(names[half:])})"
