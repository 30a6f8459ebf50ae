"""`__restrict__` on pointers: what one pointer writes no other reads, so that loads may be moved, joined and kept.

A harness's buffers never overlap (each `calls.Buffer` is an allocation of its own), so the promise holds for every call
of a harness. It changes the kernel's signature by the qualifier alone: neither its types nor how it is called.
"""

from collections.abc import Iterator
from typing import Final

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Task
from aaco_pipeline.optimization.proposers.syntax import Subject, replaced, subject_of
from aaco_pipeline.optimization.source.tokens import Token

_WORDS: Final = ("__restrict__", "__restrict", "restrict")


class Restrict:
    """All pointers at once: the promise is of use only where both sides of it are made."""

    name: Final = "restrict"

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        """Refused when the source has no such kernel."""
        subject = subject_of(task)
        pointers = [index for index, parameter in enumerate(subject.kernel.parameters) if parameter.pointer]
        if len(pointers) < 2:
            yield NotApplicable(self.name, "the kernel has fewer than two pointers, which nothing can overlap with")
            return
        if (reason := _shares(subject, pointers)) is not None:
            yield NotApplicable(self.name, reason)
            return
        changes: list[tuple[int, int, str]] = []
        changed: list[str] = []
        for index in pointers:
            words = _tokens(subject, index)
            if any(word.text in _WORDS for word in words):
                continue
            name = subject.kernel.parameters[index].name
            place = next((word for word in reversed(words) if word.text == name), None)
            if place is None or words[words.index(place) - 1].text not in ("*", "const"):
                reason = f"the parameter {name or index + 1} is not written as a plain pointer with a name"
                yield NotApplicable(self.name, reason)
                return
            changes.append((place.start, place.start, "__restrict__ "))
            changed.append(name)
        if not changes:
            yield NotApplicable(self.name, "every pointer of the kernel has __restrict__ already")
            return
        source = replaced(task.source, changes)
        what = f"__restrict__ on {', '.join(changed)}"
        yield Candidate(
            task.kernel,
            source,
            self.name,
            what,
            bit_exact=True,
            parameters={"pointers": len(changed)},
            signature=("restrict",),
        )


def _tokens(subject: Subject, index: int) -> list[Token]:
    start, end = subject.kernel.parameter_spans[index]
    return [token for token in subject.tokens if start <= token.start < end]


def _shares(subject: Subject, pointers: list[int]) -> str | None:
    """Why a launch in this file may give the kernel one buffer twice; None where all arguments are told apart."""
    source = subject.task.source
    for launch in subject.unit.launches:
        called = source[slice(*launch.kernel)].decode("latin-1").split("<")[0].split("::")[-1].strip(" ()")
        if called != subject.kernel.name:
            continue
        given = [source[slice(*launch.arguments[index])] for index in pointers if index < len(launch.arguments)]
        if len(set(given)) < len(pointers):
            return f"line {launch.line} launches the kernel with one buffer for two pointers"
    return None
