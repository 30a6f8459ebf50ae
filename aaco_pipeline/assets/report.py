"""The stage `report`: one page about the session, that is worth handing on.

What it says is `aaco_pipeline.report.document`, how it looks `aaco_pipeline.report.html`.
"""

from aaco_pipeline.assets.stage import ALL_KINDS, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.progress import progress_of
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import session_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.words.session import answer


@stage(
    after=("model_graph", "perfetto_trace", "classification", "regression", "optimization_loop"),
    group="presentation",
    session_kinds=ALL_KINDS,
    kinds=("duckdb", "html"),
    file=("report", TraceLake.report),
)
def report(session: Session) -> Outcome:
    """What is the answer, and what proves it? One self-contained page."""
    document = session_document(session.lake, session.id)
    # What is said of a session by its page is said once the page is there.
    progress = progress_of(session.lake.manifest(session.id).with_stage("report", ()))
    document["progress"] = progress.as_document()
    path, trace = session.lake.report(session.id), session.lake.trace(session.id)
    page = render_html(document, session.lake.artifact(session.id, trace)).encode()
    with session.lake.new_artifact(session.id, "report", path) as file, lake_errors(path):
        file.write_bytes(page)
    item = Evidence("report", "present", None, path.name)
    return Outcome({}, [item], {"report_bytes": len(page), "answer": answer(document)})
