"""Read a CUPTI stream into canonical tables, with evidence of what was recorded, lost or not requested.

`stream` reads the columns; `tables` builds the tables.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits, table_of
from aaco_pipeline.formats.cupti import stream as layout
from aaco_pipeline.formats.cupti.stream import Columns, Stream, read_stream
from aaco_pipeline.formats.cupti.tables import (
    Link,
    Streams,
    allocations,
    api_calls,
    copies,
    distinct,
    kernels_and_dispatches,
    markers,
    waits,
)
from aaco_pipeline.formats.parsing.redaction import safe_value
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import DROPPED, Status
from aaco_pipeline.lake.on_disk import GrowingColumn, pieces_of

#: Clock of the tables' times; CUPTI's times are shifted to it.
CLOCK: Final = "monotonic"
_KHZ_PER_MHZ: Final = 1e3
#: A larger jump than slewing causes within a run shows that another clock was installed.
_OTHER_CLOCK_NS: Final = 1_000_000_000
#: CUPTI's number for no device.
NO_DEVICE: Final = 0xFFFFFFFF
#: Larger clock readings or sizes show that the stream is damaged.
_MOST: Final = 1 << 62
#: Format in which the recorder passes on a job's rank.
_RANK: Final = re.compile(r"[0-9]{1,8}")


def process(stream: Stream) -> pl.DataFrame:
    """Build the table `processes`: the process that wrote the stream."""
    host, rank = (_noted(stream, what) for what in ("host", "rank"))
    row = {
        "process_id": 0,
        "rank": int(rank) if rank and _RANK.fullmatch(rank) else None,
        "guid": f"{stream.header['pid']}@{stream.header['monotonic']}",
        "host": safe_value("host", host) if host else None,
        "pid": stream.header["pid"],
    }
    return table_of("processes", [row])


def _noted(stream: Stream, what: str) -> str | None:
    return next((note.removeprefix(f"{what} ") for note in stream.notes if note.startswith(f"{what} ")), None)


def devices(stream: Stream, used: Sequence[int], findings: Findings) -> tuple[pl.DataFrame, dict[int, int]]:
    """Build the table `devices`, ordered by CUDA's number in the process, and map these numbers to devices.

    `used` are numbers named in activities; the stream may not describe all of them.
    """
    rows = dict(_described(stream, stream.take(layout.DEVICES)))
    unknown = {number: f"CUDA device {number}" for number in sorted(set(used) - set(rows))}
    unknown |= {NO_DEVICE: "device not stated"} if NO_DEVICE in unknown else {}
    rows |= {number: {"vendor": "NVIDIA", "handle": handle} for number, handle in unknown.items()}
    reason = f"the stream does not describe these: {', '.join(unknown.values())}"
    findings.note(len(unknown), "device properties", "partial", reason)
    numbered = {number: at for at, number in enumerate(sorted(rows))}
    return table_of("devices", ({**rows[number], "device_id": at} for number, at in numbered.items())), numbered


def _require(stream: Stream, what: str, numbers: Iterable[int]) -> None:
    """Raise CaptureError for impossible numbers."""
    if any(not 0 <= number < _MOST for number in numbers):
        raise CaptureError(f"{stream.path}: damaged: impossible numbers are stated of {what}; copy the file again")


def _described(stream: Stream, records: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    for at, number in enumerate(records["device"].tolist()):
        major, minor, clock_khz = (int(records[name][at]) for name in ("major", "minor", "clock_khz"))
        sizes = {column: int(records[name][at]) for column, name in _SIZES.items()}
        _require(stream, f"CUDA device {number}", (major, minor, clock_khz, *sizes.values()))
        yield (
            number,
            {
                "vendor": "NVIDIA",
                "arch": f"sm_{major}{minor}",
                "arch_source": "capture",
                "product": records["name"][at].decode(errors="replace") or None,
                "max_clock_mhz": clock_khz / _KHZ_PER_MHZ,
                **sizes,
                # Spelled as by nvidia-smi and NVML.
                "handle": f"GPU-{uuid.UUID(bytes=records['uuid'][at].tobytes())}",
            },
        )


_SIZES: Final = {
    **{"compute_units": "multiprocessors", "wavefront_size": "threads_per_warp", "memory_bytes": "memory_bytes"},
    **{"l2_bytes": "l2_bytes", "lds_bytes": "shared_per_multiprocessor"},
}


def onto_monotonic(stream: Stream, findings: Findings) -> tuple[int, pl.DataFrame, int | None]:
    """Return the shift from CUPTI's times to CLOCK_MONOTONIC, `clock_domains`, and when CUPTI's clock was replaced.

    The shift is 0 if CUPTI used the recorder's clock. Otherwise it is the midpoint of all pairs of readings, and half
    their spread is the uncertainty: CUPTI uses the wall clock by default, which is slewed. The last value is a time on
    CLOCK_MONOTONIC by which another tool had set CUPTI's clock; None if none did.
    """
    readings = stream.take(layout.CLOCKS)
    own = "clock monotonic" in stream.notes
    header = stream.header
    for name in ("monotonic", "realtime", "cupti"):
        _require(stream, "its clocks", [header[name], *readings[name].tolist()])
    rows: list[tuple[str, int | None, int | None, str]] = []
    by, uncertainty, anchor = 0, 0, "CUPTI read this clock for its own"
    since: int | None = None
    if len(readings["monotonic"]):
        apart = readings["monotonic"] - readings["cupti"]
        alike = np.abs(apart - apart[0]) < _OTHER_CLOCK_NS
        replaced = int((~alike).sum())
        if replaced:
            since = int(readings["monotonic"][~alike][0])
            reason = (
                f"another tool in the program gave CUPTI its own clock, as was seen at {since} ns: records that lie "
                "later, or before the recording, are of that clock and left out"
            )
            findings.say("clock of CUPTI", "partial", reason, replaced)
        if not own:
            low, high = int(apart[alike].min()), int(apart[alike].max())
            by = (low + high) // 2
            uncertainty = (high - low + 1) // 2 + int(readings["uncertainty"][alike].max())
            anchor = f"{int(alike.sum())} pairs of readings of CUPTI's clock and this one"
    elif not own:
        by, anchor = header["monotonic"] - header["cupti"], "one pair of readings, at the beginning"
        findings.say("clock of CUPTI", "partial", "read against the host's clock only once, at the beginning")
    rows.append((CLOCK, 0, uncertainty, anchor))
    ahead = (readings["monotonic"] - readings["realtime"]).tolist() or [header["monotonic"] - header["realtime"]]
    spread = (max(ahead) - min(ahead) + 1) // 2
    told = "the first of the recorder's readings of both clocks; the uncertainty is half their spread over the run"
    rows.append(("realtime", ahead[0], spread, told))
    return by, pl.DataFrame(rows, schema=polars_types("clock_domains"), orient="row"), since


def environment(stream: Stream) -> pl.DataFrame:
    """Build the table `environment`: versions of the driver and CUPTI."""
    driver, cupti = stream.header["driver_version"], stream.header["cupti_version"]
    rows = [("profiler", "cupti_api_version", str(cupti), False)]
    if driver:
        rows.append(("driver", "cuda", f"{driver // 1000}.{driver % 1000 // 10}", True))
    return pl.DataFrame(rows, schema=polars_types("environment"), orient="row")


_ACTIVITIES: Final = (layout.KERNELS, layout.COPIES, layout.FILLS)
_WITH_TIMES: Final = {
    **dict.fromkeys((*_ACTIVITIES, layout.CALLS, layout.WAITS, layout.OVERHEADS), ("start", "end")),
    **dict.fromkeys((layout.ALLOCATIONS, layout.RANGES), ("time",)),
}
_LACKING: Final = {
    "dispatches": "the process ran no kernel, or died before the first was recorded",
    "memory_copies": "the process copied and filled nothing",
    "api_calls": "the process made none of the calls that are recorded",
    "markers": "the process set no NVTX ranges",
    "memory_allocations": "the process allocated nothing",
    "synchronizations": "the process waited for nothing",
}
_AT_EXIT: Final = 1
_MS: Final = 1e6


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.cupti.read`."""
    return _Reading(read_stream(path, limits)).reading()


