"""`aaco run --kernel-plane`, then `aaco show --spikes`: from the kernel's pages to sentences, or why there are none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.views import make_trace
from aaco_pipeline.resources.kernel_plane import recording
from aaco_pipeline.resources.kernel_plane.instances import NotPossible, find_tracefs
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from tests.cli.conftest import ROOT

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
    """Of how many iterations there are parts, and by how much these sum to another latency at most."""
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


def test_where_a_tool_alone_may_record_spikes_are_told_and_what_is_missing_is_said(
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
