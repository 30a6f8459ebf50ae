"""A manifest states what is published and how far a session has come, in one text form; any other text is refused.

Replacing a manifest is tested in `test_store`.
"""

import hashlib
import json
from typing import Any

import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.manifest import Artifact, Entry, Manifest, Progress, StageState, progress_of, seal
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics, Snapshot
from tests.sessions import without_stage


def entry(table: str, stage: str, digest: str = "0") -> Entry:
    file = f"{table}/session_id={SESSION}/{stage}-{digest}.parquet"
    return Entry(table, stage, file, rows=1, bytes=2, sha256=digest * 64, contract_version=1)


def document(**changes: Any) -> bytes:
    """A manifest with other values in it, and the digest that belongs to them."""
    text = Manifest("session", SESSION).with_stage("a", [entry("kernels", "a")], "1.0").to_bytes()
    changed = json.dumps({**json.loads(text), **changes}, indent=1, sort_keys=True).encode()
    return changed.replace(json.loads(text)["digest"].encode(), hashlib.sha256(changed[78:]).hexdigest().encode(), 1)


def earlier(version: int) -> bytes:
    """A manifest as an earlier version wrote it: without a digest, and without a word on stages."""
    written = {**json.loads(document()), "manifest_version": version}
    return json.dumps({key: written[key] for key in ("manifest_version", "scope", "id", "entries")}).encode()


def with_entry(**changes: Any) -> bytes:
    listed = json.loads(document())["entries"][0]
    return document(entries=[{**listed, **changes}])


def test_a_manifest_survives_its_text_form() -> None:
    manifest = Manifest("session", SESSION).with_stage("b", [entry("kernels", "b")])
    manifest = manifest.with_stage("a", [entry("markers", "a"), entry("kernels", "a")])
    assert Manifest.from_bytes(manifest.to_bytes(), "it") == manifest


def test_equal_content_is_equal_bytes_in_whatever_order_it_came() -> None:
    listed = [entry("kernels", "a"), entry("markers", "a")]
    one = Manifest("session", SESSION).with_stage("a", listed).with_stage("b", [entry("kernels", "b")])
    other = Manifest("session", SESSION).with_stage("b", [entry("kernels", "b")]).with_stage("a", reversed(listed))
    assert one.to_bytes() == other.to_bytes()


def test_a_stage_replaces_its_own_entries_and_no_others() -> None:
    before = Manifest("session", SESSION).with_stage("a", [entry("kernels", "a"), entry("markers", "a")])
    before = before.with_stage("b", [entry("kernels", "b")])
    after = before.with_stage("a", [entry("kernels", "a", "1")])
    assert after.of_stage("a") == (entry("kernels", "a", "1"),)
    assert after.of_stage("b") == before.of_stage("b")
    assert after.of_table("kernels") == (entry("kernels", "a", "1"), entry("kernels", "b"))
    assert after.of_table("markers") == ()


def test_fields_that_are_not_known_are_ignored() -> None:
    assert Manifest.from_bytes(with_entry(note="x"), "it") == Manifest.from_bytes(document(note="x"), "it")


def test_a_manifest_that_did_not_change_is_parsed_once() -> None:
    """A stage reads a dozen tables of one session, each through the session's manifest."""
    assert Manifest.from_bytes(document(), "it") is Manifest.from_bytes(document(), "it")
    assert Manifest.from_bytes(document(id="other"), "it") != Manifest.from_bytes(document(), "it")


@pytest.mark.parametrize("version", [1, 2])
def test_a_manifest_of_an_earlier_version_is_read_with_the_stages_that_its_entries_name(version: int) -> None:
    manifest = Manifest.from_bytes(earlier(version), "it")
    assert manifest.entries == Manifest.from_bytes(document(), "it").entries
    assert (manifest.stages, manifest.expected) == ((StageState("a", "", None),), ())


def test_a_stage_states_its_version_and_its_failure_until_it_publishes_again() -> None:
    before = Manifest("session", SESSION).with_stage("b", [entry("kernels", "b")], "1")
    failed = before.with_failure("b", "2", "out of\nmemory").with_failure("a", "2", "no such file")
    assert failed.stages == (StageState("a", "2", "no such file"), StageState("b", "2", "out of memory"))
    assert failed.entries == before.entries
    assert failed.with_stage("b", [], "2").stages == (failed.stages[0], StageState("b", "2", None))
    assert without_stage(without_stage(failed, "a"), "b") == Manifest("session", SESSION)
    assert Manifest.from_bytes(failed.expecting(["b", "a"]).to_bytes(), "it") == failed.expecting(["b", "a"])


