"""The profilers that a recording can put beside a program on a GPU, and the choice among them.

Each is a module here that says whether it is there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from aaco_pipeline.errors import AacoError, UnavailableError
from aaco_pipeline.recording.profilers import cupti, ncu, rocprofv3
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

#: Why a profiler was not looked for.
_NOT_ASKED: Final = "not asked for"


class Beside(Protocol):
    """What a run needs of a profiler: how the program is started under it, so that it writes into a folder."""

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command that runs `program` under the profiler; the program itself where that needs none."""
        ...

    def environment(self, folder: Path) -> dict[str, str]:
        """What is added to the program's environment."""
        ...

    @property
    def version(self) -> str | None:
        """The profiler's version, where it is known before it runs."""
        ...


class Counting(Beside, Protocol):
    """A run that counts, which may go wrong where the program alone does not."""

    @property
    def name(self) -> str: ...

    @property
    def counters(self) -> tuple[str, ...]: ...

    def why_failed(self, folder: Path, said: str) -> str | None:
        """Why it did not count, by what is in its folder and what was said on its output; None when it did."""
        ...


class DeviceProfiler(Beside, Protocol):
    """A profiler that traces, and knows how the same GPUs' counters are had."""

    def counting(self, sets: str, first: int | None, known: Callable[[], CounterSets]) -> tuple[Counting, ...]:
        """The runs that count the sets, of each kernel the `first` launches where that is asked for.

        AacoError, with what to do, where they cannot be had; `known` are AMD's sets.
        """
        ...


@dataclass(frozen=True)
class Chosen:
    """The profiler of the traced run, if there is one, the runs that count, and what to say of each in the capture."""

    name: str | None
    profiler: DeviceProfiler | None
    counting: tuple[Counting, ...]
    documents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class _Injected:
    """CUPTI: a library in every process of the program; the command stays as it is."""

    injection: cupti.Injection
    known: Mapping[str, str]

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        return tuple(program)

    def environment(self, folder: Path) -> dict[str, str]:
        return self.injection.environment(folder)

    @property
    def version(self) -> str | None:
        return str(self.injection.cupti.api_version)

    def counting(self, sets: str, first: int | None, known: Callable[[], CounterSets]) -> tuple[Counting, ...]:
        return ncu.counting(sets, first, self.known)


def choose(request: RecordRequest, environment: Mapping[str, str], known: Callable[[], CounterSets]) -> Chosen:
    """The profiler that the request asks for, or with `auto` the first that works here, with what counts beside it.

    UnavailableError, with what to do, when one that is asked for by its name does not, or nothing here can count.
    """
    trace, command = request.trace, request.command
    makers: dict[str, Callable[[], DeviceProfiler]] = {
        rocprofv3.NAME: lambda: rocprofv3.prepared(environment),
        "cupti": lambda: _Injected(cupti.prepared(command, environment), environment),
    }
    name: str | None = None
    chosen: DeviceProfiler | None = None
    documents = []
    for candidate, make in makers.items():
        reason: str | None = _NOT_ASKED
        version: str | None = None
        if chosen is None and trace in ("auto", candidate):
            try:
                chosen = make()
                name, reason, version = candidate, None, chosen.version
            except UnavailableError as error:
                if trace != "auto":
                    raise UnavailableError(f"{error}; or record with --trace off") from error
                reason = str(error)
            except AacoError as error:  # such as a cache that cannot be: no reason to leave the runs undone
                reason = str(error)
        documents.append({"name": candidate, "present": reason is None, "reason": reason, "version": version})
    counting = _counting(request, chosen, documents, known)
    for one in counting[:1]:
        if one.name != name:
            documents.append({"name": one.name, "present": True, "reason": None, "version": one.version})
    return Chosen(name, chosen, counting, tuple(documents))


def _counting(
    request: RecordRequest,
    chosen: DeviceProfiler | None,
    documents: Sequence[Mapping[str, Any]],
    known: Callable[[], CounterSets],
) -> tuple[Counting, ...]:
    """The runs that count what the request asks for; UnavailableError, with what to do, where nothing here counts."""
    if request.counters is None:
        return ()
    if chosen is None:
        reasons = "; ".join(str(one["reason"]) for one in documents)
        raise UnavailableError(f"counters: leave --counters out, for no profiler of a GPU can be had here: {reasons}")
    return chosen.counting(request.counters, request.count_first, known)
