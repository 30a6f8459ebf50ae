"""Where is kept what can be made again, and that a page needs no such place."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaco_pipeline.cache_folder import default_cache_dir
from aaco_pipeline.report.html import page


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
