"""Find captures in a folder and determine which files form one run.

`belonging` decides which parts belong together, based on the facts they state; `merging` reads and merges them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from aaco_pipeline.capture.belonging import Marks, pids_of, together
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats import (
    cupti,
    gpu_metrics,
    kineto,
    ncu,
    prometheus,
    rocpd,
    rocprof,
    rocprof_db,
    rocprofv3_csv,
    rocprofv3_json,
    thread_trace,
)
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.formats.parsing.regular_files import (
    Entry,
    files_beneath,
    is_folder,
    open_regular,
    readable_entries,
    require_bounded,
    settled,
)
from aaco_pipeline.formats.readers import FILE_READERS, FOLDER_READERS, READERS, Reader

_OF_PROCESS: Final = re.compile(r"(\d{1,18})_.*\.(?:att|out)")


def homes(paths: Sequence[Path], runs: Sequence[tuple[Path, frozenset[int]]]) -> Iterator[tuple[int | None, str]]:
    """Yield the run number for each path, or None and the reason if its process does not identify one run.

    A file without a reader belongs to the run of the nearest enclosing folder. Raw thread traces and code objects are
    named after their process: if the folder holds several runs, each file belongs to the run with its process, if there
    is exactly one. `runs` are folders with the known processes of each run.
    """
    by_folder: dict[Path, list[int]] = {}
    for number, (folder, _) in enumerate(runs):
        by_folder.setdefault(folder, []).append(number)
    for path in paths:
        nearest = next((folder for folder in path.parents if folder in by_folder), None)
        beside = by_folder[nearest] if nearest is not None else []
        named = _OF_PROCESS.fullmatch(path.name) if len(beside) > 1 else None
        if named is None:
            yield (beside[0] if beside else None), ""
            continue
        pid = int(named[1])
        found = [number for number in beside if pid in runs[number][1]]
        if len(found) == 1:
            yield found[0], ""
        else:
            yield None, f"with no run: {len(found) or 'none'} of the folder's {len(beside)} are of its process {pid}"


#: Folder of Kineto traces from graph capture, next to the traces of the replays; named by vLLM's profiler.
CAPTURE_TRACES: Final = "capture_traces"
#: Formats of device samples, which belong to whatever ran alongside them.
OF_DEVICES: Final[tuple[Reader, ...]] = (gpu_metrics, prometheus)


@dataclass(frozen=True)
class Found:
    """A recognized file or folder with its reader, and the folder of its run (or just the file)."""

    path: Path
    recognition: DetectedFormat
    reader: Reader
    run: Path
    #: First file of a multi-rank job or of a trace with captures; separates it from other runs in the folder.
    job: Path | None = None


def with_ranks_together(found: Sequence[Found]) -> list[Found]:
    """Group Kineto traces of one job's ranks into one run, with the reason for joining or separating them.

    Traces in a sibling folder `capture_traces` belong to each of these runs and are not a run themselves.
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
        alone = [kineto.Together(tuple(traces), "")]
        for run in kineto.together(list(traces)) if len(traces) > 1 else alone:
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
    """Assign device samples to the only trace next to them; if there are several, the samples are a separate run.

    Parts that state their run themselves are separated later, in `belonging`.
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


#: Start of the reason for a file that could not be opened.
UNREADABLE: Final = "cannot be read: "
#: Name of the totals of a decoded thread trace, next to its folder.
STATISTICS: Final = "stats_ui_output_"
_PASS_FOLDER: Final = re.compile(r"pass_\d+")
_PROCESS_FILE: Final = re.compile(r"\d+_.+")
_SUFFIXES: Final = re.compile(r"(_results)?(\.(db|json))?(\.gz)?$")
_KEPT_RAW: Final = {
    ".att": "raw thread trace: its decoder is not open; the decoded ui_output folder is read instead",
    ".out": "code object: kept for disassembly, not read",
    **dict.fromkeys(
        (".nsys-rep", ".qdrep"),
        "Nsight Systems' own report, which only its tools read: nsys export --type sqlite REPORT, and ingest that",
    ),
}


@dataclass(frozen=True)
class Part:
    """Files of one run that a single reader reads together. `name` is their common path inside the run.

    `path` is the file or folder given to the reader, or None if the reader receives the files. `counts_first`: counters
    cover only the first executions of each kernel.
    """

    name: str
    format: str
    detail: str
    files: tuple[Path, ...]
    reader: str
    path: Path | None = None
    counts_first: bool = False

    @property
    def holds_captures(self) -> bool:
        """True for a trace of graph captures whose graphs are replayed in the run's own traces."""
        return self.reader == _name(kineto) and self.name.startswith(f"{CAPTURE_TRACES}/")

    def read(self, limits: Limits) -> CaptureTables:
        """Read the files. CaptureError if they are unreadable."""
        if self.path is None:
            return _BY_FILES[self.reader](self.files, limits)
        return _BY_NAME[self.reader].read(self.path, limits)


