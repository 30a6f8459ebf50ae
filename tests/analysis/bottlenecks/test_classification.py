"""Rows of `bottlenecks`: the same for the same session whatever the order of its rows, and what they say at most.

Evaluation of rules: scores, required signals, tiers, ties, and missing signals.

The file of rules: the package's own is whole and the checkout's, and a wrong one is refused by file and key.

From counted work to a label: one code at one speed gets one label, whatever it is called and ran beside.

Sessions here have counters and ceilings, so that the roofline takes part in the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.bottlenecks.classification import (
    INPUTS,
    RULES_FILE,
    Condition,
    Rule,
    Rules,
    Signal,
    Undecided,
    classify,
    judge,
    reach_of_kernels,
)
from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, ROOF_LABELS
from aaco_pipeline.analysis.roofline.placement import placement
from aaco_pipeline.analysis.thresholds import BALANCED, NOTHING_ELSE_NEEDS_LONGER, ROOF_UNCERTAINTY
from aaco_pipeline.assets.classification import BUILT_IN_RULES, load_bottleneck_rules
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import contract, polars_schema, polars_types
from aaco_pipeline.providers import CPU_PROVIDER
from tests.places import CONFIGS

RULES = load_bottleneck_rules(BUILT_IN_RULES)


def session(**given_rows: list[dict[str, Any]]) -> dict[str, pl.DataFrame]:
    """A session on the CPU that ran three kernels in each of four iterations, and rows of other tables."""
    iteration = {"phase": "measure", "latency_ns": 1_000_000, "cpu_time_ns": 1_000_000, "run_delay_ns": 0}
    times = (500_000, 300_000, 100_000)
    every: dict[str, list[dict[str, Any]]] = {
        "sessions": [{"source_kind": "live", "provider": CPU_PROVIDER}],
        "iterations": [{**iteration, "pass": name, "iteration": i} for name in ("latency", "trace") for i in range(4)],
        "kernels": [{"kernel_id": i, "name": f"k{i}", "short_name": f"k{i}"} for i in range(3)],
        "kernel_stats": [
            {"kernel_id": i, "dispatch_count": 4, "total_ns": 4 * time, "p50_ns": time} for i, time in enumerate(times)
        ],
        "roofline": [
            {"kernel_id": 0, "bound": "vector", "efficiency_ratio": 0.9, "quality_flags": []},
            {"kernel_id": 1, "bound": "dram", "efficiency_ratio": 0.8, "quality_flags": []},
        ],
        **given_rows,
    }
    return {
        name: pl.DataFrame(every.get(name, []), schema=polars_schema(contract(name))).drop("session_id")
        for name in INPUTS
    }


def test_every_kernel_with_statistics_is_judged_and_nothing_else() -> None:
    found = classify(session(), RULES)
    assert found.select("scope", "kernel_id", "label").rows() == [
        ("kernel", 0, "compute_vector"),
        ("kernel", 1, "memory_dram"),
        ("kernel", 2, None),
    ]


def test_a_kernel_that_waited_for_a_cpu_is_held_to_the_time_it_had_one() -> None:
    slow = [{"kernel_id": 0, "bound": "vector", "efficiency_ratio": 0.4, "quality_flags": []}]
    tables = session(roofline=slow)
    assert classify(tables, RULES).item(0, "label") == "latency"
    assert classify(tables, RULES, 0.5).item(0, "label") == "compute_vector"


@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random: Any) -> None:
    tables = session()
    shuffled = {
        name: frame.sample(fraction=1, shuffle=True, seed=random.randrange(99)) for name, frame in tables.items()
    }
    assert classify(shuffled, RULES).equals(classify(tables, RULES))


def test_without_kernels_there_are_no_rows() -> None:
    nothing = {name: frame.clear() for name, frame in session().items()}
    found = classify(nothing, RULES)
    assert found.is_empty()
    assert found.schema == polars_types("bottlenecks")


def test_a_kernel_can_save_its_time_on_the_critical_path_and_no_more() -> None:
    path = {"activity_kind": "dispatch", "slack_ns": 0, "free_slack_ns": 0, "binding_edge": "none"}
    summary = {"scope": "session", "window_ns": 1000, "path_ns": 900, "unexplained_ns": 100, "category": "compute"}
    dispatch = {"process_id": 0, "device_id": 0, "below_resolution": False, "kernel_id": 0}
    tables = session(
        critical_path=[{**path, "activity_id": i, "is_critical": i != 1, "unexplained_wait_ns": 0} for i in range(3)],
        critical_path_summary=[{**summary, "category_ns": 900}],
        dispatches=[{**dispatch, "dispatch_id": i, "start_ns": 100 * i, "end_ns": 100 * i + 80} for i in range(3)],
    )
    assert reach_of_kernels(tables) == {0: pytest.approx(0.16)}
    kernel = classify(tables, RULES).row(0, named=True)
    assert "at most 16.0 %" in kernel["recommendation"]
    elsewhere = classify(session(), RULES).row(0, named=True)
    assert "is not known" in elsewhere["recommendation"]


def rule(label: str, *conditions: Condition, tier: int = 0, runner_up_only: bool = False) -> Rule:
    return Rule(label, "kernel", conditions, f"mend {label}", tier=tier, runner_up_only=runner_up_only)


def condition(signal: str, **rest: object) -> Condition:
    return Condition(signal, "a test", **{"weight": 1.0, "at_least": 0.5, **rest})  # type: ignore[arg-type]


def known(**values: float | None) -> dict[str, Signal]:
    return {
        name: Signal(value, "ratio", "a_table", None if value is not None else "why") for name, value in values.items()
    }


def rules(*listed: Rule, undecided: tuple[Undecided, ...] = (), least: float = 0.1) -> Rules:
    return Rules(listed, least, undecided)


def test_a_score_is_the_weight_of_what_holds_over_all_of_it() -> None:
    one = rule("a", condition("x", weight=3.0), condition("y", weight=1.0))
    found = judge(known(x=0.9, y=0.1), rules(one), "kernel")
    assert found.rule is one
    assert found.score == pytest.approx(0.75)


def test_a_graded_condition_counts_by_its_value_and_no_more_than_wholly() -> None:
    graded = rules(rule("a", condition("x", graded=True, at_least=0.1)))
    assert judge(known(x=0.4), graded, "kernel").score == pytest.approx(0.4)
    assert judge(known(x=7.0), graded, "kernel").score == 1.0


def test_unmeasured_signals_add_nothing_and_are_named() -> None:
    one = rules(rule("a", condition("x"), condition("y")))
    found = judge(known(x=1.0, y=None), one, "kernel")
    assert found.score == pytest.approx(0.5)
    assert found.missing == ("y",)
    assert [each.signal for each in found.evidence] == ["x"]


@pytest.mark.parametrize("value", [None, 0.4])
def test_without_what_it_requires_a_rule_is_out(value: float | None) -> None:
    required = rules(rule("a", condition("x"), condition("y", required=True)))
    found = judge(known(x=1.0, y=value), required, "kernel")
    assert (found.rule, found.score, found.runner_up) == (None, None, None)


def test_thin_support_is_no_label_and_tells_what_to_collect() -> None:
    found = judge(known(x=None, y=None), rules(rule("a", condition("x")), rule("b", condition("y"))), "kernel")
    assert found.rule is None
    assert found.missing == ("x", "y")


def test_the_second_label_is_the_runner_up_and_its_evidence_is_shown_after() -> None:
    found = judge(
        known(x=0.6, y=0.9),
        rules(rule("a", condition("x", graded=True)), rule("b", condition("y", graded=True))),
        "kernel",
    )
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("b", "a")
    assert [(one.signal, one.value, one.threshold, one.source) for one in found.evidence] == [
        ("y", 0.9, 0.5, "a_table"),
        ("x", 0.6, 0.5, "a_table"),
    ]


def test_the_first_rule_wins_among_equal_scores() -> None:
    both = rule("a", condition("x")), rule("b", condition("x"))
    for order in (both, both[::-1]):
        found = judge(known(x=1.0), rules(*order), "kernel")
        assert found.rule is order[0]


def test_a_lower_tier_goes_before_a_higher_score() -> None:
    physics = rule("roof", condition("x", graded=True))
    found = judge(known(x=0.6, y=1.0), rules(rule("shape", condition("y"), tier=1), physics), "kernel")
    assert found.rule is physics
    assert found.runner_up == "shape"


def test_a_label_with_two_rules_is_not_its_own_runner_up() -> None:
    found = judge(known(x=1.0), rules(rule("a", condition("x")), rule("a", condition("x"))), "kernel")
    assert found.runner_up is None


def test_more_time_unexplained_than_explained_leaves_no_label() -> None:
    unknown = (Undecided("z", "kernel", "a test"),)
    listed = rules(rule("a", condition("x", graded=True)), undecided=unknown)
    assert judge(known(x=0.5, z=0.4), listed, "kernel").rule is not None
    voided = judge(known(x=0.5, z=0.6), listed, "kernel")
    assert voided.rule is None
    assert "z" in [one.signal for one in voided.evidence]


@given(st.dictionaries(st.sampled_from("vwxyz"), st.none() | st.floats(-1, 2, allow_nan=False)))
def test_the_same_signals_always_give_the_same_judgement(values: dict[str, float | None]) -> None:
    listed = rules(*(rule(f"label_{name}", condition(name, graded=name < "x"), condition("v")) for name in "vwxyz"))
    signals = known(**values)
    backwards = dict(reversed(signals.items()))
    first = judge(signals, listed, "kernel")
    assert judge(signals, listed, "kernel") == first == judge(backwards, listed, "kernel")
    assert first.score is None or 0.1 <= first.score <= 1


def test_a_rule_for_the_runner_up_alone_gives_no_label() -> None:
    second = rule("a", condition("x"), runner_up_only=True)
    found = judge(known(x=1.0, y=1.0), rules(second, rule("b", condition("y"), tier=1)), "kernel")
    assert found.rule is not None
    assert (found.rule.label, found.runner_up) == ("b", "a")
    assert judge(known(x=1.0), rules(second), "kernel").rule is None


def test_signals_without_weight_are_not_reported_as_missing() -> None:
    one = rules(
        rule("a", condition("x"), condition("shown", weight=0.0), condition("needed", weight=0.0, required=True))
    )
    assert judge(known(x=1.0, shown=None, needed=1.0), one, "kernel").missing == ()
    assert judge(known(x=1.0, shown=None, needed=None), one, "kernel").missing == ("needed",)


RULE = "{label: a, scope: kernel, recommendation: r, conditions: [{signal: s, because: b, weight: 1}]}"

FAMILY = "{label: [a, b], scope: kernel, conditions: [{like: whole, at_least: 0.6}]}"
SHARED = """
shared: {whole: {signal: "at_{label}", because: c, weight: 1, at_least: 0.9}}
recommendations: {a: do a, b: do b}
"""


def test_the_packages_rules_are_those_of_the_checkout() -> None:
    assert (CONFIGS / RULES_FILE).read_bytes() == BUILT_IN_RULES.read_bytes()


def test_without_a_file_the_packages_rules_hold(tmp_path: Path) -> None:
    assert load_bottleneck_rules(tmp_path / RULES_FILE) == load_bottleneck_rules(BUILT_IN_RULES)


def test_a_projects_own_file_holds_instead(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text(f"least_score: 0.5\nrules: [{RULE}]\n")
    rules = load_bottleneck_rules(tmp_path / RULES_FILE)
    assert rules.least_score == 0.5
    assert [rule.label for rule in rules.rules] == ["a"]


def test_a_family_is_a_rule_for_each_of_its_labels(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text(f"least_score: 0.5\nrules: [{FAMILY}]\n{SHARED}")
    found = load_bottleneck_rules(tmp_path / RULES_FILE).rules
    assert [(one.label, one.recommendation) for one in found] == [("a", "do a"), ("b", "do b")]
    conditions = [condition for one in found for condition in one.conditions]
    assert [(one.signal, one.at_least, one.because) for one in conditions] == [("at_a", 0.6, "c"), ("at_b", 0.6, "c")]


def test_the_packages_rules_look_at_signals_that_exist_and_name_every_roof() -> None:
    rules = load_bottleneck_rules(BUILT_IN_RULES)
    named = {one.signal for rule in rules.of("kernel") for one in rule.conditions}
    assert named | {one.signal for one in rules.undecided if one.scope == "kernel"} == set(KERNEL_SIGNALS)
    labels = {rule.label for rule in rules.of("kernel")}
    assert labels >= set(ROOF_LABELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: []\nleast_score: 0.1", "rules: Tuple should have at least 1 item"),
        (f"rules: [{RULE}]", "least_score: Field required"),
        (f"least_score: 2\nrules: [{RULE}]", "least_score: Input should be less than or equal to 1"),
        (f"least_score: 0.1\nrules: [{RULE.replace('weight: 1', 'weight: 0')}]", "can never score"),
        (f"least_score: 0.1\nrules: [{RULE.replace('because: b, ', '')}]", "because: Field required"),
        # A session's time is shared out exactly: rules of an earlier version that judged it are refused by name.
        (f"least_score: 0.1\nrules: [{RULE.replace('kernel', 'session')}]", "rules.0.scope: Input should be 'kernel'"),
        (
            f"least_score: 0.1\nrules: [{FAMILY}, {RULE.replace('weight: 1', 'weight: a')}]{SHARED}",
            "rules.1.conditions.0.weight: ",
        ),
        (f"least_score: 0.1\nrules: [{RULE.replace('signal: s', 'like: s')}]", "like: there is no 's' under shared"),
        ("- 1", "found no keys"),
        (f"least_score: 0.1\nrules: [{RULE}]\nrule: 1", "rule: Unexpected keyword argument"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / RULES_FILE
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_bottleneck_rules(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


#: 1 instruction, 64 operations and 10 bytes a nanosecond; no cache lies between L2 and DRAM.
CEILINGS: Final = (("vector", "fp64", 64e9), ("vector_issue", None, 1e9), ("fabric", None, 10e9), ("dram", None, 10e9))
LENGTH: Final = 200_000


@dataclass(frozen=True)
class Kernel:
    """A kernel by the shares of `length` that its vector unit and DRAM need; None where nothing counted it."""

    name: str
    vector: float | None
    dram: float | None
    length: int = LENGTH


Labels = list[tuple[str | None, str | None]]


def labels(kernels: Sequence[Kernel], numbers: Sequence[int] | None = None) -> Labels:
    """Label and runner-up of each kernel of a session, by place."""
    ids = list(numbers or range(len(kernels)))
    work = pl.DataFrame(
        {
            "dispatch_id": ids,
            "kernel_id": ids,
            "device_id": 0,
            "duration_ns": [one.length for one in kernels],
            "flops_is_lower_bound": False,
            "quality_flags": [[]] * len(ids),
            "valu_fp64_flops": [None if one.vector is None else one.vector * LENGTH * 64 for one in kernels],
            "valu_instructions": [None if one.vector is None else one.vector * LENGTH for one in kernels],
            "fabric_read_bytes": [None if one.dram is None else one.dram * LENGTH * 10 for one in kernels],
            "fabric_write_bytes": [None if one.dram is None else 0.0 for one in kernels],
        },
        schema_overrides={
            **dict.fromkeys(("dispatch_id", "kernel_id", "device_id"), pl.Int32),
            **dict.fromkeys(("valu_fp64_flops", "valu_instructions"), pl.Float64),
            **dict.fromkeys(("fabric_read_bytes", "fabric_write_bytes"), pl.Float64),
            "quality_flags": pl.List(pl.String),
        },
    )
    roofs = [(0, resource, dtype, value, "", "measured", "") for resource, dtype, value in CEILINGS]
    made = placement(work, pl.DataFrame(roofs, schema=polars_types("ceilings"), orient="row"))
    rows: dict[str, list[dict[str, object]]] = {
        "kernels": [{"kernel_id": i, "name": one.name} for i, one in zip(ids, kernels, strict=True)],
        "kernel_stats": [
            {"kernel_id": i, "dispatch_count": 1, "total_ns": one.length, "p50_ns": one.length}
            for i, one in zip(ids, kernels, strict=True)
        ],
        "dispatches": [{"kernel_id": i, "grid_work_items": 4096, "workgroup_work_items": 256} for i in ids],
    }
    tables = {name: pl.DataFrame(rows.get(name, []), schema=polars_types(name)) for name in INPUTS}
    tables |= {"roofline": made.roofline, "resource_bounds": made.bounds}
    found = {
        row["kernel_id"]: (row["label"], row["runner_up"]) for row in classify(tables, RULES).iter_rows(named=True)
    }
    return [found[i] for i in ids]


#: Where a noise of 2 % could part two runs: at the thresholds, and where two roofs are equally near.
edges = st.one_of(
    st.tuples(st.floats(0.57, 0.63) | st.floats(0.88, 0.92), st.none() | st.floats(0.1, 0.5)),
    st.tuples(st.none() | st.floats(0.1, 0.5), st.floats(0.57, 0.63) | st.floats(0.88, 0.92)),
    st.floats(0.55, 1.0).map(lambda share: (share, share)),
    st.floats(0.55, 1.0).map(lambda share: (share, BALANCED * share)),
)
needs = st.none() | st.floats(0.02, 1.1)
codes = st.lists(st.tuples(needs, needs), min_size=1, max_size=5)
numbers = st.permutations(range(100, 110))


def named(needed: Sequence[tuple[float | None, float | None]], prefix: str = "k") -> list[Kernel]:
    return [Kernel(f"{prefix}{i}", vector, dram) for i, (vector, dram) in enumerate(needed)]


@given(codes, codes, st.permutations(range(10)), numbers)
def test_a_code_has_one_label_in_every_session(
    needed: list[tuple[float | None, float | None]],
    others: list[tuple[float | None, float | None]],
    order: list[int],
    ids: list[int],
) -> None:
    """Under other names and numbers, in another order, beside other kernels."""
    first = labels(named(needed))
    session = [*named(needed, "another_name_"), *named(others, "beside")]
    places = [place for place in order if place < len(session)]
    again = labels([session[place] for place in places], ids[: len(places)])
    assert [again[places.index(i)] for i in range(len(needed))] == first


@given(edges, st.lists(st.floats(-0.02, 0.02), min_size=6, max_size=6))
def test_runs_of_a_code_in_one_session_have_one_label(
    needed: tuple[float | None, float | None], noise: list[float]
) -> None:
    """Each a little faster or slower, and counted a little differently: no threshold parts them, nor which is first."""

    def counted(need: float | None, jitter: float) -> float | None:
        return None if need is None else need * (1 + jitter)

    def once(i: int) -> Kernel:
        length = round(LENGTH * (1 + noise[3 * i]))
        suffix = (" [clone .kd]", "")[i]
        vector, dram = needed
        return Kernel(f"k{suffix}", counted(vector, noise[3 * i + 1]), counted(dram, noise[3 * i + 2]), length)

    one, other = labels([once(0), once(1)])
    assert one == other


@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0))
def test_with_fewer_counters_the_label_is_the_same_or_none(vector: float, dram: float) -> None:
    """Both name the limit; of two limits within a tenth the counted one is named."""
    whole = Kernel("k", vector, dram)
    (rich,) = labels([whole])
    less = ((replace(whole, dram=None), vector, "compute_vector"), (replace(whole, vector=None), dram, "memory_dram"))
    for counted, need, label in less:
        (poor,) = labels([counted])
        assert poor[0] in (None, *rich)
        assert poor[0] is None or need > NOTHING_ELSE_NEEDS_LONGER - 1e-9
        assert poor[0] == label or need < NOTHING_ELSE_NEEDS_LONGER + 1e-9


def test_a_run_that_was_not_counted_is_what_its_twin_of_the_same_length_is() -> None:
    counted, uncounted = Kernel("k", 0.3, 0.8), Kernel("k.kd", None, None)
    slower = replace(uncounted, length=round(LENGTH * (1 + 4 * ROOF_UNCERTAINTY)))
    assert labels([counted, uncounted]) == [("memory_dram", None)] * 2
    assert labels([counted, slower]) == [("memory_dram", None), (None, None)]
    assert labels([counted, replace(uncounted, name="j")]) == [("memory_dram", None), (None, None)]
