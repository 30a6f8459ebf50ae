"""The profilers that a recording can put beside a program on a GPU, and the choice among them.

Each is a module here that says whether it is there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aaco_pipeline.errors import AacoError, UnavailableError
from aaco_pipeline.recording.profilers import cupti, ncu, rocprofv3
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

#: Reason that a profiler was not looked for.
_NOT_ASKED: Final = "not asked for"


#: A run that counts, and may go wrong where the program alone does not.
Counting = ncu.Counting | rocprofv3.Counting
#: A profiler that traces, and knows how to get the same GPUs' counters.
DeviceProfiler = rocprofv3.Rocprofv3 | cupti.Injection
#: A profiler beside a run: `around` is the command under it, `environment` what it adds to the program's variables.
Beside = Counting | DeviceProfiler


@dataclass(frozen=True)
class Chosen:
    """The profiler of the traced run, if any, the runs that count, and the capture's entry for each profiler."""

    name: str | None
    profiler: DeviceProfiler | None
    counting: tuple[Counting, ...]
    documents: tuple[Mapping[str, Any], ...]


def choose(request: RecordRequest, environment: Mapping[str, str], known: Callable[[], CounterSets]) -> Chosen:
    """Choose the requested profiler, or with `auto` the first that works here, and the runs that count.

    `known` gives AMD's counter sets. UnavailableError, with the remedy, when a profiler requested by name does not
    work, or none here can count.
    """
    trace, command = request.trace, request.command
    makers: dict[str, Callable[[], DeviceProfiler]] = {
        rocprofv3.NAME: lambda: rocprofv3.prepared(environment),
        "cupti": lambda: cupti.prepared(command, environment),
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
            except AacoError as error:  # such as an unusable cache: the runs are made all the same
                reason = str(error)
        documents.append({"name": candidate, "present": reason is None, "reason": reason, "version": version})
    counting: tuple[Counting, ...] = ()
    if request.counters is not None:
        if chosen is None:
            reasons = "; ".join(str(one["reason"]) for one in documents)
            raise UnavailableError(
                f"counters: leave --counters out, for no profiler of a GPU can be had here: {reasons}"
            )
        counting = chosen.counting(request.counters, request.count_first, known, environment)
    for one in counting[:1]:
        if one.name != name:
            documents.append({"name": one.name, "present": True, "reason": None, "version": one.version})
    return Chosen(name, chosen, counting, tuple(documents))
