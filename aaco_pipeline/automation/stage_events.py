"""Build Dagster events for a published stage: output, versions, check results and, after a failure, the reason.

Used by Dagster's own steps (`stage_assets`) and for stages that are already in the lake (`adoption`). Partitioned
checks are a preview feature of Dagster; only this module knows how their results are stored.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

import dagster as dg
import polars as pl

from aaco_pipeline.assets.stage import Outcome, Session, Stage
from aaco_pipeline.automation.resources import session_partitions
from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.pipeline.session_stages import CONTRACT, CheckResult, checked
from aaco_pipeline.report.formatting import duration, in_a_line, share, shortened, size
from aaco_pipeline.report.html.plots import as_markdown_image
from aaco_pipeline.report.markdown import markdown_text
from aaco_pipeline.report.on_demand import address_of

#: Materialization metadata: the lake that the stage was published to.
LAKE_KEY: Final = "dagster/uri"
EXIT_CODE_KEY: Final = "aaco/exit_code"
#: Dagster's tags for detecting stale assets.
CODE_VERSION_TAG: Final = "dagster/code_version"
DATA_VERSION_TAG: Final = "dagster/data_version"
#: Data version of an asset that was never materialized.
_NO_VERSION: Final = "NULL"
_CONTRACT_IS: Final = "Every published table of the stage is intact and fulfils its contract."
_LONGEST_TEXT: Final = 200
#: Dagster collapses tables longer than about a thousand characters.
_LONGEST_KERNEL: Final = 40
_PREVIEW_ROWS: Final = 10
#: Number of Dagster records per request.
_MOST_RECORDS: Final = 1000
#: Context of an asset or op that can log events.
Context = dg.AssetExecutionContext | dg.OpExecutionContext


def described(session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> dict[str, Any]:
    """Collect the metadata shown for a stage: rows, bytes, headline numbers, a small table, plots and the file."""
    described: dict[str, Any] = {
        name: _harmless(value) for name, value in outcome.headline.items() if value is not None
    }
    if outcome.preview is not None and outcome.preview.height:
        table = markdown_table(outcome.preview.head(_PREVIEW_ROWS))
        described[outcome.preview_title] = dg.MetadataValue.md(table)
    for title, plot in one.plots.items():
        drawn = plot({**session.tables(*one.reads), **outcome.tables})
        if drawn is not None:
            described[title] = dg.MetadataValue.md(as_markdown_image(drawn, title))
    return {**described, **amounts(session, one, entries)}


def amounts(session: Session, one: Stage, entries: Sequence[Entry]) -> dict[str, Any]:
    """Collect the metadata available in a published stage's manifest: rows, bytes and the file's location."""
    told: dict[str, Any] = {LAKE_KEY: str(session.lake.path)}
    if not one.is_view:
        told["dagster/row_count"] = sum(entry.rows for entry in entries)
        told |= {f"{entry.table}_rows": entry.rows for entry in entries}
        told["published_bytes"] = sum(entry.bytes for entry in entries)
    if one.file is not None:
        label, place = one.file
        told[label] = dg.MetadataValue.url(address_of(place(session.lake, session.id)))
    return told


def version_tags(manifest: Manifest, one: Stage) -> dict[str, str]:
    """Return the versions of a stage's code, inputs and output, from which Dagster detects stale assets.

    Views have none, so that Dagster never marks them as stale: they are regenerated when opened.
    """
    if one.is_view:
        return {}
    tags = {
        CODE_VERSION_TAG: code_version(manifest, one.name),
        DATA_VERSION_TAG: data_version(manifest.of_stage(one.name)),
        "dagster/data_version_is_user_provided": "true",
    }
    for name in one.dependencies:
        tags[f"dagster/input_data_version/{name}"] = data_version(manifest.of_stage(name))
        tags[f"dagster/input_event_pointer/{name}"] = "NULL"  # only the version decides
    return tags


def code_version(manifest: Manifest, stage: str) -> str:
    """Return the code version of a stage's last run; "" if unknown."""
    return next((state.code_version for state in manifest.stages if state.stage == stage), "")


def data_version(entries: Sequence[Entry]) -> str:
    """Return a digest of the published data; it changes with every byte."""
    return sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()[:16] if entries else _NO_VERSION


def materialization(session: Session, one: Stage, metadata: Mapping[str, Any]) -> dg.AssetMaterialization:
    """Build the Dagster materialization of a published stage of one session."""
    tags = version_tags(session.lake.manifest(session.id), one)
    return dg.AssetMaterialization(one.name, metadata=metadata, partition=session.id, tags=tags)


def tell(context: Context, session: Session, one: Stage, metadata: Mapping[str, Any]) -> None:
    """Log the materialization of a stage that was just published, and its check results."""
    context.log_event(materialization(session, one, metadata))
    newest = newest_materializations(context.instance, one.name, [session.id]).get(session.id)
    for result in checked(session, one):
        log_result(context, one, session.id, result, newest)


