"""Stages as Dagster sees them: each an asset of its name with its checks, its column schema and what it depends on.

What a stage is lives in `aaco_pipeline.assets.stage`. A session's stages also run without Dagster's steps, in
`session_runs`, which describes what came of them by the same functions as here.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any, Final

import dagster as dg
import polars as pl
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import Outcome, Session, Stage, failure_recorded, publish, stages, state_expected
from aaco_pipeline.automation.partitions import session_partitions
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.report.html.svg import as_markdown_image
from aaco_pipeline.report.markdown import markdown_text
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import duration, share, shortened, size
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.report_server import address_of

#: The job of all stages.
JOB: Final = "observe"
OWNERS: Final = ["team:aaco"]
EXIT_CODE_KEY: Final = "aaco/exit_code"
#: The check that every stage has.
CONTRACT: Final = "contract"
_CONTRACT_IS: Final = "Every published table of the stage is intact and fulfils its contract."
_LONGEST_TEXT: Final = 200
#: Dagster folds away a table of more than about a thousand characters.
_LONGEST_KERNEL: Final = 40
#: Of a contract's units those that are none.
_NO_UNITS: Final = ("id", "name", "text", "bool", "varies")
_PREVIEW_ROWS: Final = 10

# Checks have to be partitioned, or a session's broken promise hides behind a later session's kept one; Dagster calls
# exactly that argument a preview. Named here so that no other warning is silenced with it.
warnings.filterwarnings(
    "ignore", "Specifying a partitions_def on an AssetCheckSpec is currently in preview", dg.PreviewWarning
)


@cache
def stage_assets() -> tuple[dg.AssetsDefinition, ...]:
    """Every stage as an asset, in the order they run."""
    return tuple(_asset(one) for one in stages().values())


observe = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(*stages()),
    executor_def=dg.in_process_executor,
    description="All stages of one session, from capture to analysis. A captured session is not measured again.",
)


@cache
def observe_job() -> dg.JobDefinition:
    """The job with its assets, as the code location resolves it."""
    resources = {"lake": LakeResource(), "runner": InferenceRunner()}
    definitions = dg.Definitions(assets=stage_assets(), jobs=[observe], resources=resources)
    return definitions.resolve_job_def(JOB)


def check_specs(one: Stage) -> list[dg.AssetCheckSpec]:
    """What is checked of a stage, for each session by itself: its contract, and the promises that it states."""
    said = [(CONTRACT, _CONTRACT_IS, True), *((check.name, check.description, check.blocking) for check in one.checks)]
    return [
        dg.AssetCheckSpec(name, asset=one.name, description=text, blocking=blocking, partitions_def=session_partitions)
        for name, text, blocking in said
    ]


def checked(session: Session, one: Stage) -> Iterator[dg.AssetCheckResult]:
    """The results of a stage's checks over what is published of a session."""
    yield _result(one, CONTRACT, contract_is_fulfilled(session, one), blocking=True)
    for check in one.checks:
        yield _result(one, check.name, check.finding(session), blocking=check.blocking)


def contract_is_fulfilled(session: Session, one: Stage) -> Finding:
    """Every table that the stage published is there, unchanged since, and as its contract says."""
    entries = session.lake.manifest(session.id).of_stage(one.name)
    broken: list[str] = []
    for entry in entries:
        try:
            session.lake.verify_entry(entry)
        except LakeError as error:
            broken.append(str(error))
    holds = bool(entries) and not broken
    statement = "; ".join(broken) or (f"{len(entries)} tables as declared" if entries else "nothing is published")
    return Finding(holds, statement, {"tables": len(entries), "broken": len(broken)})


def described(session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> dict[str, Any]:
    """What Dagster shows of a stage that ran: rows, bytes, headline numbers, a small table, plots, its file."""
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
    """What the manifest alone says of a published stage: rows, bytes, and where its file is."""
    told: dict[str, Any] = {
        "dagster/row_count": sum(entry.rows for entry in entries),
        "dagster/uri": str(session.lake.path),
        **{f"{entry.table}_rows": entry.rows for entry in entries},
        "published_bytes": sum(entry.bytes for entry in entries),
    }
    if one.file is not None:
        label, place = one.file
        told[label] = dg.MetadataValue.url(address_of(place(session.lake, session.id)))
    return told


def version_tags(
    manifest: Manifest, one: Stage, pointer: Callable[[dg.AssetKey], str] = lambda key: NULL_EVENT_POINTER
) -> dict[str, str]:
    """The versions of code, inputs and output of a published stage, by which Dagster tells fresh from stale.

    `pointer` gives the number of the event by which an input was materialized.
    """
    code = next((state.code_version for state in manifest.stages if state.stage == one.name), "")
    tags = {
        CODE_VERSION_TAG: code,
        DATA_VERSION_TAG: data_version(manifest.of_stage(one.name)),
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
    }
    for name in one.dependencies:
        key = dg.AssetKey(name)
        tags[get_input_data_version_tag(key)] = data_version(manifest.of_stage(name))
        tags[get_input_event_pointer_tag(key)] = pointer(key)
    return tags


def evaluation(
    one: Stage,
    session: str,
    result: dg.AssetCheckResult,
    target: AssetCheckEvaluationTargetMaterializationData | None = None,
) -> dg.AssetCheckEvaluation:
    """A check's result as Dagster stores it, of one session."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(one.name),
        check_name=str(result.check_name),
        passed=result.passed,
        metadata=result.metadata,
        target_materialization_data=target,
        severity=result.severity,
        description=result.description,
        blocking=result.severity == dg.AssetCheckSeverity.ERROR,
        partition=session,
    )


def data_version(entries: Sequence[Entry]) -> str:
    """A digest of what was published: it changes when a byte of it does."""
    return sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()[:16]


@contextmanager
def expected_errors() -> Iterator[None]:
    """Show an expected error in Dagster as its one line, with the exit code the command would give, and no retry."""
    try:
        yield
    except AacoError as error:
        raise dg.Failure(
            description=in_a_line(str(error)), metadata={EXIT_CODE_KEY: error.exit_code}, allow_retries=False
        ) from error


def column_schema(one: Stage) -> dg.TableSchema:
    """The contracts of the tables a stage publishes as one schema, each column named `table.column`."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=f"{name}.{column.name}",
                type=column.dtype,
                description=column.meaning if column.unit in _NO_UNITS else f"{column.meaning} [{column.unit}]",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for name in one.tables
            for column in contract(name).all_columns
        ]
    )


