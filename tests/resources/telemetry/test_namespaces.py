"""Namespaces in which threads or clocks are counted otherwise than by the kernel's events are told, with what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from aaco_pipeline.resources.telemetry import namespaces
from aaco_pipeline.resources.telemetry.namespaces import why_apart

_ASK = "from aaco_pipeline.resources.telemetry.namespaces import why_apart; print(why_apart())"


@pytest.mark.parametrize(
    ("apart", "what", "fix"),
    [("pid", "numbers its threads", "--pid=host"), ("time", "clocks are set otherwise", "without a time namespace")],
)
def test_a_namespace_of_its_own_is_told(
    apart: str, what: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("pid", "time"):
        (tmp_path / kind).touch()
    numbers = {kind: (tmp_path / kind).stat().st_ino for kind in ("pid", "time")}
    monkeypatch.setattr(namespaces, "_NAMESPACES", tmp_path)
    monkeypatch.setattr(namespaces, "_FIRST", numbers)
    assert why_apart() is None
    monkeypatch.setattr(namespaces, "_FIRST", {**numbers, apart: 1})
    told = why_apart()
    assert told is not None
    assert (what in told[0], fix in told[1]) == (True, True)


def test_a_kernel_without_a_kind_of_namespace_has_one_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_NAMESPACES", tmp_path)
    assert why_apart() is None


@pytest.mark.parametrize(
    ("unshare", "what"),
    [
        (("--pid", "--fork", "--mount-proc"), "numbers its threads"),
        (("--time", "--monotonic", "1000"), "clocks are set otherwise"),
    ],
)
def test_a_real_namespace_is_told(unshare: tuple[str, ...], what: str) -> None:
    asked = ["unshare", *unshare, sys.executable, "-c", _ASK]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode != 0 and "unshare:" in done.stderr:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")
    assert what in done.stdout