def test_a_view_is_stated_until_it_is_replaced_or_its_stage_withdrawn() -> None:
    before = Manifest("session", SESSION).with_stage("a", [entry("kernels", "a")])
    one, other = Artifact("a", "traces/x", 1, "0" * 64), Artifact("a", "traces/x", 2, "1" * 64, "2" * 64)
    assert before.with_artifact(one).with_artifact(other) == before.with_artifact(other)
    after = before.with_artifact(other).with_stage("a", [entry("kernels", "a", "1")])
    assert (after.artifact("traces/x"), after.artifact("traces/y")) == (other, None)
    assert after.on_disk == [entry("kernels", "a", "1")]
    assert Manifest.from_bytes(after.to_bytes(), "it") == after
    assert without_stage(after, "a") == Manifest("session", SESSION)


def test_views_that_an_earlier_version_made_as_stages_are_not_part_of_a_session() -> None:
    before = Manifest("session", SESSION).with_stage("a", [entry("kernels", "a")], "1")
    earlier = before.with_stage("perfetto_trace", [entry("evidence", "perfetto_trace")], "1").expecting(
        ["a", "perfetto_trace", "report"]
    )
    text = earlier.with_failure("report", "1", "out of memory").to_bytes()
    made = json.loads(text)
    made["files"] = [{"stage": "report", "file": "reports/x", "bytes": 1, "sha256": "0" * 64}]
    read = Manifest.from_bytes(seal({name: value for name, value in made.items() if name != "digest"}), "it")
    assert progress_of(read).is_whole
    assert (read.expected, read.stages) == (("a",), before.stages)
    assert read.artifacts == (Artifact("report", "reports/x", 1, "0" * 64, ""),)
    assert read.entries == earlier.entries, "what it published can be read"
    assert not progress_of(earlier).is_whole


def test_stated_facts_stay_until_they_are_replaced() -> None:
    before = Manifest("session", SESSION).stating({"arch": "gfx942"})
    assert Manifest.from_bytes(before.to_bytes(), "it") == before
    after = before.stating({"arch": "gfx950", "product": "MI350X"}).with_stage("a", [entry("kernels", "a")])
    assert dict(Manifest.from_bytes(after.to_bytes(), "it").stated) == {"arch": "gfx950", "product": "MI350X"}


def test_one_byte_changed_anywhere_is_noticed() -> None:
    """Also in white space, in a key, in the digest itself, and where the text is still JSON."""
    content = document(expected=["a"])
    for at in range(len(content)):
        for flip in (1, 2, 4, 0x20, 0x80):
            torn = bytes((*content[:at], content[at] ^ flip, *content[at + 1 :]))
            with pytest.raises(LakeError, match=r"^m\.json: "):
                Manifest.from_bytes(torn, "m.json")


def test_a_table_without_rows_has_neither_file_nor_digest() -> None:
    manifest = Manifest.from_bytes(with_entry(file="", rows=0, bytes=0, sha256=""), "it")
    assert manifest.entries[0].rows == 0
    assert manifest.files == set()


