"""The late rank and its cause, from a job's traces to sentences and bars; and the limits of one rank alone."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.html.plots import rank_values
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.ranks import per_repetition, told_of_ranks
from aaco_pipeline.report.session.sentences import answer
from benchmarks.performance import generate_rocpd as rocpd
from tests.formats.cupti import ranks
from tests.formats.program.recorded import recorded
from tests.places import ROOT, SHARED
from tests.report.made_up import ANSWER, SESSION, rows_of
from tests.sessions import replayed, said, taken_in

REASON = (
    "rank 2 is late by 306 µs a collective (median), because its same kernels take 1.3 times as long: the others wait"
)


def rank(number: int, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "process_id": number,
        "rank": number,
        "collectives": 30,
        "judged_count": 20,
        "compared_count": 20,
    }
    row |= {"repetitions": 10, "last_count": 0, "wait_ns": 4_000_000, "behind_first_ns": None, "clock_reason": None}
    return {**row, "expected_participants": 4, "participants": 4, **more}


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = {"class": "device", "reason": REASON, "window_rule": "10 repetitions of 7 activities"}
    return {"rank_waits": [*rows], "ranks_missing": [], "answers": [answer], **more}


def test_the_late_rank_is_reported_with_how_late_it_comes_and_why() -> None:
    late = rank(2, last_count=18, wait_ns=0, behind_first_ns=5_000_000)
    assert told_of_ranks(document(rank(0), rank(1, last_count=2), late)) == [
        "Rank 2 comes last to 18 of 20 collectives; from the first rank’s arrival to its own pass 500 µs a repetition.",
        f"R{REASON[1:]}.",
    ]
    nothing = {
        **document(rank(0), late),
        "answers": [{"class": "incomplete", "reason": "no kernels", "window_rule": ""}],
    }
    assert len(told_of_ranks(nothing)) == 1


def test_a_rank_that_two_processes_state_names_neither() -> None:
    late = rank(2, last_count=18, wait_ns=0, behind_first_ns=5_000_000)
    assert told_of_ranks(document({**rank(0), "rank": 2}, late))[0].startswith("Process 2 comes last")


def test_amounts_are_of_the_window_where_nothing_repeats() -> None:
    late = rank(2, last_count=18, behind_first_ns=5_000_000, repetitions=None)
    assert "5 ms in the judged window" in told_of_ranks(document(rank(0, repetitions=None), late))[0]
    assert (per_repetition(None, late), per_repetition(50, {"repetitions": 10})) == (None, 5.0)


def test_ranks_that_come_together_have_no_late_one() -> None:
    told = told_of_ranks(document(rank(0), rank(1)))
    assert told == ["No rank comes last beyond the clocks’ uncertainty, in 20 collectives."]


def test_clocks_apart_say_why_nobody_can_be_named() -> None:
    apart = [rank(number, compared_count=0, wait_ns=None, clock_reason="too few collectives") for number in (0, 1)]
    assert told_of_ranks(document(*apart)) == ["Which of the 2 ranks is late cannot be told: too few collectives."]


def test_one_rank_alone_names_the_files_that_would_tell() -> None:
    alone = rank(0, compared_count=0, wait_ns=None, participants=1, expected_participants=8)
    (told,) = told_of_ranks(document(alone, ranks_missing=[{"mend": "a file for each rank"}]))
    assert told.startswith("Which rank is late cannot be told from one rank alone: this is rank 0 of 8")
    assert told.endswith("That takes a file for each rank.")
    unsaid = {**alone, "expected_participants": None, "rank": None}
    (told,) = told_of_ranks(document(unsaid))
    assert "this is process 0, and" in told
    assert "worker_name" in told


def test_without_collectives_nothing_is_said() -> None:
    assert told_of_ranks(document()) == []


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


REAL: Final = ROOT / "tests" / "formats" / "cupti" / "late_rank"
RANKS: Final = 3
LATE: Final = 1
STEPS: Final = 20
KERNELS: Final = 4
#: Microseconds of a kernel, of a reduction that waits for nobody, and by how much the late rank is late.
LENGTH: Final = 250.0
REDUCTION: Final = 60.0
LATER: Final = 2_000.0
GROUP: Final = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]", "Group size": RANKS}


def kernels(rank: int, cause: str | None) -> list[tuple[float, int]]:
    """Length and grid of what a rank computes in a step."""
    usual = [(LENGTH, 64)] * KERNELS
    if rank != LATE or cause in (None, "host"):
        return usual
    return {
        "work": usual + [(LENGTH, 64)] * round(LATER / LENGTH),
        "device": [(LENGTH + LATER / KERNELS, 64)] * KERNELS,
        "data": [(LENGTH + LATER / KERNELS, 192)] * KERNELS,
    }[str(cause)]


def pause(rank: int, cause: str | None) -> float:
    """Microseconds in which a rank's host does something else before it launches a step."""
    return LATER if (rank, cause) == (LATE, "host") else 0.0


