"""The view `report`: a page about the session to share with others.

`aaco_pipeline.report.on_demand` generates and caches it; Dagster regenerates it on each request.
"""

from aaco_pipeline.assets.stage import Outcome, Session, stage
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.on_demand import make_page


@stage(
    after=("model_graph", "perfetto_trace", "classification", "regression", "optimization_loop"),
    group="presentation",
    session_kinds=(),
    kinds=("duckdb", "html"),
    file=("report", TraceLake.report),
)
def report(session: Session) -> Outcome:
    """What is the answer, and what is the evidence for it? One self-contained page."""
    from aaco_pipeline.report.session.sentences import answer

    document, path = make_page(session.lake, session.id), session.lake.report(session.id)
    return Outcome({}, headline={"report_bytes": path.stat().st_size, "answer": answer(document)})
