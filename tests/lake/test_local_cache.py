"""In whatever order manifests, lists and the cache change, the answers are those of the manifests."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import SegmentCatalogue
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.manifest import Artifact, Manifest
from aaco_pipeline.lake.segments.format import (
    Part,
    readable_lists,
    where_held,
)
from aaco_pipeline.lake.store import TraceLake
from tests.lake.catalogue_answers import (
    OWNERS,
    PAGE,
    SEGMENT_NAMES,
    TABLES,
    answers,
    cache_files,
    entry,
    list_path,
    truth,
    write,
    write_list,
)
from tests.lake.published import SESSION


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
        """Expected stages, a failure, the user's facts, a file beside the tables."""
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
    run_state_machine_as_test(CacheAndManifests, settings=settings(stateful_step_count=14))
