"""A CUPTI stream as canonical tables with evidence: what was recorded, what was lost, what was never asked for.

The columns come from `stream`; the tables are `tables`'s, `host_records`'s and `surroundings`'s.
"""

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.nvidia.cupti import layout, surroundings
from aaco_pipeline.formats.nvidia.cupti.host_records import allocations, api_calls, markers
from aaco_pipeline.formats.nvidia.cupti.stream import Columns, Stream, read_stream
from aaco_pipeline.formats.nvidia.cupti.tables import Link, Streams, copies, distinct, kernels_and_dispatches, waits
from aaco_pipeline.lake.evidence import DROPPED, Status
from aaco_pipeline.lake.on_disk import GrowingColumn, pieces_of

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
    """See `aaco_pipeline.formats.nvidia.cupti.read`."""
    return _Reading(read_stream(path, limits)).reading()


class _Reading:
    """One stream while it becomes tables; each step adds its evidence."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.findings = stream, Findings(stream.path.name)
        self.counts = {kind: stream.count(kind) for kind in layout.WORDS}
        self._say_end()
        self._say_dropped()
        self._say_others()
        self.by, self.clocks, self.replaced_ns = surroundings.onto_monotonic(stream, self.findings)
        self.left_out: dict[int, int] = {}
        self.columns = {kind: self._placed(kind) for kind in (*_WITH_TIMES, layout.EVENTS)}
        misplaced = sum(self.left_out.values())
        reason = (
            f"{misplaced} records have times of the clock that another tool in the program gave CUPTI: they lie "
            "outside the time in which the recorder's clock was CUPTI's; left out"
        )
        self.findings.note(misplaced, "records on another clock", "partial", reason)

    def reading(self) -> CaptureTables:
        """All tables, and what was found and missed."""
        columns, stream = self.columns, self.stream
        self._at_their_contexts()
        lanes = [columns[kind] for kind in (*_ACTIVITIES, layout.WAITS, layout.EVENTS)]
        streams = Streams.of(*lanes)
        places = [one["device"] for one in lanes] + [columns[layout.COPIES][end] for end in ("source", "destination")]
        named = {int(number) for one in places for number in distinct(one)} - {surroundings.NO_DEVICE}
        # A kernel ran on some device, also where none is stated.
        used = sorted(named | {int(number) for number in distinct(columns[layout.KERNELS]["device"])})
        devices, device_of = surroundings.devices(stream, used, self.findings)
        link = Link.of(columns[layout.CALLS])
        overheads = columns.pop(layout.OVERHEADS)
        kernels, dispatches, facts = kernels_and_dispatches(
            stream, columns.pop(layout.KERNELS), link, streams, device_of
        )
        unlinked = {layout.KERNELS: dispatches.get_column("thread_id").null_count()}
        unlinked |= {kind: link.unknown(columns[kind]["correlation"]) for kind in (layout.COPIES, layout.FILLS)}
        ranges, paired = markers(stream, columns.pop(layout.RANGES), self.findings)
        tables = {
            "processes": surroundings.process(stream),
            "devices": devices,
            "clock_domains": self.clocks,
            "environment": surroundings.environment(stream),
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
        """The columns of a kind with their times on the host's clock; 0 stays, it stands for a time not taken."""
        columns = self.stream.take(kind)
        for name in _WITH_TIMES.get(kind, ()) if self.by else ():
            for rows in pieces_of(len(columns[name])):
                times = columns[name][rows]
                columns[name][rows] = np.where(times > 0, times + self.by, 0)
        return columns if self.replaced_ns is None else self._on_our_clock(kind, columns, self.replaced_ns)

    def _on_our_clock(self, kind: int, columns: Columns, replaced_ns: int) -> Columns:
        """The records that lie between the beginning and the instant by which CUPTI had been given another clock."""
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
        """Waits and events get the device of their context: CUPTI does not say it with them."""
        contexts = self.stream.take(layout.CONTEXTS)
        known = dict(zip(contexts["context"].tolist(), contexts["device"].tolist(), strict=True))
        for kind in (layout.WAITS, layout.EVENTS):
            of_it = self.columns[kind]
            numbers = np.unique(of_it["context"])
            devices = np.array([known.get(number, surroundings.NO_DEVICE) for number in numbers.tolist()], np.uint32)
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
                "the process did not come to its end: it was killed, or left by _exit; what it did in its last tenths "
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
        """What else in the program used CUPTI: the person can do something about it."""
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
            taken = {layout.RANGES: paired, layout.OVERHEADS: 0}.get(
                kind, self.counts[kind] - self.left_out.get(kind, 0)
            )
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
        """What was recorded by choice, and what CUPTI refused."""
        calls = [note.removeprefix("call ") for note in self.stream.notes if note.startswith("call ")]
        if calls:
            reason = (
                f"{len(calls)} calls that launch, copy, fill, wait, allocate, or handle graphs, streams and events are "
                "recorded; others of CUDA are not"
            )
            self.findings.say("calls not enabled", "absent", reason)
        refused = [note.removeprefix("refused ") for note in self.stream.notes if note.startswith("refused ")]
        if self.counts[layout.EVENTS]:  # CUPTI 12.8 refuses the kind and gives its records with those of waits
            refused = [note for note in refused if not note.startswith("kind CUDA_EVENT:")]
        if refused:
            listed = "; ".join(refused[:3]) + (f"; and {len(refused) - 3} more" if len(refused) > 3 else "")
            self.findings.say("enabled by CUPTI", "partial", f"CUPTI refused: {listed}", len(refused))
