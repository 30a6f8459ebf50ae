"""Loop unrolling by 2 to 8: a pragma in front of a loop, by byte offset, so that the source stays otherwise as it was.

The compiler keeps the order of floating-point operations, so outputs must equal the baseline's bits.
"""

from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import indent
from aaco_pipeline.optimization.source import Loop, parse

#: In the order in which they are tried: powers of two first, as they leave the least remainder.
FACTORS: Final = (4, 8, 2, 6, 3, 5, 7)
#: Compilers unroll a constant loop this short wholly by themselves: a factor could only make that less.
_UNROLLED_BY_THE_COMPILER: Final = 8


def unrolled(source: bytes, loop: Loop, factor: int) -> bytes:
    """The source with `#pragma unroll factor` on a line of its own in front of the loop."""
    start = loop.span.start
    margin = indent(source, start)
    is_first = not source[source.rfind(b"\n", 0, start) + 1 : start].strip()
    pragma = f"{'' if is_first else chr(10)}#pragma unroll {factor}\n{margin}"
    return source[:start] + pragma.encode() + source[start:]


class Unrolling:
    """Every safe loop by each factor that may change something, the innermost loops and the likely factors first."""

    name: Final = "unrolling"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
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
                yield Candidate(
                    task.kernel,
                    unrolled(task.source, loop, order[place]),
                    self.name,
                    f"unroll {loop.identifier} by {order[place]}",
                    bit_exact=True,
                    parameters={"loop": loop.identifier, "line": loop.line, "factor": order[place]},
                )


def factors(trip_count: int | None) -> tuple[int, ...]:
    """All factors in the order in which to try them: of a known number of trips its divisors first."""
    if trip_count is None:
        return FACTORS
    return tuple(sorted(FACTORS, key=lambda factor: trip_count % factor != 0))
