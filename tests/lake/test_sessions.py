"""Sessions: valid ids, lookup by name, removal, raw captures, and requests to measure."""

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.layout import SESSION_ID, new_session_id, require_campaign_id, require_session_id
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, dead_process, kernels, kinds


def test_a_new_id_is_a_valid_id_of_this_moment() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    made = new_session_id()
    assert require_session_id(made) == made
    assert before <= datetime.strptime(made[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) <= datetime.now(UTC)


def test_an_id_names_the_moment_in_utc_wherever_it_was_made() -> None:
    elsewhere = datetime(2025, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert new_session_id(now=elsewhere).startswith("20241231T233000Z-")


def test_ids_of_one_second_differ_and_ids_sort_by_time() -> None:
    moment = datetime(2025, 1, 1, tzinfo=UTC)
    made = [new_session_id(now=moment) for _ in range(50)]
    assert len(set(made)) == len(made)
    assert all(SESSION_ID.fullmatch(identifier) for identifier in made)
    assert max(made) < new_session_id(now=moment + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("workload", "end"),
    [
        ("squeezenet", "-squeezenet"),
        ("Llama 3.1 (8B), FP8", "-llama-3-1-8b-fp8"),
        ("../../etc", "-etc"),
        ("x" * 23 + " yz", "-" + "x" * 23),
        ("x" * 99, "-" + "x" * 24),
        ("größe", "-gr-e"),
        ("模型", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_an_id_ends_with_the_name_of_the_workload(workload: str | None, end: str) -> None:
    made = new_session_id(workload)
    assert require_session_id(made) == made
    assert made[25:] == end


@pytest.mark.parametrize(
    "text",
    ["", "latest", "../x", SESSION + "/..", SESSION.upper(), SESSION + "\n", SESSION[:-1], "２" + SESSION[1:], "*"]
    + [f"{SESSION}{end}" for end in ("-", "--a", "-A", "-a_b", "-a/b", "-" + "a" * 25, "-a\n", "squeezenet")],
)
def test_what_is_no_session_id_never_becomes_a_path(text: str) -> None:
    with pytest.raises(UsageError, match="is not a session id"):
        require_session_id(text)


@pytest.mark.parametrize("text", ["nightly", "20250101", "a-b_C", "x" * 128])
def test_a_campaign_may_have_a_plain_name(text: str) -> None:
    assert require_campaign_id(text) == text


@pytest.mark.parametrize("text", ["", "..", "a/b", "a b", "-x", "a\n", "x" * 129, "ä", "a'b"])
def test_what_is_no_campaign_id_never_becomes_a_path(text: str) -> None:
    with pytest.raises(UsageError, match="is not a campaign id"):
        require_campaign_id(text)


def test_a_session_is_found_by_id_by_unique_prefix_and_as_the_latest(lake: TraceLake, metrics: Metrics) -> None:
    with pytest.raises(UsageError, match="no sessions yet"):
        lake.find_session("latest")
    others = [f"{SESSION[:-1]}b", LATER]
    for session in (LATER, SESSION, others[0]):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [SESSION, *others]
    assert lake.find_session("latest") == LATER
    assert lake.find_session(SESSION) == SESSION
    assert lake.find_session("20250102") == LATER
    with pytest.raises(UsageError, match=f"session '20250101' is ambiguous: {SESSION}, {others[0]}"):
        lake.find_session("20250101")
    for unknown in ("1999", SESSION + "0", "0000000a"):
        with pytest.raises(UsageError, match=rf"no session '{unknown}'.*newest {LATER}"):
            lake.find_session(unknown)
        with pytest.raises(UsageError, match="no session"):
            lake.read("session_metrics", unknown)


def test_a_session_is_found_with_or_without_its_workload_and_not_by_that_alone(
    lake: TraceLake, metrics: Metrics
) -> None:
    named = f"{SESSION}-squeezenet"
    lake.publish(named, "a", {"session_metrics": metrics(1.0)})
    lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [named, LATER]
    for name in (named, SESSION, f"{SESSION}-squ", "20250101"):
        assert lake.find_session(name) == named
    with pytest.raises(UsageError, match="no session 'squeezenet'"):
        lake.find_session("squeezenet")


def test_a_removed_session_is_gone_wholly_and_the_others_are_unharmed(
    lake: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot
) -> None:
    lake.publish(LATER, "a", {"session_metrics": metrics(2.0)})
    before = snapshot(lake.path)
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "capture.json").write_bytes(b"x" * 1000)
    for name in ("traces", "reports"):
        (lake.path / name / f"session_id={SESSION}").mkdir(parents=True)
        (lake.path / name / f"session_id={SESSION}" / "file").write_bytes(b"y" * 100)
    expected = 1200 + (lake.raw(SESSION) / RAW_LIST).stat().st_size
    expected += sum(entry.bytes for entry in lake.manifest(SESSION).entries)
    assert lake.disk_bytes(SESSION) == expected
    assert lake.remove(SESSION) == expected
    left = snapshot(lake.path)
    assert {name: content for name, content in left.items() if content is not None or SESSION in name} == {
        name: content for name, content in before.items() if content is not None
    }
    assert lake.sessions() == [LATER]
    assert lake.disk_bytes(SESSION) == 0
    assert lake.remove(SESSION) == 0
    assert faults(lake) == []


def test_a_session_is_out_of_view_before_its_first_file_is_deleted(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    sessions_then: list[list[str]] = []

    def note(_: LocalStorage, folder: Path, names: Collection[str]) -> None:
        if names:
            sessions_then.append(lake.sessions())

    monkeypatch.setattr(LocalStorage, "clear", note)
    lake.remove(SESSION)
    assert sessions_then == [[]]
    assert [(fault.kind, fault.mendable) for fault in faults(lake)] == [("orphan file", True)]


def test_a_new_session_is_the_latest_whatever_the_clock_says(lake: TraceLake, metrics: Metrics) -> None:
    """Also within a second, and after the clock has stepped back by years."""
    ahead = "20990101T000000Z-0000000a"
    made = [lake.new_session("größe")]
    lake.request(made[0], "{}")
    made.append(lake.new_session())
    with lake.receive_raw(made[1]) as folder:
        (folder / "a").touch()
    made.append(lake.new_session())
    lake.publish(made[2], "a", {"session_metrics": metrics(1.0)})
    lake.publish(ahead, "a", {"session_metrics": metrics(1.0)})
    made += [ahead, lake.new_session()]
    lake.publish(made[4], "a", {"session_metrics": metrics(1.0)})
    assert made == sorted(made)
    assert made[4].startswith("20990101T000001Z-")
    assert lake.find_session("latest") == made[4]
    lake.request("99999999T999999Z-0000000a", "{}")  # an id, and no time
    assert lake.new_session().startswith("20990101T000002Z-")


def test_what_is_to_be_measured_is_kept_until_it_is_withdrawn(lake: TraceLake, snapshot: Snapshot) -> None:
    assert lake.requests() == []
    assert lake.requested(SESSION) is None
    lake.withdraw(SESSION)
    assert not lake.path.exists()
    for session in (LATER, SESSION):
        lake.request(session, f'{{"model": "größer {session}"}}')
    assert lake.requests() == [SESSION, LATER]
    assert lake.requested(SESSION) == f'{{"model": "größer {SESSION}"}}'
    lake.request(SESSION, "other")
    assert lake.requested(SESSION) == "other"
    assert lake.sessions() == []
    (lake.path / "launches" / f".tmp-{dead_process()}-0").write_bytes(b"x")
    assert lake.requests() == [SESSION, LATER]
    assert kinds(lake) == {"unfinished write": True}
    assert all(mend(lake, fault) for fault in faults(lake))
    lake.withdraw(SESSION)
    assert lake.requests() == [LATER]
    lake.remove(LATER)
    assert lake.requests() == []
    assert {name for name, content in snapshot(lake.path).items() if content is not None} == set()


def test_a_request_that_cannot_be_kept_or_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    lake = TraceLake(tmp_path / "file" / "lake")
    doing: list[Callable[[], object]] = [
        lambda: lake.request(SESSION, "x"),
        lambda: lake.requested(SESSION),
        lambda: lake.withdraw(SESSION),
    ]
    for each in doing:
        with pytest.raises(LakeError, match="Not a directory"):
            each()
    with pytest.raises(UsageError, match="is not a session id"):
        lake.request("../x", "x")


def test_a_capture_is_there_whole_or_not_at_all(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_text("1")
        assert not lake.raw(SESSION).exists()
        assert faults(lake) == []
    raw = snapshot(lake.raw(SESSION))
    digest = sha256(b"1").hexdigest()
    assert json.loads(raw.pop("digests.json") or "") == {"list_version": 1, "sha256": {"deep/a": digest}}
    assert raw == {"deep": None, "deep/a": b"1"}
    assert [path.name for path in (lake.path / "raw").iterdir()] == [f"session_id={SESSION}"]
    assert faults(lake) == []


def test_a_capture_is_never_overwritten(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
    before = snapshot(lake.path)
    with (
        pytest.raises(LakeError, match="the capture is already complete; a new measurement is a new session"),
        lake.receive_raw(SESSION) as folder,
    ):
        (folder / "a").write_text("2")
    assert snapshot(lake.path) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_capture_that_fails_leaves_nothing(error: type[BaseException], lake: TraceLake) -> None:
    with pytest.raises(error), lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
        raise error
    assert not lake.raw(SESSION).exists()
    assert list((lake.path / "raw").iterdir()) == []
