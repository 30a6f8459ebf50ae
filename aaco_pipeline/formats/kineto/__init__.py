"""PyTorch Kineto's Chrome JSON traces, from ROCm and CUDA, in any layout and optionally gzip-compressed.

Written by PyTorch's profiler; verified with traces of PyTorch 2.0 to 2.9. Keys come in any order: `deviceProperties`
and `schemaVersion` may follow the events. The reader relies on these properties: `ts` and `dur` are microseconds with
up to three decimals; `ts` counts from `baseTimeNanoseconds`, or from the Unix epoch if the trace has no such key;
`grid` counts blocks; the category `cuda_runtime` (formerly `Runtime`) contains ROCm's hip* calls; device activities
name device and stream in `args` and their launching call by `correlation`, which many activities of one graph launch
share. Not read: the viewer's counters and instants, the profiler's own overhead, and ranges written as two events.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, FormatRow, Limits
from aaco_pipeline.formats.parsing.compression import Unpacked, first_bytes, open_decompressed
from aaco_pipeline.formats.parsing.json_document import parsed

DOCUMENTATION: Final = FormatRow(
    "PyTorch (Kineto) trace of ROCm or CUDA, also gzip",
    "its first keys, or a kernel's arguments where they come late",
    "dispatches, calls, copies, operators, annotations, waits",
)
_PROBED_BYTES: Final = 64 << 10
_TELLING: Final = (b'"schemaVersion"', b'"baseTimeNanoseconds"', b'"deviceProperties"', b'"cpu_op"', b'"cuda_runtime"')
#: A kernel or copy with Kineto's arguments; Chrome traces of other tools have no stream and correlation.
_ACTIVITY: Final = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_memcpy|gpu_memset|Memcpy|Memset)"[^{}]{0,8192}"args"\s*:\s*\{'
    rb'(?=[^{}]{0,8192}"stream"\s*:)[^{}]{0,8192}"correlation"\s*:'
)


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a trace by its first keys; None for anything else. Reads at most 64 KiB."""
    head = first_bytes(path, _PROBED_BYTES)
    is_trace = head.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in head or b'"ph"' in head)
    if is_trace and (any(word in head for word in _TELLING) or _ACTIVITY.search(head) is not None):
        return DetectedFormat("kineto", "PyTorch Kineto trace (Chrome JSON)")
    return None


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read a trace; times are int64 ns of its own clock `kineto`, exact to the last digit of the text.

    Tables: `processes`, `devices`, `clock_domains`, `kernels`, `dispatches`, `api_calls`, `memory_copies`, `markers`
    (with an additional row for each operator that records a collective), `synchronizations`, `environment`,
    `operator_inputs` (if the trace recorded the inputs of operators: `record_shapes=True`). Details: `source_rows`;
    `streams` (`stream_id`, `device_id`, `source_stream`); `launch_facts` (`dispatch_id`, `registers_per_thread`,
    `blocks_per_sm`, `warps_per_sm`, `estimated_occupancy_percent`) if the trace states them; `named_launches`
    (`call_id`, `kernel`, work-items of grid and workgroup) if calls state what they launch, as on ROCm;
    `forward_backward` (`flow_id`, `role` s or f, `thread_id`, `time_ns`) if operators of the backward pass are linked
    to those of the forward pass.

    A time with more than three decimals is rounded to the nearest nanosecond, half away from zero; start and duration
    are rounded separately. A truncated trace is read up to its last complete event and reported as `partial`.
    CaptureError if the file is not a trace, is damaged before its end or exceeds the limits.
    """
    from aaco_pipeline.formats.kineto import reading

    return reading.read(path, limits or Limits())


#: Number of bytes examined at the start and end of a trace.
LOOKED_BYTES: Final = 1 << 20
#: Maximum number of bytes unpacked to reach the end of a compressed trace and check whether it is complete.
UNPACKED_BYTES: Final = 64 << 20
_KEY: Final = "distributedInfo"
_MOST_RANKS: Final = 2**31 - 1
#: Longer lists of ranks are shortened to the first and last rank.
_LISTED: Final = 16
#: Keys with the same value in all ranks of a job; driver versions may differ between hosts.
_COMMON: Final = ("backend", "nccl_version")
_COMMON_OF_TRACE: Final = ("hip_runtime_version", "cuda_runtime_version")
#: Keys of the group of all ranks; other groups in `pg_config` are those that contain the rank.
_COMMON_OF_WORLD: Final = ("pg_name", "pg_desc", "backend_config", "ranks")

_Stream = Unpacked | io.BufferedReader


@dataclass(frozen=True)
class Stated:
    """Job information stated in a trace; `missing` gives the reason if rank and world_size are None."""

    rank: int | None = None
    world_size: int | None = None
    trace_id: str | None = None
    common: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None


@dataclass(frozen=True)
class Together:
    """Traces that form one run, or a single trace, and the reason."""

    paths: tuple[Path, ...]
    reason: str


def together(paths: Sequence[Path]) -> list[Together]:
    """Group the Kineto traces of one folder into runs, in order of their first file.

    Traces form one run if each states a rank, all state the same world_size above 1, no rank occurs twice, and nothing
    that ranks of a job have in common differs. Any other trace is a separate run.
    """
    found = {path: stated(path) for path in paths}
    jobs: dict[int, list[Path]] = {}
    runs: list[Together] = []
    for path, what in found.items():
        if what.missing is not None:
            runs.append(Together((path,), f"a run of its own: {what.missing}"))
        else:
            jobs.setdefault(what.world_size or 0, []).append(path)
    for size, members in jobs.items():
        runs += _job(members, size, [found[path] for path in members], others=len(jobs) > 1)
    place = {path: number for number, path in enumerate(paths)}
    return sorted(runs, key=lambda run: place[run.paths[0]])


def _job(members: Sequence[Path], size: int, ranks: Sequence[Stated], *, others: bool) -> list[Together]:
    """Form one run of all traces with this world_size, or one run each if something contradicts that."""
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    against: str | None
    if len(members) == 1:
        against = "the other traces of the folder state another world_size" if others else "no other one states its job"
    elif (against := _contradiction(ranks, numbers)) is None:
        listed = ", ".join(map(str, numbers)) if len(numbers) <= _LISTED else f"{numbers[0]} to {numbers[-1]}"
        reason = f"one run of {len(members)} ranks ({listed} of {size}): each states its rank in the same job"
        return [Together(tuple(members), reason)]
    return [
        Together((path,), f"a run of its own: rank {rank.rank} of {size}; {against}")
        for path, rank in zip(members, ranks, strict=True)
    ]


def _contradiction(ranks: Sequence[Stated], numbers: Sequence[int]) -> str | None:
    """Explain why traces with one world_size cannot be ranks of one job; None if nothing contradicts it."""
    twice = next((number for number, following in pairwise(numbers) if number == following), None)
    if twice is not None:
        return f"rank {twice} is there more than once, so that it is not known which traces belong together"
    for key in dict.fromkeys(chain.from_iterable(rank.common for rank in ranks)):
        values = {rank.common[key] for rank in ranks if key in rank.common}
        if len(values) > 1:
            return f"the traces state different {key}, so that they are of different jobs"
    identifiers = [rank.trace_id for rank in ranks if rank.trace_id is not None]
    if len(set(identifiers)) < len(identifiers):
        return "traces state one trace_id and different ranks, so that one is a changed copy of the other"
    return None


def stated(path: Path) -> Stated:
    """Read a trace's rank from its first or last megabyte.

    Damaged compressed data states nothing: a file that cannot be copied must not be part of a run.
    """
    try:
        with open_decompressed(path) as stream:
            head = stream.read(LOOKED_BYTES)
            end = _end(stream, head)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return Stated(missing="its packed data is damaged or cut")
    except (CaptureError, OSError) as error:
        return Stated(missing=f"it cannot be looked at: {error}")
    keys = _leading(head)
    if _KEY not in keys and end is None:
        reason = f"its end, where it may state a rank, is behind {UNPACKED_BYTES >> 20} MiB of packed data"
        return Stated(missing=reason)
    return _understood(keys if _KEY in keys else {**keys, **_trailing(end or b"")})


def _understood(keys: Mapping[str, Any]) -> Stated:
    told = keys.get(_KEY)
    if not isinstance(told, dict):
        return Stated(missing="it states no rank (no distributedInfo at its beginning or end)")
    rank, size = told.get("rank"), told.get("world_size")
    if type(rank) is not int or not 0 <= rank < _MOST_RANKS:
        return Stated(missing="its distributedInfo states no rank")
    if type(size) is not int or size > _MOST_RANKS:
        return Stated(missing=f"it is rank {rank} and does not state of how many")
    if size <= 1 or rank >= size:
        return Stated(missing=f"it is rank {rank} in a world of {size}: no job of several ranks")
    identifier = keys.get("trace_id")
    return Stated(rank, size, identifier if isinstance(identifier, str) else None, _common(keys, told, size))


def _common(keys: Mapping[str, Any], told: Mapping[str, Any], size: int) -> dict[str, str]:
    """Collect, as text, all values that must be the same in every rank of the job."""
    common = {name: told[name] for name in _COMMON if name in told}
    common |= {name: keys[name] for name in _COMMON_OF_TRACE if name in keys}
    groups = told.get("pg_config")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and group.get("pg_size") == size and group.get("pg_desc") == "default_pg":
            common |= {f"{name} of the default group": group[name] for name in _COMMON_OF_WORLD if name in group}
    return {name: json.dumps(value, sort_keys=True) for name, value in common.items()}


def _leading(head: bytes) -> dict[str, Any]:
    """Parse the keys of the outermost object up to `traceEvents`, or up to the first unreadable one."""
    text = head.decode("utf-8", errors="replace")
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    place = _past_space(text, 0)
    if text[place : place + 1] != "{":
        return found
    separator = "{"
    while text[place : place + 1] == separator:
        try:
            key, place = decoder.raw_decode(text, _past_space(text, place + 1))
            place = _past_space(text, place)
            if key == "traceEvents" or not isinstance(key, str) or text[place : place + 1] != ":":
                break
            found[key], place = decoder.raw_decode(text, _past_space(text, place + 1))
        except (ValueError, RecursionError):
            break
        place, separator = _past_space(text, place), ","
    return found


def _trailing(end: bytes) -> dict[str, Any]:
    """Parse the outermost object's keys from `distributedInfo` to the end of the file.

    The text after the key closes exactly one object only if the key belongs to the outermost object rather than to an
    event's arguments.
    """
    text = end.decode("utf-8", errors="replace")
    place = text.rfind(f'"{_KEY}"')
    try:
        found = parsed("{" + text[place:]) if place >= 0 else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _end(stream: _Stream, head: bytes) -> bytes | None:
    """Return the last bytes of a file that begins with `head`; None if they are too far into compressed data."""
    if not isinstance(stream, Unpacked):
        stream.seek(max(stream.seek(0, io.SEEK_END) - LOOKED_BYTES, 0))
        return stream.read(LOOKED_BYTES)
    # GzipFile.read returns the requested number of bytes unless the end is reached.
    kept, taken = head, len(head)
    while piece := stream.read(LOOKED_BYTES):
        kept, taken = (kept + piece)[-LOOKED_BYTES:], taken + len(piece)
        if taken > UNPACKED_BYTES:
            return None
    return kept


def _past_space(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\r", "\t"):
        place += 1
    return place
