"""Measure a campaign block by block while holding the measurement slot, then run its sessions' stages.

This module also creates the placebo arm, the baseline measured from a copy of its file. Verdicts are in `judging`.
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

#: Stage that publishes the list of sessions.
STAGE: Final = "measuring"
PLACEBO: Final = "placebo"
Log = Callable[[str], None]


def measure_campaign(lake: TraceLake, campaign: str, configs: Path, log: Log) -> pl.DataFrame:
    """Measure the rest of a campaign, run its sessions' stages, and return its rows of `campaign_sessions`.

    Finished blocks are kept. A killed block keeps its rows and is repeated completely under a new number, because the
    arms of a resumed block would not have run together. Only one process measures at a time; others wait and then find
    the work done. Raises the error of a failed measurement; its block counts as killed.
    """
    if lake.is_measuring(campaign):
        report_progress("waiting for the process that measures the campaign", 0, 0)
    with lake.measuring(campaign), closing(_Attended(lake)) as attended:
        plan = read_plan(lake, campaign)
        require_resumable(lake, plan)
        bury(lake, campaign)
        health.clear_away(lake)
        for session in finished_sessions(lake, campaign).get_column("session_id"):
            attended.hold(session)
        with fresh_copy(lake, plan):
            for purpose, wanted in (("latency", plan.blocks), ("trace", plan.traced_blocks)):
                while (done := finished_blocks(lake, campaign, purpose)) < wanted:
                    report_progress(f"{purpose} blocks", done, wanted)
                    with measurement_slot(on_wait=log) as slot:
                        _measure_block(lake, plan, purpose, configs=configs, log=log, attended=attended, slot=slot)
        rows = members(lake, campaign)
        finished = finished_sessions(lake, campaign).get_column("session_id").to_list()
        took: dict[str, int] = {}
        with measurement_slot(on_wait=log):  # stages would disturb the next campaign's measurements
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
    """Raise UsageError or LakeError if a campaign cannot continue.

    This is the case if an arm's file has changed, or if a finished block has lost a session.
    """
    require_unchanged(plan)
    if gone := lost_sessions(lake, plan.campaign):
        raise LakeError(
            f"campaign {plan.campaign} has lost session {gone[0]} of a finished block, and no verdict can rest on the "
            f"rest; `aaco rm {plan.campaign}`, then start a new one"
        )


def lost_sessions(lake: TraceLake, campaign: str) -> list[str]:
    """List the sessions of finished blocks that are missing in the lake, in the order they were measured."""
    known, captured = set(lake.sessions()), set(lake.captured())
    left = [one for one in finished_sessions(lake, campaign).get_column("session_id") if one not in captured]
    return [session for session in left if session not in known or lake.progress(session).is_whole is False]


def members(lake: TraceLake, campaign: str) -> pl.DataFrame:
    """Read the rows of `campaign_sessions`, without the key."""
    return lake.read("campaign_sessions", campaign).drop("campaign_id")


def finished_sessions(lake: TraceLake, campaign: str, purpose: str | None = None) -> pl.DataFrame:
    """Read the rows of `campaign_sessions` for finished blocks, of all purposes or one, without the key."""
    finished = members(lake, campaign).filter(pl.col("state") == "finished")
    return finished if purpose is None else finished.filter(pl.col("purpose") == purpose)


def finished_blocks(lake: TraceLake, campaign: str, purpose: str) -> int:
    """Count the finished blocks of a purpose."""
    return finished_sessions(lake, campaign, purpose).get_column("block").n_unique()


def publish_members(lake: TraceLake, campaign: str, rows: pl.DataFrame) -> None:
    """Publish all rows of `campaign_sessions` of a campaign, replacing earlier ones."""
    lake.publish(campaign, STAGE, {"campaign_sessions": rows}, scope="campaign")


def bury(lake: TraceLake, campaign: str) -> None:
    """Mark unfinished blocks as killed, and remove their sessions."""
    known = members(lake, campaign)
    begun = known.filter(pl.col("state") == "begun")
    for session in begun.get_column("session_id"):
        lake.remove(session)
    if begun.height:
        state = pl.when(pl.col("state") == "begun").then(pl.lit("killed")).otherwise(pl.col("state"))
        publish_members(lake, campaign, known.with_columns(state.alias("state")))


def placebo_of(lake: TraceLake, baseline: Subject) -> Subject:
    """Return the arm that measures a copy of the baseline's file, which is created for the measurement.

    A difference between the two is caused by the file's location or by the other arms; a candidate's difference is then
    inconclusive.
    """
    file = lake.path / ARTEFACTS / f"placebo-{token_hex(8)}" / baseline.artefact.name
    return replace(baseline, request=baseline.request.model_copy(update={"artefact": str(file)}), artefact=file)


@contextmanager
def fresh_copy(lake: TraceLake, plan: Plan) -> Iterator[None]:
    """Create the placebo's copy while the campaign is measured; do nothing for a plan without a placebo.

    LakeError if the copy cannot be created or differs from the planned file.
    """
    arm = plan.arms.get(PLACEBO)
    if arm is None:
        yield
        return
    source = plan.arms["baseline"].artefact
    copy = copy_artefact(lake.path, source, weights_beside(source), arm.artefact.parent.name)
    try:
        if model_digest(copy) != arm.artefact_sha256:
            raise LakeError(f"{copy}: its copy is not the file that campaign {plan.campaign} measures; start it again")
        yield
    finally:
        shutil.rmtree(copy.parent, ignore_errors=True)


class _Attended:
    """Sessions whose stages no other process may run until they are released.

    Otherwise the sensor that finishes killed sessions would run them during the next measurement.
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


def _measure_block(
    lake: TraceLake, plan: Plan, purpose: str, *, configs: Path, log: Log, attended: _Attended, slot: int
) -> None:
    """Measure one block while holding the slot; no other process may run its sessions' stages."""
    known = members(lake, plan.campaign)
    block = int(known.select(pl.col("block").max() + 1).item() or 0)
    begun: list[dict[str, Any]] = []

    def publish(state: str) -> None:
        rows = pl.DataFrame([{**one, "state": state} for one in begun], schema=polars_types("campaign_sessions"))
        publish_members(lake, plan.campaign, pl.concat([known, rows]))

    # The placebo needs no causes, so it is not traced.
    arms = [arm for arm in plan.order(block) if purpose == "latency" or arm != PLACEBO]
    for position, arm in enumerate(arms):
        request = plan.request(arm, block, traced=purpose == "trace")
        session = lake.new_session(safe_name(plan.workload))
        attended.hold(session)
        begun.append({"block": block, "position": position, "arm": arm, "session_id": session, "purpose": purpose})
        publish("begun")
        since = time.monotonic_ns()
        with lake.receive_raw(session) as folder:
            try:
                capture_inference(request, folder, configs, log, held=slot)
            except AacoError as error:  # names the failing arm, because the others may be fine
                raise type(error)(f"{arm} ({request.model}), block {block}: {error}") from error
        lake.expect(session, stages_of(kind_asked(request)))
        begun[-1]["spent_ns"] = time.monotonic_ns() - since
    publish("finished")
