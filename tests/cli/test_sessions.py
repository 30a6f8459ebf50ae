"""`aaco ls` and `aaco show`: the sessions of a lake, and one of them.

`aaco run --kernel-plane`, then `aaco show --spikes`: from the kernel's pages to sentences, or why there are none.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.on_demand import make_trace
from aaco_pipeline.resources.kernel_plane import recording
from aaco_pipeline.resources.kernel_plane.tracefs import find_tracefs
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project
from aaco_pipeline.resources.telemetry.clocks import NotPossible
from tests.cli.conftest import ROOT, Aaco, Refused


def test_ls_lists_newest_first_with_model_latency_and_disk_use(aaco: Aaco, measured: Project) -> None:
    lake = TraceLake(measured.lake)
    answer = aaco("ls")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = [line for line in answer.stdout.splitlines() if line.strip().startswith("2")]
    older, newer = lake.sessions()
    assert lines[0].split()[0] == newer
    assert lines[1].split()[0] == older
    assert "control_flow" in lines[0]
    assert "squeezenet" in lines[1]
    assert lines[2].startswith("2 sessions, ")
    assert lines[2].endswith(f" in {lake.path}")


def test_ls_keeps_ids_whole_on_a_narrow_screen(aaco: Aaco, measured: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = aaco("ls").stdout.splitlines()
    for session in TraceLake(measured.lake).sessions():
        assert len([line for line in lines if line.split()[:1] == [session]]) == 1
    assert any("left out" in line for line in lines)


def test_ls_with_json_has_the_units_of_the_lake(aaco: Aaco, measured: Project) -> None:
    lake = TraceLake(measured.lake)
    rows = json.loads(aaco("ls", "--json").stdout)
    assert [row["session_id"] for row in rows] == lake.sessions()[::-1]
    assert rows == json.loads(aaco("ls", "--format", "json").stdout)
    for row in rows:
        assert row["disk_bytes"] == lake.disk_bytes(row["session_id"])
        median = select_rows(
            lake,
            f"""SELECT value FROM session_metrics WHERE session_id = '{row["session_id"]}'
                AND metric = 'latency_p50' AND "pass" = 'latency'""",
        )
        assert row["latency_p50_ns"] == median.rows[0][0]
        assert row["started_at"].endswith("+00:00")


def test_ls_newest_limits_the_list(aaco: Aaco, measured: Project) -> None:
    rows = json.loads(aaco("ls", "-n", "1", "--json").stdout)
    assert [row["session_id"] for row in rows] == TraceLake(measured.lake).sessions()[-1:]


def test_ls_names_a_session_that_cannot_be_read_and_lists_the_others(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    older, newer = lake.sessions()
    lake.manifest_path(older, "session").write_text("{")
    answer = aaco("ls", project=copied)
    assert answer.returncode == 8
    assert answer.stderr.startswith(f"aaco: {lake.manifest_path(older, 'session')}: not a manifest")
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == [older]] == ["unreadable"]
    assert [line[-2:] for line in lines if line[:1] == [newer]] != []


def test_ls_of_a_lake_that_does_not_exist_yet_says_how_to_begin_and_makes_nothing(
    aaco: Aaco, refused: Refused, measured: Project, tmp_path: Path
) -> None:
    empty = Project(measured.root, tmp_path / "none", tmp_path / "home")
    answer = aaco("ls", project=empty)
    assert answer.returncode == 0
    assert "no sessions yet; `aaco run --model squeezenet` makes one" in answer.stdout
    assert json.loads(aaco("ls", "--json", project=empty).stdout) == []
    assert "no sessions yet" in refused(2, "show", project=empty)
    assert not empty.lake.exists()


def test_show_means_the_latest_session_unless_told(aaco: Aaco, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    shown = [aaco("show", *name).stdout for name in ((), ("latest",), (newer,))]
    assert shown[0].startswith(newer)
    assert shown[0] == shown[1] == shown[2]
    assert aaco("show", older).stdout.startswith(older)


def test_show_takes_a_unique_prefix(aaco: Aaco, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    shortest = next(older[:n] for n in range(1, len(older)) if not newer.startswith(older[:n]))
    assert aaco("show", shortest).stdout.startswith(older)


def test_show_refuses_an_ambiguous_prefix_and_names_the_candidates(refused: Refused, measured: Project) -> None:
    older, newer = TraceLake(measured.lake).sessions()
    line = refused(2, "show", "20")
    assert "'20' is ambiguous" in line
    assert older in line
    assert newer in line


def test_show_refuses_an_unknown_session_and_says_where_to_look(refused: Refused, measured: Project) -> None:
    line = refused(2, "show", "19700101T000000Z-00000000")
    assert "no session '19700101T000000Z-00000000'" in line
    assert "`aaco ls` lists them" in line


def test_show_tells_the_kernels_in_order_of_their_time_with_shares_that_add_up(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    document = json.loads(aaco("show", older, "--json").stdout)
    totals = [kernel["total_ns"] for kernel in document["top_kernels"]]
    assert totals == sorted(totals, reverse=True)
    assert 0 < sum(kernel["share_ratio"] for kernel in document["top_kernels"]) <= 1
    assert document["model_name"] == "squeezenet"
    assert {"item", "status", "reason"} == document["missing"][0].keys()
    assert all(row["status"] != "present" for row in document["missing"])


def test_show_tells_one_kernel_by_a_part_of_its_name(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    first = json.loads(aaco("show", older, "--json").stdout)["optimization_priority"][0]
    document = json.loads(aaco("show", older, "--kernel", first["name"], "--json").stdout)
    assert document["session_id"] == older
    assert document["kernel"]["kernel_id"] == first["kernel_id"]
    assert document["kernel"]["share_ratio"] == first["share_ratio"]
    told = aaco("show", older, "--kernel", first["name"])
    assert (told.returncode, told.stderr) == (0, "")
    assert first["name"] in told.stdout.splitlines()[0]


def test_show_refuses_a_kernel_that_is_none_or_several_in_one_line(refused: Refused, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    assert "no kernel 'nonsense'" in refused(2, "show", older, "--kernel", "nonsense")
    assert "give more of the name" in refused(2, "show", older, "--kernel", "conv")
    assert "give one of them" in refused(2, "show", older, "--kernel", "conv", "--critical-path")
    assert "name it with --kernel" in refused(2, "show", older, "--faster", "2")
    assert "--faster" in refused(2, "show", older, "--kernel", "conv", "--faster", "0")


def test_show_computes_what_a_kernel_of_any_speed_would_save(aaco: Aaco, measured: Project) -> None:
    older = TraceLake(measured.lake).sessions()[0]
    first = json.loads(aaco("show", older, "--json").stdout)["optimization_priority"][0]
    asked = ("show", older, "--kernel", first["name"], "--faster")
    (four,) = json.loads(aaco(*asked, "4", "--json").stdout)["what_if"]
    assert four["speedup_ratio"] == 4.0
    # On one thread every nanosecond of a kernel is on the path, to the rounding of each dispatch.
    dispatches = json.loads(aaco("show", older, "--kernel", first["name"], "--json").stdout)["kernel"]["dispatch_count"]
    assert abs(four["saved_ns"] - four["critical_ns"] * 3 / 4) <= dispatches
    assert "4 times as fast" in aaco(*asked, "4").stdout


ITERATIONS, WARMUP = 40, 2
RUN = ("run", "--iterations", str(ITERATIONS), "--warmup", str(WARMUP), "--kernel-plane", "--model")

#: Marks forty iterations of a millisecond or so in a process that the shell starts; each tenth sleeps.
PROGRAM = """
import time
from aaco_pipeline.recording import mark
for number in range(40):
    with mark.iteration():
        if number % 10 == 9:
            time.sleep(0.1)
        for _ in range(10_000):
            pass
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> TraceLake:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(LAKE_VARIABLE, str(tmp_path / "lake"))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert cache_folder.is_dir()
    return TraceLake(tmp_path / "lake")


