"""A campaign is judged from its finished blocks alone; identical arms fill the ledger, traced sessions tell causes.

Campaigns that have a plan and no verdict, those whose night is over, and what doctor says of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.retention import ASKED, Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.judging import STAGE, cache_states, half_campaigns, judge_campaign, over
from aaco_pipeline.pipeline.comparing.measuring import members
from aaco_pipeline.pipeline.comparing.plan import Kind, Plan, Subject, new_plan, write_plan
from aaco_pipeline.pipeline.doctor import Problem, examine
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.statistics.verdicts.service_level import Limit
from tests.conftest import CapturedLake
from tests.pipeline.comparing.made_up import BASELINE, OTHER, REQUEST, measured, planned
from tests.report.made_up import rows_of

TABLES = ("verdicts", "attributions", "selections", "aa_ledger", "service_levels")


def primary(verdicts: pl.DataFrame) -> dict[str, object]:
    return verdicts.filter(pl.col("role") == "primary").row(0, named=True)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "regressed"), (0.9, "improved"), (1.0, "equivalent")])
def test_the_verdict_is_of_the_sessions_in_their_blocks(ratio: float, verdict: str, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    measured(empty_lake, plan, ratio)
    row = primary(judge_campaign(empty_lake, plan.campaign)["verdicts"])
    assert (row["verdict"], row["metric"], row["threshold_ratio"]) == (verdict, plan.metric, plan.threshold_ratio)
    assert row["effect_ratio"] == pytest.approx(ratio, rel=5e-3)
    assert (row["blocks"], row["sessions_baseline"], row["sessions_candidate"]) == (5, 5, 5)


@pytest.mark.parametrize("key", ["machine", "gpu0.unique_id", "nvidia0.uuid"])
@pytest.mark.parametrize("differs", [True, False])
def test_arms_on_other_devices_of_one_name_are_no_comparison(key: str, differs: bool, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    measured(empty_lake, plan, 1.1)
    for row in members(empty_lake, plan.campaign).iter_rows(named=True):
        value = row["arm"] if differs else "one"
        fact = {"category": "identity", "key": key, "value": value, "in_fingerprint": False}
        empty_lake.publish(row["session_id"], "identity", {"environment": rows_of("environment", [fact])})
    row = primary(judge_campaign(empty_lake, plan.campaign)["verdicts"])
    assert row["verdict"] == ("hardware differs" if differs else "regressed")


def test_sessions_in_two_environments_are_no_comparison_and_what_differs_is_named(empty_lake: TraceLake) -> None:
    """As where somebody updated the host in the middle of a campaign: both arms ran on both."""
    plan = planned(empty_lake, blocks=6)
    measured(empty_lake, plan, 1.1)
    for row in members(empty_lake, plan.campaign).iter_rows(named=True):
        version = "7.1" if row["block"] < 3 else "7.2"
        fact = {"category": "driver", "key": "rocm", "value": version, "in_fingerprint": True}
        empty_lake.publish(row["session_id"], "identity", {"environment": rows_of("environment", [fact])})
    row = primary(judge_campaign(empty_lake, plan.campaign)["verdicts"])
    assert (row["verdict"], row["effect_ratio"]) == ("hardware differs", None)
    assert "the environments differ in driver rocm: 7.1, 7.2" in row["reasons"]  # type: ignore[operator]


@pytest.mark.parametrize(("blocks", "verdict"), [(6, "regressed"), (5, "inconclusive")])
def test_a_session_whose_clock_was_stepped_is_left_out_and_named_with_its_reason(
    blocks: int, verdict: str, empty_lake: TraceLake
) -> None:
    plan = planned(empty_lake, blocks=blocks)
    session = measured(empty_lake, plan, 1.1)[0]
    entries = empty_lake.manifest(session).of_stage("capture")
    tables = {entry.table: empty_lake.read_entry(entry).drop("session_id") for entry in entries}
    is_seventh = pl.col("iteration") == 7
    stepped = tables["iterations"].with_columns(
        latency_ns=pl.when(is_seventh).then(-5).otherwise("latency_ns"),
        end_ns=pl.when(is_seventh).then(pl.col("start_ns") - 5).otherwise("end_ns"),
    )
    empty_lake.publish(session, "capture", {**tables, "iterations": stepped})
    row = primary(judge_campaign(empty_lake, plan.campaign)["verdicts"])
    assert (row["verdict"], row["blocks"], row["excluded_sessions"]) == (verdict, blocks - 1, [session])
    assert f"{session} tells nothing: iteration 7 took -5 ns: a clock that was stepped" in row["reasons"]  # type: ignore[operator]


def test_sessions_that_the_machine_disturbed_are_left_out_counted_and_no_more_of_their_kind_are_asked_for(
    empty_lake: TraceLake,
) -> None:
    plan = planned(empty_lake)
    sessions = measured(empty_lake, plan, 1.1)
    row = {"metric": "disturbed_ratio", "pass": "latency", "phase": "measure", "value": 0.9, "unit": "ratio", "n": 9}
    for session in sessions:
        empty_lake.publish(session, "iteration_delays", {"session_metrics": rows_of("session_metrics", [row])})
    found = primary(judge_campaign(empty_lake, plan.campaign)["verdicts"])
    assert found["recommendation"] == "see why sessions were left out, then run both arms again"
    told = "; ".join(found["reasons"])  # type: ignore[arg-type]
    assert "10 sessions are left out of the P50: 10 unusable" in told
    assert told.count("tells nothing: the machine disturbed 90.0 % of its iterations, more than 30 %") == 3
    assert told.endswith("7 further sessions tell nothing either")


def test_all_tables_are_published_by_one_stage_and_again_the_same(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    measured(empty_lake, plan)
    tables = judge_campaign(empty_lake, plan.campaign)
    manifest = empty_lake.manifest(plan.campaign, "campaign")
    assert sorted(entry.table for entry in manifest.of_stage(STAGE)) == sorted(TABLES)
    for name in TABLES:
        assert empty_lake.read(name, plan.campaign).drop("campaign_id").equals(tables[name])
    judge_campaign(empty_lake, plan.campaign)
    assert empty_lake.manifest(plan.campaign, "campaign") == manifest


@pytest.mark.parametrize(
    ("candidate", "is_known"),
    [
        (BASELINE, True),
        (replace(BASELINE, artefact=Path("/a/copy.onnx")), True),
        (replace(BASELINE, request=REQUEST.model_copy(update={"model": "/a/copy.onnx"})), True),
        (OTHER, False),
        (replace(BASELINE, request=REQUEST.model_copy(update={"threads": 2})), False),
    ],
    ids=["the same", "a copy", "a copy by its path", "another file", "asked otherwise"],
)
def test_arms_that_are_the_same_code_fill_the_ledger(candidate: Subject, is_known: bool, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, candidate)
    measured(empty_lake, plan)
    tables = judge_campaign(empty_lake, plan.campaign)
    ledger = tables["aa_ledger"]
    if not is_known:
        assert ledger.is_empty()
        return
    row = ledger.filter(pl.col("metric") == "latency_p50").row(0, named=True)
    assert (row["workload"], row["host"], row["blocks"], row["sessions_per_block"]) == ("control_flow", "node1", 5, 1)
    assert row["effect_ratio"] == primary(tables["verdicts"])["effect_ratio"]


def test_a_campaign_does_not_judge_itself_by_its_own_row_of_the_ledger(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, BASELINE)
    measured(empty_lake, plan)
    first = judge_campaign(empty_lake, plan.campaign)
    second = judge_campaign(empty_lake, plan.campaign)
    assert all(first[name].equals(second[name]) for name in TABLES)
    known = [reason for reason in primary(second["verdicts"])["reasons"] or () if "of 100 comparisons" in str(reason)]  # type: ignore[attr-defined]
    assert known
    assert all("0 of 100" in reason for reason in known)


@pytest.mark.parametrize(("limit_ns", "state"), [(2_000_000, "ok"), (900_000, "breached")])
def test_limits_of_the_plan_are_checked_for_every_arm(limit_ns: int, state: str, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, limits=[Limit("latency_p50", limit_ns, 0.5)])
    measured(empty_lake, plan)
    rows = judge_campaign(empty_lake, plan.campaign)["service_levels"]
    assert rows.select("arm", "limit_ns", "state", "sessions").rows() == [
        (arm, limit_ns, state, 5) for arm in ("baseline", "candidate")
    ]
    (said,) = (one["in_words"] for one in verdict_document(empty_lake, plan.campaign)["service_levels"][1:])
    assert said.startswith(f"P50 of control_flow {'keeps' if state == 'ok' else 'does not keep'} to ")


@pytest.fixture
def traced(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """A lake with real traced sessions of two models."""
    return captured.copy(lake_path)


def told(
    lake: TraceLake, arms: Mapping[str, Sequence[str]], ratio: float = 1.5
) -> tuple[Plan, dict[str, pl.DataFrame]]:
    plan = planned(lake, traced_blocks=1)
    measured(lake, plan, ratio, traced=arms)
    return plan, judge_campaign(lake, plan.campaign)


def test_causes_come_from_the_traced_sessions(traced: TraceLake, captured: CapturedLake) -> None:
    small, large = captured.sessions["control_flow"], captured.sessions["squeezenet"]
    plan, tables = told(traced, {"baseline": [small], "candidate": [large]})
    parts = tables["attributions"].filter("in_sum")
    spans = [
        traced.read("iterations", one).filter(pl.col("pass") == "trace", pl.col("phase") == "measure")
        for one in (small, large)
    ]
    means = [(one.get_column("end_ns") - one.get_column("start_ns")).mean() for one in spans]
    change = float(str(means[1])) - float(str(means[0]))
    assert parts.get_column("delta_ns").sum() == pytest.approx(change, rel=0.2)
    subjects = parts.filter(pl.col("kind") == "launches").get_column("subject")
    kernels = [traced.read("kernels", one).get_column("name") for one in (large, small)]
    assert subjects.is_in(kernels[0]).any()
    assert subjects.is_in(pl.concat(kernels)).all()
    cause = primary(tables["verdicts"])["suspected_cause"]
    assert isinstance(cause, str)
    assert cause
    assert traced.read("attributions", plan.campaign).height == tables["attributions"].height


@pytest.mark.parametrize("arms", [(), ("baseline",), ("candidate",)], ids=lambda arms: "+".join(arms) or "none")
def test_without_traced_sessions_of_both_arms_there_are_no_causes(
    arms: tuple[str, ...], traced: TraceLake, captured: CapturedLake
) -> None:
    _, tables = told(traced, {arm: [captured.sessions["control_flow"]] for arm in arms})
    assert tables["attributions"].is_empty()
    assert tables["selections"].is_empty()
    assert primary(tables["verdicts"])["verdict"] == "regressed"
    assert primary(tables["verdicts"])["suspected_cause"] is None


def test_where_nothing_changed_no_cause_is_suspected(traced: TraceLake, captured: CapturedLake) -> None:
    small, large = captured.sessions["control_flow"], captured.sessions["squeezenet"]
    _, tables = told(traced, {"baseline": [small], "candidate": [large]}, ratio=1.0)
    assert not tables["attributions"].is_empty()
    assert primary(tables["verdicts"])["suspected_cause"] is None


@pytest.mark.parametrize("state", ["begun", "killed"])
def test_a_campaign_without_a_finished_block_is_refused_by_name(state: str, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    measured(empty_lake, plan, state=state)
    with pytest.raises(UsageError, match=f"{plan.campaign} has no finished block; `aaco compare --resume") as raised:
        judge_campaign(empty_lake, plan.campaign)
    assert "\n" not in str(raised.value)
    assert empty_lake.manifest(plan.campaign, "campaign").of_stage(STAGE) == ()


def test_killed_blocks_do_not_enter_the_verdict(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    measured(empty_lake, plan)
    before = judge_campaign(empty_lake, plan.campaign)["verdicts"]
    rows = empty_lake.read("campaign_sessions", plan.campaign).drop("campaign_id")
    gone = rows.with_columns(
        block=pl.col("block") + plan.blocks, state=pl.lit("killed"), session_id=pl.lit("20250101T000000Z-0000000a")
    )
    empty_lake.publish(
        plan.campaign, "measuring", {"campaign_sessions": pl.concat([rows, gone.head(1)])}, scope="campaign"
    )
    assert judge_campaign(empty_lake, plan.campaign)["verdicts"].equals(before)


@pytest.mark.parametrize(
    ("provider", "states", "told"),
    [
        ("MIGraphXExecutionProvider", ("empty", "present"), ["cold", "warm"]),
        ("MIGraphXExecutionProvider", ("present", "present"), [None, None]),
        ("MIGraphXExecutionProvider", ("empty", "absent"), [None, None]),
        ("CPUExecutionProvider", ("empty", "present"), [None, None]),
    ],
)
def test_a_session_is_cold_that_lacked_what_another_found(
    provider: str, states: tuple[str, str], told: list[str | None]
) -> None:
    facts = [("a", "miopen", states[0]), ("b", "miopen", states[1]), ("b", "miopen_files", "3")]
    frame = pl.DataFrame(facts, schema=["session_id", "key", "value"], orient="row")
    found = cache_states(frame.with_columns(category=pl.lit("cache"), provider=pl.lit(provider)))
    assert found.sort("session_id").get_column("cache_state").to_list() == told


TODAY = datetime.now(UTC).date()


def begun(lake: TraceLake, kind: Kind = "compare", night: date | None = None, confirms: str | None = None) -> str:
    plan = new_plan(kind, {"baseline": BASELINE, "candidate": BASELINE}, night=night, confirms=confirms)
    write_plan(lake, plan)
    return plan.campaign


def judged(lake: TraceLake, campaign: str) -> None:
    lake.publish(campaign, "judging", {"verdicts": empty_table("verdicts")}, scope="campaign")


def found(lake: TraceLake) -> list[Problem]:
    return examine(lake, pytest.fail)


def test_a_campaign_is_half_from_its_plan_to_its_verdict_or_its_removal(empty_lake: TraceLake) -> None:
    empty_lake.publish("a-sweep", "sweep", {"scaling": empty_table("scaling")}, scope="campaign")
    first, second, third = (begun(empty_lake) for _ in range(3))
    assert set(half_campaigns(empty_lake)) == {first, second, third}
    judged(empty_lake, first)
    assert set(half_campaigns(empty_lake)) == {second, third}
    Account(empty_lake).begin([Removal("campaign", second, 0, ASKED, "removed by hand")])
    assert half_campaigns(empty_lake) == [third]


def test_a_night_is_over_the_day_after_unless_the_campaign_confirms_what_it_found(empty_lake: TraceLake) -> None:
    before = TODAY - timedelta(days=1)
    tonights, old = begun(empty_lake, "nightly", TODAY), begun(empty_lake, "nightly", before)
    confirming = begun(empty_lake, "nightly", before, confirms=old)
    half = half_campaigns(empty_lake)
    assert set(half) == {tonights, old, confirming}
    assert over(empty_lake, half, TODAY) == {old: before}
    told = {one.subject: one.explanation for one in found(empty_lake)}
    assert told[old] == f"its night, {before}, is over, so nobody goes on with it; `aaco rm {old}` removes it"
    assert "--resume" in told[tonights]


def test_doctor_names_a_half_campaign_unless_somebody_is_at_work_on_it(empty_lake: TraceLake) -> None:
    campaign = begun(empty_lake)
    why = f"it has a plan and no verdict; `aaco compare --resume {campaign}` goes on, `aaco rm` gives it up"
    assert found(empty_lake) == [Problem("half campaign", campaign, why)]
    with empty_lake.measuring(campaign):
        assert found(empty_lake) == []
    judged(empty_lake, campaign)
    assert found(empty_lake) == []


def test_campaigns_that_wait_for_another_of_their_night_are_no_problem(empty_lake: TraceLake) -> None:
    first, second = (begun(empty_lake, "nightly", TODAY) for _ in range(2))
    assert {one.subject for one in found(empty_lake)} == {first, second}
    with empty_lake.measuring(first):
        assert found(empty_lake) == []


def test_a_step_of_a_search_is_removed_and_not_resumed(empty_lake: TraceLake) -> None:
    campaign = begun(empty_lake, "configure")
    (problem,) = found(empty_lake)
    assert problem.explanation == f"the search that it is a step of ended without it; `aaco rm {campaign}` removes it"
