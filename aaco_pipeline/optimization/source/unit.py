"""What is known of a source: its kernels, their parameters and loops, and the launches of kernels."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Parameter

LoopKind = Literal["for", "while", "do", "range"]


class Span(NamedTuple):
    """The bytes `start` to `end` of a source, `end` not included."""

    start: int
    end: int


@dataclass(frozen=True)
class LaunchBounds:
    """`__launch_bounds__(threads, blocks)`. A value is None where it is not written, or is no constant of this file."""

    span: Span
    threads: int | None
    blocks: int | None


@dataclass(frozen=True)
class Loop:
    """A loop of a kernel's own body; not one of a lambda, nor one that a macro hides.

    `identifier` counts loops by nesting (`loop2.1` is the first loop in the kernel's second): edits outside the kernel
    do not change it. `span` begins at the loop's keyword, `body` is its statement with braces where there are some.
    `trip_count` is set where header and body prove it, with macros as this file defines them. `innermost`: no loop
    inside, nor in a function of this file called inside, whose trip count is not proven. `safe`: copies of the body
    may follow one another without a test between them; otherwise `reason` says why not, with its line. `pragma` is the
    unrolling pragma that it already carries.
    """

    identifier: str
    kind: LoopKind
    line: int
    span: Span
    body: Span
    trip_count: int | None
    innermost: bool
    safe: bool
    reason: str | None
    pragma: str | None = None
    parent: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A `__global__` function that is defined here.

    `span` is the whole definition, from `template`, `extern "C"` or the first attribute to the closing brace; `body`
    has its braces; `name_span` is the name in the declarator. `parameter_spans` run beside `parameters`. `scope` names
    the namespaces around it. `barriers`, `cross_lane` and `atomics` are the lines where the kernel, or a function of
    this file that it calls, has one. `damaged` are lines that the grammar does not understand: no loop is then safe.
    """

    name: str
    parameters: tuple[Parameter, ...]
    parameter_spans: tuple[Span, ...]
    span: Span
    body: Span
    name_span: Span
    line: int
    template: bool
    scope: tuple[str, ...]
    launch_bounds: LaunchBounds | None
    loops: tuple[Loop, ...]
    barriers: tuple[int, ...]
    cross_lane: tuple[int, ...]
    atomics: tuple[int, ...]
    dynamic_lds: bool
    damaged: tuple[int, ...]

    def loop(self, identifier: str) -> Loop:
        """The loop of that identifier; Refused, guard `loop`, where the kernel has none."""
        for loop in self.loops:
            if loop.identifier == identifier:
                return loop
        known = ", ".join(loop.identifier for loop in self.loops) or "no loop"
        raise Refused("loop", f"the kernel {self.name} has no {identifier}; it has {known}")


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: `f<<<grid, block, lds, stream>>>(arguments)` or hipLaunchKernelGGL(f, grid, …, arguments).

    `span` is the whole call without its semicolon; `kernel` the expression before `<<<` or the first argument;
    `configuration` two to four expressions (grid, block, bytes of dynamic local data share, stream).
    """

    span: Span
    kernel: Span
    configuration: tuple[Span, ...]
    arguments: tuple[Span, ...]
    line: int


@dataclass(frozen=True)
class Unit:
    """A source that was read. `kernels` and `launches` are in the order of the source."""

    source: bytes
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; Refused, guard `kernel`, where there is none, or more than one."""
        found = [kernel for kernel in self.kernels if kernel.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            lines = ", ".join(str(kernel.line) for kernel in found)
            raise Refused("kernel", f"{name} is defined {len(found)} times (lines {lines}); keep one definition")
        known = ", ".join(kernel.name for kernel in self.kernels)
        raise Refused("kernel", f"there is no kernel {name}; this source has {known}")
