"""Ranks on the page: who waited in the judged window, each rank's time on one scale, and one rank alone."""

import re
from pathlib import Path
from typing import Any

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.html.ranks import rank_values
from tests.places import SHARED
from tests.report.made_up import ANSWER, SESSION, rows_of
from tests.sessions import replayed, taken_in

STEP, WAIT = 1000, 200


def publish_job(lake: TraceLake, ranks: int = 3, steps: int = 5) -> None:
    """Ranks that meet each step; the last rank comes last, each time by WAIT. The first step lies before the window."""
    dispatches: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []
    for step in range(steps):
        for rank in range(ranks):
            at, start = len(dispatches), step * STEP + (WAIT if rank == ranks - 1 else 0)
            end = step * STEP + 500
            row = {"dispatch_id": at, "process_id": rank, "device_id": rank, "start_ns": start, "end_ns": end}
            dispatches.append({**row, "self_ns": end - start})
            last = rank == ranks - 1
            known = {"collective_id": step, "process_id": rank, "dispatch_id": at, "participants": ranks}
            known |= {"expected_participants": ranks, "arrival_ns": start, "arrival_spread_ns": WAIT}
            collectives.append({**known, "wait_ns": 0 if last else WAIT, "is_straggler": last})
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "capture"}])})
    processes = [{"process_id": rank, "rank": rank + 4} for rank in range(ranks)]
    lake.publish(SESSION, "session_environment", {"processes": rows_of("processes", processes)})
    kernels = rows_of("kernels", [{"name": "ncclDevKernel", "short_name": "ncclDevKernel", "role": "main"}])
    lake.publish(SESSION, "kernel_trace", {"dispatches": rows_of("dispatches", dispatches), "kernels": kernels})
    windows = [
        {"device_id": rank, "window_start_ns": 0, "window_end_ns": 1000 - 500 * (rank == 0), "busy_ns": 400}
        | {"compute_ns": 300, "exposed_communication_ns": 100, "window_rule": "first_to_last_activity"}
        for rank in range(ranks)
    ]
    lake.publish(SESSION, "timeline", {"timeline": rows_of("timeline", windows)})
    lake.publish(SESSION, "critical_path", {"collectives": rows_of("collectives", collectives)})
    answer = {**ANSWER, "device_id": 0, "window_start_ns": STEP, "window_end_ns": steps * STEP, "repetitions": 2}
    judged = {
        **answer,
        "reason": "rank 6 is late by 0 µs a collective (median), because it runs more kernels: the others wait for it",
    }
    lake.publish(SESSION, "classification", {"answers": rows_of("answers", [judged])})


def test_waits_are_those_of_the_judged_window(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_job(lake)
    document = session_document(lake, SESSION)
    found = [[row[key] for key in ("rank", "judged_count", "last_count", "wait_ns")] for row in document["rank_waits"]]
    assert found == [[4, 4, 0, 4 * WAIT], [5, 4, 0, 4 * WAIT], [6, 4, 4, 0]]
    values = rank_values(document)
    assert values["sentences"][0].startswith("Rank 6 comes last to 4 of 4 collectives")
    assert f"{4 * WAIT // 2} ns a repetition" in values["sentences"][0]
    assert values["sentences"][1].endswith("because it runs more kernels: the others wait for it.")


def test_bars_have_one_scale_and_cover_each_ranks_window(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    publish_job(lake)
    document = session_document(lake, SESSION)
    drawn = [
        [(part, begin, width) for part, begin, width, _ in segments] for _, segments, _ in rank_values(document)["rows"]
    ]
    assert drawn[0] == [("compute", 0.0, 30.0), ("communication", 30.0, 10.0), ("idle", 40.0, 10.0)]
    assert drawn[1] == [("compute", 0.0, 30.0), ("communication", 30.0, 10.0), ("idle", 40.0, 60.0)]
    page = render_html(document, None)
    assert page.count('class="ranks-bars"') == 3
    assert "Ranks and collectives" in page
    unknown: list[dict[str, Any]] = [{**row, "busy_ns": None} for row in document["rank_times"]]
    parts = {
        part for _, segments, _ in rank_values({**document, "rank_times": unknown})["rows"] for part, *_ in segments
    }
    assert parts == {"compute", "communication"}


def test_one_rank_alone_has_no_bars_but_says_what_would_tell(tmp_path: Path) -> None:
    lake = TraceLake(tmp_path / "lake")
    session = taken_in(lake, SHARED / "kineto/mi300x_resnet_train_ddp.json.gz")
    replayed(lake, session, "kernel_trace", "completeness", "critical_path", "timeline", "classification")
    document = session_document(lake, session)
    section = re.sub(r"\s+", " ", render_html(document, None))
    assert "Which rank is late cannot be told from one rank alone: this is rank 0 of 8" in section
    assert 'class="ranks-bars"' not in section