def log_result(
    context: Context, one: Stage, session: str, result: CheckResult, materialized: dg.EventLogRecord | None
) -> None:
    """Log a check result of one session, linked to the given materialization."""
    told = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(one.name),
        check_name=result.name,
        target_materialization_data=None if materialized is None else _target(materialized),
        blocking=result.is_blocking,
        partition=session,
        **_found(result),
    )
    context.log_event(told)  # type: ignore[arg-type]  # Dagster takes it, its annotation does not say so


def newest_materializations(
    instance: dg.DagsterInstance, asset: str, partitions: Sequence[str]
) -> dict[str, dg.EventLogRecord]:
    """Fetch the newest materialization of each of these partitions of an asset, if there is one."""
    found: dict[str, dg.EventLogRecord] = {}
    if not partitions:
        return found
    asked = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=list(partitions))
    cursor = None
    while True:
        answer = instance.fetch_materializations(asked, limit=_MOST_RECORDS, cursor=cursor)  # newest first
        for record in answer.records:
            found.setdefault(str(record.partition_key), record)
        if not answer.has_more or len(found) == len(set(partitions)):
            return found
        cursor = answer.cursor


def check_specs(one: Stage) -> list[dg.AssetCheckSpec]:
    """List a stage's checks per session: its contract and its promises; none for a view."""
    of_contract = [] if one.is_view else [(CONTRACT, _CONTRACT_IS, True)]
    said = [*of_contract, *((check.name, check.description, check.blocking) for check in one.checks)]
    return [
        dg.AssetCheckSpec(name, asset=one.name, description=text, blocking=blocking, partitions_def=session_partitions)
        for name, text, blocking in said
    ]


def check_result(one: Stage, result: CheckResult) -> dg.AssetCheckResult:
    """Convert a check result to the form that the asset's own step yields to Dagster."""
    return dg.AssetCheckResult(asset_key=one.name, check_name=result.name, **_found(result))


def _found(result: CheckResult) -> dict[str, Any]:
    return {
        "passed": result.finding.holds,
        "severity": dg.AssetCheckSeverity.ERROR if result.is_blocking else dg.AssetCheckSeverity.WARN,
        "description": in_a_line(result.finding.statement),
        "metadata": dict(result.finding.figures),
    }


def _target(record: dg.EventLogRecord) -> Any:
    """Point to a materialization; without the pointer Dagster shows no result for the partition.

    The class has no public name in Dagster, so it is taken from the serialized form.
    """
    stored = {"run_id": record.run_id, "storage_id": record.storage_id, "timestamp": record.timestamp}
    return dg.deserialize_value(json.dumps({"__class__": "AssetCheckEvaluationTargetMaterializationData", **stored}))


@contextmanager
def expected_errors() -> Iterator[None]:
    """Report an expected error in Dagster as one line, with the exit code of the command, and without a retry."""
    try:
        yield
    except AacoError as error:
        raise dg.Failure(in_a_line(str(error)), {EXIT_CODE_KEY: error.exit_code}, allow_retries=False) from error


def markdown_table(frame: pl.DataFrame) -> str:
    """Render a frame as a readable Markdown table, with ns, bytes and ratios in suitable units."""
    shown = {name: _SPOKEN.get(name.rpartition("_")[2], _cell) for name in frame.columns}
    titles = [name if shown[name] is _cell else name.rpartition("_")[0] or name for name in frame.columns]
    header = "| " + " | ".join(_cell(title.replace("_", " ")) for title in titles) + " |"
    rule = "|" + "|".join(" ---: " if dtype.is_numeric() else " --- " for dtype in frame.dtypes) + "|"
    rows = [
        "| " + " | ".join(_unbroken(show(value)) for show, value in zip(shown.values(), row, strict=True)) + " |"
        for row in frame.iter_rows()
    ]
    return "\n".join([header, rule, *rows])


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    return markdown_text(shortened(str(value), _LONGEST_TEXT))


def _unbroken(text: str | None) -> str:
    """Keep a figure and its unit on one line; a missing value becomes a dash."""
    return re.sub(r"(?<=[0-9]) (?=\S+$)", "\N{NO-BREAK SPACE}", text) if text else "–"


def _kernel(name: Any) -> str:
    return _cell(name if name is None else shortened(name, _LONGEST_KERNEL))


def _harmless(value: object) -> Any:
    """Return a figure in a form that Dagster can show, and text without misleading characters."""
    return in_a_line(value) if isinstance(value, str) else value


#: Formatters by the last word of a column's name.
_SPOKEN: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "ns": duration,
    "bytes": size,
    "ratio": share,
    "kernel": _kernel,
}
