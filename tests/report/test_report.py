"""`aaco report`: every form of a session, written or shown, and the page served on this computer alone."""

import base64
import json
import re
import shutil
from pathlib import Path

import click.testing
import pytest

from aaco_pipeline.cli.report import report
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.view import print_evidence, print_session
from tests.report.html.pages import SECTIONS, Page
from tests.report.made_up import SESSION, printed


@pytest.mark.parametrize("which", ["bare", "hollow"])
def test_every_form_can_be_made_of_a_session_with_less(which: str, request: pytest.FixtureRequest) -> None:
    document = session_document(request.getfixturevalue(which), SESSION)
    for form in (print_session, print_evidence):
        assert SESSION in printed(form, document)
    assert SESSION in render_markdown(document)
    # A section without content is not there; what is missing is said in the last one.
    parsed = Page(render_html(document, None))
    shown = {str(attributes["id"]) for tag, attributes in parsed.elements if tag == "section"}
    assert "evidence" in shown
    assert shown < set(SECTIONS)
    assert not shown & {"where", "limits", "instructions", "operators"}
    assert "the stage model_graph has published nothing for this session" in " ".join(parsed.texts["td"])


def run_report(lake: TraceLake, *arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(report, [*arguments, "--lake", str(lake.path)])


@pytest.fixture
def lake(full: TraceLake, tmp_path: Path) -> TraceLake:
    """A copy of the full lake, to do anything with."""
    shutil.copytree(full.path, tmp_path / "lake")
    return TraceLake(tmp_path / "lake")


def test_report_writes_the_page_into_the_lake_and_says_where(lake: TraceLake) -> None:
    for _ in range(2):
        answer = run_report(lake)
        path = lake.report(SESSION)
        assert (answer.exit_code, answer.output) == (0, f"{path}\n")
        assert path == lake.path / "reports" / f"session_id={SESSION}" / "report.html"
        assert base64.b64encode(lake.trace(SESSION).read_bytes()) in path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert faults(lake) == []


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "html"])
def test_report_writes_any_form_to_a_file(lake: TraceLake, form: str, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report"
    answer = run_report(lake, SESSION[:8], "--format", form, "--output", str(file))
    assert (answer.exit_code, answer.output) == (0, f"{file}\n")
    assert SESSION in file.read_text()
    if form != "html":
        printed = run_report(lake, "--format", form)
        assert (printed.exit_code, printed.output) == (0, file.read_text())
    assert lake.report(SESSION).exists() == (form == "html")


def test_report_prints_the_document_as_json(lake: TraceLake) -> None:
    """All of it but how the page draws its timeline."""
    document = session_document(lake, SESSION)
    del document["drawn_timeline"]
    assert json.loads(run_report(lake, "--json").output) == document


def test_report_refuses_to_open_what_is_no_page(lake: TraceLake) -> None:
    answer = run_report(lake, "--open", "--format", "json")
    assert answer.exit_code == 2
    assert "--format html" in answer.output


def test_report_opens_the_page_from_this_computer_until_interrupted(
    lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def interrupted(address: str) -> None:
        opened.append(address)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", interrupted)
    answer = run_report(lake, "--open")
    assert "Aborted!" in answer.output  # click's word for an interrupt, where `main` says its own
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", opened[0])
    assert f"{opened[0]} — stop with Ctrl-C" in answer.output
