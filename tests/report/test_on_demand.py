"""A session's page and trace: made when asked, kept while what they were made from is the same, and never needed.

Addresses of a lake's reports and traces beside Dagster's pages: which give a file, and which give nothing.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.lake import layout
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report import on_demand
from aaco_pipeline.report.html import page
from aaco_pipeline.report.on_demand import DRAWN, address_of, content_of, make_page, make_trace, page_of, trace_of
from aaco_pipeline.report.session import document
from tests.report.made_up import SESSION, rows_of

CAMPAIGN: Final = "nightly"


@pytest.fixture
def lake(full: TraceLake, tmp_path: Path) -> TraceLake:
    """A copy of the full lake, to do anything with."""
    shutil.copytree(full.path, tmp_path / "lake")
    return TraceLake(tmp_path / "lake")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages drawn from now on."""
    real, found = page.render_html, []

    def render(told: dict[str, Any], trace: bytes | None) -> str:
        found.append(told["session_id"])
        return real(told, trace)

    monkeypatch.setattr(page, "render_html", render)
    return found


def test_a_view_is_made_once_and_kept_with_what_it_rests_on(lake: TraceLake, drawn: list[str]) -> None:
    assert not lake.report(SESSION).exists()
    assert page_of(lake, SESSION) == page_of(lake, SESSION) == lake.report(SESSION).read_bytes()
    assert trace_of(lake, SESSION) == lake.trace(SESSION).read_bytes()
    assert drawn == [SESSION]
    files = {path.name: path for path in (lake.report(SESSION), lake.trace(SESSION))}
    kept = {Path(one.file).name: one for one in lake.manifest(SESSION).artifacts}
    assert kept.keys() == files.keys()
    assert all(len(one.rests_on) == 64 and one.bytes == files[name].stat().st_size for name, one in kept.items())
    assert faults(lake) == []


def published_anew(lake: TraceLake) -> None:
    lake.publish(SESSION, "telemetry", {"system_samples": rows_of("system_samples", [{"time_ns": 5}])})


def failed(lake: TraceLake) -> None:
    lake.record_failure(SESSION, "roofline", "code", "no such file")


def torn(lake: TraceLake) -> None:
    lake.report(SESSION).write_bytes(lake.report(SESSION).read_bytes()[:-1])


def removed(lake: TraceLake) -> None:
    shutil.rmtree(lake.report(SESSION).parent)


def of_an_earlier_version(lake: TraceLake) -> None:
    manifest = lake.manifest(SESSION)
    for one in manifest.artifacts:
        manifest = manifest.with_artifact(one._replace(rests_on=""))
    lake.commit(manifest)


@pytest.mark.parametrize("changed", [published_anew, failed, torn, removed, of_an_earlier_version])
def test_a_page_that_is_not_current_is_made_again_and_is_no_fault(
    changed: Callable[[TraceLake], None], lake: TraceLake, drawn: list[str]
) -> None:
    page_of(lake, SESSION)
    changed(lake)
    assert faults(lake) == []
    assert page_of(lake, SESSION) == lake.report(SESSION).read_bytes()
    page_of(lake, SESSION)
    assert drawn == [SESSION, SESSION]


def test_a_page_tells_of_a_failure_that_came_after_it(lake: TraceLake) -> None:
    lake.expect(SESSION, [state.stage for state in lake.manifest(SESSION).stages])
    assert b"no such file" not in page_of(lake, SESSION)
    failed(lake)
    assert b"no such file" in page_of(lake, SESSION)


def test_a_page_shows_the_verdict_that_its_campaign_came_to_after_it(lake: TraceLake, drawn: list[str]) -> None:
    sessions = lake.read("sessions", SESSION).drop("session_id").with_columns(campaign_id=pl.lit(CAMPAIGN))
    lake.publish(SESSION, "capture", {"sessions": sessions})
    page_of(lake, SESSION)
    lake.publish(CAMPAIGN, "judged", {"verdicts": rows_of("verdicts", [{"role": "primary"}])}, "campaign")
    page_of(lake, SESSION)
    page_of(lake, SESSION)
    assert drawn == [SESSION, SESSION]