@dataclass(frozen=True)
class Unread:
    """A file that is not read, and the reason."""

    path: Path
    reason: str


@dataclass
class Run:
    """A run of a workload, which becomes one session.

    `digest` is its content digest if discovery computed it, else None. `pids` are the processes stated by its parts,
    set if its folder holds several runs.
    """

    folder: Path
    parts: list[Part] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    digest: str | None = field(default=None, compare=False)
    pids: frozenset[int] = field(default=frozenset(), compare=False)


@dataclass(frozen=True)
class DiscoveredRuns:
    """All runs under a path, and the files that belong to none."""

    runs: tuple[Run, ...]
    unread: tuple[Unread, ...]


def discover_runs(path: Path) -> DiscoveredRuns:
    """Recognize everything under `path`. CaptureError if it is missing, a link, a special file or unreadable."""
    return _discovered(path, apart=True)


def _discovered(path: Path, *, apart: bool) -> DiscoveredRuns:
    """Find the runs under a path; with `apart`, parts in one folder are only joined if they state their run."""
    path = settled(path)
    found: list[Found] = []
    unread: list[Unread] = []
    top = path if is_folder(path) else path.parent
    for entry in _entries(path):
        one = _recognized(entry, top)
        if isinstance(one, Unread):
            unread.append(one)
        elif one is not None:
            found.append(one)
    runs = _runs(with_devices_beside(with_ranks_together(found)), [left.path for left in unread], apart=apart)
    strangers: list[Unread] = []
    folders = [(run.folder, run.pids) for run in runs]
    for left, (home, why) in zip(unread, homes([left.path for left in unread], folders), strict=True):
        told = replace(left, reason=f"{left.reason}; {why}") if why else left
        (strangers if home is None else runs[home].unread).append(told)
    return DiscoveredRuns(tuple(runs), tuple(strangers))


def the_run(folder: Path, remedy: str) -> Run:
    """Return the only run in a raw folder; files that were ingested together are not separated again.

    CaptureError, with the remedy, if it holds no run or several unrelated ones.
    """
    found = _discovered(folder, apart=False).runs
    if len(found) != 1:
        raise CaptureError(f"{folder}: holds {len(found)} runs, expected one; {remedy}")
    return found[0]


def _entries(path: Path) -> Iterator[Entry]:
    """Yield every file, and every folder that is itself a capture format; links are not followed."""
    if not is_folder(path):
        yield Entry(path, is_folder=False)
        return
    seen = 0
    pending = [(path, 0)]
    while pending:
        folder, depth = pending.pop()
        if any(reader.probe(folder) for reader in FOLDER_READERS):
            yield Entry(folder, is_folder=True)
            continue
        listed = readable_entries(folder)
        seen += len(listed)
        for entry in listed:
            require_bounded(path, entry.path, seen, depth + entry.is_folder)
            if entry.is_folder:
                pending.append((entry.path, depth + 1))
            elif not entry.path.name.startswith("."):
                yield entry


def _recognized(entry: Entry, top: Path) -> Found | Unread | None:
    """Return the entry with its reader and the folder of its run, or the reason why it is not read."""
    path = entry.path
    if entry.refused is not None:
        return Unread(path, entry.refused)
    if not entry.is_folder and (reason := _unreadable(path)) is not None:
        return Unread(path, f"{UNREADABLE}{reason}")
    for reader in FOLDER_READERS if entry.is_folder else FILE_READERS:
        recognition = reader.probe(path)
        if recognition is not None:
            return Found(path, recognition, reader, _run_folder(path, reader, top))
    if path.name.startswith(STATISTICS):
        return Unread(path, "sums of the decoded thread trace beside it, which is read and compared with them")
    return Unread(path, _KEPT_RAW.get(path.suffix, "not recognized as any known capture format"))


