"""A session that is not whole is said to be so before its answer, in every form; a whole one says nothing of it."""

from io import StringIO
from pathlib import Path

from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.markdown import render_markdown
from aaco_pipeline.report.terminal.session import print_session
from aaco_pipeline.report.words.session import answer, half
from tests.conftest import CapturedLake


def test_what_failed_and_why_stands_before_the_answer_in_every_form(captured: CapturedLake, tmp_path: Path) -> None:
    lake, session = captured.copy(tmp_path / "lake"), captured.sessions["control_flow"]
    whole = session_document(lake, session)
    assert half(whole) is None
    assert "Not whole" not in render_html(whole, None) + render_markdown(whole)
    lake.record_failure(session, "roofline", "code", "no ceilings")
    document = session_document(lake, session)
    said = half(document)
    assert said == (
        "Not whole: 15 of 16 stages; roofline failed: no ceilings. Put that right, then `aaco doctor --mend` runs what "
        "is missing."
    )
    terminal = StringIO()
    print_session(document, terminal)
    first = answer(document).split()[:3]
    for text in (terminal.getvalue(), render_markdown(document), render_html(document, None).replace("&#34;", '"')):
        words = text.split("</head>")[-1].replace("\xa0", " ")
        plain = " ".join(words.split())
        assert plain.index("Not whole: 15 of 16 stages") < plain.index(" ".join(first))


def test_without_stated_stages_nothing_is_said() -> None:
    assert half({}) is None
    assert half({"progress": None}) is None
    missing = {"published": 3, "expected": 13, "failed": [], "missing": ["report"]}
    assert half({"progress": missing}) == "Not whole: 3 of 13 stages. `aaco doctor --mend` runs what is missing."
