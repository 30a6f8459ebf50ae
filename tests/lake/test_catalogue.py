"""What a host keeps of the manifests is what they say, whatever became of them and of the cache meanwhile."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import Catalogue
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.manifest import Artifact, Entry, Manifest
from aaco_pipeline.lake.progress import progress_of
from aaco_pipeline.lake.reading import read_manifest
from aaco_pipeline.lake.segment_catalogue import SegmentCatalogue
from aaco_pipeline.lake.segments import (
    Part,
    RowGroup,
    Segment,
    SegmentList,
    columns_of,
    readable_lists,
    where_held,
)
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics

SESSIONS: Final = (SESSION, LATER, "20250103T000000Z-0000000c-small")
CAMPAIGNS: Final = ("nightly", "nightly-2")
OWNERS: Final[tuple[tuple[Scope, str], ...]] = (
    *(("session", one) for one in SESSIONS),
    *(("campaign", one) for one in CAMPAIGNS),
)
PAGE: Final = 4096
TABLES: Final = ("sessions", "kernels", "verdicts")
SEGMENT_NAMES: Final = ("aa", "bb")


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the lakes' caches, of the test's own."""
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lakes"


def cache_files(caches: Path) -> list[Path]:
    return sorted(caches.glob("*/*.sqlite"))


def entry(table: str, owner: tuple[Scope, str], stage: str, rows: int, digest: str) -> Entry:
    scope, identifier = owner
    file = f"{table}/{scope}_id={identifier}/{stage}-{digest[:12]}.parquet" if rows else ""
    return Entry(table, stage, file, rows, 10 * rows, digest if rows else "", 1)


def write(lake: TraceLake, manifest: Manifest) -> Path:
    path = lake.manifest_path(manifest.id, manifest.scope)
    lake.storage.write(path, manifest.to_bytes())
    return path


def list_path(lake: TraceLake, table: str, name: str) -> Path:
    return lake.path / "segments" / table / f"{name}.json"


def write_list(lake: TraceLake, table: str, name: str, parts: list[Part], day: int) -> None:
    groups = tuple(RowGroup(10, part.rows, "ab") for part in parts)
    made = datetime(2026, 1, day, tzinfo=UTC)
    segment = Segment(table, name, made, 1, len(parts), groups, RowGroup(3, 0, "cd"))
    lake.storage.write(list_path(lake, table, name), SegmentList(segment, columns_of(Part, parts)).to_bytes())


def answers(lake: TraceLake) -> dict[str, object]:
    """All that can be asked of the catalogue."""

    def asked(question: Callable[[], object]) -> object:
        try:
            return question()
        except LakeError as error:
            return str(error)

    with lake.catalogue() as known:
        return {
            "errors": {name: str(error) for name, error in known.errors.items()},
            "progress": known.progress(),
            "bytes": known.table_bytes(),
            "rows": asked(known.rows_of_tables),
            **{
                f"{question} of {scope} {table}": asked(answer)
                for scope in ("session", "campaign")
                for table in TABLES
                for question, answer in (
                    ("manifests", lambda scope=scope: list(known.manifests(scope))),
                    ("entries", lambda scope=scope, table=table: known.entries(table, scope)),
                    ("some", lambda scope=scope, table=table: known.entries(table, scope, lambda one: one != SESSION)),
                )
            },
        }