def _unreadable(path: Path) -> str | None:
    """Return why this user cannot read a file, regardless of its format."""
    try:
        open_regular(path).close()
    except OSError as error:
        return f"{error.strerror or error}; check its permissions"
    return None


def _run_folder(path: Path, reader: Reader, top: Path) -> Path:
    """Return the folder of an entry's run: rocprofv3 creates separate folders for hosts and passes."""
    if reader in _ALONE or (reader is thread_trace and (path == top or not path.name.startswith("ui_output_"))):
        return path
    folder = path.parent
    if folder != top and _PROCESS_FILE.fullmatch(path.name) and _is_host_folder(folder, path, reader):
        folder = folder.parent
    if folder != top and _PASS_FOLDER.fullmatch(folder.name):
        folder = folder.parent
    return folder


def _is_host_folder(folder: Path, path: Path, reader: Reader) -> bool:
    """Return whether a folder is the host-named one that rocprofv3 creates inside the run's folder."""
    beside = [entry.path.name for entry in readable_entries(folder.parent) if entry.is_folder]
    if any(name.startswith("ui_output_") for name in beside) or _PASS_FOLDER.fullmatch(folder.parent.name):
        return True
    return reader is rocpd and folder.name in rocpd.hosts(path)


def _runs(found: Sequence[Found], others: Sequence[Path], *, apart: bool) -> list[Run]:
    """Group the recognized files into runs; `others` are unread files whose names may be informative."""
    runs: dict[tuple[Path, Path | None], Run] = {}
    texts: dict[Path, dict[str, list[Path]]] = {}
    series: dict[tuple[Path, Path | None], list[Found]] = {}
    for one in sorted(found, key=lambda one: str(one.path)):
        run = runs.setdefault((one.run, one.job), Run(one.run))
        if one.reader is rocprofv3_csv:
            texts.setdefault(one.run, {}).setdefault(rocprofv3_csv.run_key(one.path), []).append(one.path)
        elif one.reader is prometheus:
            series.setdefault((one.run, one.job), []).append(one)
        else:
            run.parts.append(_part(run, one))
    for folder, by_key in texts.items():
        run = runs[folder, None]
        run.parts.extend(_text_part(run, key, paths) for key, paths in by_key.items())
    for place, files in series.items():
        runs[place].parts.append(_series_part(runs[place], files))
    for run in runs.values():
        _drop_repetitions(run)
    # Ranks of one job were already grouped.
    return [piece for (_, job), run in runs.items() for piece in (_split(run, others) if apart and not job else [run])]


def _part(run: Run, one: Found) -> Part:
    files = [one.path]
    if one.reader in FOLDER_READERS:
        files, others = files_beneath(one.path)
        run.unread += [Unread(entry.path, entry.refused or "") for entry in others]
    name = one.path.relative_to(run.folder).as_posix() if one.path != run.folder else one.path.name
    return Part(name, one.recognition.format, one.recognition.detail, tuple(files), _name(one.reader), one.path)


def _text_part(run: Run, key: str, paths: list[Path]) -> Part:
    kinds = ", ".join(sorted(path.name for path in paths))
    name = Path(key).relative_to(run.folder).as_posix() if Path(key).is_relative_to(run.folder) else key
    detail = f"rocprofv3 CSV: {kinds}"
    return Part(name or run.folder.name, "rocprofv3-csv", detail, tuple(paths), _name(rocprofv3_csv))


def _series_part(run: Run, found: Sequence[Found]) -> Part:
    """Combine all device sensor series in one folder into a single part."""
    if len(found) == 1:
        return _part(run, found[0])
    first = found[0].recognition
    detail = f"{len(found)} files: {', '.join(dict.fromkeys(one.recognition.detail for one in found))}"
    return Part("GPU series", first.format, detail, tuple(one.path for one in found), _name(prometheus))


