"""A manifest or list is opened only if it may have changed, and an unreadable one affects only those who need it."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import Catalogue, SegmentCatalogue
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.segments.format import (
    Part,
)
from aaco_pipeline.lake.store import TraceLake
from tests.lake.catalogue_answers import (
    SEGMENT_NAMES,
    Counting,
    answers,
    cache_files,
    list_path,
    truth,
    write,
    write_list,
)
from tests.lake.published import LATER, SESSION, Metrics


def opened(lake: TraceLake, **whole: bool) -> list[str]:
    """The manifests that are read when the catalogue is asked."""
    storage = Counting()
    lake.storage = storage  # type: ignore[misc]
    with Catalogue(lake, **whole) as known:
        known.progress()
    return sorted(storage.read_now)


def settle(lake: TraceLake) -> None:
    """Let every manifest have been written long ago."""
    for path in (lake.path / "manifests").glob("*.json"):
        os.utime(path, (1e9, 1e9))


def test_what_has_not_changed_is_not_opened_but_where_all_bytes_are_asked_for(
    lake: TraceLake, caches: Path, metrics: Metrics
) -> None:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    settle(lake)
    assert opened(lake) == [SESSION, LATER]
    assert len(cache_files(caches)) == 1
    assert opened(lake) == []
    assert opened(lake, whole=True) == [SESSION, LATER]
    lake.publish(LATER, "a", {"session_metrics": metrics(2.0)})
    assert opened(lake) == [LATER]


def test_what_was_written_just_before_it_was_read_is_read_again(
    lake: TraceLake, caches: Path, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert opened(lake) == [SESSION]
    assert opened(lake) == [SESSION]
    settle(lake)
    assert opened(lake) == [SESSION]
    assert opened(lake) == []


def test_bytes_that_changed_unseen_are_found_where_all_are_asked_for(
    lake: TraceLake, caches: Path, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    settle(lake)
    opened(lake)
    path = lake.manifest_path(SESSION, "session")
    content = path.read_bytes()
    path.write_bytes(content[:-3] + b" }\n")
    os.utime(path, (1e9, 1e9))
    with lake.catalogue() as known:
        assert known.errors == {}
    with lake.catalogue(whole=True) as known:
        assert list(known.errors) == [SESSION]


def test_one_unreadable_manifest_is_in_the_way_of_those_who_need_it_alone(
    lake: TraceLake, caches: Path, metrics: Metrics
) -> None:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    lake.manifest_path(SESSION, "session").write_text("{")
    assert lake.sql(f"SELECT session_id FROM session_metrics WHERE session_id = '{LATER}'").rows() == [(LATER,)]
    assert lake.sql(f"SELECT session_id FROM session_metrics WHERE session_id > '{SESSION}'").rows() == [(LATER,)]
    assert lake.read("campaigns").height == 0
    for statement in (
        "SELECT * FROM session_metrics",
        f"SELECT * FROM session_metrics WHERE session_id = '{SESSION}'",
        f"SELECT * FROM session_metrics WHERE session_id >= '{SESSION}'",
    ):
        with pytest.raises(LakeError, match=rf"{SESSION}\.json: not a manifest"):
            lake.sql(statement)


def test_a_number_or_a_text_that_the_cache_cannot_hold_is_no_manifest(lake: TraceLake, caches: Path) -> None:
    write(lake, Manifest("session", SESSION).with_stage("a", [Entry("kernels", "a", "f", 2**70, 1, "", 1)]))
    write(lake, Manifest("session", LATER).with_stage("a", [Entry("\ud800", "a", "", 0, 0, "", 1)]))
    with lake.catalogue() as known:
        assert sorted(known.errors) == [SESSION, LATER]
        assert all("not a manifest" in str(error) for error in known.errors.values())
        assert known.progress() == {}


@pytest.mark.parametrize("what", ["a file in its place", "written by others", "locked for good", "read only"])
def test_where_nothing_can_be_kept_the_answers_are_the_same(
    what: str, lake: TraceLake, caches: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aaco_pipeline.lake.local_cache.BUSY_SECONDS", 0.01)
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    holder = None
    if what == "a file in its place":
        caches.parent.mkdir()
        caches.write_text("x")
    elif what == "written by others":
        caches.mkdir(parents=True)
        caches.chmod(0o777)
    else:
        assert answers(lake) == truth(lake)
        lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
        (file,) = cache_files(caches)
        if what == "read only":
            with sqlite3.connect(file) as made:
                made.execute("PRAGMA journal_mode = DELETE")
            made.close()
            file.chmod(0o444)
        else:
            holder = sqlite3.connect(file, isolation_level=None)
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
            holder.execute("BEGIN EXCLUSIVE")
    assert answers(lake) == truth(lake)
    if holder is not None:
        holder.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("is_folder", [False, True])
def test_what_another_user_put_into_the_cache_is_neither_believed_nor_written(
    is_folder: bool, lake: TraceLake, caches: Path, metrics: Metrics
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert answers(lake) == truth(lake)
    (file,) = cache_files(caches)
    os.chown(file.parent if is_folder else file, 65534, 65534)
    before = file.read_bytes()
    lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
    assert answers(lake) == truth(lake)
    assert file.read_bytes() == before
    assert not file.with_name(f"{file.name}-wal").exists()


def test_two_processes_that_ask_at_once_get_the_same(
    lake: TraceLake, caches: Path, metrics: Metrics, start_python: Callable[..., "object"]
) -> None:
    for number in range(40):
        write(lake, Manifest("session", f"20250101T0000{number:02}Z-0000000a").expecting(("capture",)))
    code = (
        "import sys; from aaco_pipeline.lake.store import TraceLake\n"
        "for _ in range(5):\n    with TraceLake(sys.argv[1]).catalogue() as known: print(len(known.progress()))"
    )
    asking = [start_python(code, lake.path) for _ in range(3)]
    for one in asking:
        with one:  # type: ignore[attr-defined]
            assert one.communicate()[0].split() == ["40"] * 5  # type: ignore[attr-defined]


def test_caches_of_lakes_that_are_no_more_go_when_a_new_one_is_made(
    lake: TraceLake, caches: Path, metrics: Metrics, tmp_path: Path
) -> None:
    gone, other = TraceLake(tmp_path / "gone"), TraceLake(tmp_path / "other")
    for one in (gone, lake):
        one.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
        answers(one)
    assert len(cache_files(caches)) == 2
    shutil.rmtree(gone.path)
    other.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    answers(other)
    assert {(one.parent / "lake").resolve() for one in cache_files(caches)} == {lake.path, other.path}


def test_what_is_remembered_of_a_session_goes_with_it(lake: TraceLake, caches: Path, metrics: Metrics) -> None:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    with lake.catalogue() as known:
        known.remember("disk", {SESSION: ("1", "2"), LATER: ("3", "4")})
    lake.remove(SESSION)
    with lake.catalogue() as known:
        assert known.remembered("disk") == {LATER: ("3", "4")}


def test_a_list_that_has_not_changed_is_not_opened(lake: TraceLake, caches: Path) -> None:
    for name in SEGMENT_NAMES:
        write_list(lake, "kernels", name, [Part(SESSION, "a", "ab", 1, 1, 1)], 1)
        os.utime(list_path(lake, "kernels", name), (1e9, 1e9))
    lake.storage = storage = Counting()  # type: ignore[misc]
    for expected in (list(SEGMENT_NAMES), []):
        with SegmentCatalogue(lake, "kernels") as known:
            assert [one.segment.name for one in known.held({SESSION}).values()] == ["bb"]
        assert storage.read_now == expected
        storage.read_now = []


@pytest.mark.parametrize("column", ["first_row", "rows", "place", "sha256", "owner", "stage"])
def test_a_part_that_is_not_what_was_kept_is_read_from_its_list(column: str, lake: TraceLake, caches: Path) -> None:
    write_list(lake, "kernels", "aa", [Part(one, "a", "ab" * 32, 2, 1, 1) for one in (SESSION, LATER)], 1)
    os.utime(list_path(lake, "kernels", "aa"), (1e9, 1e9))
    with SegmentCatalogue(lake, "kernels") as known:
        before = known.held()
    (file,) = cache_files(caches)
    with sqlite3.connect(file) as made:
        made.execute(f"UPDATE parts SET {column} = 0 WHERE place = 1")
    made.close()
    with SegmentCatalogue(lake, "kernels") as known:
        assert known.held() == before
