"""The cache holds what can be made again, and nothing that another user may have put there is executed."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline import cache_folder
from aaco_pipeline.cache_folder import default_cache_dir, kept_code, own_code, own_folder
from aaco_pipeline.errors import UsageError
from aaco_pipeline.report.html import page
from tests.places import ROOT

NAME: Final = "kind/digest/code.so"
OTHER: Final = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def templates_made_anew() -> Iterator[None]:
    page.templates.cache_clear()
    yield
    page.templates.cache_clear()


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("AACO_CACHE", "/chosen")
    assert default_cache_dir() == Path("/chosen")
    monkeypatch.setenv("AACO_CACHE", "")
    assert default_cache_dir() == Path("/cache/aaco")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == tmp_path / ".cache" / "aaco"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / ".cache" / "aaco"


@pytest.mark.usefixtures("templates_made_anew")
def test_compiled_templates_are_kept_for_the_person_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    page.templates().get_template("page.html.jinja")
    folder = tmp_path / "cache" / "templates"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o770])
@pytest.mark.usefixtures("templates_made_anew")
def test_a_folder_that_others_may_write_to_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path))
    folder = tmp_path / "templates"
    folder.mkdir()
    folder.chmod(mode)
    page.templates().get_template("page.html.jinja")
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("templates_made_anew")
def test_a_place_that_cannot_be_made_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "file"))
    assert page.templates().get_template("page.html.jinja")


@pytest.mark.usefixtures("templates_made_anew")
def test_a_folder_that_vanishes_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path))
    made = page.templates()
    shutil.rmtree(tmp_path / "templates")
    assert made.get_template("page.html.jinja")


# Code that is made once and executed later.


def built(path: Path) -> None:
    path.write_bytes(b"built")


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache two folders deep; a private folder, where one is made, is the test's own."""
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "above" / "cache"))
    cache_folder.private_folder.cache_clear()
    yield tmp_path / "above" / "cache"
    cache_folder.private_folder.cache_clear()


def plant(top: Path, content: bytes = b"planted") -> Path:
    """A whole file with its digest, as `own_code` would leave one."""
    path = top / NAME
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_bytes(content)
    digest = path.with_name(f"{path.name}.sha256")
    digest.write_text(hashlib.sha256(content).hexdigest())
    for file in (path, digest):
        file.chmod(0o600)
    return path


def elsewhere(path: Path) -> None:
    """Move what is at `path` and leave a link to it."""
    path.symlink_to(path.rename(path.with_name("moved")))