def events(rank: int, cause: str | None) -> list[dict[str, Any]]:
    """A rank's steps: kernels of its own, then a reduction that ends once the last rank has come to it."""
    found: list[dict[str, Any]] = []
    correlation, begun = 0, 1_000.0

    def add(cat: str, name: str, start: float, length: float, tid: int, **args: Any) -> None:
        found.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": length} | args)

    for step in range(STEPS):
        arrived = max(begun + pause(one, cause) + sum(each for each, _ in kernels(one, cause)) for one in range(RANKS))
        over = arrived + 40 + REDUCTION
        host, device = begun + pause(rank, cause), begun + pause(rank, cause) + 12
        for length, grid in [*kernels(rank, cause), (0.0, 32)]:
            correlation += 1
            named = {"correlation": correlation}
            if not length:
                told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4_194_304, **GROUP}
                add("cpu_op", "record_param_comms", host, 8, 1, args=told)
            add("cuda_runtime", "hipLaunchKernel", host + 2, 4, 1, args=named)
            where = {"device": 0, "stream": 0, "grid": [grid, 1, 1], "block": [256, 1, 1]}
            name = "Cijk_Ailk_Bljk_SB_MT128x128x16" if length else "ncclDevKernel_Generic_1"
            add("kernel", name, device, length or over - device, 9, args=named | where)
            host, device = host + 10, device + length + 1
        add("user_annotation", f"ProfilerStep#{step}", begun, over + 10 - begun, 1)
        begun = over + 15
    return found


def written(folder: Path, rank: int, cause: str | None) -> Path:
    stated = {"backend": "nccl", "rank": rank, "world_size": RANKS, "nccl_version": "2.22.3"}
    device = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304}
    folder.mkdir(exist_ok=True)
    document = {"schemaVersion": 1, "hip_runtime_version": 60443483, "trace_id": f"rank {rank}"}
    document |= {"deviceProperties": [device], "distributedInfo": stated, "baseTimeNanoseconds": 10**18}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(document | {"traceEvents": events(rank, cause)}))
    return path


def told(lake: TraceLake, place: Path) -> tuple[dict[str, Any], str]:
    """The row of `answers` of the session of what lies there, and its paragraph."""
    session = taken_in(lake, place)
    replayed(lake, session, "classification")
    document = session_document(lake, session)
    return document["answers"][0], answer(document)


@pytest.mark.parametrize(
    ("cause", "because"),
    [
        ("work", "it runs more kernels"),
        ("device", "its same kernels take 3 times as long"),
        ("data", "its kernels run on other grids"),
        ("host", "its device waits for its host"),
    ],
)
def test_the_paragraph_names_the_late_rank_and_what_made_it_late(
    cause: str, because: str, empty_lake: TraceLake, tmp_path: Path
) -> None:
    for rank in range(RANKS):
        written(tmp_path / "job", rank, cause)
    row, paragraph = told(empty_lake, tmp_path / "job")
    told_so = rf"ank {LATE} is late by 2(\.01)? ms an iteration \(median\), because {because}"
    assert re.search(f"{told_so}: the others wait for it in all_reduce", paragraph)
    assert len(paragraph.split()) <= 70
    if row["class"] == "imbalance":
        assert "a late rank" in paragraph or "last rank" in paragraph


