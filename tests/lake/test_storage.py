"""Storage refuses addresses with a scheme, and keeps the promises of each method.

The mechanics of files below it are tested in `test_files`.
"""

import ast
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.storage import LocalStorage, lake_path
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import LAKE_VARIABLE, find_project
from tests.places import ROOT

LAKE: Final = ROOT / "aaco_pipeline" / "lake"
ADDRESSES: Final = ("s3://lake", "gs://bucket/lake", "file:///tmp/lake", "abfss://x@y/z", "S3://LAKE")


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_scheme_is_refused_in_one_line_and_makes_no_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for refused in (lambda: TraceLake(address), lambda: TraceLake(Path(address)), lambda: find_project(address)):
        with pytest.raises(UsageError, match="a lake lies in a folder; give its path"):
            refused()
    for arguments, environment in ((["--lake", address], {}), ([], {LAKE_VARIABLE: address})):
        monkeypatch.delenv(LAKE_VARIABLE, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(["ls", *arguments]) == 2
        said = capsys.readouterr().err
        assert "a lake lies in a folder" in said
        assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_no_address_however_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert lake_path("lake") == tmp_path / "lake"
    assert lake_path("./s3:/lake") == tmp_path / "s3:" / "lake"
    assert lake_path(tmp_path / "a:b" / "c") == tmp_path / "a:b" / "c"
    assert lake_path("~/lake") == tmp_path / "home" / "lake"


def test_nothing_else_in_the_lake_renames_syncs_locks_or_removes() -> None:
    """A second kind of storage touches one module: what reaches past the interface is named here."""
    below = {"storage", "files"}
    elsewhere = {"on_disk", "limited_sql", "local_cache", "dictionary"}  # this host's scratch and cache, a page of docs
    local = {"verified", "writing"}  # look at bytes where `Storage.local` has them, or before they are placed
    names = {"rename", "replace", "unlink", "rmtree", "rmdir", "mkdir", "fsync", "flock", "scandir", "walk", "listdir"}
    names |= {"glob", "rglob", "iterdir", "read_bytes", "write_bytes", "read_text", "write_text", "utime", "link"}
    names |= {"exists", "is_file", "is_dir"}
    wrong = [
        f"{path.name}:{node.lineno}: {node.func.attr}"
        for path in sorted(LAKE.rglob("*.py"))
        if path.stem not in below | elsewhere | local
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
        if not (node.func.attr == "replace" and len(node.args) != 1)  # of a text or a time
        if not (isinstance(node.func.value, ast.BinOp) and "temporary" in ast.unparse(node.func.value))
    ]
    assert wrong == []


@pytest.fixture
def storage() -> LocalStorage:
    return LocalStorage()


def test_a_listing_tells_files_from_folders_and_a_version_that_changes_with_the_content(
    storage: LocalStorage, tmp_path: Path
) -> None:
    folder = tmp_path / "lake" / "manifests"
    assert (storage.names(folder), storage.listed(folder), storage.state(folder / "b.json")) == ([], [], None)
    storage.write(folder / "b.json", b"one")
    storage.write(folder / "a.json", b"other")
    (folder / "c").mkdir()
    assert storage.names(folder) == ["a.json", "b.json", "c"]
    listed = {one.name: one for one in storage.listed(folder)}
    assert [(one.name, one.bytes, one.is_folder) for one in listed.values()][:2] == [
        ("a.json", 5, False),
        ("b.json", 3, False),
    ]
    assert listed["c"].is_folder
    assert storage.state(folder / "b.json") == listed["b.json"]
    assert storage.listed(folder / "b.json") == []
    before = listed["b.json"].version
    storage.write(folder / "b.json", b"two")
    assert {one.name: one for one in storage.listed(folder)}["b.json"].version != before
    assert storage.read(storage.local(folder / "b.json")) == b"two"


def test_a_folder_that_shrinks_while_it_is_measured_is_measured_all_the_same(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    for name in ("kept", "below/kept", "gone"):
        (tmp_path / name).write_bytes(b"12345")
    assert storage.bytes_below(tmp_path) == 15
    walk = os.walk

    def walk_and_remove(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(folder):
            (tmp_path / "gone").unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", walk_and_remove)
    assert storage.bytes_below(tmp_path) == 10
    assert storage.bytes_below(tmp_path / "nowhere") == 0


def test_appending_ends_a_line_that_a_kill_cut_off(storage: LocalStorage, tmp_path: Path) -> None:
    path = tmp_path / "lake" / "account"
    storage.append(path, b"one\n")
    path.write_bytes(path.read_bytes() + b"tw")
    storage.append(path, b"three\n")
    assert path.read_bytes() == b"one\ntw\nthree\n"


def test_a_new_file_or_folder_appears_when_it_is_placed_and_else_goes_with_the_block(
    storage: LocalStorage, tmp_path: Path
) -> None:
    for new, fill in ((storage.new_file, _fill_file), (storage.new_folder, _fill_folder)):
        final = tmp_path / new.__name__ / "final"
        with pytest.raises(KeyboardInterrupt), new(final) as temporary:
            fill(temporary)
            raise KeyboardInterrupt
        assert storage.names(final.parent) == []
        with new(final) as temporary:
            fill(temporary)
            assert not final.exists()
            storage.place(temporary, final)
            assert storage.names(final.parent) == ["final"]
        assert storage.names(final.parent) == ["final"]
    with storage.new_folder(final) as temporary, pytest.raises(OSError, match="not empty"):
        storage.place(temporary, final)


def _fill_file(temporary: Path) -> None:
    temporary.write_bytes(b"content")


def _fill_folder(temporary: Path) -> None:
    (temporary / "in").mkdir()
    (temporary / "in" / "file").write_bytes(b"content")


def test_what_is_placed_is_synced_before_it_has_its_name_and_its_name_after(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with storage.new_folder(tmp_path / "final") as temporary:
        _fill_folder(temporary)
        storage.place(temporary, tmp_path / "final")
    assert steps == ["in", "file", temporary.name, tmp_path.name]


def test_removing_is_idempotent_and_takes_a_folder_at_once(storage: LocalStorage, tmp_path: Path) -> None:
    storage.write(tmp_path / "lake" / "file", b"")
    storage.write(tmp_path / "lake" / "folder" / "file", b"")
    for _ in range(2):
        storage.remove(tmp_path / "lake" / "file")
        storage.remove_folder(tmp_path / "lake" / "folder")
        assert storage.names(tmp_path / "lake") == []
    storage.remove(tmp_path / "nowhere" / "file")


KILLED_IN_A_BLOCK: Final = """
import os, signal, sys
from pathlib import Path
from aaco_pipeline.lake.storage import LocalStorage
with LocalStorage().new_folder(Path(sys.argv[1])) as temporary:
    (temporary / "file").write_bytes(b"half")
    print(temporary.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_found_and_discarded(
    storage: LocalStorage, tmp_path: Path, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    with start_python(KILLED_IN_A_BLOCK, tmp_path / "final") as killed:
        assert killed.stdout is not None
        left = killed.stdout.readline().strip()
    assert killed.returncode == -signal.SIGKILL
    with storage.new_file(tmp_path / "other") as living:
        living.touch()
        assert storage.unfinished(tmp_path) == [tmp_path / left]
        storage.discard(tmp_path / left)
        assert storage.unfinished(tmp_path) == []


def test_a_lock_that_is_held_is_seen_and_not_dropped_as_free(storage: LocalStorage, tmp_path: Path) -> None:
    path = tmp_path / "locks" / "one.lock"
    assert not storage.is_held(path)
    with storage.hold(path, 1.0, "it"):
        assert storage.is_held(path)
        assert not storage.drop_free_lock(path)
        with pytest.raises(LakeError, match="it is locked by process"), storage.hold(path, 0.05, "it"):
            pass
    assert not storage.is_held(path)
    assert storage.drop_free_lock(path)
    assert storage.names(path.parent) == []
    storage.drop_lock(path)
