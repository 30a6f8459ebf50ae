"""After any sequence of publishing, removing, compacting and kills, a lake reads like a plain model of it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.segments import compaction
from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.conftest import _filled

SESSIONS: Final = [f"2025010{day}T000000Z-0000000{day}" for day in range(1, 5)]
TABLES: Final = ("session_metrics", "iterations")
#: What changes the disk; a kill falls before one of these calls or right after it.
STEPS: Final = ("place", "write", "remove", "clear", "discard")


@dataclass(frozen=True)
class Publish:
    session: str
    version: int


@dataclass(frozen=True)
class Remove:
    session: str


@dataclass(frozen=True)
class Compact:
    hours: int
    killed_at: int | None


OPERATIONS: Final = st.one_of(
    st.builds(Publish, st.sampled_from(SESSIONS), st.integers(0, 2)),
    st.builds(Remove, st.sampled_from(SESSIONS)),
    st.builds(Compact, st.sampled_from([0, 12, 48]), st.none() | st.integers(0, 20)),
)


class KilledError(BaseException):
    """Like a kill, it is caught by nobody."""


@contextmanager
def killed_at(step: int | None) -> Iterator[None]:
    """A block that ends before or after its so-manieth step that changes the disk: even numbers before, odd after."""
    count = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            at, count = count, count + 1
            if at == (step or 0) // 2 and step is not None and step % 2 == 0:
                raise KilledError
            done = real(*arguments)
            if at == (step or 0) // 2 and step is not None:
                raise KilledError
            return done

        return call

    patches = [patch.object(LocalStorage, name, dying(getattr(LocalStorage, name))) for name in STEPS]
    for one in patches:
        one.start()
    try:
        with suppress(KilledError):
            yield
    finally:
        for one in patches:
            one.stop()


def publish(lake: TraceLake, session: str, version: int) -> None:
    metrics = _filled("session_metrics", {"metric": ["a", "b"], "n": [version, version]})
    iterations = _filled("iterations", {"iteration": [0, 1, 2], "latency_ns": [version] * 3})
    lake.publish(session, "a", {"session_metrics": metrics})
    lake.publish(session, "b", {"iterations": iterations})


def require_as_in(model: dict[str, int], lake: TraceLake) -> None:
    ids = [session for session in sorted(model) for _ in range(2)]
    versions = [model[session] for session in ids]
    read = lake.read("session_metrics")
    assert (read.get_column("session_id").to_list(), read.get_column("n").to_list()) == (ids, versions)
    for session, version in model.items():
        assert lake.read("iterations", session).get_column("latency_ns").to_list() == [version] * 3
    rows = lake.sql("SELECT session_id, sum(latency_ns), count(*) FROM iterations GROUP BY ALL ORDER BY ALL").rows()
    assert rows == [(session, 3 * version, 3) for session, version in sorted(model.items())]


@given(st.lists(OPERATIONS, max_size=14))
def test_reads_equal_a_model_after_any_sequence(operations: list[Publish | Remove | Compact]) -> None:
    model: dict[str, int] = {}
    now = datetime(2030, 1, 1, tzinfo=UTC)
    tables = {name: contract(name) for name in TABLES}
    with tempfile.TemporaryDirectory() as folder, patch.object(compaction, "all_tables", lambda: tables):
        lake = TraceLake(Path(folder) / "lake")
        for session in SESSIONS[:2]:
            publish(lake, session, 0)
            model[session] = 0
        for one in operations:
            if isinstance(one, Publish):
                publish(lake, one.session, one.version)
                model[one.session] = one.version
            elif isinstance(one, Remove):
                lake.remove(one.session)
                model.pop(one.session, None)
            else:
                now += timedelta(hours=one.hours)
                with killed_at(one.killed_at):
                    compact(lake, now)
            require_as_in(model, lake)
        for fault in faults(lake):
            assert mend(lake, fault), fault
        assert faults(lake) == []
        for _ in range(2):
            now += timedelta(days=2)
            compact(lake, now)
        require_as_in(model, lake)
        held = b"".join(path.read_bytes() for path in lake.path.rglob("*") if path.is_file())
        assert [session for session in SESSIONS if session not in model and session.encode() in held] == []
