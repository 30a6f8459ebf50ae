"""The stage type: a plain function of one session, the tables it reads and publishes, and its checks.

Every other module in this package defines one stage; `stages` finds them. `aaco_pipeline.automation.stage_assets` turns
stages into assets, and `aaco_pipeline.pipeline.session_stages` runs a session's stages.
"""

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from aaco_pipeline import __version__
from aaco_pipeline.capture.face import Capture, Kind
from aaco_pipeline.code_digest import imported_rooms, room_digest
from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.manifest import Progress, progress_of

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.analysis.sessions.invariants import Finding
    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.manifest import Entry, Manifest
    from aaco_pipeline.lake.store import TraceLake

Group = Literal["capture", "analysis", "judgement", "optimization", "presentation"]
Log = Callable[[str], None]
Columns = Mapping[str, tuple[str, ...]]
Derived = TypeVar("Derived")
ALL_KINDS: Final[frozenset[Kind]] = frozenset({"measured", "profiled", "ingested", "timed", "program"})
#: Session kinds with recorded kernels, which most stages need.
TRACED_KINDS: Final[frozenset[Kind]] = ALL_KINDS - {"timed"}
EVIDENCE: Final = "evidence"
#: Losses in the recording: figures of the stages that read them become null or bounds.
FINDINGS: Final = "completeness_findings"
#: Larger tables are not cached for later stages.
_KEPT_BYTES: Final = 8 << 20
_PACKAGE: Final = Path(__file__).parents[1]
#: Source text that shows that a stage's module uses the capture.
_CAPTURE: Final = "session.capture"


class Session:
    """A session as its stages see it: tables, capture and configuration. Each table is read once per run.

    If the session has no capture yet, `measure` writes one to an empty folder; it is None if that is impossible.
    """

    def __init__(
        self,
        lake: "TraceLake",
        identifier: str,
        configs: Path,
        measure: "Callable[[MeasurementRequest, Path, Log], None] | None" = None,
        log: Log = lambda line: None,
    ) -> None:
        self.lake = lake
        self.id = identifier
        self.configs = configs
        self.measure = measure
        self.log = log
        self._kept: dict[tuple[str, tuple[str, ...] | None], tuple[tuple[Entry, ...], pl.DataFrame]] = {}
        self._derived: dict[Callable[[Mapping[str, pl.DataFrame]], object], tuple[object, object]] = {}

    @property
    def capture(self) -> Capture:
        """Return the session's capture; CaptureError if it is damaged or missing."""
        from aaco_pipeline.resources.confinement.client import open_capture  # imported only when a capture is opened

        return open_capture(self.lake.raw(self.id))

    @property
    def stated(self) -> dict[str, str]:
        """Return the facts that the user stated about the session."""
        return dict(self.lake.manifest(self.id).stated)

    def tables(self, *names: str) -> "dict[str, pl.DataFrame]":
        """Return the published tables by name, without the session key; empty if nothing is published."""
        return {name: self._table(name) for name in names}

    def columns(self, name: str, columns: tuple[str, ...]) -> "pl.DataFrame":
        """Return only these columns of a published table, which can be far larger."""
        return self._table(name, columns)

    def derive(self, function: "Callable[[Mapping[str, pl.DataFrame]], Derived]", columns: Columns) -> Derived:
        """Apply `function` to these columns of tables; the result is computed once for all stages of a run."""
        state = tuple(self.lake.manifest(self.id).of_table(name) for name in columns)
        if self._derived.get(function, (None, None))[0] != state:
            self._derived.pop(function, None)  # free the old value before computing the new one
            made = function({name: self.columns(name, those) for name, those in columns.items()})
            self._derived[function] = (state, made)
        return self._derived[function][1]  # type: ignore[return-value]

    def forget(self) -> None:
        """Free derived values that no later stage of the run needs."""
        self._derived.clear()

    def _table(self, name: str, columns: tuple[str, ...] | None = None) -> "pl.DataFrame":
        entries = self.lake.manifest(self.id).of_table(name)
        for held in (None, columns):  # the cached full table also has these columns
            state, frame = self._kept.get((name, held), (None, None))
            if frame is not None and state == entries:
                return frame if columns is None else frame.select(columns)
        frame = self.lake.read(name, self.id, columns)
        frame = frame.drop("session_id") if columns is None else frame
        if frame.estimated_size() <= _KEPT_BYTES:
            self._kept[name, columns] = (entries, frame)
        return frame


