"""From a folder to sessions: one for each run, none twice, what broke off is gone on with, and whose error it is."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.discovery import UNREADABLE, DiscoveredRuns, Unread, discover_runs
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, ModelError, SourceError
from aaco_pipeline.lake.journal import JOURNAL, Journal
from aaco_pipeline.lake.manifest import Progress, StageState
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import ingestion
from aaco_pipeline.pipeline.ingestion import Ingested, discovered
from aaco_pipeline.resources.ingestion import copy_capture
from tests.pipeline.conftest import Killed

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"{name}",3,1000,2000,64,640\n'
)


def capture(folder: Path, name: str = "scale") -> Path:
    folder.mkdir(parents=True)
    (folder / "out_kernel_trace.csv").write_text(KERNELS.format(name=name))
    return folder


def bad_capture(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "1_results.db").write_bytes(b"SQLite format 3\0 rocpd_metadata_x rocpd_kernel_dispatch_x" + b"\0" * 4096)
    return folder


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The sessions that count as whole; a test puts them there as an analysis would."""
    found: set[str] = set()
    published, missing = Progress(("a",), (StageState("a", "", None),), (), ()), Progress(("a",), (), (), ("a",))
    monkeypatch.setattr(ingestion, "standing", lambda lake, session: published if session in found else missing)
    return found


def ingest(
    lake: TraceLake, path: Path, finish: Callable[[str], object] = lambda session: None, place: Path | None = None
) -> list[Ingested]:
    def finished(session: str) -> None:
        finish(session)

    return list(ingestion.ingest(lake, discover_runs(path), finish=finished, place=place))


def test_a_session_of_an_earlier_version_is_finished_when_its_capture_comes_again(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = capture(tmp_path / "a")
    (first,) = ingest(empty_lake, folder)
    whole.add(str(first.session))
    behind = {str(first.session): ("completeness",)}
    monkeypatch.setattr(ingestion, "outdated", lambda lake, session: behind.get(session, ()))
    finished: list[str] = []

    def finish(session: str) -> None:
        finished.append(session)
        behind.clear()

    (again,) = ingest(empty_lake, folder, finish)
    (last,) = ingest(empty_lake, folder, finished.append)
    assert (again.session, again.state, last.state) == (first.session, "continued", "known")
    assert finished == [first.session]


def test_each_run_is_a_session_with_its_rows_told(empty_lake: TraceLake, tmp_path: Path) -> None:
    capture(tmp_path / "in/a", "first")
    capture(tmp_path / "in/b", "second")
    results = ingest(empty_lake, tmp_path / "in")
    assert [result.state for result in results] == ["new", "new"]
    assert empty_lake.captured() == sorted(str(result.session) for result in results)
    (row,) = [row for row in results[0].rows if row["rows_in"]]
    assert (row["rows_in"], row["rows_out"], row["reason"]) == (1, 1, None)


def test_a_capture_that_the_lake_holds_whole_gives_its_session_whatever_it_is_called(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str]
) -> None:
    (first,) = ingest(empty_lake, capture(tmp_path / "a"), whole.add)
    shutil.copytree(tmp_path / "a", tmp_path / "copied elsewhere")
    (again,) = ingest(empty_lake, tmp_path / "copied elsewhere", pytest.fail)
    assert (again.session, again.state, again.attempt) == (first.session, "known", 1)


def test_the_same_capture_twice_in_one_folder_is_one_session(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str]
) -> None:
    capture(tmp_path / "in/a")
    capture(tmp_path / "in/b")
    results = ingest(empty_lake, tmp_path / "in", whole.add)
    assert results[0].session == results[1].session
    assert [result.state for result in results] == ["new", "known"]


def test_the_same_capture_from_many_sides_at_once_is_one_session_finished_once(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str]
) -> None:
    source, finished, results = capture(tmp_path / "a"), list[str](), list[Ingested]()

    def finish(session: str) -> None:
        finished.append(session)
        whole.add(session)

    sides = [threading.Thread(target=lambda: results.extend(ingest(empty_lake, source, finish))) for _ in range(4)]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    assert sorted(result.state for result in results) == ["known"] * 3 + ["new"]
    assert empty_lake.captured() == finished == [results[0].session]


