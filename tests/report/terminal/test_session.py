"""A session on a terminal: the answer, the kernels, and the evidence when asked."""

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.terminal.session import print_evidence, print_session
from aaco_pipeline.report.words.session import Document, answer, facts
from tests.report.full_session import MODEL
from tests.report.made_up import EVIL, SESSION, printed


def test_terminal_tells_the_answer_and_the_kernels(bare: TraceLake, document: Document) -> None:
    told = printed(print_session, session_document(bare, SESSION))
    lines = told.splitlines()
    assert lines[0].startswith(f"{SESSION}  {MODEL}, on CPUExecutionProvider")
    assert lines[1].startswith("The median inference takes ")
    assert "By kernel" in told
    unnamed = {**document["top_kernels"][1], "operator": None}
    told = " ".join(printed(print_session, {**document, "top_kernels": [unnamed]}).split())
    for text in (EVIL, "Where the time went", "By kind of work", answer(document), facts(document)):
        assert text in told


def test_terminal_tells_what_the_answer_rests_on_and_what_was_missing_when_asked(
    bare: TraceLake, document: Document
) -> None:
    told = printed(print_evidence, session_document(bare, SESSION))
    for text in ("nobody <b>counted</b>", "the stage telemetry has published nothing"):
        assert text in told
        assert text not in printed(print_session, session_document(bare, SESSION))
    assert "time that goes to the device's own work 50.0 % time_shares" in " ".join(
        printed(print_evidence, document).split()
    )


def test_kernels_that_could_save_most_say_by_what_they_are_ordered(document: Document) -> None:
    first = {**document["optimization_priority"][0], "bound": "dram", "share_ratio": 0.5}
    known = {**first, "name": "near", "critical_ns": 9_000, "saves_at_most_ns": 5_000}
    rows = [{**first, "name": "roofless", "critical_ns": 7_000, "saves_at_most_ns": None}, known]
    rows.append({**first, "name": "unplaced", "critical_ns": None, "saves_at_most_ns": None})
    told = " ".join(printed(print_session, {**document, "optimization_priority": rows}).split())
    assert told.index("at most 7 µs, no roof") < told.index("at most 5 µs") < told.index("unplaced")
