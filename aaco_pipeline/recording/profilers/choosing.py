"""The one protocol of device profilers, and which of them is put beside a program's traced run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from aaco_pipeline.cache_folder import default_cache_dir
from aaco_pipeline.errors import AacoError, UnavailableError
from aaco_pipeline.recording.profilers import cupti, rocprofv3

#: Why a profiler was not looked for.
_NOT_ASKED: Final = "not asked for"


class DeviceProfiler(Protocol):
    """What a traced run needs of a profiler: how the program is started under it, so that it writes into a folder."""

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


@dataclass(frozen=True)
class Chosen:
    """The profiler of the traced run, if there is one, and what to say of each in the capture."""

    name: str | None
    profiler: DeviceProfiler | None
    documents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class _Injected:
    """CUPTI: a library in every process of the program; the command stays as it is."""

    injection: cupti.Injection

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        return tuple(program)

    def environment(self, folder: Path) -> dict[str, str]:
        return self.injection.environment(folder)

    @property
    def version(self) -> str | None:
        return str(self.injection.cupti.api_version)


def choose(trace: str, command: Sequence[str], environment: Mapping[str, str]) -> Chosen:
    """The profiler that `trace` asks for, or with `auto` the first that works here.

    UnavailableError, with what to do, when one that is asked for by its name does not.
    """
    makers: dict[str, Callable[[], DeviceProfiler]] = {
        rocprofv3.NAME: lambda: rocprofv3.prepared(environment),
        "cupti": lambda: _Injected(cupti.prepared(default_cache_dir(), command, environment)),
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
    return Chosen(name, chosen, tuple(documents))
