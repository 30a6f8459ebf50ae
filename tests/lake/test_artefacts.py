"""A baseline's model is kept completely and once, with its weights; unreferenced artefacts are found."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.artefacts import ARTEFACTS, keep_artefact
from aaco_pipeline.lake.files import sync_folder
from aaco_pipeline.lake.health import faults, leftovers, mend
from aaco_pipeline.lake.retention import UNFINISHED_STAYS
from aaco_pipeline.lake.store import TraceLake
from tests.lake.conftest import _filled


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    (folder / "m.onnx").write_bytes(b"graph")
    (folder / "w.bin").write_bytes(b"weights")
    (folder / "deep" / "w.bin").write_bytes(b"more")
    return folder / "m.onnx"


def beside(model: Path) -> list[Path]:
    return [model.parent / "w.bin", model.parent / "deep" / "w.bin"]


def folders(lake: TraceLake) -> list[Path]:
    return sorted((lake.path / ARTEFACTS).iterdir())


def aged(folder: Path, age: timedelta = UNFINISHED_STAYS) -> None:
    changed = folder.stat().st_mtime - age.total_seconds() - 1
    os.utime(folder, (changed, changed))


def test_a_model_is_kept_with_its_weights_where_it_looks_for_them(empty_lake: TraceLake, model: Path) -> None:
    kept = empty_lake.path / keep_artefact(empty_lake.path, model, beside(model))
    shutil.rmtree(model.parent)
    assert kept.name == "m.onnx"
    contents = {one.relative_to(kept.parent).as_posix(): one.read_bytes() for one in kept.parent.rglob("*.*")}
    assert contents == {"m.onnx": b"graph", "w.bin": b"weights", "deep/w.bin": b"more"}


def test_equal_content_is_kept_once_and_other_content_beside_it(empty_lake: TraceLake, model: Path) -> None:
    first = keep_artefact(empty_lake.path, model, beside(model))
    assert keep_artefact(empty_lake.path, model, beside(model)) == first
    assert len(folders(empty_lake)) == 1
    model.write_bytes(b"another graph")
    assert keep_artefact(empty_lake.path, model, beside(model)) != first
    assert (empty_lake.path / first).read_bytes() == b"graph"


def test_other_weights_beside_the_same_graph_are_another_artefact(empty_lake: TraceLake, model: Path) -> None:
    first = keep_artefact(empty_lake.path, model, beside(model))
    (model.parent / "w.bin").write_bytes(b"trained on")
    second = keep_artefact(empty_lake.path, model, beside(model))
    weights = [(empty_lake.path / one).with_name("w.bin").read_bytes() for one in (first, second)]
    assert weights == [b"weights", b"trained on"]


def test_equal_content_of_another_name_is_found_under_its_own(empty_lake: TraceLake, model: Path) -> None:
    keep_artefact(empty_lake.path, model)
    other = model.rename(model.with_name("other.onnx"))
    kept = keep_artefact(empty_lake.path, other)
    assert (kept.name, (empty_lake.path / kept).read_bytes()) == ("other.onnx", b"graph")


def test_a_copy_that_breaks_off_leaves_nothing(
    empty_lake: TraceLake, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"gra")
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(LakeError, match="No space left on device"):
        keep_artefact(empty_lake.path, model)
    assert folders(empty_lake) == []


def test_weights_that_are_not_there_are_named(empty_lake: TraceLake, model: Path) -> None:
    (model.parent / "w.bin").unlink()
    with pytest.raises(LakeError, match=r"w\.bin: No such file or directory"):
        keep_artefact(empty_lake.path, model, beside(model))
    assert not (empty_lake.path / ARTEFACTS).exists()


def test_whoever_keeps_the_same_at_the_same_time_is_no_fault(
    empty_lake: TraceLake, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = sync_folder
    theirs: list[Path] = []

    def another_is_quicker(folder: Path) -> None:
        sync(folder)
        if not theirs:
            theirs.append(folder)
            theirs.append(keep_artefact(empty_lake.path, model))

    monkeypatch.setattr(storage, "sync_folder", another_is_quicker)
    assert keep_artefact(empty_lake.path, model) == theirs[1]
    assert len(folders(empty_lake)) == 1


def test_an_artefact_that_no_baseline_names_is_left_over_once_it_is_old(empty_lake: TraceLake, model: Path) -> None:
    named = keep_artefact(empty_lake.path, model)
    model.write_bytes(b"another")
    unnamed = empty_lake.path / keep_artefact(empty_lake.path, model)
    rows = _filled("baselines", {"since": [datetime.now(UTC)], "artefact": [named.as_posix()], "is_retired": [True]})
    empty_lake.publish("baseline-1", "baseline", {"baselines": rows}, scope="campaign")
    aged((empty_lake.path / named).parent)
    assert faults(empty_lake) == []  # it may be of somebody who is about to name it
    aged(unnamed.parent)
    (found,) = faults(empty_lake)
    assert (found.kind, found.path, found.mendable) == ("unnamed artefact", unnamed.parent, True)
    assert leftovers(empty_lake) == [found]
    assert mend(empty_lake, found)
    assert folders(empty_lake) == [(empty_lake.path / named).parent]


def test_an_artefact_that_is_kept_again_before_it_goes_stays(empty_lake: TraceLake, model: Path) -> None:
    kept = empty_lake.path / keep_artefact(empty_lake.path, model)
    aged(kept.parent)
    (found,) = leftovers(empty_lake)
    keep_artefact(empty_lake.path, model)
    assert not mend(empty_lake, found)
    assert kept.is_file()


def test_no_artefact_goes_while_the_baselines_cannot_be_read(empty_lake: TraceLake, model: Path) -> None:
    kept = empty_lake.path / keep_artefact(empty_lake.path, model)
    rows = _filled(
        "baselines", {"since": [datetime.now(UTC)], "artefact": [kept.relative_to(empty_lake.path).as_posix()]}
    )
    empty_lake.publish("baseline-1", "baseline", {"baselines": rows}, scope="campaign")
    aged(kept.parent)
    (entry,) = empty_lake.manifest("baseline-1", "campaign").entries
    (empty_lake.path / entry.file).write_bytes(b"torn")
    assert [one.kind for one in faults(empty_lake)] == ["torn file"]
    with pytest.raises(LakeError):
        leftovers(empty_lake)


def test_what_a_killed_copy_left_is_an_unfinished_write(empty_lake: TraceLake, model: Path) -> None:
    keep_artefact(empty_lake.path, model)
    left = empty_lake.path / ARTEFACTS / ".tmp-killed"
    left.mkdir()
    (found,) = faults(empty_lake)
    assert (found.kind, found.path) == ("unfinished write", left)
    assert mend(empty_lake, found)
    assert not left.exists()
