"""Addresses of a lake's reports and traces beside Dagster's pages: which give a file, and which give nothing."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.served_views import address_of, content_of
from tests.report.made_up import SESSION

OTHER: Final = "20261122T044130Z-2e851ad6-other"


@pytest.fixture
def lake(full: TraceLake, tmp_path: Path) -> TraceLake:
    """A copy of the full lake, to do anything with."""
    shutil.copytree(full.path, tmp_path / "lake")
    return TraceLake(tmp_path / "lake")


def test_the_links_that_dagster_shows_are_addresses_of_views_that_are_made_when_asked(lake: TraceLake) -> None:
    for path in (lake.trace(SESSION), lake.report(SESSION)):
        assert not path.exists()
        assert content_of(lake, address_of(path)) == path.read_bytes()


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
        f"/aaco/reports/session_id={OTHER}/report.html",
        f"/aaco/raw/session_id={SESSION}/capture.json",
        f"/reports/session_id={SESSION}/report.html",
        "/etc/passwd",
        "/",
    ],
)
def test_nothing_else_of_the_disk_is_given(lake: TraceLake, address: str) -> None:
    assert content_of(lake, address) is None
    assert lake.sessions() == [SESSION]
    assert not lake.report(SESSION).exists()


def test_a_torn_page_is_made_again(lake: TraceLake) -> None:
    page = content_of(lake, address_of(lake.report(SESSION)))
    lake.report(SESSION).write_bytes(b"report.htnl")
    assert content_of(lake, address_of(lake.report(SESSION))) == page


def test_a_torn_table_is_named(lake: TraceLake) -> None:
    (entry,) = lake.manifest(SESSION).of_table("sessions")
    (lake.path / entry.file).write_bytes(b"torn")
    with pytest.raises(LakeError, match=f"table sessions of session {SESSION}.*aaco doctor --mend"):
        content_of(lake, address_of(lake.report(SESSION)))