def truth(lake: TraceLake) -> dict[str, object]:
    """The same from the manifests alone."""
    manifests: dict[str, Manifest] = {}
    errors: dict[str, LakeError] = {}
    for name in lake.storage.names(lake.path / "manifests"):
        if not name.endswith(".json"):
            continue
        try:
            if (found := read_manifest(lake.storage, lake.path / "manifests" / name)) is not None:
                manifests[found.id] = found
        except LakeError as error:
            errors[name.removesuffix(".json")] = error
    sessions = {name: one for name, one in sorted(manifests.items()) if one.scope == "session"}

    def unreadable(scope: Scope, but: str = "") -> str | None:
        of_scope = [one for one in sorted(errors) if (one in SESSIONS) == (scope == "session") and one != but]
        return str(errors[of_scope[0]]) if of_scope else None

    def entries(scope: Scope, table: str, but: str = "") -> list[tuple[str, Entry]]:
        of_scope = [one for _, one in sorted(manifests.items()) if one.scope == scope and one.id != but]
        return [(one.id, each) for one in of_scope for each in one.of_table(table)]

    rows: dict[str, int] = {}
    for each in (each for one in manifests.values() for each in one.entries):
        rows[each.table] = rows.get(each.table, 0) + each.rows
    return {
        "errors": {name: str(error) for name, error in errors.items()},
        "progress": {name: progress_of(one) for name, one in sessions.items()},
        "bytes": {name: sum(each.bytes for each in one.entries) for name, one in sessions.items()},
        "rows": unreadable("session") or unreadable("campaign") or rows,
        **{
            f"{question} of {scope} {table}": answer
            for scope in ("session", "campaign")
            for table in TABLES
            for question, answer in (
                (
                    "manifests",
                    unreadable(scope) or [one for _, one in sorted(manifests.items()) if one.scope == scope],
                ),
                ("entries", unreadable(scope) or entries(scope, table)),
                ("some", unreadable(scope, SESSION) or entries(scope, table, SESSION)),
            )
        },
    }


