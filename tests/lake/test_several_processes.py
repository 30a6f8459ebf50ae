"""Several processes write, read and remove at once."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import layout, sql
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics, values

PUBLISH_MANY_TIMES: Final = """
import sys
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
lake, session, stage, times = TraceLake(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
evidence_frame(stage, [])
print("ready", flush=True)
sys.stdin.readline()
for i in range(times):
    entries = lake.publish(session, stage, {"evidence": evidence_frame(stage, [Evidence("turn", "present", rows=i)])})
    assert lake.manifest(session).of_stage(stage) == entries, f"turn {i} of {stage} was lost"
    found = lake.read("evidence", session).filter(stage=stage)
    assert found.get_column("rows").to_list() == [i], f"turn {i} of {stage} reads {found}"
"""


def test_writers_of_one_session_lose_nothing_of_each_other(
    lake: TraceLake, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    stages = ("a", "b", "c")
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(start_python(PUBLISH_MANY_TIMES, lake.path, SESSION, stage, 60)) for stage in stages
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            writer.communicate("go\n", timeout=60)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
    found = lake.read("evidence", SESSION)
    assert found.select("stage", "rows").rows() == [(stage, 59) for stage in stages]
    assert faults(lake) == []


def test_a_writer_waits_for_another_and_gives_up_in_words(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    lock = lake.path / ".locks" / f"{SESSION}.lock"
    late = threading.Thread(target=lake.publish, args=(SESSION, "a", {"session_metrics": metrics(3.0)}))
    with exclusive_lock(lock, timeout_seconds=1, purpose="a test"):
        with monkeypatch.context() as patched:
            patched.setattr(layout, "LOCK_TIMEOUT_SECONDS", 0.1)
            with pytest.raises(LakeError, match=f"{SESSION} is locked by process {os.getpid()} for more than 0.1 s"):
                lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
        late.start()
        late.join(0.1)
        assert late.is_alive()
        assert values(lake) == [1.0]
    late.join()
    assert values(lake) == [3.0]


GENERATIONS_SEEN: Final = 25
PUBLISH_GENERATIONS: Final = """
import select, sys
import polars as pl
from aaco_pipeline.lake.contracts import contract, polars_types
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
lake = TraceLake(sys.argv[1])
types = polars_types("session_metrics")
def metrics(generation):
    n = 100
    columns = {"metric": [f"m{i}" for i in range(n)], "unit": ["ns"] * n, "value": [float(generation)] * n}
    return pl.DataFrame([pl.Series(c, columns.get(c, [None] * n), dtype=t) for c, t in types.items()])
generation = 0
while not select.select([sys.stdin], [], [], 0)[0]:  # until the reader has seen enough
    lake.publish(sys.argv[2], "a", {"session_metrics": metrics(generation)})
    if not generation:
        print("ready", flush=True)
    generation += 1
print(generation - 1, flush=True)
"""


def test_a_reader_during_publications_sees_one_whole_state_after_another(
    lake: TraceLake, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    seen: list[float] = []
    with start_python(PUBLISH_GENERATIONS, lake.path, SESSION) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        while len(set(seen)) < GENERATIONS_SEEN:
            assert writer.poll() is None
            frame = lake.read("session_metrics", None if len(seen) % 2 else SESSION)
            assert frame.height == 100
            (generation,) = set(frame.get_column("value").to_list())
            seen.append(generation)
        writer.stdin.close()
        last = float(writer.stdout.readline())
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert values(lake)[0] == last >= seen[-1]


class Overtaken(TraceLake):
    """A lake in which a writer publishes other content just after a reader learned which files there are."""

    def __init__(self, path: Path, overtakers: Iterator[pl.DataFrame]) -> None:
        super().__init__(path)
        self._overtakers = overtakers

    def published(
        self, tables: Sequence[Table], meant: Mapping[str, frozenset[str]] | None = None
    ) -> dict[str, list[tuple[str, Entry]]]:
        found = super().published(tables, meant)
        self._overtake()
        return found

    def manifest(self, identifier: str, scope: Scope = "session") -> Manifest:
        found = super().manifest(identifier, scope)
        self._overtake()
        return found

    def _overtake(self) -> None:
        for frame in self._overtakers:
            TraceLake(self.path).publish(SESSION, "a", {"session_metrics": frame})
            break


@pytest.mark.parametrize("through_sql", [False, True], ids=["read", "sql"])
@pytest.mark.parametrize("times", [1, 12])
def test_a_reader_overtaken_by_a_writer_reads_what_the_writer_published(
    times: int, through_sql: bool, lake: TraceLake, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(0.0)})
    overtaken = Overtaken(lake.path, iter([metrics(float(i + 1)) for i in range(times)]))
    if through_sql:
        assert overtaken.sql("SELECT value FROM session_metrics").rows() == [(float(times),)]
    else:
        assert values(overtaken) == [float(times)]


def test_a_statement_whose_file_vanishes_after_its_view_was_made_is_asked_anew(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(0.0)})
    prepare, overtakers = sql._prepare, [metrics(1.0)]

    def then_overtaken(*arguments: Any, **named: Any) -> None:
        prepare(*arguments, **named)
        if overtakers:
            lake.publish(SESSION, "a", {"session_metrics": overtakers.pop()})

    monkeypatch.setattr(sql, "_prepare", then_overtaken)
    assert lake.sql("SELECT value FROM session_metrics").rows() == [(1.0,)]


def test_a_session_removed_while_its_manifests_are_listed_is_not_there(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    read = LocalStorage.read

    def lose_the_later_one(storage: LocalStorage, path: Path) -> bytes:
        if path.stem == LATER:
            lake.marker_path(LATER, "session").unlink(missing_ok=True)
            path.unlink()
        return read(storage, path)

    monkeypatch.setattr(LocalStorage, "read", lose_the_later_one)
    assert [manifest.id for manifest in lake.manifests("session")] == [SESSION]
    assert lake.sessions() == [SESSION]
