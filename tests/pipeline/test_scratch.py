"""Scratch folders lie where nobody else may write."""

from pathlib import Path

import pytest

from aaco_pipeline.pipeline.scratch import scratch


def test_nothing_is_built_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "open"))
    with scratch("anything") as folder:
        assert folder.is_dir()
        assert not folder.is_relative_to(tmp_path)
    assert not folder.exists()