def test_of_ranks_that_come_together_none_is_late(empty_lake: TraceLake, tmp_path: Path) -> None:
    for rank in range(RANKS):
        written(tmp_path / "job", rank, None)
    row, paragraph = told(empty_lake, tmp_path / "job")
    assert (row["class"], row["reason"]) == ("device", None)
    assert "late" not in paragraph


@pytest.mark.parametrize("rank", [0, LATE])
def test_one_rank_alone_says_which_files_would_tell(rank: int, empty_lake: TraceLake, tmp_path: Path) -> None:
    """Rank 0 waits for the late one, which itself only computes: neither trace shows who is late."""
    row, paragraph = told(empty_lake, written(tmp_path / "job", rank, "work"))
    assert row["reason"] is None
    assert row["class"] == ("communication" if rank == 0 else "device")
    assert "rank 1" not in paragraph
    wanted = dict(zip(row["sharpen"], row["sharpen_commands"], strict=True))
    assert "tensorboard_trace_handler" in wanted["which rank is late"]
    assert "a file for each rank" in wanted["which rank is late"]


@pytest.mark.nightly
@pytest.mark.parametrize("see_all", [True, False])
@pytest.mark.parametrize("cause", ["work", "host"])
def test_streams_of_a_recorded_job_name_the_late_rank(
    cause: str, see_all: bool, empty_lake: TraceLake, tmp_path: Path
) -> None:
    """A stream of CUPTI's a rank, which describes no collective: two processes, two GPUs, one clock, one session."""
    work, pauses_ns = ((8, 24), {}) if cause == "work" else ((8, 8), {LATE: 4_000_000})
    late_ms, because = {"work": (4.016, "it runs more kernels"), "host": (4.0, "its device waits for its host")}[cause]
    session = taken_in(empty_lake, ranks.job(tmp_path / "job", work, pauses_ns, see_all=see_all))
    made = replayed(empty_lake, session, "classification")
    ran = empty_lake.read("dispatches", session).join(empty_lake.read("processes", session), on="process_id")
    assert sorted(ran.select("rank", "device_id").unique().rows()) == [(0, 1), (1, 2)]
    gpus = empty_lake.read("devices", session).filter(pl.col("vendor") == "NVIDIA")
    assert gpus.get_column("handle").n_unique() == gpus.height == 2
    found = empty_lake.read("collectives", session)
    assert found.get_column("collective_id").n_unique() * 2 == found.height == ranks.STEPS * 2
    facts = found.select("name", "communicator", "expected_participants", "size_bytes").unique().rows()
    assert facts == [("all_reduce", "unnamed group 0", None, None)]
    assert found.get_column("arrival_spread_ns").unique().to_list() == [round(late_ms * 1e6)]
    told_of = said(made["critical_path"])
    assert told_of["waits between ranks"][0] == "present"
    assert "states no group" in str(told_of["waits between ranks"][1])
    assert told_of["groups and sizes of collectives"][0] == "absent"
    document = session_document(empty_lake, session)
    row, paragraph = document["answers"][0], answer(document)
    assert row["class"] == "imbalance"
    assert row["reason"] == (
        f"rank 1 is late by {late_ms:.3g} ms an iteration (median), because {because}: the others wait for it in "
        "all_reduce"
    )
    assert f"R{row['reason'][1:]}." in paragraph
    assert row["saves_at_most_ns"] == pytest.approx(late_ms * 1e6 * ranks.STEPS, rel=0.01)


def test_streams_of_ranks_that_come_together_name_nobody(empty_lake: TraceLake, tmp_path: Path) -> None:
    row, paragraph = told(empty_lake, ranks.job(tmp_path / "job", (8, 8)))
    assert (row["class"], row["reason"]) == ("device", None)
    assert "late" not in paragraph