def of_another(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def of_another_behind_a_link(path: Path) -> None:
    of_another(path)
    elsewhere(path)


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


#: What makes a planted file one that must not be executed: by what it shows, what is done to the cache and the file.
PLANTED: Final[dict[str, Callable[[Path, Path], object]]] = {
    "everyone may write to the cache": lambda top, path: top.chmod(0o777),
    "everyone may write to the cache, which is sticky": lambda top, path: top.chmod(0o1777),
    "its group may write to the cache": lambda top, path: top.chmod(0o770),
    "everyone may write above the cache": lambda top, path: top.parent.chmod(0o777),
    "its group may write above the cache": lambda top, path: top.parent.chmod(0o770),
    "everyone may write to a folder in the cache": lambda top, path: path.parent.chmod(0o777),
    "everyone may write to a folder in the cache, which is sticky": lambda top, path: path.parent.parent.chmod(0o1777),
    "a folder in the cache is a link": lambda top, path: elsewhere(path.parent.parent),
    "the last folder is a link": lambda top, path: elsewhere(path.parent),
    "the file is a link": lambda top, path: elsewhere(path),
    "everyone may write to the file": lambda top, path: path.chmod(0o666),
    "its group may write to the file": lambda top, path: path.chmod(0o660),
    "the file has another name": lambda top, path: os.link(path, top / "name"),
    "the file is a pipe": lambda top, path: in_place_of(path, os.mkfifo),
    "the file is a folder": lambda top, path: in_place_of(path, Path.mkdir),
    "the file is cut": lambda top, path: path.write_bytes(b"plan"),
    "the file is changed": lambda top, path: path.write_bytes(b"planteD"),
    "the file is empty": lambda top, path: path.write_bytes(b""),
}
FOREIGN: Final[dict[str, Callable[[Path, Path], object]]] = {
    "the cache": lambda top, path: of_another(top),
    "the folder above": lambda top, path: of_another(top.parent),
    "a folder in it": lambda top, path: of_another(path.parent.parent),
    "the last folder": lambda top, path: of_another(path.parent),
    "the file": lambda top, path: of_another(path),
    "where a link in the cache's place leads": lambda top, path: of_another_behind_a_link(top),
}


def test_what_is_as_it_was_made_is_used_again(top: Path) -> None:
    path = plant(top)
    assert own_code(NAME, lambda _: pytest.fail("built although it is there")) == path
    assert kept_code(NAME) == b"planted"


@pytest.mark.parametrize("way", PLANTED)
def test_code_that_another_user_may_have_written_is_built_anew(
    way: str, top: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    PLANTED[way](top, plant(top))
    assert kept_code(NAME) is None
    assert own_code(NAME, built).read_bytes() == b"built"
    assert own_code(NAME, built).read_bytes() == b"built"
    said = capfd.readouterr().err
    assert said.count("\n") == said.count(f"aaco: {top} cannot be written, or another user could") <= 1


@needs_root
@pytest.mark.parametrize("owned", FOREIGN)
def test_code_of_another_user_is_built_anew_by_root_too(owned: str, top: Path) -> None:
    FOREIGN[owned](top, plant(top))
    assert own_code(NAME, built).read_bytes() == b"built"


def test_a_link_of_ones_own_above_the_cache_is_followed_and_gone_from_the_path(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(top)
    (top.parent.parent / "home").symlink_to(top.parent)
    monkeypatch.setenv("AACO_CACHE", str(top.parent.parent / "home" / "cache"))
    assert own_code(NAME, built) == path
    assert path.read_bytes() == b"planted"


def test_what_is_made_is_for_this_user_alone_and_nothing_unfinished_is_left(top: Path) -> None:
    before = os.umask(0)
    try:
        path = own_code(NAME, built)
    finally:
        os.umask(before)
    modes = {str(one.relative_to(top.parent.parent)): one.stat().st_mode & 0o777 for one in top.parent.rglob("*")}
    assert modes == {
        "above/cache": 0o700,
        "above/cache/kind": 0o700,
        "above/cache/kind/digest": 0o700,
        f"above/cache/{NAME}": 0o600,
        f"above/cache/{NAME}.sha256": 0o600,
    }
    assert path == top / NAME


def test_two_that_build_at_once_both_succeed(top: Path) -> None:
    def overtaken(path: Path) -> None:
        own_code(NAME, lambda other: other.write_bytes(b"the other's"))
        path.write_bytes(b"built")

    assert own_code(NAME, overtaken).read_bytes() == b"built"
    assert kept_code(NAME) == b"built"


def test_a_build_that_fails_leaves_nothing_and_says_why(top: Path) -> None:
    def failing(path: Path) -> None:
        path.write_bytes(b"some of it")
        raise UsageError("no compiler")

    with pytest.raises(UsageError, match="no compiler"):
        own_code(NAME, failing)
    assert list((top / NAME).parent.iterdir()) == []


def test_where_nothing_can_be_kept_one_line_says_what_to_do(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top.parent.mkdir()
    top.parent.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(top.parent))
    monkeypatch.setattr(cache_folder, "_TEMPORARY", ())
    with pytest.raises(UsageError, match=r"another user could; set AACO_CACHE to a folder that only you can write to"):
        own_code(NAME, built)
    assert own_folder("kind") is None


def test_a_temporary_folder_lies_where_no_other_user_may_rename_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "open"))
    folder = cache_folder.temporary_folder("aaco-")
    try:
        assert not folder.is_relative_to(tmp_path)
    finally:
        folder.rmdir()


def test_a_private_folder_goes_with_its_process(top: Path) -> None:
    top.parent.mkdir()
    top.parent.chmod(0o777)
    program = (
        "from pathlib import Path; from aaco_pipeline.cache_folder import own_code;"
        f"print(own_code('{NAME}', lambda path: path.write_bytes(b'built')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.count("aaco: ") == 1
    assert not Path(done.stdout.strip()).parents[2].exists()
    assert not top.exists()