def test_other_code_makes_both_views_again(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    page_of(lake, SESSION)
    before = {one.file: one.rests_on for one in lake.manifest(SESSION).artifacts}
    monkeypatch.setattr(on_demand, "_code", lambda: "other code")
    page_of(lake, SESSION)
    after = {one.file: one.rests_on for one in lake.manifest(SESSION).artifacts}
    assert before.keys() == after.keys()
    assert not {*before.values()} & {*after.values()}


def test_a_trace_rests_on_the_tables_it_is_drawn_from_alone(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    read = set()

    def batches(self: TraceLake, table: str, session: str, columns: Any, real: Any = TraceLake.batches) -> Any:
        read.add(table)
        return real(self, table, session, columns)

    monkeypatch.setattr(TraceLake, "batches", batches)
    make_trace(lake, SESSION)
    assert read == set(DRAWN)
    (before,) = lake.manifest(SESSION).artifacts
    lake.publish(SESSION, "regression", {})
    trace_of(lake, SESSION)
    assert lake.manifest(SESSION).artifacts == (before,)
    published_anew(lake)
    trace_of(lake, SESSION)
    (after,) = lake.manifest(SESSION).artifacts
    assert after.rests_on != before.rests_on


def test_whoever_asks_to_make_one_has_it_made(lake: TraceLake, drawn: list[str]) -> None:
    assert make_page(lake, SESSION)["session_id"] == SESSION
    make_page(lake, SESSION)
    page_of(lake, SESSION)
    assert drawn == [SESSION, SESSION]


def test_of_several_that_ask_at_once_one_makes_it(lake: TraceLake, drawn: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        pages = {*pool.map(lambda _: page_of(lake, SESSION), range(4))}
    assert len(pages) == 1
    assert drawn == [SESSION]
    assert list((lake.path / ".locks" / "runs").iterdir()) == []


def test_one_that_another_process_is_long_at_is_a_line_that_says_so(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LOCK_TIMEOUT_SECONDS", 0.0)
    with (
        lake.drawing(SESSION, lake.report(SESSION)),
        pytest.raises(PassingLakeError, match=rf"report.html of session {SESSION} is locked by process {os.getpid()}"),
    ):
        page_of(lake, SESSION)


def test_a_lake_that_cannot_be_written_is_shown_and_stays_as_it_is(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = page_of(lake, SESSION)
    removed(lake)
    before = sorted(lake.path.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert page_of(lake, SESSION) == kept
    assert sorted(lake.path.rglob("*")) == before


def test_one_that_fails_leaves_what_was_kept(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    page_of(lake, SESSION)
    before = lake.manifest(SESSION), lake.report(SESSION).read_bytes()

    def failing(lake: TraceLake, session: str) -> None:
        raise LakeError("a table is torn")

    monkeypatch.setattr(document, "session_document", failing)
    with pytest.raises(LakeError, match="a table is torn"):
        make_page(lake, SESSION)
    assert (lake.manifest(SESSION), lake.report(SESSION).read_bytes()) == before
    assert [one.name for one in lake.report(SESSION).parent.iterdir()] == ["report.html"]


def test_a_session_removed_meanwhile_does_not_come_back(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = page.render_html

    def render(told: dict[str, Any], trace: bytes | None) -> str:
        lake.remove(SESSION)
        return real(told, trace)

    monkeypatch.setattr(page, "render_html", render)
    with pytest.raises(LakeError, match=r"report\.html|session_id="):
        page_of(lake, SESSION)
    path = lake.report(SESSION)
    with pytest.raises(LakeError, match="is no longer in"), lake.new_view(SESSION, "report", path, "") as file:
        file.write_bytes(b"a page")
    assert lake.sessions() == []
    assert {one.kind for one in faults(lake)} <= {"stale lock"}


def test_views_are_counted_and_removed_with_their_session(lake: TraceLake) -> None:
    before = lake.disk_bytes(SESSION)
    views_bytes = len(page_of(lake, SESSION)) + len(trace_of(lake, SESSION))
    assert lake.disk_bytes(SESSION) == before + views_bytes
    with lake.catalogue() as known:
        assert known.published_bytes()[SESSION] == lake.table_bytes(SESSION) + views_bytes
    assert lake.remove(SESSION) == before + views_bytes
    assert not lake.report(SESSION).exists()
    assert not lake.trace(SESSION).exists()


def test_a_session_without_its_processes_has_a_page_and_a_trace(lake: TraceLake) -> None:
    """Draw a session whose stage that gives `processes` has not run."""
    assert lake.read("processes", SESSION).is_empty()
    assert lake.read("dispatches", SESSION).height
    assert make_trace(lake, SESSION).slices > lake.read("dispatches", SESSION).height


OTHER: Final = "20261122T044130Z-2e851ad6-other"


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
