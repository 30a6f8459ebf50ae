"""A session of an earlier version: it is shown as it is, found by `doctor`, and brought up to date by mending it."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.assets.stage import outdated, stages_of, standing, to_finish
from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.session_stages import finish_session
from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.terminal.session import print_evidence, print_session
from aaco_pipeline.report.words.session import OUTDATED, answer
from tests.places import CONFIGS
from tests.sessions import tables_of

#: What the stages published before there were answers, beside what they did not have.
LACKING: Final[Mapping[str, tuple[str, ...]]] = {
    "timeline": ("session_parts", "first_calls", "outlier_dispatches"),
    "classification": ("answers", "time_shares", "kinds_of_work"),
}


@pytest.fixture
def earlier(captured: Any, lake_path: Path, session: str) -> TraceLake:
    """A lake with a real session whose stages published no table of the answer."""
    lake = captured.copy(lake_path)
    assert isinstance(lake, TraceLake)
    for stage, names in LACKING.items():
        held = {name: frame for name, frame in tables_of(lake, session, stage).items() if name not in names}
        lake.publish(session, stage, held, code_version="0.1")
    return lake


def test_every_form_shows_a_session_of_before_and_says_what_brings_it_up_to_date(
    earlier: TraceLake, session: str
) -> None:
    document = session_document(earlier, session)
    assert document["answer"] is None
    assert answer(document).startswith(f"{OUTDATED} The median inference takes ")
    told = io.StringIO()
    for form in (print_session, print_evidence):
        form(document, told)
    assert " ".join(told.getvalue().split()).count(OUTDATED) == 2
    assert OUTDATED in render_markdown(document).replace("\\", "")
    assert "The median inference takes " in render_html(document, None)


def test_it_is_whole_and_lacks_the_tables_that_came_since(earlier: TraceLake, session: str) -> None:
    assert standing(earlier, session).is_whole
    assert set(outdated(earlier, session)) == set(LACKING)
    due = to_finish(earlier, session)
    assert set(LACKING) < set(due)
    assert "capture" not in due


def test_doctor_finds_it_and_mending_brings_it_up_to_date(earlier: TraceLake, session: str) -> None:
    found = examine(earlier, lambda one: finish_session(earlier, one, CONFIGS))
    (problem,) = [one for one in found if one.subject == session]
    assert problem.kind == "earlier version"
    for names in LACKING.values():
        assert all(name in problem.explanation for name in names)
    assert problem.mend is not None
    assert problem.mend()
    assert outdated(earlier, session) == ()
    assert session_document(earlier, session)["answer"] is not None
    assert [one for one in examine(earlier, lambda session: None) if one.subject == session] == []


def without_stage(lake: TraceLake, session: str, name: str) -> None:
    """Make a session one of a version that had no such stage: it neither states nor has it."""
    held = lake.manifest(session)
    earlier = replace(
        held,
        expected=tuple(one for one in held.expected if one != name),
        stages=tuple(one for one in held.stages if one.stage != name),
        entries=tuple(one for one in held.entries if one.stage != name),
    )
    (path,) = lake.path.glob(f"manifests/{session}.json")
    write_atomically(path, earlier.to_bytes())


@pytest.mark.parametrize("name", ["completeness", stages_of("measured")[-1]])
def test_a_stage_that_came_since_is_lacking_until_it_is_mended(
    captured: Any, lake_path: Path, session: str, name: str
) -> None:
    """The session states the stages of its version, and has them all: it is not up to date for that."""
    lake = captured.copy(lake_path)
    before = standing(lake, session).expected
    without_stage(lake, session, name)
    assert standing(lake, session).is_whole
    assert outdated(lake, session) == (name,)
    assert to_finish(lake, session)[0] == name
    found = examine(lake, lambda one: finish_session(lake, one, CONFIGS))
    (problem,) = [one for one in found if one.subject == session]
    assert (problem.kind, name in problem.explanation) == ("earlier version", True)
    assert problem.mend is not None
    assert problem.mend()
    assert name in {one.stage for one in lake.manifest(session).entries}
    assert standing(lake, session).expected == before
    assert [one for one in examine(lake, lambda session: None) if one.subject == session] == []


def test_without_its_capture_it_stays_as_it_is(earlier: TraceLake, session: str) -> None:
    for path in sorted(earlier.raw(session).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    earlier.raw(session).rmdir()
    earlier.request_path(session).unlink(missing_ok=True)
    found = [one for one in examine(earlier, lambda session: None) if one.kind == "earlier version"]
    assert [(one.subject, one.mend) for one in found] == [(session, None)]
    assert "its capture is gone" in found[0].explanation