@dataclass(frozen=True)
class Outcome:
    """The result of a stage for one session: tables, evidence, headline figures and a preview."""

    tables: "Mapping[str, pl.DataFrame]"
    evidence: Sequence[Evidence] = ()
    headline: Mapping[str, int | float | str | None] = field(default_factory=dict)
    preview: "pl.DataFrame | None" = None
    preview_title: str = "preview"


@dataclass(frozen=True)
class Check:
    """An invariant of a session's tables; `holds` receives the tables in `reads` by name.

    Tables can be large, so those listed in `columns` are passed with only these columns.
    """

    name: str
    description: str
    holds: "Callable[[Mapping[str, pl.DataFrame]], Finding]"
    reads: tuple[str, ...]
    blocking: bool = True
    columns: Columns = field(default_factory=dict)

    def finding(self, session: Session) -> "Finding":
        """Check a session's published tables."""
        whole = session.tables(*(name for name in self.reads if name not in self.columns))
        parts = {name: session.columns(name, columns) for name, columns in self.columns.items()}
        return self.holds({**whole, **parts})


@dataclass(frozen=True)
class Stage:
    """A stage: the tables it `reads` and `publishes`, and in `after` the stages whose files it reads."""

    name: str
    question: str
    function: Callable[[Session], Outcome]
    reads: tuple[str, ...]
    publishes: tuple[str, ...]
    group: Group
    kinds: frozenset[str]
    checks: tuple[Check, ...] = ()
    after: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    session_kinds: frozenset[Kind] = TRACED_KINDS
    pool: str | None = None
    plots: "Mapping[str, Callable[[Mapping[str, pl.DataFrame]], str | None]]" = field(default_factory=dict)
    #: Label and location of a file that the stage writes in addition to its tables.
    file: "tuple[str, Callable[[TraceLake, str], Path]] | None" = None

    def __call__(self, session: Session) -> Outcome:
        outcome = self.function(session)
        return _obedient(outcome, session) if FINDINGS in self.reads else outcome

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Return all tables that it publishes: `publishes` and `evidence`; none for a view."""
        return () if self.is_view else (*self.publishes, EVIDENCE)

    @property
    def is_view(self) -> bool:
        """True for a stage that only renders published tables on request; sessions never expect it."""
        return not self.session_kinds

    @cached_property
    def dependencies(self) -> tuple[str, ...]:
        """Return sorted names of the stages that publish the tables it reads, and of those in `after`."""
        found = {one.name for one in _declared() if one.name != self.name and set(one.publishes) & set(self.reads)}
        return tuple(sorted(found | set(self.after)))

    @cached_property
    def needs_capture(self) -> bool:
        """True if the stage reads the capture."""
        return _CAPTURE in Path(self.function.__code__.co_filename).read_text()

    @cached_property
    def code_version(self) -> str:
        """Return a version that changes with the stage's module, the packages it imports, and its tables' contracts.

        For a stage that reads the capture, it also changes with the readers.
        """
        module = Path(self.function.__code__.co_filename)
        rooms = imported_rooms(module.read_text()) | ({"capture", "formats"} if self.needs_capture else set())
        digests = [room_digest(_PACKAGE, room) for room in sorted(rooms)]
        contracts = [f"{name}:{contract(name).version}" for name in self.tables]
        digest = hashlib.sha256("\n".join([module.read_text(), *digests, *contracts]).encode())
        return f"{__version__}-{digest.hexdigest()[:12]}"


def _obedient(outcome: Outcome, session: Session) -> Outcome:
    """Apply the completeness findings to an outcome."""
    findings = session.tables(FINDINGS)[FINDINGS]
    if not findings.height:
        return outcome
    from aaco_pipeline.analysis.completeness.examination import obeyed, obeying

    tables = {name: obeying(name, frame, findings) for name, frame in outcome.tables.items()}
    evidence = (*outcome.evidence, *obeyed(frozenset(tables), findings))
    return replace(outcome, tables=tables, evidence=evidence)


def stage(
    *,
    reads: Collection[str] = (),
    publishes: Collection[str] = (),
    group: Group,
    kinds: Collection[str],
    checks: Sequence[Check] = (),
    after: Collection[str] = (),
    configs: Collection[str] = (),
    session_kinds: Collection[Kind] = TRACED_KINDS,
    pool: str | None = None,
    plots: "Mapping[str, Callable[[Mapping[str, pl.DataFrame]], str | None]] | None" = None,
    file: "tuple[str, Callable[[TraceLake, str], Path]] | None" = None,
) -> Callable[[Callable[[Session], Outcome]], Stage]:
    """Turn a function of one session into the stage of the same name; its docstring is the question that it answers.

    `reads` and `publishes` name tables and determine the order of stages; `after` names stages whose files it reads.
    `configs` lists its configuration files, `session_kinds` the kinds of captures it applies to, and `pool` the slot it
    needs. `plots` maps titles to functions that draw SVG from the tables in `reads` and `publishes`.
    """

    def made(function: Callable[[Session], Outcome]) -> Stage:
        return Stage(
            function.__name__,
            " ".join((function.__doc__ or "").split()),
            function,
            *(tuple(reads), tuple(publishes)),
            group,
            frozenset(kinds),
            tuple(checks),
            *(tuple(after), tuple(configs)),
            frozenset(session_kinds),
            pool,
            dict(plots or {}),
            file,
        )

    return made


@cache
def stages() -> Mapping[str, Stage]:
    """Return all session stages by name, in dependency order. KeyError for an unknown dependency."""
    return {name: one for name, one in _in_order().items() if not one.is_view}


@cache
def views() -> Mapping[str, Stage]:
    """Return all views by name, in dependency order."""
    return {name: one for name, one in _in_order().items() if one.is_view}


def stages_of(kind: Kind) -> tuple[str, ...]:
    """Return the stages for a session of this kind, in execution order."""
    return tuple(name for name, one in stages().items() if kind in one.session_kinds)


def kind_of(lake: "TraceLake", session: str) -> Kind:
    """Return the kind of the session's capture, else the kind that its request will produce, else `measured`."""
    # Imported only for sessions that do not list their stages.
    from aaco_pipeline.capture import ingested, measured, program

    raw = lake.raw(session)
    if ingested.probe(raw):
        return "program" if program.probe(raw) else "ingested"
    try:
        asked = json.loads(lake.requested(session) or "{}")
        request: Mapping[str, object] = asked if isinstance(asked, dict) else {}
    except ValueError:
        request = {}  # the measurement will report the error
    if request.get("profile") or (raw / measured.FOLDER).is_dir():
        return "profiled"
    return "timed" if request.get("untraced") or measured.is_untraced(raw) else "measured"


