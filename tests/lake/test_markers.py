"""Every way into the lake reports a manifest that is lost or misnamed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake.catalogue import mark_earlier
from aaco_pipeline.lake.health import Fault, clear_away, faults, leftovers, mend
from aaco_pipeline.lake.layout import MANIFESTS, MARKED
from aaco_pipeline.lake.listing import listed
from aaco_pipeline.lake.manifest import LostManifestError
from aaco_pipeline.lake.retention import session_facts
from aaco_pipeline.lake.segments.compaction import GRACE, compact
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Killed, Metrics, kernels
from tests.lake.segments.compacted import NOW

CAMPAIGN: Final = "nightly"
COUNT: Final = "SELECT count(DISTINCT session_id) FROM session_metrics"


@pytest.fixture
def populated(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    for session in (SESSION, LATER):
        lake.publish(session, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    lake.publish(CAMPAIGN, "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
    return lake


@pytest.fixture
def earlier(populated: TraceLake) -> TraceLake:
    """The same lake as a version without markers left it."""
    for path in (populated.path / "sessions", populated.path / "campaigns"):
        shutil.rmtree(path)
    (populated.path / MANIFESTS / MARKED).unlink()
    return populated


def lose(lake: TraceLake, identifier: str) -> Path:
    path = lake.path / MANIFESTS / f"{identifier}.json"
    path.unlink()
    return path


def roads(lake: TraceLake, session: str) -> dict[str, Callable[[], object]]:
    """All ways to ask about all sessions, or about this one."""
    return {
        "sql over all": lambda: lake.sql(COUNT),
        "sql over it": lambda: lake.sql(f"SELECT count(*) FROM session_metrics WHERE session_id = '{session}'"),
        "sql over it and later ones": lambda: lake.sql(f"{COUNT} WHERE session_id >= '{session}'"),
        "read all": lambda: lake.read("session_metrics"),
        "read it": lambda: lake.read("session_metrics", session),
        "manifest": lambda: lake.manifest(session),
        "progress": lambda: lake.progress(session),
        "publish": lambda: lake.publish(session, "b", {}),
        "expect": lambda: lake.expect(session, ["b"]),
        "unfinished": lake.unfinished,
        "retention": lambda: session_facts(lake),
        "leftovers": lambda: leftovers(lake),
    }


@pytest.mark.parametrize("road", roads(TraceLake("nowhere"), SESSION))
def test_every_road_names_a_lost_session(road: str, populated: TraceLake) -> None:
    path = lose(populated, LATER)
    with pytest.raises(LakeError, match=rf"^{path}: lost, .* `aaco doctor --mend` .* `aaco rm {LATER}`"):
        roads(populated, LATER)[road]()


def test_what_does_not_rest_on_a_lost_session_is_answered(populated: TraceLake) -> None:
    lose(populated, LATER)
    assert populated.sql(f"{COUNT} WHERE session_id = '{SESSION}'").item() == 1
    assert populated.sql(f"{COUNT} WHERE session_id < '{LATER}'").item() == 1
    assert populated.sql("SELECT count(*) FROM verdicts").item() == 1
    assert populated.read("session_metrics", SESSION).height == 1


def test_a_lost_campaign_is_named_and_sessions_are_answered(populated: TraceLake) -> None:
    path = lose(populated, CAMPAIGN)
    assert populated.has_campaign(CAMPAIGN)
    for ask in (
        lambda: populated.sql("SELECT * FROM verdicts"),
        lambda: populated.read("verdicts", CAMPAIGN),
        lambda: list(populated.manifests("campaign")),
        lambda: session_facts(populated),
    ):
        with pytest.raises(LostManifestError, match=str(path)):
            ask()
    assert populated.sql(COUNT).item() == 2


def test_the_newest_session_is_the_lost_one_and_a_list_names_it(populated: TraceLake) -> None:
    lose(populated, LATER)
    assert populated.find_session("latest") == LATER
    assert populated.find_session(LATER[:10]) == LATER
    found = listed(populated)
    assert [(row["session_id"], row["disk_bytes"] is None) for row in found.rows] == [(LATER, True), (SESSION, False)]
    assert set(found.errors) == {LATER}


@pytest.mark.parametrize("name", ["x", "20990101T000000Z-0000000f", CAMPAIGN])
def test_a_manifest_under_another_name_is_named_and_put_back(name: str, populated: TraceLake) -> None:
    before = populated.manifest(LATER)
    path = populated.path / MANIFESTS / f"{name}.json"
    populated.manifest_path(LATER, "session").rename(path)
    with pytest.raises(LakeError, match=f"{LATER}.json: lost"):
        populated.sql(COUNT)
    with populated.catalogue() as known:
        assert set(known.errors) == {LATER, name}
        assert f"{name}.json: this is the manifest of {LATER}" in str(known.errors[name])
    (fault,) = faults(populated)
    assert (fault.kind, fault.path) == ("misnamed manifest", path)
    clear_away(populated)
    assert mend(populated, fault)
    assert populated.manifest(LATER) == before
    left = faults(populated)
    # What it took the place of is lost, and found again from its files.
    assert [(one.kind, one.path) for one in left] == [("lost manifest", path)] * (name == CAMPAIGN)
    assert all(mend(populated, one) for one in left)
    assert faults(populated) == []
    assert populated.sql(COUNT).item() == 2


def test_a_copy_of_a_manifest_is_reported_until_it_is_gone_and_one_that_differs_is_left_alone(
    populated: TraceLake,
) -> None:
    path = populated.path / MANIFESTS / "copy.json"
    shutil.copyfile(populated.manifest_path(LATER, "session"), path)
    (fault,) = faults(populated)
    populated.expect(LATER, ["a", "b"])
    assert not mend(populated, fault)
    shutil.copyfile(populated.manifest_path(LATER, "session"), path)
    assert mend(populated, fault)
    assert faults(populated) == []


def test_a_lost_manifest_is_rebuilt_from_the_files_which_nobody_takes_for_orphans(populated: TraceLake) -> None:
    before = populated.manifest(LATER).entries
    path = lose(populated, LATER)
    clear_away(populated)
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable) == ("lost manifest", path, True)
    assert mend(populated, fault)
    assert populated.manifest(LATER).entries == before
    assert populated.sql(COUNT).item() == 2
    assert faults(populated) == []


def test_of_what_was_compacted_nothing_is_dropped_while_its_manifest_is_lost(populated: TraceLake) -> None:
    before = populated.manifest(LATER).entries
    compact(populated, NOW)
    compact(populated, NOW + 2 * GRACE)
    assert not list(populated.path.glob("kernels/*/*"))
    assert populated.sql(COUNT).item() == 2
    assert faults(populated) == []
    lose(populated, LATER)
    assert compact(populated, NOW + 3 * GRACE) == []
    with pytest.raises(LostManifestError):
        populated.sql(COUNT)
    (fault,) = faults(populated)
    assert mend(populated, fault)
    assert populated.manifest(LATER).entries == before


def test_a_loss_of_everything_is_named_until_it_is_accepted(populated: TraceLake) -> None:
    lose(populated, LATER)
    for folder in populated.path.glob(f"*/session_id={LATER}"):
        shutil.rmtree(folder)
    (fault,) = faults(populated)
    assert (fault.kind, fault.mendable) == ("lost manifest", False)
    assert f"`aaco rm {LATER}` accepts the loss" in fault.explanation
    populated.remove(LATER)
    assert faults(populated) == []
    assert populated.sql(COUNT).item() == 1


def test_removing_a_lost_one_takes_what_is_left_of_it(populated: TraceLake) -> None:
    bytes_ = populated.disk_bytes(LATER), populated.table_bytes(CAMPAIGN, "campaign")
    lose(populated, LATER)
    lose(populated, CAMPAIGN)
    assert (populated.remove(LATER), populated.remove_campaign(CAMPAIGN)) == bytes_
    assert populated.sessions() == [SESSION]
    assert populated.campaigns() == []
    assert not list(populated.path.glob(f"*/*{LATER}*"))
    assert not list(populated.path.glob(f"*/*{CAMPAIGN}*"))
    assert faults(populated) == []


STEPS: Final = ("place", "write", "create", "remove", "clear", "remove_folder", "drop_lock")


def killed_at_every_step(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], check: Callable[[], None]) -> int:
    """Do `work` again and again, killed after one step after another that the storage takes; how many there are."""
    number = 0
    while True:
        with monkeypatch.context() as patched:
            left = [number]

            def counted(step: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
                def one(*arguments: Any) -> Any:
                    done = step(*arguments)
                    if left[0] == 0:
                        raise Killed
                    left[0] -= 1
                    return done

                return one

            for name in STEPS:
                patched.setattr(LocalStorage, name, counted(getattr(LocalStorage, name)))
            try:
                work()
            except Killed:
                pass
            else:
                return number
        check()
        number += 1


def require_nothing_wrong(lake: TraceLake, answers: set[int]) -> None:
    """The answer is one of `answers`, nothing counts as lost, and doctor mends all that there is."""
    assert lake.sql(COUNT).item() in answers
    assert listed(lake).errors == {}
    for fault in (found := faults(lake)):
        assert "lost" not in fault.kind
        assert mend(lake, fault), fault
    if found:
        assert faults(lake) == []
        assert lake.sql(COUNT).item() in answers


def test_a_kill_at_any_step_of_publishing_loses_nothing(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    whole = lake.path.with_name("whole")
    shutil.copytree(lake.path, whole)

    def publish() -> None:
        shutil.rmtree(lake.path)
        shutil.copytree(whole, lake.path)
        lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})

    def check() -> None:
        require_nothing_wrong(lake, {1, 2})
        lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
        assert faults(lake) == []
        assert lake.marked("session") == [SESSION, LATER]

    assert killed_at_every_step(monkeypatch, publish, check) == 3  # a table, the manifest, the marker


def test_a_kill_at_any_step_of_the_first_publication_of_an_earlier_lake_marks_nothing_wrongly(
    earlier: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "20250103T000000Z-0000000c"
    whole = earlier.path.with_name("whole")
    shutil.copytree(earlier.path, whole)

    def publish() -> None:
        shutil.rmtree(earlier.path)
        shutil.copytree(whole, earlier.path)
        earlier.publish(new, "a", {"session_metrics": metrics(1.0)})

    def check() -> None:
        require_nothing_wrong(earlier, {2, 3})
        earlier.publish(new, "a", {"session_metrics": metrics(1.0)})
        assert earlier.marked("session") == [SESSION, LATER, new]
        assert earlier.marked("campaign") == [CAMPAIGN]

    # A table, markers of sessions and of campaigns, the statement that all are marked, the manifest, its own marker.
    assert killed_at_every_step(monkeypatch, publish, check) == 6


@pytest.mark.parametrize("scope", ["session", "campaign"])
def test_a_kill_at_any_step_of_removing_leaves_no_loss_and_removing_goes_on(
    scope: str, populated: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with populated.receive_raw(LATER) as folder:
        (folder / "trace.json").write_text("{}")
    whole = populated.path.with_name("whole")
    shutil.copytree(populated.path, whole)

    def remove() -> None:
        populated.remove(LATER) if scope == "session" else populated.remove_campaign(CAMPAIGN)

    def begin() -> None:
        shutil.rmtree(populated.path)
        shutil.copytree(whole, populated.path)
        remove()

    def check() -> None:
        require_nothing_wrong(populated, {1, 2} if scope == "session" else {2})
        remove()
        assert populated.sessions() == ([SESSION] if scope == "session" else [SESSION, LATER])
        assert populated.campaigns() == ([CAMPAIGN] if scope == "session" else [])
        assert faults(populated) == []

    assert killed_at_every_step(monkeypatch, begin, check) >= 6


def test_a_lake_of_an_earlier_version_is_not_called_damaged_and_its_first_writer_marks_it(
    earlier: TraceLake, metrics: Metrics
) -> None:
    (earlier.path / MANIFESTS / "notes.json").write_text("{}")  # unreadable: it may be anything
    assert not any("unmarked" in fault.kind for fault in faults(earlier))
    assert earlier.marked("session") == []
    earlier.expect("20250103T000000Z-0000000c", ["a"])
    assert earlier.marked("session") == [SESSION, LATER, "20250103T000000Z-0000000c"]
    assert earlier.marked("campaign") == [CAMPAIGN]
    lose(earlier, SESSION)
    with pytest.raises(LostManifestError):
        earlier.manifest(SESSION)


def test_what_is_in_work_while_a_lake_is_marked_is_marked_by_its_writer_or_the_next_time(earlier: TraceLake) -> None:
    with earlier.locked(LATER, "session"):
        mark_earlier(earlier)
        assert earlier.marked("session") == [SESSION]
        assert not (earlier.path / MANIFESTS / MARKED).exists()
    mark_earlier(earlier)
    assert earlier.marked("session") == [SESSION, LATER]
    assert (earlier.path / MANIFESTS / MARKED).exists()


def test_a_session_removed_while_a_lake_is_marked_is_not_marked(
    earlier: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = TraceLake.locked

    def removed_before(lake: TraceLake, identifier: str, scope: Any, wait_seconds: float | None = None) -> Any:
        if identifier == LATER and wait_seconds is not None:
            earlier.remove(LATER)
        return locked(lake, identifier, scope, wait_seconds)

    monkeypatch.setattr(TraceLake, "locked", removed_before)
    mark_earlier(earlier)
    assert earlier.marked("session") == [SESSION]
    assert faults(earlier) == []


def test_a_missing_marker_is_reported_and_made_again(populated: TraceLake) -> None:
    marker = populated.marker_path(LATER, "session")
    marker.unlink()
    assert populated.sql(COUNT).item() == 2
    (fault,) = faults(populated)
    assert fault == Fault("unmarked manifest", marker, fault.explanation, mendable=True)
    with populated.locked(LATER, "session"):
        assert faults(populated) == []  # its writer is about to
    assert mend(populated, fault)
    assert faults(populated) == []


def test_the_next_publication_marks_what_a_kill_left_without_a_marker(
    populated: TraceLake, metrics: Metrics, filled: Filled
) -> None:
    marker, before = populated.marker_path(LATER, "session"), populated.manifest(LATER)
    marker.unlink()
    populated.publish(LATER, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    assert populated.manifest(LATER) == before
    assert marker.exists()


def test_what_appears_or_is_removed_while_it_is_looked_at_is_no_loss(
    populated: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of manifests and that of markers one session comes, and one goes after it."""
    new, names = "20250103T000000Z-0000000c", LocalStorage.names
    done: list[str] = []

    def meanwhile(storage: LocalStorage, folder: Path) -> list[str]:
        if folder.name == "sessions" and not done:
            done.append(new)
            populated.publish(new, "a", {"session_metrics": metrics(1.0)})
            found = names(storage, folder)
            populated.remove(LATER)
            return found
        return names(storage, folder)

    monkeypatch.setattr(LocalStorage, "names", meanwhile)
    with populated.catalogue() as known:
        assert known.loss is None
    assert done


def test_a_marker_is_an_empty_file_that_is_made_once(populated: TraceLake) -> None:
    marker = populated.marker_path(LATER, "session")
    assert marker == populated.path / "sessions" / LATER
    before = marker.stat()
    populated.storage.create(marker.parent, [LATER])
    assert (marker.stat().st_size, marker.stat().st_mtime_ns) == (0, before.st_mtime_ns)
    assert populated.marker_path(CAMPAIGN, "campaign") == populated.path / "campaigns" / CAMPAIGN


def test_an_error_of_a_lost_manifest_is_one_line_with_exit_code_8(populated: TraceLake) -> None:
    error: AacoError = LostManifestError(lose(populated, LATER))
    assert error.exit_code == 8
    assert "\n" not in str(error)
