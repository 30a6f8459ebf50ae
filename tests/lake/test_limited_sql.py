"""A statement ends at its deadline, memory limit or Ctrl-C; what it spills is bounded and removed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake import limited_sql
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.limited_sql import MOST_MEMORY_BYTES, Limits, default_limits, statement_goes_on
from aaco_pipeline.lake.sql import select_rows, stream_batches, stream_rows
from aaco_pipeline.lake.store import TraceLake

ENDLESS: Final = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
#: One call of one function, which hears nothing until it is done.
DEAF: Final = "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))"
#: Sorts more than the memory that it is given in a test.
SPILLING: Final = "SELECT count(s) FROM (SELECT repeat('x', 200) || range AS s FROM range(700000) ORDER BY hash(range))"
SMALL: Final = Limits(100 * 10**6)


@pytest.fixture
def made(lake: TraceLake) -> TraceLake:
    """A lake whose folder exists."""
    lake.path.mkdir()
    return lake


def answer(lake: TraceLake, statement: str, limits: Limits) -> list[tuple[object, ...]]:
    return [row for part in stream_rows(lake, statement, limits) for row in part.rows]


def test_a_statement_has_half_of_the_memory_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < default_limits().memory_bytes <= min(machine // 2, MOST_MEMORY_BYTES)
    assert default_limits().seconds == 300


def test_a_control_group_makes_the_memory_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text, expected in (("1000000000\n", 500_000_000), ("max\n", default_limits().memory_bytes)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(limited_sql, "_MEMORY_OF_GROUP", tmp_path / "memory.max")
        assert default_limits().memory_bytes == expected


def test_the_deadline_ends_a_statement_that_would_never_end(made: TraceLake) -> None:
    with pytest.raises(UsageError, match=r"ran longer than 0\.2 s; .* --timeout"):
        answer(made, ENDLESS, Limits(10**9, 0.2))
    assert not statement_goes_on()
    assert list(made.path.iterdir()) == []


def test_the_time_of_all_parts_together_is_limited(made: TraceLake) -> None:
    with pytest.raises(UsageError, match="ran longer"):
        answer(made, "SELECT range FROM range(1000000000000)", Limits(10**9, 0.3))


def test_an_interrupt_ends_a_statement_that_would_never_end(made: TraceLake) -> None:
    # A real signal: it wakes a thread that waits, which `_thread.interrupt_main` does not.
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        answer(made, ENDLESS, Limits(10**9))
    timer.join()
    assert not statement_goes_on()


def test_a_statement_that_needs_more_memory_is_refused_in_words(made: TraceLake) -> None:
    with pytest.raises(UsageError, match=r"more than 0\.1 GB of memory and its room on the disk; .* --memory"):
        answer(made, "SELECT len(list(range)) FROM range(100000000)", SMALL)
    assert list(made.path.iterdir()) == []


def test_an_answer_that_is_not_read_to_its_end_leaves_nothing(made: TraceLake) -> None:
    parts = stream_rows(made, "SELECT range FROM range(100000000)", default_limits())
    assert len(next(parts).rows) == 10_000
    parts.close()
    assert not statement_goes_on()
    assert list(made.path.iterdir()) == []


def test_what_does_not_fit_into_memory_is_spilled_to_the_lake_and_gone_afterwards(made: TraceLake) -> None:
    assert answer(made, SPILLING, SMALL) == [(700000,)]
    assert list(made.path.iterdir()) == []


@pytest.mark.parametrize("bound", ["no lake", "no room"])
def test_spilling_is_bounded(bound: str, lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    if bound == "no room":
        lake.path.mkdir()
        monkeypatch.setattr(limited_sql, "SPILL_PER_MEMORY", 0.1)
    with pytest.raises(UsageError, match="--memory"):
        answer(lake, SPILLING, SMALL)
    assert lake.path.exists() == (bound == "no room")


def test_what_a_killed_statement_spilled_is_found_and_removed(made: TraceLake) -> None:
    left, kept = made.path / ".tmp-999999999-0000000a", made.path / f".tmp-{os.getpid()}-0000000b"
    for folder in (left, kept):
        folder.mkdir()
        (folder / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"spilled")
    (fault,) = faults(made)
    assert (fault.kind, fault.path) == ("unfinished write", left)
    assert mend(made, fault)
    assert list(made.path.iterdir()) == [kept]


def test_a_statement_cannot_read_beside_what_it_spills(made: TraceLake) -> None:
    (made.path / "secret.txt").write_text("hunter2")
    for place in ("/../secret.txt", "/../*", "/../../*"):
        for read in ("SELECT content FROM read_text({})", "SELECT * FROM glob({})"):
            with pytest.raises(UsageError, match="no other file"):
                select_rows(made, read.format(f"current_setting('temp_directory') || '{place}'"))
    with pytest.raises(UsageError):
        select_rows(made, "COPY (SELECT 1) TO 'x.csv'")


def test_parts_and_batches_are_the_whole_answer_in_order(made: TraceLake) -> None:
    statement = "SELECT range AS n, range::VARCHAR AS t FROM range(25000)"
    expected = [(n, str(n)) for n in range(25000)]
    parts = list(stream_rows(made, statement, default_limits()))
    assert {part.columns for part in parts} == {("n", "t")}
    assert max(len(part.rows) for part in parts) <= 10_000
    assert [row for part in parts for row in part.rows] == expected
    first, *batches = stream_batches(made, statement, default_limits())
    assert (first.num_rows, first.schema.names) == (0, ["n", "t"])
    assert [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)] == expected
    (empty,) = stream_rows(made, "SELECT 1 AS n WHERE false", default_limits())
    assert (empty.columns, empty.rows) == (("n",), [])


def test_the_command_ends_where_a_function_hears_nothing(made: TraceLake) -> None:
    """In a process of its own, because what goes on ends with the process alone."""
    command = "from aaco_pipeline.cli.main import entry; entry()"
    arguments = ["--lake", str(made.path), "sql", DEAF, "--timeout", "0.5"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "ran longer than 0.5 s" in done.stderr
    assert list(made.path.iterdir()) == []
