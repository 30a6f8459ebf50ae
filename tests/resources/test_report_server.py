"""Reports and traces of a lake over loopback: which addresses give a file, and which give nothing."""

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources import report_server
from aaco_pipeline.resources.report_server import address_of, content_of, loopback_server

SESSION = "20261122T044130Z-2e851ad6-squeezenet"


@pytest.fixture
def lake(lake_path: Path) -> TraceLake:
    lake = TraceLake(lake_path)
    for stage, path in (("report", lake.report(SESSION)), ("perfetto_trace", lake.trace(SESSION))):
        with lake.new_artifact(SESSION, stage, path) as file:
            file.write_bytes(path.name.encode())
    return lake


@pytest.fixture
def served(lake: TraceLake) -> Iterator[str]:
    server = loopback_server(lambda address: content_of(lake, address))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_links_that_dagster_shows_are_addresses_of_the_server(lake: TraceLake, served: str) -> None:
    for path in (lake.report(SESSION), lake.trace(SESSION)):
        address = address_of(path).replace(f"http://127.0.0.1:{report_server.REPORTS_PORT}", served)
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read() == path.name.encode()


@pytest.mark.parametrize(
    "address",
    [
        f"/reports/{SESSION}/../../manifests/x.json",
        f"/reports/{SESSION}/trace.pftrace.gz",
        "/reports/20261122T044130Z-2e851ad6-other/report.html",
        f"/raw/{SESSION}/capture.json",
        "/etc/passwd",
        "/",
    ],
)
def test_nothing_else_of_the_disk_is_given(address: str, served: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(served + address, timeout=10)


def test_a_torn_file_is_not_given_but_named(lake: TraceLake, served: str) -> None:
    lake.report(SESSION).write_bytes(b"report.htnl")
    with pytest.raises(urllib.error.HTTPError, match="500") as caught:
        urllib.request.urlopen(f"{served}/reports/{SESSION}/report.html", timeout=10)
    answer = caught.value.read().decode()
    assert f"report.html of session {SESSION}" in answer
    assert "aaco doctor --mend" in answer


def test_the_server_ends_with_the_process_that_started_it(lake: TraceLake) -> None:
    """On a port of its own, so that a person's `aaco ui` beside the tests does not matter."""
    code = (
        "import subprocess, sys\n"
        "serve = 'import sys; from aaco_pipeline.resources import report_server as s; s.REPORTS_PORT = 0; '\n"
        "serve += 'sys.exit(s.main(*sys.argv[1:]))'\n"
        "import os\n"
        "child = subprocess.Popen([sys.executable, '-c', serve, sys.argv[1], str(os.getpid())])\n"
        "print(child.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(lake.path)], capture_output=True, text=True, timeout=60, check=True
    )
    child = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 60
    while child.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not child.exists()
