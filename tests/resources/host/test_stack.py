"""The stack of a host by its facts, and which of two readings is a change."""

from pathlib import Path

import pytest

from aaco_pipeline.resources.host import stack
from aaco_pipeline.resources.host.stack import ABSENT, changes_of_stack, stack_facts


def test_versions_are_read_from_rocms_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info/version").write_text("7.2.0-43\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmigraphx.so.2015000.0.70200").touch()
    (tmp_path / "lib/libmigraphx.so").symlink_to("libmigraphx.so.2015000.0.70200")
    (tmp_path / "nvidia").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(stack, "_NVIDIA", tmp_path / "nvidia")
    facts = stack_facts()
    assert facts["rocm version"] == "7.2.0-43"
    assert facts["library migraphx"] == "2015000.0.70200"
    assert facts["library hipblaslt"] == ABSENT
    assert facts["nvidia driver"] == "570.124.06"
    assert facts["package onnxruntime"] not in (None, ABSENT)
    assert facts["package onnxruntime-migraphx"] == ABSENT


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("7.1", "7.2", ["rocm version: 7.1 → 7.2"]),
        ("7.1", "7.1", []),
        ("7.1", None, []),
        (None, "7.1", ["rocm version: unknown → 7.1"]),
        ("7.1", ABSENT, ["rocm version: 7.1 → absent"]),
    ],
)
def test_what_can_no_longer_be_read_is_no_change(before: str | None, after: str | None, told: list[str]) -> None:
    assert changes_of_stack({"rocm version": before}, {"rocm version": after}) == told


def test_a_library_that_a_later_version_looks_for_is_no_change_where_it_is_absent() -> None:
    assert changes_of_stack({}, {"library new": ABSENT}) == []
    assert changes_of_stack({}, {"library new": "1"}) == ["library new: unknown → 1"]