class CacheAndManifests(RuleBasedStateMachine):
    """Whatever happens to the manifests and to the cache, the answers are those of the manifests."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        """An empty lake, and no cache of it."""
        self.base = Path(self.folder / os.urandom(8).hex())
        self.lake = TraceLake(self.base / "lake")
        self.kept = self.base / "kept"
        self.is_damaged = self.is_kept_damaged = False
        os.environ["AACO_CACHE"] = str(self.base / "cache")

    @property
    def caches(self) -> Path:
        return self.base / "cache" / "lakes"

    @rule(
        owner=st.sampled_from(OWNERS),
        stage=st.sampled_from(("capture", "timeline")),
        rows=st.lists(st.integers(0, 3), min_size=1, max_size=len(TABLES)),
        number=st.integers(0, 3),
    )
    def publish(self, owner: tuple[Scope, str], stage: str, rows: list[int], number: int) -> None:
        """A stage's entries take the place of those before; with `number` 0 their digests have an unusual form."""
        before = self.lake.manifest(owner[1], owner[0]) if self._is_readable(owner) else Manifest(*owner)
        digest = str(number) * 64 if number else "short"
        made = [entry(table, owner, stage, count, digest) for table, count in zip(TABLES, rows, strict=False)]
        write(self.lake, before.with_stage(stage, made, f"version {number}"))
        self.compared()

    @rule(owner=st.sampled_from(OWNERS), failure=st.sampled_from(("", "out of memory")), stated=st.booleans())
    def restate(self, owner: tuple[Scope, str], failure: str, stated: bool) -> None:
        """What is expected, what failed, what a person said, a file beside the tables."""
        before = self.lake.manifest(owner[1], owner[0]) if self._is_readable(owner) else Manifest(*owner)
        after = before.expecting(("capture", "timeline")).with_artifact(Artifact("report", "reports/é.html", 3, "ab"))
        after = after.with_failure("timeline", "1", failure) if failure else after
        write(self.lake, after.stating({"model_name": "résnet"}) if stated else after)
        self.compared()

    @rule(owner=st.sampled_from(OWNERS))
    def remove(self, owner: tuple[Scope, str]) -> None:
        """A manifest vanishes."""
        self.lake.manifest_path(owner[1], owner[0]).unlink(missing_ok=True)
        self.compared()

    @rule(owner=st.sampled_from(OWNERS), content=st.sampled_from((b"", b"{", b'{\n "digest": "0', b"[]", b"\xff")))
    def tear(self, owner: tuple[Scope, str], content: bytes) -> None:
        """A manifest is torn where it is."""
        if (path := self.lake.manifest_path(owner[1], owner[0])).exists():
            path.write_bytes(content)
        self.compared()

    @rule(
        table=st.sampled_from(TABLES),
        name=st.sampled_from(SEGMENT_NAMES),
        parts=st.lists(
            st.tuples(st.sampled_from(OWNERS), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5
        ),
        day=st.integers(1, 3),
    )
    def compact(self, table: str, name: str, parts: list[tuple[tuple[Scope, str], int, int]], day: int) -> None:
        """A segment's list takes the place of one of its name, which may hold the same parts."""
        write_list(
            self.lake, table, name, [Part(o[1], "a", str(d) * 64 if d else "?", n, 1, 1) for o, d, n in parts], day
        )
        self.compared()

    @rule(table=st.sampled_from(TABLES), name=st.sampled_from(SEGMENT_NAMES), content=st.sampled_from((None, b"{")))
    def drop_or_tear_a_list(self, table: str, name: str, content: bytes | None) -> None:
        """The list of a segment goes, or is torn where it is."""
        path = list_path(self.lake, table, name)
        if path.exists():
            path.unlink() if content is None else path.write_bytes(content)
        self.compared()

    @rule(owner=st.sampled_from(OWNERS), seconds=st.integers(-10_000, 10))
    def touch(self, owner: tuple[Scope, str], seconds: int) -> None:
        """A manifest's time changes, also to one of before."""
        if (path := self.lake.manifest_path(owner[1], owner[0])).exists():
            at = path.stat().st_mtime + seconds
            os.utime(path, (at, at))
        self.compared()

    @rule()
    def lose_the_cache(self) -> None:
        """The cache is deleted."""
        shutil.rmtree(self.caches, ignore_errors=True)
        self.is_damaged = False
        self.compared()

    @rule(share=st.floats(0, 1), zeros=st.booleans())
    def half_write(self, share: float, zeros: bool) -> None:
        """The cache is cut, or ends in nothing."""
        self.is_damaged = True
        for file in cache_files(self.caches):
            content = file.read_bytes()
            cut = content[: int(share * len(content)) // PAGE * PAGE]  # disks write and lose whole pages
            file.write_bytes(cut + bytes(len(content) - len(cut)) if zeros else cut)
        self.compared()

    @rule()
    def keep_the_cache(self) -> None:
        """A copy of the cache as it is now is put away."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self.is_kept_damaged = self.is_damaged
        if self.caches.exists():
            shutil.copytree(self.caches, self.kept, symlinks=True)

    @rule()
    def put_an_older_cache_back(self) -> None:
        """The cache of an earlier state of the lake comes back."""
        if self.kept.exists():
            shutil.rmtree(self.caches, ignore_errors=True)
            shutil.copytree(self.kept, self.caches, symlinks=True)
            self.is_damaged = self.is_kept_damaged
        self.compared()

    def compared(self) -> None:
        """The answers are those of the manifests."""
        assert answers(self.lake) == truth(self.lake)
        for table in TABLES:
            held = where_held(readable_lists(self.lake.path, table))
            with SegmentCatalogue(self.lake, table) as known:
                assert known.held().items() <= held.items()
                assert (
                    known.held({SESSION}).items()
                    <= where_held(readable_lists(self.lake.path, table), {SESSION}).items()
                )
                assert self.is_damaged or known.held() == held

    def _is_readable(self, owner: tuple[Scope, str]) -> bool:
        try:
            self.lake.manifest(owner[1], owner[0])
        except LakeError:
            return False
        return True


def test_the_answers_are_those_of_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setenv("AACO_CACHE", str(tmp_path))
    monkeypatch.setattr(CacheAndManifests, "folder", tmp_path, raising=False)
    examples = settings(
        max_examples=25,
        stateful_step_count=14,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(CacheAndManifests, settings=examples)


class Counting(LocalStorage):
    """A storage that counts the manifests that are read."""

    def __init__(self) -> None:
        self.read_now: list[str] = []

    def read(self, path: Path) -> bytes:
        self.read_now.append(path.stem)
        return super().read(path)


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