def test_a_newer_manifest_is_refused_by_name() -> None:
    with pytest.raises(LakeError, match=r"^m\.json: manifest version 4 is newer than 3.*upgrade") as caught:
        Manifest.from_bytes(document(manifest_version=4), "m.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff\xfe",
        b"{}",
        earlier(3),
        document()[:-1],
        document(manifest_version="1"),
        document(stages=None),
        document(stages=[{"stage": "a"}]),
        document(stages=[{"stage": "a", "code_version": "", "failure": False}]),
        document(stages=2 * [{"stage": "a", "code_version": "", "failure": None}]),
        document(expected="a"),
        document(expected=[1]),
        document(entries={"a": 1}),
        document(files=None),
        document(stated=["arch"]),
        document(stated={"arch": 942}),
        document(files=[{"stage": "a", "file": "../x", "bytes": 1, "sha256": ""}]),
        document(files=[{"stage": "a", "file": "x", "bytes": "1", "sha256": ""}]),
        document(entries=None),
        document(scope="lake"),
        document(id=7),
        with_entry(rows="1"),
        with_entry(file=None),
        with_entry(file=""),
        with_entry(rows=True),
        with_entry(file="/etc/passwd"),
        with_entry(file="kernels/../../x.parquet"),
    ],
)
def test_a_damaged_manifest_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(LakeError, match=r"^m\.json: ") as caught:
        Manifest.from_bytes(content, "m.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["table", "stage", "file", "rows", "bytes", "sha256", "contract_version"])
def test_an_entry_that_lacks_a_field_is_refused(name: str) -> None:
    listed = json.loads(document())["entries"][0]
    del listed[name]
    with pytest.raises(LakeError, match=name):
        Manifest.from_bytes(document(entries=[listed]), "m.json")


def test_a_session_says_what_it_is_to_have_and_what_it_has(lake: TraceLake, metrics: Metrics) -> None:
    assert lake.progress(SESSION) == Progress((), (), (), ())
    lake.expect(SESSION, ["c", "b", "a"])
    assert lake.progress(SESSION).missing == ("c", "b", "a")
    lake.publish(SESSION, "c", {"session_metrics": metrics(1.0)}, code_version="1-x")
    lake.record_failure(SESSION, "b", "1-y", "the file is torn")
    progress = lake.progress(SESSION)
    assert progress.published == (StageState("c", "1-x", None),)
    assert progress.failed == (StageState("b", "1-y", "the file is torn"),)
    assert (progress.missing, progress.unpublished) == (("a",), ("b", "a"))


def test_a_session_is_whole_when_all_it_is_to_have_is_published(lake: TraceLake, metrics: Metrics) -> None:
    lake.expect(SESSION, ["a", "b"])
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is False
    lake.publish(SESSION, "b", {})
    assert lake.progress(SESSION).is_whole is True
    lake.record_failure(SESSION, "a", "2", "no memory")
    assert lake.progress(SESSION).is_whole is False
    assert lake.read("session_metrics", SESSION).height == 1
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is True


def test_where_nothing_states_what_is_expected_nobody_says_that_it_is_whole(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is None
    lake.record_failure(SESSION, "b", "", "no memory")
    assert lake.progress(SESSION).is_whole is False


def test_unfinished_are_the_captured_the_begun_and_the_failed_and_no_whole_ones(
    lake: TraceLake, metrics: Metrics
) -> None:
    captured, whole, begun = LATER, SESSION, "20250103T000000Z-0000000c"
    with lake.receive_raw(captured):
        pass
    lake.publish(whole, "a", {"session_metrics": metrics(1.0)})
    assert lake.unfinished() == [whole, captured]  # nothing says that it is whole
    lake.expect(whole, ["a"])
    lake.expect(begun, ["a"])
    assert lake.unfinished() == [captured, begun]
    assert lake.sessions() == [whole, begun]
    assert lake.find_session(begun) == begun == lake.find_session("latest")


def test_stating_the_same_again_writes_nothing(lake: TraceLake, snapshot: Snapshot) -> None:
    lake.expect(SESSION, ["a"])
    lake.record_failure(SESSION, "a", "1", "no memory")
    path = lake.manifest_path(SESSION, "session")
    before, written = snapshot(lake.path), path.stat().st_mtime_ns
    lake.expect(SESSION, ["a"])
    lake.record_failure(SESSION, "a", "1", "no\n memory")
    assert (snapshot(lake.path), path.stat().st_mtime_ns) == (before, written)


def test_only_stages_of_sessions_are_stated(lake: TraceLake) -> None:
    with pytest.raises(UsageError):
        lake.expect("nightly", ["a"])
    with pytest.raises(LakeError, match="not a stage's name"):
        lake.expect(SESSION, ["../a"])
    with pytest.raises(LakeError, match="not a stage's name"):
        lake.record_failure(SESSION, "A b", "", "x")
    assert not lake.path.exists()


def test_publishing_onto_an_earlier_manifest_states_its_stages_too(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    path = lake.manifest_path(SESSION, "session")
    written = json.loads(path.read_bytes())
    path.write_text(json.dumps({"manifest_version": 2, **{key: written[key] for key in ("scope", "id", "entries")}}))
    lake.publish(SESSION, "b", {}, code_version="3")
    assert lake.progress(SESSION).published == (StageState("a", "", None), StageState("b", "3", None))
    assert json.loads(path.read_bytes())["manifest_version"] == 3