def test_streams_of_two_real_gpus_name_the_rank_that_was_late_by_construction(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    """Two H100 by `aaco record` of a two-rank program: in each of 50 steps 10 products and 30.

    By the events of both GPUs the others waited 4.085 ms a step (median) for rank 1, which comes to 32 MB last and by
    14 µs leaves last, too.
    """
    folder = recorded(
        tmp_path / "job", (100.0, 100.0), kinds=["run", "trace"], request={"runs": 1, "iterations_from": "step*"}
    )
    shutil.copytree(REAL, folder / "trace" / "cupti")
    session = taken_in(empty_lake, folder)
    replayed(empty_lake, session, "classification")
    kernels = empty_lake.read("kernels", session).select("kernel_id", pl.col("name").cast(pl.String))
    ran = empty_lake.read("dispatches", session).join(kernels, on="kernel_id")
    ran = ran.join(empty_lake.read("processes", session).select("process_id", "rank"), on="process_id")
    products = ran.filter(pl.col("name").str.starts_with("nvjet")).group_by("rank", "device_id").len().sort("rank")
    assert products.rows() == [(0, 1, 55 * 10), (1, 2, 55 * 30)]
    found = empty_lake.read("collectives", session)
    both = found.group_by("collective_id").agg(pl.col("process_id").n_unique(), pl.col("name").first())
    assert both.select("process_id", "name").unique().rows() == [(2, "all_reduce")]
    assert both.height == 57  # 55 steps and two barriers
    assert found.get_column("wait_ns").null_count() == 0
    row = session_document(empty_lake, session)["answers"][0]
    assert row["class"] == "imbalance"
    assert row["reason"] == (
        "rank 1 is late by 4.09 ms an iteration (median), because it runs more kernels: the others wait for it in "
        "all_reduce"
    )


def database(folder: Path, rank: int, kernels: int) -> None:
    """A rank's database of rocprofv3: products, then RCCL's one kernel for all collectives, in each step."""
    path, guid = folder / f"{100 + rank}_results.db", f"0000000{rank}-92cb-72cb-9169-c7e541b1fcdf"
    with closing(rocpd.create(path, guid)) as connection:
        suffix = "_" + guid.replace("-", "_")
        changes = {
            "info_process": f"pid = {100 + rank}, environment = '{json.dumps({'RANK': str(rank)})}'",
            "info_agent": f"extdata = replace(extdata, '3072', '{3072 + 256 * rank}')",
            "info_kernel_symbol": "display_name = 'ncclDevKernel_Generic_1(ncclDevComm*)' WHERE id = 2",
        }
        for kind, change in changes.items():
            connection.execute(f'UPDATE "rocpd_{kind}{suffix}" SET {change}')
        columns = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id", "kernel_id", "dispatch_id", "start", "end")
        sizes = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
        owner = (rocpd.NODE, rocpd.PROCESS, rocpd.THREAD, rocpd.AGENT, 1, 1)
        rows: list[tuple[int, ...]] = []
        begun = rocpd.FIRST_NS + 10**9
        for _ in range(STEPS):
            over = begun + 8 * 251_000 + 60_000
            spans = [(1, begun + 251_000 * one, begun + 251_000 * one + 250_000) for one in range(kernels)]
            for kernel, start, end in [*spans, (2, begun + 251_000 * kernels, over)]:
                rows.append((*owner, kernel, len(rows) + 1, start, end, 256, 1, 1, 65_536, 1, 1))
            begun = over + 15_000
        rocpd.insert(connection, suffix, "kernel_dispatch", (*columns, *sizes), rows)
        connection.commit()


def test_databases_of_ranks_name_the_late_one_although_no_kernel_says_its_operation(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(2):
        database(folder, rank, 8 if rank == LATE else 2)
    row, paragraph = told(empty_lake, folder)
    assert (
        row["reason"]
        == "rank 1 is late by 1.51 ms a collective (median), because it runs more kernels: the others wait for it"
    )
    assert f"R{row['reason'][1:]}" in paragraph or row["reason"] in paragraph
