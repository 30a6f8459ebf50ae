"""Probing the machine: what happens when a probe dies, and when the host does not say how many threads are runnable."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.kernel_plane import quiet, recording
from aaco_pipeline.resources.kernel_plane.tracefs import NotPossible


@pytest.fixture(autouse=True)
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise NotPossible("not asked here", "")

    monkeypatch.setattr(recording, "find_tracefs", refused)


def test_a_probe_that_dies_early_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_PROBE", "import sys; sys.stdin.close()")
    started = recording.KernelPlane.follow

    def after_its_end(plane: recording.KernelPlane, process: int, label: str) -> None:
        started(plane, process, label)
        state = Path(f"/proc/{process}/stat")
        while state.read_text().split(")")[-1].split()[0] != "Z":
            pass

    monkeypatch.setattr(recording.KernelPlane, "follow", after_its_end)
    with pytest.raises(UnavailableError, match=r"the probe on CPU [0-9]+ gave no answer; try again"):
        quiet.probe_machine(tmp_path, 0.5, lambda _: None)


@pytest.mark.parametrize("content", [None, "cpu 1 2 3\n", "procs_running\n", "procs_running many\n"])
def test_a_host_that_does_not_say_how_many_are_runnable_has_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    statistics = tmp_path / "stat"
    if content is not None:
        statistics.write_text(content)
    monkeypatch.setattr(quiet, "_STATISTICS", statistics)
    assert quiet.probe_machine(tmp_path, 0.1, lambda _: None).runnable is None
    statistics.write_text("cpu 1 2 3\nprocs_running 7\n")
    assert quiet.probe_machine(tmp_path, 0.1, lambda _: None).runnable == (7,)
