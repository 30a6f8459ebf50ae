"""Our own threads are called in the kernel what they are."""

import os
import threading
from pathlib import Path

import pytest

from aaco_pipeline.resources.telemetry.thread_names import name_this_thread

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


def test_the_kernel_calls_the_thread_by_its_name_and_no_other() -> None:
    before = Path(f"/proc/self/task/{os.getpid()}/comm").read_text()
    told: list[str] = []

    def run() -> None:
        name_this_thread("aaco sampler, whose name is cut")
        told.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == ["aaco sampler, w\n"]
    assert Path(f"/proc/self/task/{os.getpid()}/comm").read_text() == before
