"""The stage `report`: one page about the session, that is worth handing on.

What it says is `aaco_pipeline.report.document.session`, how it looks `aaco_pipeline.report.html.page`.
"""

from typing import Final

import dagster as dg

from aaco_pipeline.assets.classification import classification
from aaco_pipeline.assets.model_graph import model_graph
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.perfetto_trace import perfetto_trace
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import lake_errors, write_atomically
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import answer, session_document
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "report"
TABLES: Final = ("evidence",)


def write_report(lake: TraceLake, session: str) -> Outcome:
    """Write the session's page from what is published, and give its answer in a sentence."""
    document = session_document(lake, session)
    path, trace = lake.report(session), lake.trace(session)
    with lake_errors(path):
        page = render_html(document, trace.read_bytes() if trace.is_file() else None).encode()
        write_atomically(path, page)
    item = Evidence("report", "present", None, path.name)
    return Outcome({"evidence": evidence_frame(STAGE, [item])}, {"report_bytes": len(page), "answer": answer(document)})


@dg.asset(
    partitions_def=session_partitions,
    group_name="presentation",
    kinds={"html"},
    owners=OWNERS,
    deps=[model_graph, perfetto_trace, classification],
    metadata=stage_metadata(TABLES),
)
def report(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """What is the answer, and what proves it? One self-contained page."""
    with expected_errors():
        store, session = lake.open(), context.partition_key
        result = publish_outcome(store, session, STAGE, write_report(store, session))
        link = dg.MetadataValue.path(store.report(session))
        return result._replace(metadata={**(result.metadata or {}), "report": link})
