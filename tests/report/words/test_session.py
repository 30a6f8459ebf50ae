"""What is told of a session's measurement, and nothing else."""

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.words.session import Document, answer, facts
from tests.report.made_up import SESSION


def test_what_was_measured_is_told_and_nothing_else(document: Document, hollow: TraceLake) -> None:
    said = facts(document)
    assert said.startswith("The median inference takes 4.")
    assert "(95 % interval 4." in said
    assert "Profiling stretches the median by a factor of 1.25." in said
    unjudged = "Whether it ran steadily was not checked"
    assert said.endswith(f"{unjudged}; other work took its CPUs 10.0 % of the time.")
    assert facts({**document, "time_shares": []}).endswith(f"{unjudged}.")
    assert answer(session_document(hollow, SESSION)) == "Nothing was measured yet."
    judged = {"metric": "steady_state", "pass": "latency", "phase": "measure", "value": 1.0}
    level = {**document, "metrics": [*document["metrics"], judged]}
    assert facts({**level, "time_shares": []}).endswith(" It ran steadily.")
    assert facts(level).endswith(" Its level held, but other work took its CPUs 10.0 % of the time.")


def test_time_between_iterations_is_told_where_it_is_noticeable(document: Document) -> None:
    def said(ratio: float) -> str:
        gaps = {"pass": "latency", "phase": "measure"}
        figures = [{**gaps, "metric": "gap_ratio", "value": ratio}, {**gaps, "metric": "gap_longest", "value": 4.1e7}]
        return facts({**document, "metrics": [*document["metrics"], *figures]})

    told = "2.0 % of the measured time lies between iterations, in no latency (at most 41 ms at once). "
    assert told in said(0.02)
    assert said(0.0199) == facts(document)
