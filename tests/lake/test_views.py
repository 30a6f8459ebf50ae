"""Helper views answer their questions, and the data dictionary describes every table and view."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from aaco_pipeline.lake import dictionary
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.views import HELPER_VIEWS
from tests.lake.published import LATER, SESSION, Filled
from tests.lake.two_sessions import STARTED
from tests.places import ROOT


def test_only_what_another_clock_timed_is_uncertain_on_the_axis_of_planes(lake: TraceLake, filled: Filled) -> None:
    """The kernel's events, iterations and samples are of the axis's own clock."""
    kinds = ["interrupt", "syscall", "block_io", "gpu_job", "fence_wait"]
    tables = {
        "sessions": filled("sessions", {"started_at": [STARTED]}),
        "clock_domains": filled("clock_domains", {"uncertainty_ns": [700]}),
        "kernel_events": filled("kernel_events", {"time_ns": [*range(5)], "kind": kinds}),
        "dispatches": filled("dispatches", {"dispatch_id": [0], "start_ns": [1], "end_ns": [2]}),
    }
    lake.publish(SESSION, "everything", tables)
    found = lake.sql("SELECT plane, uncertainty_ns FROM planes ORDER BY ALL").rows()
    assert found == sorted([("kernel", 700), *((kind, 0) for kind in kinds)])


def test_views_have_the_columns_that_they_declare(populated: TraceLake) -> None:
    for helper in HELPER_VIEWS:
        columns = populated.sql(f"DESCRIBE {helper.name}").get_column("column_name").to_list()
        assert columns == list(helper.columns), helper.name
        assert set(helper.tables) <= set(all_tables())


def test_what_the_machine_did_is_clipped_to_each_iteration(lake: TraceLake, filled: Filled) -> None:
    """From 100 to 200 and from 300 to 400: what ends as one begins, or begins as one ends, is not in it."""
    kinds = ["page_fault", "page_fault", "page_fault", "interrupt", "signal"]
    tables = {
        "iterations": filled("iterations", {"iteration": [0, 1], "start_ns": [100, 300], "end_ns": [200, 400]}),
        "thread_states": filled(
            "thread_states",
            {
                "start_ns": [0, 150, 350, 50, 400],
                "end_ns": [150, 350, 450, 100, 500],
                "state": ["running", "blocked", "running", "queued", "queued"],
                "wait": [None, "lock", None, None, None],
                "by_name": [None, "pool", None, None, None],
            },
        ),
        "kernel_events": filled(
            "kernel_events",
            {
                "kind": kinds,
                "time_ns": [100, 199, 200, 390, 320],
                "duration_ns": [None, None, None, 30, None],
                "name": ["user", "user", "user", "local_timer", None],
                "value": [None, None, None, None, 19],
            },
        ),
        "kernel_losses": filled("kernel_losses", {"start_ns": [190], "end_ns": [310], "buffer": ["threads"]}),
        "system_samples": filled("system_samples", {"time_ns": [150], "cpu_ratio": [0.5]}),
    }
    lake.publish(SESSION, "everything", tables)
    found = lake.sql("SELECT iteration, plane, name, occurrences, during_ns FROM iteration_planes ORDER BY ALL").rows()
    assert found == [
        (0, "events lost", "threads", 1, 10),
        (0, "host sample", "CPUs busy 0.5", 1, 0),
        (0, "page_fault", "user", 2, 0),
        (0, "thread state", "blocked on lock by pool", 1, 50),
        (0, "thread state", "running", 1, 50),
        (1, "events lost", "threads", 1, 10),
        (1, "interrupt", "local_timer", 1, 10),
        (1, "signal", "signal 19", 1, 0),
        (1, "thread state", "blocked on lock by pool", 1, 50),
        (1, "thread state", "running", 1, 50),
    ]


def test_latest_sessions_has_one_row_per_session_newest_first(populated: TraceLake) -> None:
    found = populated.sql(
        "SELECT session_id, started_at, model_name, latency_p50_ns, latency_p90_ns FROM latest_sessions"
    )
    assert found.rows() == [
        (LATER, STARTED + timedelta(days=1), "model_1", 11.0, 21.0),
        (SESSION, STARTED, "model_0", 10.0, 20.0),
    ]


def test_a_session_without_metrics_is_a_latest_session_too(lake: TraceLake, filled: Filled) -> None:
    lake.publish(SESSION, "capture", {"sessions": filled("sessions", {"model_name": ["m"]})})
    assert lake.sql("SELECT session_id, latency_p50_ns FROM latest_sessions").rows() == [(SESSION, None)]


def test_kernel_history_follows_a_kernel_through_the_sessions(populated: TraceLake) -> None:
    statement = "SELECT name, fingerprint, session_id, model_name, dispatch_count FROM kernel_history"
    assert populated.sql(statement).rows() == [
        ("gemm", None, SESSION, "model_0", 4),
        ("gemm", None, LATER, "model_1", 5),
        ("relu", "f", SESSION, "model_0", 3),
        ("relu", "f", LATER, "model_1", 3),
    ]


REPOSITORY = ROOT
COMMAND = f"python -m aaco_pipeline.lake.dictionary {dictionary.DEFAULT_PATH}"


def test_page_in_docs_is_up_to_date() -> None:
    page = REPOSITORY / dictionary.DEFAULT_PATH
    assert page.is_file(), f"{dictionary.DEFAULT_PATH} does not exist; run: {COMMAND}"
    up_to_date = page.read_bytes() == dictionary.render().encode()
    assert up_to_date, f"{dictionary.DEFAULT_PATH} is out of date; run: {COMMAND}"


def test_page_names_every_table_and_column_with_its_meaning() -> None:
    page = dictionary.render()
    for table in all_tables().values():
        _, found, rest = page.partition(f"\n### {table.name}\n")
        assert found, table.name
        body = rest.partition("\n### ")[0]
        assert table.meaning in body
        for c in table.all_columns:
            nullable = "yes" if c.nullable else "no"
            meaning = c.meaning.replace("|", "\\|")
            assert f"| `{c.name}` | `{c.dtype}` | {c.unit} | {nullable} | {meaning} |" in body, (table.name, c.name)


def test_every_row_of_every_grid_has_as_many_cells_as_its_header() -> None:
    cells = 0
    for line in dictionary.render().splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = line.replace("\\|", "").count("|")
        cells = cells or count
        assert count == cells, line


def test_check_accepts_what_was_written_and_refuses_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "page.md"
    assert dictionary.main(["--check", str(page)]) == 1
    assert "does not exist; run: python -m aaco_pipeline.lake.dictionary" in capsys.readouterr().err
    assert dictionary.main([str(page)]) == 0
    assert dictionary.main(["--check", str(page)]) == 0
    page.write_text(dictionary.render() + "\n", encoding="utf-8")
    assert dictionary.main(["--check", str(page)]) == 1
    assert "is out of date; run: python -m aaco_pipeline.lake.dictionary" in capsys.readouterr().err


def test_runs_as_a_module(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "aaco_pipeline.lake.dictionary", str(page)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    assert page.read_bytes() == dictionary.render().encode()