class _Reading:
    """A stream being converted to tables; each step adds its evidence."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.findings = stream, Findings(stream.path.name)
        self.counts = {kind: stream.count(kind) for kind in layout.WORDS}
        self._say_end()
        self._say_dropped()
        self._say_others()
        self.by, self.clocks, self.replaced_ns = onto_monotonic(stream, self.findings)
        self.left_out: dict[int, int] = {}
        self.columns = {kind: self._placed(kind) for kind in (*_WITH_TIMES, layout.EVENTS)}
        misplaced = sum(self.left_out.values())
        reason = (
            f"{misplaced} records have times of the clock that another tool in the program gave CUPTI: they lie "
            "outside the time in which the recorder's clock was CUPTI's; left out"
        )
        self.findings.note(misplaced, "records on another clock", "partial", reason)

    def reading(self) -> CaptureTables:
        """Build all tables and their evidence."""
        columns, stream = self.columns, self.stream
        self._at_their_contexts()
        lanes = [columns[kind] for kind in (*_ACTIVITIES, layout.WAITS, layout.EVENTS)]
        streams = Streams.of(*lanes)
        places = [one["device"] for one in lanes] + [columns[layout.COPIES][end] for end in ("source", "destination")]
        named = {int(number) for one in places for number in distinct(one)} - {NO_DEVICE}
        # Every kernel ran on a device, even if none is stated.
        used = sorted(named | {int(number) for number in distinct(columns[layout.KERNELS]["device"])})
        found, device_of = devices(stream, used, self.findings)
        link = Link.of(columns[layout.CALLS])
        overheads = columns.pop(layout.OVERHEADS)
        runs = columns.pop(layout.KERNELS)
        kernels, dispatches, facts = kernels_and_dispatches(stream, runs, link, streams, device_of)
        unlinked = {layout.KERNELS: dispatches.get_column("thread_id").null_count()}
        unlinked |= {kind: link.unknown(columns[kind]["correlation"]) for kind in (layout.COPIES, layout.FILLS)}
        ranges, paired = markers(stream, columns.pop(layout.RANGES), self.findings)
        tables = {
            "processes": process(stream),
            "devices": found,
            "clock_domains": self.clocks,
            "environment": environment(stream),
            "kernels": kernels,
            "dispatches": dispatches,
            "api_calls": api_calls(stream, columns.pop(layout.CALLS)),
            "memory_copies": copies(columns.pop(layout.COPIES), columns.pop(layout.FILLS), streams, device_of),
            "memory_allocations": allocations(columns.pop(layout.ALLOCATIONS), link, device_of),
            "markers": ranges,
            "synchronizations": waits(columns.pop(layout.WAITS), columns.pop(layout.EVENTS), streams, device_of),
        }
        self._say(tables, unlinked, paired)
        self._say_overhead(overheads)
        self._say_enabled()
        details = {"source_rows": self.findings.source_rows(), "streams": streams.listed(device_of)}
        if facts.height:
            details["launch_facts"] = facts
        return CaptureTables(tables, tuple(self.findings.evidence), details)

    def _placed(self, kind: int) -> Columns:
        """Shift the columns of a kind to the host's clock; 0 means that the time was not recorded, and stays 0."""
        columns = self.stream.take(kind)
        for name in _WITH_TIMES.get(kind, ()) if self.by else ():
            for rows in pieces_of(len(columns[name])):
                times = columns[name][rows]
                columns[name][rows] = np.where(times > 0, times + self.by, 0)
        return columns if self.replaced_ns is None else self._on_our_clock(kind, columns, self.replaced_ns)

    def _on_our_clock(self, kind: int, columns: Columns, replaced_ns: int) -> Columns:
        """Keep the records from the start until CUPTI's clock was replaced."""
        begin_ns = self.stream.header["monotonic"]
        times = [columns[name] for name in _WITH_TIMES.get(kind, ())]
        count = len(times[0]) if times else 0
        kept = {name: GrowingColumn(values.dtype) for name, values in columns.items()}
        for rows in pieces_of(count):
            sound = [(time[rows] == 0) | ((time[rows] >= begin_ns) & (time[rows] <= replaced_ns)) for time in times]
            chosen = np.logical_and.reduce(sound)
            for name, values in columns.items():
                kept[name].add(values[rows][chosen])
        if not count:
            return columns
        found = {name: column.array() for name, column in kept.items()}
        if left_out := count - len(next(iter(found.values()))):
            self.left_out[kind] = left_out
        return found

    def _at_their_contexts(self) -> None:
        """Add the device of their context to waits and events, because CUPTI does not state it."""
        contexts = self.stream.take(layout.CONTEXTS)
        known = dict(zip(contexts["context"].tolist(), contexts["device"].tolist(), strict=True))
        for kind in (layout.WAITS, layout.EVENTS):
            of_it = self.columns[kind]
            numbers = np.unique(of_it["context"])
            devices = np.array([known.get(number, NO_DEVICE) for number in numbers.tolist()], np.uint32)
            of_it["device"] = devices[np.searchsorted(numbers, of_it["context"])]

    def _say_end(self) -> None:
        stream = self.stream
        if stream.torn_bytes:
            reason = f"its last {stream.torn_bytes} bytes are a chunk that was not written whole; left out"
            self.findings.say("end of the stream", "partial", reason, stream.torn_bytes)
            return
        reasons = stream.take(layout.ENDS)["reason"]
        if _AT_EXIT not in reasons and not stream.ends_with_end:
            reason = (
                "the process did not finish: it was killed, or left by _exit; what it did in its last tenths "
                "of a second may be missing"
            )
            self.findings.say("end of the stream", "partial", reason)
        else:
            self.findings.say("end of the stream", "present")

    def _say_dropped(self) -> None:
        dropped = int(self.stream.take(layout.DROPPED)["count"].sum())
        reason = (
            f"{dropped} records were dropped in the program, of which kind is not known: its disk was too slow or full"
        )
        self.findings.note(dropped, DROPPED, "partial", reason)

    def _say_others(self) -> None:
        """Report other CUPTI clients in the program, so that the user can remove them."""
        for note in self.stream.notes:
            if note.startswith("other_profiler "):
                _, since, words = note.split(" ", 2)
                reason = (
                    f"{words} (noticed at {since} ns), so that from some time before on this recording lacks what the "
                    "GPU did; take the profiler out of the program and record again, or ingest the trace that it wrote"
                )
                self.findings.say("other profiler", "partial", reason)
                break
        for note in self.stream.notes:
            if note.startswith("other_cupti "):
                reason = (
                    f"the program loaded another CUPTI ({note.split(' ', 2)[2]}, which recorded this): a profiler in "
                    "the program (torch.profiler) then gets no GPU events for its own trace; take it out of the "
                    "program, or profile without aaco record"
                )
                self.findings.say("second CUPTI in the program", "partial", reason)
                break

    def _say(self, tables: dict[str, pl.DataFrame], unlinked: dict[int, int], paired: int) -> None:
        findings = self.findings
        for kind, words in layout.WORDS.items():
            taken = self.counts[kind] - self.left_out.get(kind, 0)
            taken = {layout.RANGES: paired, layout.OVERHEADS: 0}.get(kind, taken)
            if self.counts[kind]:
                findings.took(words, self.counts[kind], taken)
        for kind, count in sorted(self.stream.unknown.items()):
            findings.took(f"kind {kind}", count, 0)
            findings.say(f"records kind {kind}", "absent", "of a later recorder, unknown to this release", count)
        for name, lacking in _LACKING.items():
            findings.have(name, tables[name].height, lacking)
        untimed = tables["dispatches"].get_column("start_ns").null_count()
        reason = f"{untimed} kernels had not ended when the process did: they have no times"
        findings.note(untimed, "times of kernels", "partial", reason)
        for kind, count in unlinked.items():
            words = layout.WORDS[kind]
            if rows := self.counts[kind] - self.left_out.get(kind, 0):
                reason = f"{count} of {rows} have no recorded call with their correlation; they are kept"
                status: Status = "absent" if count == rows else "partial" if count else "present"
                findings.say(f"launch of {words}", status, reason if count else None, rows - count)
        unknown = tables["synchronizations"].filter(pl.col("kind") == "unknown").height
        findings.note(unknown, "kinds of waits", "partial", f"{unknown} waits are of a kind that CUPTI does not name")

    def _say_overhead(self, records: Columns) -> None:
        count = len(records["start"])
        if count:
            spent = float((records["end"] - records["start"]).sum()) / _MS
            reason = f"what CUPTI itself and lazy loading took, {spent:.3f} ms in all: no table holds it"
            self.findings.say("records overheads", "absent", reason, count)

    def _say_enabled(self) -> None:
        """Report which calls were selected for recording, and which ones CUPTI refused."""
        calls = [note.removeprefix("call ") for note in self.stream.notes if note.startswith("call ")]
        if calls:
            reason = (
                f"{len(calls)} calls that launch, copy, fill, wait, allocate, or handle graphs, streams and events are "
                "recorded; others of CUDA are not"
            )
            self.findings.say("calls not enabled", "absent", reason)
        refused = [note.removeprefix("refused ") for note in self.stream.notes if note.startswith("refused ")]
        if self.counts[layout.EVENTS]:  # CUPTI 12.8 refuses this kind, but delivers its records with the waits
            refused = [note for note in refused if not note.startswith("kind CUDA_EVENT:")]
        if refused:
            listed = "; ".join(refused[:3]) + (f"; and {len(refused) - 3} more" if len(refused) > 3 else "")
            self.findings.say("enabled by CUPTI", "partial", f"CUPTI refused: {listed}", len(refused))
