"""Measure a campaign block by block with the measurement slot held, then run its sessions' stages.

The placebo arm, the baseline again from a copy of its file, is made here. Verdicts are `judging`.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import polars as pl

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.capture.request import Arm, MeasurementRequest
from aaco_pipeline.errors import AacoError, LakeError
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake import health
from aaco_pipeline.lake.artefacts import ARTEFACTS, copy_artefact
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, read_plan, require_unchanged
from aaco_pipeline.pipeline.session_stages import finish_session
from aaco_pipeline.pipeline.sessions import kind_asked
from aaco_pipeline.resources.measure.inference import capture_inference
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.measure.models import model_digest, weights_beside
from aaco_pipeline.resources.progress import report_progress

ARM: Final = "placebo"


def placebo_of(lake: TraceLake, baseline: Subject) -> Subject:
    """The arm that measures a copy of the baseline's file, which is made when its campaign is measured."""
    file = lake.path / ARTEFACTS / f"placebo-{token_hex(8)}" / baseline.artefact.name
    return replace(baseline, request=baseline.request.model_copy(update={"artefact": str(file)}), artefact=file)


@contextmanager
def fresh_copy(lake: TraceLake, plan: Plan) -> Iterator[None]:
    """The placebo's copy for as long as the campaign is measured; nothing for a plan without one.

    LakeError when the copy cannot be made, or is not the file that was planned.
    """
    arm = plan.arms.get(ARM)
    if arm is None:
        yield
        return
    source: Path = plan.arms["baseline"].artefact
    copy = copy_artefact(lake.path, source, weights_beside(source), arm.artefact.parent.name)
    try:
        if model_digest(copy) != arm.artefact_sha256:
            raise LakeError(f"{copy}: its copy is not the file that campaign {plan.campaign} measures; start it again")
        yield
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


#: The stage that publishes which sessions there are.
STAGE: Final = "measuring"
Log = Callable[[str], None]


def measure_campaign(lake: TraceLake, campaign: str, configs: Path, log: Log) -> pl.DataFrame:
    """Measure what is left of a campaign, run its sessions' stages, and return its rows of `campaign_sessions`.

    One process at a time; another waits, and finds it done. Raises what a measurement failed with: the block it was in
    counts as killed.
    """
    if lake.is_measuring(campaign):
        report_progress("waiting for the process that measures the campaign", 0, 0)
    with lake.measuring(campaign), closing(_Attended(lake)) as attended:
        plan = read_plan(lake, campaign)
        require_resumable(lake, plan)
        bury(lake, campaign)
        health.clear_away(lake)
        work = _Measuring(lake, plan, configs, log, attended)
        with fresh_copy(lake, plan):
            for purpose, wanted in (("latency", plan.blocks), ("trace", plan.traced_blocks)):
                while (done := finished_blocks(lake, campaign, purpose)) < wanted:
                    report_progress(f"{purpose} blocks", done, wanted)
                    with measurement_slot(on_wait=log) as slot:
                        work.block(purpose, slot)
        rows = members(lake, campaign)
        finished = rows.filter(pl.col("state") == "finished").get_column("session_id").to_list()
        took: dict[str, int] = {}
        with measurement_slot(on_wait=log):  # the next campaign is not measured beside these stages either
            for number, session in enumerate(finished):
                report_progress("stages of sessions", number, len(finished))
                attended.let_go(session)
                since = time.monotonic_ns()
                if finish_session(lake, session, configs):
                    took[session] = time.monotonic_ns() - since
        if took:
            stages = pl.col("session_id").replace_strict(took, default=None, return_dtype=pl.Int64)
            rows = rows.with_columns(stages_ns=pl.col("stages_ns").fill_null(stages))
            publish_members(lake, campaign, rows)
    return rows


def require_resumable(lake: TraceLake, plan: Plan) -> None:
    """UsageError or LakeError when what is left of a campaign would not belong to what there is.

    That is when the file of an arm is another by now, or when a finished block has lost a session.
    """
    require_unchanged(plan)
    gone = lost_sessions(lake, plan.campaign)
    if gone:
        raise LakeError(
            f"campaign {plan.campaign} has lost session {gone[0]} of a finished block, and no verdict can rest on the "
            f"rest; `aaco rm {plan.campaign}`, then start a new one"
        )