def _drop_repetitions(run: Run) -> None:
    """If one process has output in several formats, keep only the most detailed."""
    by_stem: dict[str, list[Part]] = {}
    for part in run.parts:
        if part.format in _RICHEST_FIRST:
            by_stem.setdefault(_stem(part), []).append(part)
    for parts in by_stem.values():
        best, *others = sorted(parts, key=lambda part: _RICHEST_FIRST.index(part.format))
        for other in others:
            if other.format == best.format:
                continue
            run.parts.remove(other)
            reason = f"the same run as {best.name} in another format; {best.format} holds more and is read"
            run.unread.extend(Unread(path, reason) for path in other.files)


def _stem(part: Part) -> str:
    """Return the common path of one process's output files, without `_results` and suffixes."""
    if part.reader in (_name(rocprof), _name(rocprof_db)):
        folder, slash, file = part.name.rpartition("/")
        return f"{folder}{slash}{file.split('.')[0]}"
    return _SUFFIXES.sub("", part.name)


def _split(run: Run, others: Sequence[Path]) -> list[Run]:
    """Split the parts in one folder into runs, each in the order of its first part."""
    if len(run.parts) < 2:
        return [run]
    raws = [(path.parent, raw) for path in others if (raw := thread_trace.raw_trace(path)) is not None]
    marks = [_marks(run, part, raws) for part in run.parts]
    pieces = [
        Run(run.folder, [run.parts[i] for i in members], pids=pids_of([marks[i] for i in members]))
        for members in together(marks)
    ]
    pieces[0].unread.extend(run.unread)
    return pieces


def _marks(run: Run, part: Part, raws: Sequence[tuple[Path, tuple[str, int, int]]]) -> Marks:
    """Return the facts that a part states about itself and that may link it to other parts."""
    name = part.files[0].relative_to(run.folder).as_posix() if part.files else part.name
    if part.reader == _name(thread_trace):
        place = part.path or run.folder
        own = thread_trace.traced_dispatch(place)
        beneath = [raw for folder, raw in raws if folder.is_relative_to(place.parent)]
        pids = frozenset(pid for agent, number, pid in beneath if (agent, number) == (own.agent, own.dispatch))
        return Marks(name, is_thread_trace=True, agent=own.agent, dispatch=own.dispatch, pids=pids, kernels=own.kernels)
    if part.reader in map(_name, OF_DEVICES):
        return Marks(name, is_devices=True)
    if part.reader in map(_name, (*_ALONE, cupti)):
        # A recording keeps its processes' CUPTI streams in a separate folder.
        return Marks(name, f"{Path(name).parent}/cupti" if part.reader == _name(cupti) else None, is_trace=True)
    if part.reader == _name(rocprofv3_csv):
        stem = "" if part.name == "." else part.name
        return Marks(name, stem, is_trace=any("kernel_trace" in path.name for path in part.files))
    if part.reader in (_name(rocprof), _name(rocprof_db)):
        return Marks(name, _stem(part), is_trace=part.reader == _name(rocprof_db))
    stated = {_name(rocpd): rocpd.stated_processes, _name(rocprofv3_json): rocprofv3_json.stated_processes}[part.reader]
    traced = partial(rocpd.traced, part.files[0]) if part.reader == _name(rocpd) else None
    return Marks(name, _stem(part), is_trace=True, processes=stated(part.files[0]), traced=traced)


def _name(reader: Reader) -> str:
    return reader.__name__.rpartition(".")[2]


_BY_NAME: Final[dict[str, Reader]] = {_name(reader): reader for reader in READERS}
#: Formats with several files per run, or that belong to whatever ran alongside them.
_IN_PARTS: Final[tuple[Reader, ...]] = (
    *(rocpd, rocprof_db, rocprofv3_json, rocprofv3_csv, rocprof, ncu, cupti, thread_trace),
    *OF_DEVICES,
)
#: Formats in which every file is its own run; traces of one job's ranks are grouped afterwards.
_ALONE: Final = tuple(reader for reader in READERS if reader not in _IN_PARTS)
#: Formats whose files are read together.
_BY_FILES: Final = {_name(rocprofv3_csv): rocprofv3_csv.read_run, _name(prometheus): prometheus.read_run}
_RICHEST_FIRST: Final = ("rocpd", "rocprofv3-json", "rocprofv3-csv", "rocprof-database", "rocprof-csv")
