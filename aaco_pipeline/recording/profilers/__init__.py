"""Profilers that a recording can run with a GPU program, and the selection among them.

Each profiler is a module here that reports whether it is available.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aaco_pipeline.errors import AacoError, UnavailableError
from aaco_pipeline.recording.profilers import cupti, ncu, rocprofv3
from aaco_pipeline.recording.request import RecordRequest
from aaco_pipeline.resources.rocprofv3.counter_groups import CounterSets

#: Reason why a profiler was not looked for.
_NOT_ASKED: Final = "not asked for"


#: A counting run, which may fail even if the program alone does not.
Counting = ncu.Counting | rocprofv3.Counting
#: A tracing profiler, with the corresponding counter profiler for the same GPUs.
DeviceProfiler = rocprofv3.Rocprofv3 | cupti.Injection
#: A profiler for a run: `around` is the command prefix, `environment` its additions to the program's variables.
Beside = Counting | DeviceProfiler


@dataclass(frozen=True)
class Chosen:
    """The profiler for the traced run, if any, the counting runs, and the capture's entry for each profiler."""

    name: str | None
    profiler: DeviceProfiler | None
    counting: tuple[Counting, ...]
    documents: tuple[Mapping[str, Any], ...]


def choose(request: RecordRequest, environment: Mapping[str, str], known: Callable[[], CounterSets]) -> Chosen:
    """Choose the requested profiler, or with `auto` the first that works here, and the counting runs.

    `known` contains the AMD counter sets. Raises UnavailableError, with the remedy, if a profiler requested by name
    does not work or no profiler here can count.
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
            except AacoError as error:  # for example an unusable cache: the runs are made anyway
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