@pytest.mark.parametrize("step", ["copy_capture", "_copied", "_finished"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_killed_at_any_step_goes_on_as_the_same_session(
    *, step: str, when: str, empty_lake: TraceLake, tmp_path: Path, whole: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, begun = capture(tmp_path / "a"), list[str]()
    original, keep = getattr(ingestion, step), Journal.keep

    def killed(*arguments: object, **settings: object) -> object:
        if when == "after":
            original(*arguments, **settings)
        raise Killed

    def kept(journal: Journal, entry: object) -> None:
        begun.append(entry.session_id)  # type: ignore[attr-defined]
        keep(journal, entry)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ingestion, step, killed)
        patch.setattr(Journal, "keep", kept)
        with pytest.raises(Killed):
            ingest(empty_lake, source)
    (again,) = ingest(empty_lake, source, whole.add)
    assert (again.state, again.attempt, again.session) == ("continued", 2, begun[0])
    assert empty_lake.captured() == [again.session]
    assert whole == {again.session}


def test_a_capture_whose_session_was_removed_is_new(empty_lake: TraceLake, tmp_path: Path, whole: set[str]) -> None:
    (first,) = ingest(empty_lake, capture(tmp_path / "a"), whole.add)
    empty_lake.remove(str(first.session))
    (again,) = ingest(empty_lake, tmp_path / "a", whole.add)
    assert (again.state, again.attempt) == ("new", 1)
    assert again.session != first.session


def test_captures_of_before_the_journal_are_entered_once_and_no_list_is_read_again(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = ingest(empty_lake, capture(tmp_path / "a"), whole.add)
    shutil.rmtree(empty_lake.path / JOURNAL)
    (again,) = ingest(empty_lake, tmp_path / "a", pytest.fail)
    assert (again.session, again.state) == (first.session, "known")
    monkeypatch.setattr(TraceLake, "captured", pytest.fail)
    (third,) = ingest(empty_lake, tmp_path / "a", pytest.fail)
    assert third.session == first.session


def test_a_run_that_a_reader_refuses_leaves_nothing_and_the_next_one_is_taken(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    bad_capture(tmp_path / "in/bad")
    capture(tmp_path / "in/good")
    failed, good = ingest(empty_lake, tmp_path / "in")
    assert (failed.state, failed.session, failed.is_verdict) == ("refused", None, True)
    assert "1_results.db" in str(failed.error)
    assert [path.name for path in (empty_lake.path / "raw").iterdir()] == [f"session_id={good.session}"]
    assert len(list((empty_lake.path / JOURNAL).glob("*.json"))) == 1
    assert not list((empty_lake.path / JOURNAL).glob("*.lock"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), LakeError, "No space left on device; check that the lake"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/lake/x"), LakeError, "/lake/x: Disk quota exceeded"),
        (MemoryError(), LakeError, "not enough memory"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "/in/x.csv"), SourceError, "/in/x.csv: Input/output error"),
        (PermissionError(errno.EACCES, "Permission denied", "/in/x.csv"), SourceError, "/in/x.csv: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/in/x.csv"), SourceError, "/in/x.csv"),
        (CaptureError("x.csv: it is bad"), CaptureError, "x.csv: it is bad"),
    ],
)
@pytest.mark.parametrize("is_worded", [False, True])
def test_an_error_of_the_system_is_no_verdict_also_where_a_reader_put_it_into_words(
    *,
    error: Exception,
    kind: type[AacoError],
    words: str,
    is_worded: bool,
    empty_lake: TraceLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*arguments: object, **settings: object) -> None:
        if is_worded and isinstance(error, OSError) and error.errno != errno.ENOENT:
            raise CaptureError("x.csv: cannot be copied") from error
        raise error

    monkeypatch.setattr(ingestion, "copy_capture", fails)
    if kind is LakeError:
        with pytest.raises(LakeError, match=words):
            ingest(empty_lake, capture(tmp_path / "a"))
        return
    (one,) = ingest(empty_lake, capture(tmp_path / "a"))
    assert (type(one.error), one.is_verdict) == (kind, kind is CaptureError)
    assert words in str(one.error)


@pytest.mark.parametrize("entry", ["a", "a/out_kernel_trace.csv"])
def test_what_is_refused_once_it_is_copied_is_named_as_the_person_has_it(
    entry: str, empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(folder: Path) -> None:
        raise CaptureError(f"{folder / 'files/out_kernel_trace.csv'}: it is bad")

    capture(tmp_path / "a")
    monkeypatch.setattr(ingestion, "open_capture", refuses)
    (one,) = ingest(empty_lake, tmp_path / entry)
    assert str(one.error) == f"{tmp_path / 'a/out_kernel_trace.csv'}: it is bad"


def test_an_error_of_the_lakes_disk_while_it_is_read_back_is_the_lakes(
    empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder / "ingest.json"))

    monkeypatch.setattr(ingestion, "open_capture", fails)
    with pytest.raises(LakeError, match="Input/output error"):
        ingest(empty_lake, capture(tmp_path / "a"))


def test_a_folder_that_nobody_may_look_into_is_no_verdict_and_one_without_captures_is(
    empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(CaptureError, match="nothing in it is a capture") as verdict:
        discovered(empty_lake, tmp_path / "holiday")
    assert not isinstance(verdict.value, SourceError)

    def forbidden(folder: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(SourceError, match="Permission denied"):
        discovered(empty_lake, capture(tmp_path / "a"))


def test_files_that_nobody_may_open_are_no_verdict(
    empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = DiscoveredRuns((), (Unread(tmp_path / "a", f"{UNREADABLE}Permission denied; check its permissions"),))
    monkeypatch.setattr(ingestion, "discover_runs", lambda path: found)
    with pytest.raises(SourceError, match="a: cannot be read: Permission denied; check its permissions"):
        discovered(empty_lake, tmp_path)


def test_a_capture_that_changes_while_it_is_copied_is_left_for_later(
    empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, original = capture(tmp_path / "a"), copy_capture

    def still_copying(*arguments: object, **settings: object) -> None:
        (source / "out_kernel_trace.csv").write_text(KERNELS.format(name="another"))
        original(*arguments, **settings)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "copy_capture", still_copying)
        (one,) = ingest(empty_lake, source)
    assert (one.session, one.is_verdict) == (None, False)
    assert "changed while it was read" in str(one.error)
    assert empty_lake.captured() == []


def test_a_failing_stage_is_reported_with_its_session_and_the_next_run_is_taken(
    empty_lake: TraceLake, tmp_path: Path
) -> None:
    def fails(session: str) -> None:
        raise ModelError("the stage broke")

    capture(tmp_path / "in/a", "first")
    capture(tmp_path / "in/b", "second")
    results = ingest(empty_lake, tmp_path / "in", fails)
    assert [str(result.error) for result in results] == ["the stage broke"] * 2
    assert len(empty_lake.captured()) == 2


def test_a_session_is_finished_before_the_next_run_is_copied(empty_lake: TraceLake, tmp_path: Path) -> None:
    for name in ("first", "second"):
        capture(tmp_path / "in" / name, name)
    seen = list[list[str]]()
    ingest(empty_lake, tmp_path / "in", lambda session: seen.append(empty_lake.captured()))
    assert [len(captured) for captured in seen] == [1, 2]


def versions(lake: TraceLake, one: Ingested) -> list[str | None]:
    evidence = open_capture(lake.raw(str(one.session))).evidence("files")
    return [item.reason for item in evidence if item.item == "capture version"]


def test_what_arrives_later_at_the_same_place_is_the_next_version_and_says_so(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str]
) -> None:
    place = capture(tmp_path / "inbox/run")
    (first,) = ingest(empty_lake, place, whole.add, place)
    (place / "out_memory_copy_trace.csv").write_text(
        '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp"\n"MEMORY_COPY","HOST_TO_DEVICE","Agent 0","Agent 1",1,100,200\n'
    )
    (second,) = ingest(empty_lake, place, whole.add, place)
    (again,) = ingest(empty_lake, place, whole.add, place)
    assert (first.version, second.version, again.version) == (1, 2, 2)
    assert (first.state, second.state, again.state) == ("new", "new", "known")
    assert versions(empty_lake, first) == []
    assert versions(empty_lake, second) == [f"version 2 of session {first.session}: 1 file arrived later"]


def test_another_capture_at_another_place_or_after_the_place_was_left_is_no_version(
    empty_lake: TraceLake, tmp_path: Path, whole: set[str]
) -> None:
    place = capture(tmp_path / "inbox/run")
    ingest(empty_lake, place, whole.add, place)
    (other,) = ingest(empty_lake, capture(tmp_path / "inbox/other", "other"), whole.add, tmp_path / "inbox/other")
    Journal(empty_lake).leave_place(place)
    (place / "out_kernel_trace.csv").write_text(KERNELS.format(name="another"))
    (later,) = ingest(empty_lake, place, whole.add, place)
    assert (other.version, later.version) == (1, 1)
