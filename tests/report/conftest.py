"""Fixtures of the reports' tests: made-up sessions that say so in their model's name, and their documents."""

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.optimization.document import optimization_report
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.sentences import Document
from tests.report.full_session import publish_session
from tests.report.made_up import SESSION, rows_of
from tests.report.searched import searched


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake with one session in which every stage has published. Look, do not touch."""
    lake = TraceLake(tmp_path_factory.mktemp("full") / "lake")
    publish_session(lake)
    return lake


@pytest.fixture(scope="session")
def document(full: TraceLake) -> Document:
    return session_document(full, SESSION)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """The same without telemetry, model graph and limits."""
    lake = TraceLake(tmp_path_factory.mktemp("bare") / "lake")
    publish_session(lake, telemetry=False, model=False, limits=False)
    return lake


@pytest.fixture(scope="session")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> TraceLake:
    """A lake with a session of which nothing but its existence is published."""
    lake = TraceLake(tmp_path_factory.mktemp("hollow") / "lake")
    lake.publish(SESSION, "capture", {"sessions": rows_of("sessions", [{"source_kind": "live"}])})
    return lake


@pytest.fixture(scope="session")
def page(document: Document) -> str:
    return render_html(document, b"a trace")


@pytest.fixture(scope="session")
def search(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A search that tried a source that fails, a slower and a faster one. Look, do not touch."""
    with pytest.MonkeyPatch.context() as patched:
        return optimization_report(*searched(tmp_path_factory.mktemp("search"), patched))