def standing(lake: "TraceLake", session: str) -> Progress:
    """Return a session's progress; if its manifest lists no stages, those for its kind are expected."""
    manifest = lake.manifest(session)
    return progress_of(manifest if manifest.expected else manifest.expecting(stages_of(kind_of(lake, session))))


def state_expected(lake: "TraceLake", session: str, running: Collection[str] = ()) -> None:
    """Record the session's expected stages: those it lists, or those for its kind, plus `running`."""
    expected = standing(lake, session).expected
    of_later = tuple(name for name in expected if name not in stages())
    wanted = (*(name for name in stages() if name in expected or name in running), *of_later)
    if set(wanted) != set(lake.progress(session).expected):
        lake.expect(session, wanted)


def outdated(lake: "TraceLake", session: str, manifest: "Manifest | None" = None) -> tuple[str, ...]:
    """Return the stages that an earlier version lacked fully or partly, in execution order.

    They were published before all of their current tables existed, or were added to the kind later. Callers that
    already have the session's manifest pass it as `manifest`.
    """
    manifest = manifest or lake.manifest(session)
    published: dict[str, set[str]] = {}
    for entry in manifest.entries:
        published.setdefault(entry.stage, set()).add(entry.table)
    unstated = set(stages_of(kind_of(lake, session))) - set(manifest.expected) if manifest.expected else set()
    return tuple(
        name
        for name, one in stages().items()
        if (name in published and set(one.tables) - published[name]) or (name in unstated and name not in published)
    )


