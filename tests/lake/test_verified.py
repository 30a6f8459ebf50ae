"""Every byte read from the lake is verified, on every path, and each file is hashed once."""

from collections.abc import Callable
from typing import IO

import pytest

from aaco_pipeline.capture import file_digests, identity
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import verified
from aaco_pipeline.lake.files import stream_digest
from aaco_pipeline.lake.limited_sql import default_limits
from aaco_pipeline.lake.sql import select_rows, stream_rows
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Metrics, file_of, flip, kernels

ROADS: dict[str, Callable[[TraceLake], object]] = {
    "read": lambda lake: lake.read("session_metrics", SESSION),
    "read all": lambda lake: lake.read("session_metrics"),
    "entry": lambda lake: [lake.read_entry(entry) for entry in lake.manifest(SESSION).entries],
    "contract": lambda lake: lake.verify_entry(lake.manifest(SESSION).of_table("session_metrics")[0]),
    "sql": lambda lake: lake.sql("SELECT count(*) FROM session_metrics"),
    "rows": lambda lake: select_rows(lake, "SELECT 1 FROM session_metrics WHERE false"),
    "stream": lambda lake: list(stream_rows(lake, "SELECT * FROM latest_sessions", default_limits())),
}


@pytest.fixture
def populated(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0, 2.0), "kernels": kernels(filled, "gemm")})
    return lake


@pytest.mark.parametrize("road", ROADS)
def test_a_flipped_byte_is_noticed_on_every_road_wherever_it_is(road: str, populated: TraceLake) -> None:
    ROADS[road](populated)
    file = file_of(populated, "session_metrics")
    whole = file.read_bytes()
    for at in range(0, len(whole), len(whole) // 10):
        flip(file, at)
        with pytest.raises(LakeError) as caught:
            ROADS[road](populated)
        assert "\n" not in str(caught.value)
        for part in (file.name, f"table session_metrics of session {SESSION}, stage a", "`aaco doctor --mend`"):
            assert part in str(caught.value)
        file.write_bytes(whole)
    ROADS[road](populated)


def test_what_a_statement_does_not_touch_does_not_stop_it(populated: TraceLake) -> None:
    flip(file_of(populated, "kernels"), 100)
    assert populated.sql("SELECT count(*) FROM session_metrics").item() == 4
    assert populated.read("kernels", LATER).height == 1
    with pytest.raises(LakeError, match="table kernels"):
        populated.sql("SELECT count(*) FROM kernels")


def test_a_file_is_hashed_once_a_process(populated: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []

    def digest(stream: IO[bytes]) -> str:
        hashed.append(stream.name)
        return stream_digest(stream)

    monkeypatch.setattr(verified, "stream_digest", digest)
    for road in ROADS.values():
        road(populated)
    assert len(hashed) == len(set(hashed)) == 3  # the metrics of both sessions, the kernels of one
    monkeypatch.setattr(verified, "_REMEMBERED", 1)
    populated.read("kernels")
    populated.read("kernels")
    assert len(hashed) == 6, "one of two is forgotten each time"


def test_a_raw_capture_is_verified_when_it_is_first_looked_into(lake: TraceLake) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        for name in ("a.json", "deep/b.json"):
            (folder / name).write_text(name)
        assert [name for name, _ in file_digests(folder)] == ["a.json", "deep/b.json"]
    raw = lake.raw(SESSION)
    known = identity(raw)
    assert [name for name, _ in file_digests(raw)] == ["a.json", "deep/b.json"]
    flip(raw / "deep" / "b.json", 1)
    with pytest.raises(LakeError, match=rf"{SESSION}: the bytes of deep/b.json are not those .*: measure or"):
        identity(raw)
    flip(raw / "deep" / "b.json", 1)
    assert identity(raw) == known


def test_every_byte_of_the_list_counts(lake: TraceLake) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "a.json").write_text("{}")
    path = lake.raw(SESSION) / verified.RAW_LIST
    for at in range(path.stat().st_size):
        flip(path, at)
        with pytest.raises(LakeError, match=SESSION):
            file_digests(lake.raw(SESSION))
        flip(path, at)


def test_a_view_is_given_as_it_was_written_from_what_it_rests_on_or_not_at_all(
    lake: TraceLake, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    trace = lake.trace(SESSION)
    assert lake.view(SESSION, trace, "") is None
    for content in (b"one", b"another"):
        with lake.new_view(SESSION, "perfetto_trace", trace, content.decode()) as path:
            path.write_bytes(content)
            assert lake.view(SESSION, trace, content.decode()) is None
        assert lake.view(SESSION, trace, content.decode()) == content
    assert lake.view(SESSION, trace, "one") is None
    flip(trace, 0)
    assert lake.view(SESSION, trace, "another") is None
    trace.unlink()
    assert lake.view(SESSION, trace, "another") is None
    assert [path.name for path in trace.parent.iterdir()] == []


def test_a_page_that_no_manifest_states_is_not_given(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    lake.report(SESSION).parent.mkdir(parents=True)
    lake.report(SESSION).write_bytes(b"a page")
    assert lake.view(SESSION, lake.report(SESSION), "") is None


def test_a_view_that_fails_changes_nothing(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    trace = lake.trace(SESSION)
    with lake.new_view(SESSION, "perfetto_trace", trace, "it") as path:
        path.write_bytes(b"one")
    with pytest.raises(KeyboardInterrupt), lake.new_view(SESSION, "perfetto_trace", trace, "it") as path:
        path.write_bytes(b"half")
        raise KeyboardInterrupt
    assert lake.view(SESSION, trace, "it") == b"one"
    assert [one.name for one in trace.parent.iterdir()] == [trace.name]