@pytest.fixture
def tracefs() -> None:
    """A host whose kernel can be asked."""
    try:
        find_tracefs()
    except NotPossible as refusal:
        pytest.skip(f"the kernel's events cannot be recorded here: {refusal}")


def off(lake: TraceLake) -> list[tuple[Any, ...]]:
    """Return how many iterations have parts, and by how much their sum differs from the latency at most."""
    return lake.sql(
        'WITH parts AS (SELECT "pass", iteration, sum(duration_ns) AS ns FROM iteration_delays GROUP BY ALL) '
        "SELECT count(*) AS n, CAST(max(abs(ns - latency_ns)) AS BIGINT) AS off "
        'FROM iterations JOIN parts USING ("pass", iteration)'
    ).rows()


@pytest.mark.usefixtures("tracefs")
def test_every_iteration_is_accounted_for_and_told(lake: TraceLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "squeezenet"]) == 0
    (session,) = lake.sessions()
    assert off(lake) == [(2 * (ITERATIONS + WARMUP), 0)]
    assert lake.sql("SELECT count(*) FROM thread_states WHERE state = 'running'").item() > 0
    assert lake.sql("SELECT count(DISTINCT plane) FROM planes").item() >= 5
    shares = lake.sql('SELECT "pass", sum(variance_share_ratio) FROM delay_figures GROUP BY ALL').rows()
    assert dict(shares) == {"latency": pytest.approx(1), "trace": pytest.approx(1)}
    capsys.readouterr()
    assert main(["show", session, "--spikes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quietness"][0]["iterations"] == ITERATIONS
    assert main(["show", session, "--spikes"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The machine disturbed" in said
    assert "What each cause did to the measured iterations" in said


@pytest.mark.usefixtures("tracefs")
def test_spikes_of_a_recorded_program_are_those_of_the_thread_that_marks_its_iterations(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = ("--", "sh", "-c", '"$0" -S -c "$1"; true', sys.executable, PROGRAM)
    assert main(["record", "--kernel-plane", "--runs", "2", "--trace", "off", *program]) == 0
    assert off(lake) == [(2 * 40, 0)]
    of_runs = "SELECT process_id, count(*) FROM kernel_threads WHERE process_id IS NOT NULL GROUP BY ALL ORDER BY ALL"
    assert lake.sql(of_runs).rows() == [(0, 2), (1, 2)]  # the shell, and what it started before anybody could look
    slept = "SELECT iteration FROM iteration_delays WHERE cause = 'sleep' AND duration_ns > 90_000_000 ORDER BY ALL"
    assert lake.sql(slept).get_column("iteration").to_list() == [*range(9, 80, 10)]


@pytest.mark.usefixtures("tracefs")
def test_a_real_trace_processor_finds_what_the_kernel_recorded(lake: TraceLake, trace_processor_address: str) -> None:
    """Each measured thread's states are its life, nothing is refused, and every event is drawn once."""
    from perfetto.trace_processor import TraceProcessor

    assert main([*RUN, "squeezenet"]) == 0
    (session,) = lake.sessions()
    make_trace(lake, session)
    processor = TraceProcessor(trace=str(lake.trace(session)), addr=trace_processor_address)

    def rows(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.__dict__.values()) for row in processor.query(query)]

    try:
        assert rows("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0") == []
        lives = rows(
            "SELECT tid, sum(dur) FROM thread_state JOIN thread USING (utid) JOIN process USING (upid) "
            "WHERE dur >= 0 AND pid > 0 GROUP BY tid"
        )
        drawn = dict(rows("SELECT category, count(*) FROM slice GROUP BY category"))
        lasted = dict(rows("SELECT category, sum(dur) FROM slice GROUP BY category"))
        minor = rows("SELECT sum(value) FROM counter JOIN counter_track t ON t.id = track_id WHERE name LIKE 'minor %'")
    finally:
        processor.close()
    lifetimes = "SELECT thread_id, end_ns - start_ns FROM kernel_threads WHERE process_id IS NOT NULL"
    assert dict(lives) == dict(lake.sql(lifetimes).rows())
    kinds = "SELECT kind, count(*) FROM kernel_events GROUP BY kind"
    recorded = dict(lake.sql(kinds).rows())
    handlers = dict(lake.sql(kinds.replace("count(*)", "CAST(sum(duration_ns) AS BIGINT)")).rows())
    for kind in ("interrupt", "softirq", "block_io", "signal"):
        assert drawn.get(kind, 0) == recorded.get(kind, 0), kind
    assert (lasted["interrupt"], lasted["softirq"]) == (handlers["interrupt"], handlers["softirq"])
    assert minor == [(recorded["page_fault"] - drawn.get("page_fault", 0),)]
    assert drawn["gap"] == lake.sql("SELECT count(*) FROM iteration_gaps").item()
    blocked = "SELECT CAST(sum(end_ns - start_ns) AS BIGINT) FROM thread_states WHERE state = 'blocked'"
    assert lasted["syscall"] >= lake.sql(f"{blocked} AND wait = 'lock'").item()


def test_where_the_kernel_may_not_be_asked_the_run_is_whole_and_says_so(
    lake: TraceLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Path:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    monkeypatch.setattr("aaco_pipeline.resources.telemetry.scheduler_events.shutil.which", lambda tool: None)
    assert main([*RUN, "control_flow"]) == 0
    (session,) = lake.sessions()
    assert lake.progress(session).is_whole
    capsys.readouterr()
    assert main(["show", session, "--spikes"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing was recorded of what the kernel did with the threads" in said
    assert "run as root" in said


def test_where_a_tool_alone_may_record_spikes_are_reported_and_what_is_missing_is_said(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Path:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    assert main([*RUN, "control_flow"]) == 0
    (session,) = lake.sessions()
    assert lake.progress(session).is_whole
    told = "SELECT status, reason FROM evidence WHERE item = 'kernel plane'"
    (status, reason) = lake.sql(told).rows()[0]
    assert "tracefs is not mounted" in reason
    if status == "absent":
        pytest.skip(f"no tool can record here: {reason}")
    assert "no faults, interrupts or system calls" in reason
    assert lake.sql("SELECT count(*) FROM iteration_delays WHERE cause = 'on_cpu'").item() >= ITERATIONS
    assert lake.sql("SELECT count(unseen_ns) FROM fixed_work_probes").item() == 0