def to_finish(lake: "TraceLake", session: str) -> tuple[str, ...]:
    """Return the stages that complete a session: unpublished and outdated ones, and all that depend on them."""
    progress, behind = standing(lake, session), outdated(lake, session)
    due: list[str] = []
    for name, one in stages().items():  # ignores stages of later versions
        lacking = name in progress.unpublished or name in behind
        if lacking or (name in progress.expected and set(one.dependencies) & set(due)):
            due.append(name)
    return tuple(due)


@contextmanager
def failure_recorded(session: Session, one: Stage) -> Iterator[None]:
    """Record in the lake why a stage failed and let the error propagate; views and interrupts are not recorded."""
    try:
        yield
    except Exception as error:
        with suppress(LakeError):  # for example a full disk, which the original error already reports
            if not one.is_view:
                session.lake.record_failure(session.id, one.name, one.code_version, str(error) or type(error).__name__)
        raise


def publish(session: Session, one: Stage, outcome: Outcome) -> "tuple[Entry, ...]":
    """Publish a stage's tables atomically (none for a view). UsageError if they differ from those it declares."""
    if set(outcome.tables) != set(one.publishes):
        stray = ", ".join(sorted(set(outcome.tables) ^ set(one.publishes)))
        raise UsageError(f"stage {one.name} declares other tables than it made: {stray}")
    if one.is_view:
        return ()
    tables = {**outcome.tables, EVIDENCE: evidence_frame(one.name, outcome.evidence)}
    return session.lake.publish(session.id, one.name, tables, code_version=one.code_version)


def materialize(session: Session, names: Sequence[str] | None = None) -> dict[str, Outcome]:
    """Run and publish stages (default: all) without Dagster and without checks, for tests and notebooks."""
    made = {}
    if names is None:
        state_expected(session.lake, session.id)
    for name, one in stages().items():
        if names is None or name in names:
            made[name] = one(session)
            publish(session, one, made[name])
    return made


@cache
def _in_order() -> Mapping[str, Stage]:
    by_name = {one.name: one for one in _declared()}
    order = TopologicalSorter({name: by_name[name].dependencies for name in sorted(by_name)})
    return {name: by_name[name] for name in order.static_order()}


@cache
def _declared() -> tuple[Stage, ...]:
    """Import the stage of every module in this package. TypeError names a module with no stage or more than one."""
    package = __name__.rpartition(".")[0]
    found = []
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda module: module.name):
        name = f"{package}.{module.name}"
        if name == __name__:
            continue
        held = [value for value in vars(importlib.import_module(name)).values() if isinstance(value, Stage)]
        own = [one for one in held if one.function.__module__ == name]
        if len(own) != 1 or own[0].name != module.name:
            raise TypeError(f"{name}: holds {len(own)} stages; a module of this package holds one of its own name")
        found.append(own[0])
    return tuple(found)
