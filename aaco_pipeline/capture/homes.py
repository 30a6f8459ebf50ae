"""The run of files whose folder does not say it: traces of one job's ranks, and samples of devices beside a trace.

Which of a folder's parts are of one run by what they say of themselves is `aaco_pipeline.capture.belonging`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aaco_pipeline.formats import gpu_metrics, kineto
from aaco_pipeline.formats.capture_tables import DetectedFormat
from aaco_pipeline.formats.gpu_metrics import prometheus
from aaco_pipeline.formats.kineto import ranks as kineto_ranks
from aaco_pipeline.formats.readers import Reader

#: A folder of Kineto traces, beside those of replays, in which the replayed graphs were captured; vLLM's profiler
#: calls it so.
CAPTURE_TRACES: Final = "capture_traces"
#: Formats of samples of devices, which are of whatever ran beside them.
OF_DEVICES: Final[tuple[Reader, ...]] = (gpu_metrics, prometheus)


@dataclass(frozen=True)
class Found:
    """A recognized file or folder with its reader, and the folder, or the file alone, that its run is."""

    path: Path
    recognition: DetectedFormat
    reader: Reader
    run: Path
    #: Tells ranks of one job, or a trace with captures, from another run of the same folder: the first of their files.
    job: Path | None = None


def with_ranks_together(found: Sequence[Found]) -> list[Found]:
    """The files with Kineto traces of one job's ranks in one run, and with why they are, or are not.

    Traces in a folder `capture_traces` beside them belong to each of these runs, and are none of their own.
    """
    by_folder: dict[Path, dict[Path, Found]] = {}
    for one in sorted(found, key=lambda one: str(one.path)):
        if one.reader is kineto:
            by_folder.setdefault(one.path.parent, {})[one.path] = one
    captures = {
        folder: [traces[path] for path in traces]
        for folder, traces in by_folder.items()
        if folder.name == CAPTURE_TRACES and folder.parent in by_folder
    }
    told: list[Found] = []
    for folder, traces in by_folder.items():
        if folder in captures:
            continue
        beside = captures.get(folder / CAPTURE_TRACES, [])
        if len(traces) == 1 and not beside:
            told += traces.values()
            continue
        alone = [kineto_ranks.Together(tuple(traces), "")]
        for run in kineto_ranks.together(list(traces)) if len(traces) > 1 else alone:
            together = len(run.paths) > 1 or beside
            home, job = (folder, run.paths[0]) if together else (run.paths[0], None)
            for path in run.paths:
                known = traces[path].recognition
                detailed = replace(known, detail=f"{known.detail}; {run.reason}") if run.reason else known
                told.append(replace(traces[path], recognition=detailed, run=home, job=job))
            for one in beside:
                detail = f"{one.recognition.detail}; the graphs captured in it tell the operators of replays"
                recognition = replace(one.recognition, detail=detail)
                told.append(replace(one, recognition=recognition, run=home, job=job))
    return [*(one for one in found if one.reader is not kineto), *told]


def with_devices_beside(found: Sequence[Found]) -> list[Found]:
    """Samples of devices in the run of the one trace that lies beside them; beside several they are a run of their own.

    Whatever says by itself which parts are of one run is told apart later, by `belonging`.
    """
    told = list(found)
    for folder in sorted({one.run for one in found if one.reader in OF_DEVICES}):
        samples = [at for at, one in enumerate(told) if one.reader in OF_DEVICES and one.run == folder]
        beside = {
            (one.run, one.job)
            for one in told
            if one.reader not in OF_DEVICES
            and (one.run == folder or (one.path == one.run and one.path.parent == folder))
        }
        if len(beside) > 1:
            for at in samples:
                told[at] = replace(told[at], job=told[samples[0]].path)
        for run, job in beside if len(beside) == 1 else ():
            told = [replace(one, run=folder) if one.run == run else one for one in told]
            for at in samples:
                told[at] = replace(told[at], job=job)
    return told
