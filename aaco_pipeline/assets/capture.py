"""The stage `capture`: run the workload once, or take the complete raw capture that is there, and say what it holds.

Measuring is the runner's (`aaco_pipeline.resources.measure.inference`); what the raw files mean is read by later
stages.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import dagster as dg

from aaco_pipeline.analysis.sessions.environment import environment, fingerprint
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture.ingested import IngestedCapture
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UsageError
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags

STAGE: Final = "capture"
TABLES: Final = ("sessions", "evidence")
#: The one slot for anything measured; the limit of 1 is dagster.yaml's default for pools.
MEASUREMENT_POOL: Final = "measurement"


class Runner(Protocol):
    """Whoever can measure a launch."""

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None: ...


def take_capture(lake: TraceLake, session: str, runner: Runner, log: Callable[[str], None]) -> Outcome:
    """Measure the session's launch unless its raw capture is complete, then describe the capture.

    A session that was captured is never measured again: a new measurement is a new session.
    """
    if not lake.raw(session).is_dir():
        requested = lake.requested(session)
        if requested is None:
            raise UsageError(
                f"session {session} has neither a capture nor a launch request; start one with `aaco run` or the "
                "job start_session"
            )
        launch = MeasurementRequest.from_json(requested, f"launch request of session {session}")
        with lake.receive_raw(session) as folder:
            runner.capture(launch, folder, log)
    lake.withdraw(session)
    return describe_capture(lake, session)


def describe_capture(lake: TraceLake, session: str) -> Outcome:
    """The rows of `sessions` and `evidence` for a complete raw capture, each file with its digest."""
    raw = lake.raw(session)
    if ingested_capture.probe(raw):
        return _describe_ingested(ingested_capture.read(raw))
    capture = inference_capture.read(raw)
    files = list(_files(raw))
    digest = hashlib.sha256("".join(f"{name}\0{sha256}\n" for name, sha256 in files).encode()).hexdigest()
    row = capture.sessions(fingerprint(environment(capture.host["facts"])), digest)
    found = [Evidence(f"raw file {name}", "present", None, f"raw/{name}", None, sha256) for name, sha256 in files]
    model = capture.capture["model"]
    return Outcome(
        {"sessions": row, "evidence": evidence_frame(STAGE, [*found, *capture.inference_evidence()])},
        {
            "model": model["name"],
            "weights": model["weights"],
            "provider": capture.capture["provider"],
            "raw_bytes": sum(file.stat().st_size for file in raw.rglob("*") if file.is_file()),
        },
    )


def _describe_ingested(capture: IngestedCapture) -> Outcome:
    rows = capture.reading().tables["environment"]
    row = capture.sessions(fingerprint(rows) if rows.height else None)
    listed = capture.listed["files"]
    return Outcome(
        {"sessions": row, "evidence": evidence_frame(STAGE, capture.file_evidence())},
        {
            "format": row.item(0, "source_format"),
            "workload": row.item(0, "workload"),
            "files": len(listed),
            "raw_bytes": sum(one["bytes"] for one in listed),
        },
    )


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as stream:
                yield file.relative_to(folder).as_posix(), hashlib.file_digest(stream, "sha256").hexdigest()


@dg.asset(
    partitions_def=session_partitions,
    group_name="capture",
    kinds={"onnx", "python"},
    owners=OWNERS,
    pool=MEASUREMENT_POOL,
    metadata=stage_metadata(TABLES),
)
def capture(
    context: dg.AssetExecutionContext, lake: LakeResource, runner: InferenceRunner
) -> dg.MaterializeResult[None]:
    """What was run, and is its raw capture complete? Measures once; afterwards only reads what was captured."""
    context.instance.add_run_tags(context.run.run_id, process_tags())
    with expected_errors():
        store = lake.open()
        outcome = take_capture(store, context.partition_key, runner, context.log.info)
        return publish_outcome(store, context.partition_key, STAGE, outcome)
