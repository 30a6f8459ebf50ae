"""What Dagster is told of a stage that ran: what it made, in which versions, what its checks found, why it failed.

The same from Dagster's own steps (`stage_assets`), from runs written event by event (`own_run`), and of what the lake
holds already (`known_sessions`).
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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
from aaco_pipeline.assets.stage import Outcome, Session, Stage
from aaco_pipeline.errors import AacoError, LakeError, PassingLakeError
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.report.html.svg import as_markdown_image
from aaco_pipeline.report.markdown import markdown_text
from aaco_pipeline.report.served_views import address_of
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.report.words.units import duration, share, shortened, size

#: In a materialization: the lake that the stage published into.
LAKE_KEY: Final = "dagster/uri"
EXIT_CODE_KEY: Final = "aaco/exit_code"
#: The check that every stage has.
CONTRACT: Final = "contract"
#: How often a step is tried again after an error of the lake that may pass, and the wait before the first time in
#: seconds; each further one is twice as long.
MOST_RETRIES: Final = 3
FIRST_WAIT_SECONDS: Final = 5.0
_LONGEST_TEXT: Final = 200
#: Dagster folds away a table of more than about a thousand characters.
_LONGEST_KERNEL: Final = 40
_PREVIEW_ROWS: Final = 10


def checked(session: Session, one: Stage) -> Iterator[dg.AssetCheckResult]:
    """The results of a stage's checks over what is published of a session; of a view none."""
    if not one.is_view:
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
    told: dict[str, Any] = {LAKE_KEY: str(session.lake.path)}
    if not one.is_view:
        told["dagster/row_count"] = sum(entry.rows for entry in entries)
        told |= {f"{entry.table}_rows": entry.rows for entry in entries}
        told["published_bytes"] = sum(entry.bytes for entry in entries)
    if one.file is not None:
        label, place = one.file
        told[label] = dg.MetadataValue.url(address_of(place(session.lake, session.id)))
    return told


def version_tags(
    manifest: Manifest, one: Stage, pointer: Callable[[dg.AssetKey], str] = lambda key: NULL_EVENT_POINTER
) -> dict[str, str]:
    """The versions of code, inputs and output of a published stage, by which Dagster tells fresh from stale.

    A view has none, so that Dagster never calls it stale: it is made again when it is opened.
    `pointer` gives the number of the event by which an input was materialized.
    """
    if one.is_view:
        return {}
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


class CheckError(AacoError):
    """A blocking check of a stage failed: what follows would be computed from wrong tables."""

    exit_code = 1


class Teller:
    """Tells Dagster of stages that a run has published: `emit` stores an event of that run at once."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        run_id: str,
        emit: Callable[[dg.AssetMaterialization | dg.AssetCheckEvaluation], None],
    ) -> None:
        self._instance = instance
        self._run_id = run_id
        self._emit = emit
        #: By stage and session the number of the newest materialization as Dagster counts them, where it is known; None
        #: where there is none.
        self._newest: dict[tuple[str, str], int | None] = {}
        #: Of which stages and sessions the run has told.
        self.told: Final[set[tuple[str, str]]] = set()

    def look_up(self, names: Collection[str], sessions: Collection[str]) -> None:
        """Ask for the newest materializations of many sessions at once, instead of each when it is needed."""
        storage = self._instance.event_log_storage
        for name in names:
            found = storage.get_latest_storage_id_by_partition(
                dg.AssetKey(name), dg.DagsterEventType.ASSET_MATERIALIZATION, set(sessions)
            )
            self._newest.update({(name, session): found.get(session) for session in sessions})

    def tell(self, session: Session, one: Stage, outcome: Outcome, entries: Sequence[Entry]) -> None:
        """The materialization of a stage and the results of its checks; CheckError when a blocking one failed."""
        now = time.time()
        self._emit(
            dg.AssetMaterialization(
                one.name,
                metadata=described(session, one, outcome, entries),
                partition=session.id,
                tags=version_tags(session.lake.manifest(session.id), one, partial(self._pointer, session.id)),
            )
        )
        self.told.add((one.name, session.id))
        self.look_up([one.name], [session.id])
        number = self._newest[one.name, session.id]
        assert number is not None, "Dagster lost the event that was just stored"
        target = AssetCheckEvaluationTargetMaterializationData(storage_id=number, run_id=self._run_id, timestamp=now)
        broken = []
        for result in checked(session, one):
            self._emit(evaluation(one, session.id, result, target))
            if not result.passed and result.severity == dg.AssetCheckSeverity.ERROR:
                broken.append(f"Check {result.check_name} of {one.name} failed: {result.description}")
        if broken:
            raise CheckError("; ".join(broken))

    def _pointer(self, session: str, key: dg.AssetKey) -> str:
        """The number of a stage's newest materialization for a session, of this run or an earlier one."""
        name = key.to_user_string()
        if (name, session) not in self._newest:
            self.look_up([name], [session])
        number = self._newest[name, session]
        return NULL_EVENT_POINTER if number is None else str(number)


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
def expected_errors(retries: int | None = None) -> Iterator[None]:
    """Show an expected error in Dagster as its one line, with the exit code the command would give, and no retry.

    In a step that has been retried `retries` times a PassingLakeError asks for another try, `MOST_RETRIES` in all.
    """
    try:
        yield
    except AacoError as error:
        failure = failure_of(error)
        if retries is None or not isinstance(error, PassingLakeError):
            raise failure from error
        failure.__cause__ = error
        raise retry(retries) from failure


def failure_of(error: AacoError) -> dg.Failure:
    """An expected error as Dagster shows it."""
    return dg.Failure(in_a_line(str(error)), {EXIT_CODE_KEY: error.exit_code}, allow_retries=False)


def retry(retries: int) -> dg.RetryRequested:
    """Another try of a step that has been retried so often; with the last of them Dagster fails the step."""
    return dg.RetryRequested(MOST_RETRIES, FIRST_WAIT_SECONDS * 2.0**retries)


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
