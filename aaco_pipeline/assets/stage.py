"""What a stage is: a plain function on one session, with what it reads, publishes and promises. Free of Dagster.

Every other module of this package holds one stage; `stages` finds them. How a stage becomes an asset with its checks is
`aaco_pipeline.automation.stage_assets`, how a session's stages run is `aaco_pipeline.pipeline.session_stages`.
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
#: Kinds whose kernels are recorded: what most stages are about.
TRACED_KINDS: Final[frozenset[Kind]] = ALL_KINDS - {"timed"}
EVIDENCE: Final = "evidence"
#: What the recording lacks: a stage that reads it has its figures made null, or told to be a bound, by it.
FINDINGS: Final = "completeness_findings"
#: A table that takes no more memory is kept for the stages after the one that read it.
_KEPT_BYTES: Final = 8 << 20
_PACKAGE: Final = Path(__file__).parents[1]
#: How a stage looks into what was recorded.
_CAPTURE: Final = "session.capture"


class Session:
    """One session as its stages see it: its tables, its capture, its configuration. Tables are read once a run.

    `measure` is called with an empty folder when the session's capture has still to be made; None where nothing can.
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
        """What was recorded; CaptureError when it is damaged or not there."""
        from aaco_pipeline.resources.confinement.client import open_capture  # readers: only where one is looked into

        return open_capture(self.lake.raw(self.id))

    @property
    def stated(self) -> dict[str, str]:
        """What a person said of the session that its capture does not."""
        return dict(self.lake.manifest(self.id).stated)

    def tables(self, *names: str) -> "dict[str, pl.DataFrame]":
        """The published tables by name, without the session key; without rows where nothing is published."""
        return {name: self._table(name) for name in names}

    def columns(self, name: str, columns: tuple[str, ...]) -> "pl.DataFrame":
        """These columns of a published table, which may be larger than they are by far."""
        return self._table(name, columns)

    def derive(self, function: "Callable[[Mapping[str, pl.DataFrame]], Derived]", columns: Columns) -> Derived:
        """`function` of these columns of tables, by name; computed once for all stages of a run that ask for it."""
        state = tuple(self.lake.manifest(self.id).of_table(name) for name in columns)
        if self._derived.get(function, (None, None))[0] != state:
            self._derived.pop(function, None)  # its memory is free before that of the new one is taken
            made = function({name: self.columns(name, those) for name, those in columns.items()})
            self._derived[function] = (state, made)
        return self._derived[function][1]  # type: ignore[return-value]

    def forget(self) -> None:
        """Free what was derived: no later stage of the run asks for it."""
        self._derived.clear()

    def _table(self, name: str, columns: tuple[str, ...] | None = None) -> "pl.DataFrame":
        entries = self.lake.manifest(self.id).of_table(name)
        for held in (None, columns):  # what is kept whole has the columns, too
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
    """What a stage made of one session: tables, what it had and lacked, headline numbers, a table for people."""

    tables: "Mapping[str, pl.DataFrame]"
    evidence: Sequence[Evidence] = ()
    headline: Mapping[str, int | float | str | None] = field(default_factory=dict)
    preview: "pl.DataFrame | None" = None
    preview_title: str = "preview"


@dataclass(frozen=True)
class Check:
    """A promise that a session's tables keep: `holds` is given the tables in `reads`, by name.

    Of a table in `columns` it is given those columns alone: a table may be larger than what it looks at by far.
    """

    name: str
    description: str
    holds: "Callable[[Mapping[str, pl.DataFrame]], Finding]"
    reads: tuple[str, ...]
    blocking: bool = True
    columns: Columns = field(default_factory=dict)

    def finding(self, session: Session) -> "Finding":
        """Whether a session's published tables keep it."""
        whole = session.tables(*(name for name in self.reads if name not in self.columns))
        parts = {name: session.columns(name, columns) for name, columns in self.columns.items()}
        return self.holds({**whole, **parts})


@dataclass(frozen=True)
class Stage:
    """One stage; call it with a session. `reads` and `publishes` are tables, `after` stages whose files it reads."""

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
    #: The file that the stage leaves beside its tables: its label, and where it is.
    file: "tuple[str, Callable[[TraceLake, str], Path]] | None" = None

    def __call__(self, session: Session) -> Outcome:
        outcome = self.function(session)
        return _obedient(outcome, session) if FINDINGS in self.reads else outcome

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Every table it publishes: those of `publishes`, and `evidence`; of a view none."""
        return () if self.is_view else (*self.publishes, EVIDENCE)

    @property
    def is_view(self) -> bool:
        """True for a stage that only renders what others published: made on request, never expected of a session."""
        return not self.session_kinds

    @cached_property
    def dependencies(self) -> tuple[str, ...]:
        """Names of the stages that fill the tables it reads, and those of `after`; sorted."""
        found = {one.name for one in _declared() if one.name != self.name and set(one.publishes) & set(self.reads)}
        return tuple(sorted(found | set(self.after)))

    @cached_property
    def needs_capture(self) -> bool:
        """Whether it looks into what was recorded."""
        return _CAPTURE in Path(self.function.__code__.co_filename).read_text()

    @cached_property
    def code_version(self) -> str:
        """Changes when the stage's module, a room that it imports from, or a contract of its tables does.

        A stage that looks into the capture also rests on the readers behind it.
        """
        module = Path(self.function.__code__.co_filename)
        rooms = imported_rooms(module.read_text()) | ({"capture", "formats"} if self.needs_capture else set())
        digests = [room_digest(_PACKAGE, room) for room in sorted(rooms)]
        contracts = [f"{name}:{contract(name).version}" for name in self.tables]
        digest = hashlib.sha256("\n".join([module.read_text(), *digests, *contracts]).encode())
        return f"{__version__}-{digest.hexdigest()[:12]}"


def _obedient(outcome: Outcome, session: Session) -> Outcome:
    """What a stage made, as the findings on the recording's completeness leave it."""
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
    """Make a function on one session a stage, named after it; its docstring is the question that it answers.

    `reads` and `publishes` name tables and decide which stages go before; `after` names stages of which it reads files.
    `configs` are the configuration files it reads, `session_kinds` the kinds of captures that are to have it, `pool`
    the slot it needs. `plots` draw from the tables in `reads` and `publishes`, by title, as SVG.
    """

    def made(function: Callable[[Session], Outcome]) -> Stage:
        return Stage(
            function.__name__,
            " ".join((function.__doc__ or "").split()),
            function,
            tuple(reads),
            tuple(publishes),
            group,
            frozenset(kinds),
            tuple(checks),
            tuple(after),
            tuple(configs),
            frozenset(session_kinds),
            pool,
            dict(plots or {}),
            file,
        )

    return made