def markdown_table(frame: pl.DataFrame) -> str:
    """A frame as a Markdown table for people: columns in ns, bytes and ratios in the unit that a figure asks for."""
    shown = {name: _SPOKEN.get(name.rpartition("_")[2], _cell) for name in frame.columns}
    titles = [name if shown[name] is _cell else name.rpartition("_")[0] or name for name in frame.columns]
    header = "| " + " | ".join(_cell(title.replace("_", " ")) for title in titles) + " |"
    rule = "|" + "|".join(" ---: " if dtype.is_numeric() else " --- " for dtype in frame.dtypes) + "|"
    rows = [
        "| " + " | ".join(_unbroken(show(value)) for show, value in zip(shown.values(), row, strict=True)) + " |"
        for row in frame.iter_rows()
    ]
    return "\n".join([header, rule, *rows])


def _asset(one: Stage) -> dg.AssetsDefinition:
    specs = check_specs(one)

    @dg.asset(
        name=one.name,
        deps=list(one.dependencies),
        check_specs=specs,
        partitions_def=session_partitions,
        description=one.question,
        group_name=one.group,
        kinds=set(one.kinds),
        owners=OWNERS,
        pool=one.pool,
        code_version=one.code_version,
        metadata={"dagster/column_schema": column_schema(one)},
    )
    # Of an asset with checks Dagster reads this annotation, and knows the class only without its parameter.
    def asset(context: dg.AssetExecutionContext, lake: LakeResource, runner: InferenceRunner) -> dg.MaterializeResult:  # type: ignore[type-arg]
        context.instance.add_run_tags(context.run.run_id, process_tags())
        results: list[dg.AssetCheckResult] = []
        entries: list[Entry] = []
        for key in context.partition_keys:
            with expected_errors():
                session = Session(
                    lake.open(), key, runner.folder, runner.measure, lambda line: context.log.info(in_a_line(line))
                )
                with session.lake.running(key):
                    state_expected(session.lake, key, (one.name,))
                    with failure_recorded(session, one):
                        outcome = one(session)
                        published = publish(session, one, outcome)
                        metadata = described(session, one, outcome, published)
                        found = list(checked(session, one))
                    _record_broken(session, one, found)
            results.extend(found)
            entries.extend(published)
            context.add_asset_metadata(metadata, partition_key=key)
        # One result for each check: of several sessions the worst, whose description names what is wrong.
        worst = {result.check_name: result for result in sorted(results, key=lambda result: not result.passed)}
        return dg.MaterializeResult(
            data_version=dg.DataVersion(data_version(entries)),
            check_results=[worst[spec.name] for spec in specs],
        )

    return asset


def _record_broken(session: Session, one: Stage, results: Sequence[dg.AssetCheckResult]) -> None:
    """State in the lake that a blocking check failed: Dagster then runs nothing of what follows."""
    broken = [
        f"check {result.check_name}: {result.description}"
        for result in results
        if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR
    ]
    if broken:
        session.lake.record_failure(session.id, one.name, one.code_version, "; ".join(broken))


def _result(one: Stage, name: str, finding: Finding, *, blocking: bool) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=one.name,
        check_name=name,
        passed=finding.holds,
        severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
        description=in_a_line(finding.statement),
        metadata=dict(finding.figures),
    )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    return markdown_text(shortened(str(value), _LONGEST_TEXT))


def _unbroken(text: str | None) -> str:
    """A figure that stays with its unit in a narrow column, or a dash."""
    return re.sub(r"(?<=[0-9]) (?=\S+$)", "\N{NO-BREAK SPACE}", text) if text else "–"


def _kernel(name: Any) -> str:
    return _cell(name if name is None else shortened(name, _LONGEST_KERNEL))


def _harmless(value: object) -> Any:
    """A figure that Dagster shows; a text without what could fool an eye."""
    return in_a_line(value) if isinstance(value, str) else value


#: What a column's last word says of it, and how a person reads it.
_SPOKEN: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "ns": duration,
    "bytes": size,
    "ratio": share,
    "kernel": _kernel,
}
