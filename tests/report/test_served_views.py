"""Addresses of a lake's reports and traces beside Dagster's pages: which give a file, and which give nothing."""

from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.served_views import address_of, content_of

SESSION = "20261122T044130Z-2e851ad6-squeezenet"


@pytest.fixture
def lake(lake_path: Path) -> TraceLake:
    lake = TraceLake(lake_path)
    for stage, path in (("report", lake.report(SESSION)), ("perfetto_trace", lake.trace(SESSION))):
        with lake.new_artifact(SESSION, stage, path) as file:
            file.write_bytes(path.name.encode())
    return lake


def test_the_links_that_dagster_shows_are_addresses_of_the_files(lake: TraceLake) -> None:
    for path in (lake.report(SESSION), lake.trace(SESSION)):
        assert content_of(lake, address_of(path)) == path.name.encode()


def test_a_report_finds_its_trace_by_the_path_that_its_page_holds(lake: TraceLake) -> None:
    folder = address_of(lake.report(SESSION)).rpartition("/")[0]
    assert f"{folder.rpartition('/')[0].rpartition('/')[0]}/traces/session_id={SESSION}/trace.pftrace.gz" == (
        address_of(lake.trace(SESSION))
    )


@pytest.mark.parametrize(
    "address",
    [
        f"/aaco/reports/session_id={SESSION}/../../manifests/x.json",
        f"/aaco/reports/session_id={SESSION}/trace.pftrace.gz",
        "/aaco/reports/session_id=20261122T044130Z-2e851ad6-other/report.html",
        f"/aaco/raw/session_id={SESSION}/capture.json",
        f"/reports/session_id={SESSION}/report.html",
        "/etc/passwd",
        "/",
    ],
)
def test_nothing_else_of_the_disk_is_given(lake: TraceLake, address: str) -> None:
    assert content_of(lake, address) is None


def test_a_torn_file_is_not_given_but_named(lake: TraceLake) -> None:
    lake.report(SESSION).write_bytes(b"report.htnl")
    with pytest.raises(LakeError, match=rf"report\.html of session {SESSION}.*aaco doctor --mend"):
        content_of(lake, address_of(lake.report(SESSION)))
