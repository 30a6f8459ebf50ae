"""Kineto traces of several ranks: one registered session, also when one of the files is broken."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.ingestion import ingest
from tests.sessions import replayed, said


def trace(rank: int) -> bytes:
    """A generated trace of one rank: kernels with their launches."""
    events: list[dict[str, Any]] = []
    for number in range(400):
        common = {"ph": "X", "ts": 10 * number, "dur": 2.5 + rank}
        call = {"cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 9, "tid": 9}
        kernel = {"cat": "kernel", "name": f"k{number % 3}", "pid": 0, "tid": 7}
        events += [
            {**common, **call, "args": {"correlation": number}},
            {**common, **kernel, "args": {"device": 0, "stream": 0, "correlation": number}},
        ]
    stated = {"backend": "nccl", "rank": rank, "world_size": 2}
    beginning = {"schemaVersion": 1, "trace_id": f"T{rank}", "distributedInfo": stated, "baseTimeNanoseconds": 10**18}
    return json.dumps({**beginning, "traceEvents": events}).encode()


def test_two_ranks_are_one_session_with_two_processes(empty_lake: TraceLake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"{rank}.json").write_bytes(trace(rank))
    (result,) = ingest(empty_lake, discover_runs(folder), finish=lambda session: None)
    assert result.session is not None
    tables = replayed(empty_lake, result.session, "kernel_trace")["kernel_trace"].tables
    assert tables["dispatches"].group_by("process_id", "device_id").len().sort("process_id").rows() == [
        (0, 0, 400),
        (1, 1, 400),
    ]
    # The copy in the lake is recognized as the same one run, and given again it is known.
    (again,) = ingest(empty_lake, discover_runs(folder), finish=lambda session: None)
    assert (again.session, again.state) == (result.session, "continued")


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut text": (lambda content: content[:20_000], "the file is cut off"),
    "cut gzip": (lambda content: gzip.compress(content)[:-900], "cannot be unpacked"),
    "damaged in the middle": (lambda content: content[:20_000] + b"\xff}]{\0" + content[20_500:], "damaged or another"),
    "damaged gzip": (lambda content: _with(gzip.compress(content), 1_500), "cannot be unpacked"),
    "no trace at all": (lambda content: b"\0" * 1000, "not recognized"),
    "cut before its events": (lambda content: content[:200], "the file is cut off"),
}


def _with(packed: bytes, place: int) -> bytes:
    return packed[:place] + bytes(255 - byte for byte in packed[place : place + 60]) + packed[place + 60 :]


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_rank_is_reported_and_the_good_one_is_taken(how: str, empty_lake: TraceLake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(trace(0))
    spoil, reason = BROKEN[how]
    (folder / "rank1.json").write_bytes(spoil(trace(1)))
    found = discover_runs(folder)
    results = list(ingest(empty_lake, found, finish=lambda session: None))
    good = [one for one in results if one.session is not None and one.run.parts[0].name == "rank0.json"]
    (session,) = [str(one.session) for one in good]
    outcome = replayed(empty_lake, session, "kernel_trace")["kernel_trace"]
    first = outcome.tables["dispatches"].filter(process_id=0)
    assert first.height == 400
    assert not first.get_column("end_ns").has_nulls()
    told = [reason or "" for _, reason in said(outcome).values()] + [str(one.error or "") for one in results]
    told += [one.reason for one in (*found.unread, *good[0].run.unread)]
    assert any(reason in one for one in told)