def lost_sessions(lake: TraceLake, campaign: str) -> list[str]:
    """The sessions of finished blocks of which the lake holds nothing any more, in the order they were measured."""
    known, captured = set(lake.sessions()), set(lake.captured())
    finished = members(lake, campaign).filter(pl.col("state") == "finished").get_column("session_id")
    left = [session for session in finished if session not in captured]
    return [session for session in left if session not in known or lake.progress(session).is_whole is False]


def members(lake: TraceLake, campaign: str) -> pl.DataFrame:
    """The rows of `campaign_sessions`, without the key."""
    return lake.read("campaign_sessions", campaign).drop("campaign_id")


def finished_blocks(lake: TraceLake, campaign: str, purpose: str) -> int:
    """How many blocks of a purpose are finished."""
    done = members(lake, campaign).filter((pl.col("state") == "finished") & (pl.col("purpose") == purpose))
    return done.get_column("block").n_unique()


class _Attended:
    """Sessions whose stages nobody else runs until each is let go.

    Whoever finishes sessions that a killed run left half would otherwise run them beside the next measurement, and
    several at once beside the campaign itself when that runs them.
    """

    def __init__(self, lake: TraceLake) -> None:
        self._lake = lake
        self._held: dict[str, ExitStack] = {}

    def hold(self, session: str) -> None:
        held = ExitStack()
        held.enter_context(self._lake.attended(session))
        self._held[session] = held

    def let_go(self, session: str) -> None:
        self._held.pop(session).close()

    def close(self) -> None:
        for session in list(self._held):
            self.let_go(session)


class _Measuring:
    """What the blocks of one campaign share. Every session is attended from its beginning on."""

    def __init__(self, lake: TraceLake, plan: Plan, configs: Path, log: Log, attended: _Attended) -> None:
        self._lake = lake
        self._plan = plan
        self._configs = configs
        self._log = log
        self._attended = attended
        for session in members(lake, plan.campaign).filter(pl.col("state") == "finished").get_column("session_id"):
            attended.hold(session)

    def block(self, purpose: str, slot: int) -> None:
        """Measure one block, with the slot held from its first session to its last."""
        known = members(self._lake, self._plan.campaign)
        block = int(known.select(pl.col("block").max() + 1).item() or 0)
        begun: list[dict[str, Any]] = []
        # A placebo has no causes to tell, and is not traced.
        arms = [arm for arm in self._plan.order(block) if purpose == "latency" or arm != ARM]
        for position, arm in enumerate(arms):
            request = self._plan.request(arm, block, traced=purpose == "trace")
            session = self._lake.new_session(safe_name(self._plan.workload))
            self._attended.hold(session)
            begun.append({"block": block, "position": position, "arm": arm, "session_id": session, "purpose": purpose})
            self._publish(known, begun, "begun")
            since = time.monotonic_ns()
            with self._lake.receive_raw(session) as folder, _named(arm, request, block):
                capture_inference(request, folder, self._configs, self._log, held=slot)
            self._lake.expect(session, stages_of(kind_asked(request)))
            begun[-1]["spent_ns"] = time.monotonic_ns() - since
        self._publish(known, begun, "finished")

    def _publish(self, known: pl.DataFrame, begun: list[dict[str, Any]], state: str) -> None:
        rows = pl.DataFrame([{**one, "state": state} for one in begun], schema=polars_types("campaign_sessions"))
        publish_members(self._lake, self._plan.campaign, pl.concat([known, rows]))


@contextmanager
def _named(arm: Arm, request: MeasurementRequest, block: int) -> Iterator[None]:
    """A measurement that fails says of which arm it was: the others may be well."""
    try:
        yield
    except AacoError as error:
        raise type(error)(f"{arm} ({request.model}), block {block}: {error}") from error


def publish_members(lake: TraceLake, campaign: str, rows: pl.DataFrame) -> None:
    """Publish all rows of `campaign_sessions` of a campaign in place of those before."""
    lake.publish(campaign, STAGE, {"campaign_sessions": rows}, scope="campaign")


def bury(lake: TraceLake, campaign: str) -> None:
    """State that blocks which were begun and not finished were killed, and remove what was measured of them."""
    known = members(lake, campaign)
    begun = known.filter(pl.col("state") == "begun")
    if begun.is_empty():
        return
    for session in begun.get_column("session_id"):
        lake.remove(session)
    state = pl.when(pl.col("state") == "begun").then(pl.lit("killed")).otherwise(pl.col("state"))
    publish_members(lake, campaign, known.with_columns(state.alias("state")))