@cache
def stages() -> Mapping[str, Stage]:
    """Every stage that sessions have, by name, each after those it depends on. KeyError for an unknown dependency."""
    return {name: one for name, one in _in_order().items() if not one.is_view}


@cache
def views() -> Mapping[str, Stage]:
    """The stages that no session has to have, by name, each after those it depends on."""
    return {name: one for name, one in _in_order().items() if one.is_view}


def stages_of(kind: Kind) -> tuple[str, ...]:
    """Name the stages that a session of that kind is to have, in the order they run."""
    return tuple(name for name, one in stages().items() if kind in one.session_kinds)


def kind_of(lake: "TraceLake", session: str) -> Kind:
    """What kind a session's capture is, or will be by what was asked for; without either it is a measured one."""
    # Readers: only for a session that states no stages.
    from aaco_pipeline.capture import ingested, measured, program

    raw = lake.raw(session)
    if ingested.probe(raw):
        return "program" if program.probe(raw) else "ingested"
    try:
        asked = json.loads(lake.requested(session) or "{}")
        request: Mapping[str, object] = asked if isinstance(asked, dict) else {}
    except ValueError:
        request = {}  # measuring it says what is wrong with the request
    if request.get("profile") or (raw / measured.FOLDER).is_dir():
        return "profiled"
    return "timed" if request.get("untraced") or measured.is_untraced(raw) else "measured"


def standing(lake: "TraceLake", session: str) -> Progress:
    """How far a session has come; where its manifest does not state its stages, by those of its kind."""
    manifest = lake.manifest(session)
    return progress_of(manifest if manifest.expected else manifest.expecting(stages_of(kind_of(lake, session))))


def state_expected(lake: "TraceLake", session: str, running: Collection[str] = ()) -> None:
    """State in the lake which stages the session is to have: those it states, else those of its kind, and `running`."""
    expected = standing(lake, session).expected
    of_later = tuple(name for name in expected if name not in stages())
    wanted = (*(name for name in stages() if name in expected or name in running), *of_later)
    if set(wanted) != set(lake.progress(session).expected):
        lake.expect(session, wanted)


def outdated(lake: "TraceLake", session: str, manifest: "Manifest | None" = None) -> tuple[str, ...]:
    """The stages of a session that an earlier version lacked, in part or whole, in the order they run.

    Those that published its tables before they had all that they have now, and those of its kind that it does not
    state, for they have come since. `manifest` is the session's, where the caller has it.
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
    """The stages that make a session whole: those not published or outdated, and all that depend on one of them."""
    progress, behind = standing(lake, session), outdated(lake, session)
    due: list[str] = []
    for name, one in stages().items():  # none of those that only a later version has
        lacking = name in progress.unpublished or name in behind
        if lacking or (name in progress.expected and set(one.dependencies) & set(due)):
            due.append(name)
    return tuple(due)


@contextmanager
def failure_recorded(session: Session, one: Stage) -> Iterator[None]:
    """State in the lake that a stage failed, and why, before its error goes on; not of a view, nor an interrupt."""
    try:
        yield
    except Exception as error:
        with suppress(LakeError):  # a full disk, say, which is what the error tells of
            if not one.is_view:
                session.lake.record_failure(session.id, one.name, one.code_version, str(error) or type(error).__name__)
        raise


def publish(session: Session, one: Stage, outcome: Outcome) -> "tuple[Entry, ...]":
    """Publish what the stage made, all at once; of a view nothing. UsageError when it made other than it declares."""
    if set(outcome.tables) != set(one.publishes):
        stray = ", ".join(sorted(set(outcome.tables) ^ set(one.publishes)))
        raise UsageError(f"stage {one.name} declares other tables than it made: {stray}")
    if one.is_view:
        return ()
    tables = {**outcome.tables, EVIDENCE: evidence_frame(one.name, outcome.evidence)}
    return session.lake.publish(session.id, one.name, tables, code_version=one.code_version)


def materialize(session: Session, names: Sequence[str] | None = None) -> dict[str, Outcome]:
    """Run and publish stages (default: all), without Dagster and without checks: for tests and notebooks."""
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
    """The stage of every module beside this one. TypeError names a module that holds none, or several."""
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
