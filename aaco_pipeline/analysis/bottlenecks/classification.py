"""Classify each kernel's bottleneck by applying rules from a file to measured signals.

`kernel_signals` computes the signals; the result is the table `bottlenecks`. A session's time is not classified by
rules but divided into exact shares (`aaco_pipeline.analysis.answer`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import polars as pl
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from aaco_pipeline.analysis.bottlenecks.kernel_signals import KERNEL_SIGNALS, kernel_signals
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types

#: The subjects of rules.
Scope = Literal["kernel"]
_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
_Text = Annotated[str, Field(min_length=1)]
#: Values read from a file are validated on construction; an error names the key.
_STRICT: Final = ConfigDict(extra="forbid")


@dataclasses.dataclass(frozen=True)
class Signal:
    """A named value, or null with a reason if it was not measured. `source` is the table that it comes from."""

    value: float | None
    unit: str
    source: str
    reason: str | None = None


@dataclass(frozen=True, config=_STRICT)
class Condition:
    """A condition on one signal for a label. A weight of 0 means shown or required, but not scored.

    `graded`: the value itself, clipped to 0..1, is the support, instead of all or nothing. `required`: the rule fails
    if the condition does not hold, measured or not. `because` names the source of the threshold.
    """

    signal: _Name
    because: _Text
    weight: Annotated[float, Field(ge=0)] = 0.0
    at_least: float | None = None
    at_most: float | None = None
    required: bool = False
    graded: bool = False

    @property
    def threshold(self) -> float | None:
        return self.at_least if self.at_least is not None else self.at_most

    def holds(self, value: float) -> bool:
        """Return whether the value is on the right side of the thresholds, of which both, one or neither may be set."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    def support(self, value: float | None) -> float:
        """Return the fraction of its weight that the condition adds, 0..1; an unmeasured signal adds nothing."""
        if value is None or not self.holds(value):
            return 0.0
        return min(1.0, max(0.0, value)) if self.graded else 1.0


@dataclass(frozen=True, config=_STRICT)
class Rule:
    """Conditions for a label.

    Rules of a lower `tier` come first whatever their score: a cause that explains the time outranks one that may have
    influenced it. A `runner_up_only` rule cannot provide the label.
    """

    label: _Name
    scope: Scope
    conditions: Annotated[tuple[Condition, ...], Field(min_length=1)]
    recommendation: _Text
    tier: Annotated[int, Field(ge=0)] = 0
    runner_up_only: bool = False

    @model_validator(mode="after")
    def _can_score(self) -> "Rule":
        if not any(one.weight > 0 for one in self.conditions):
            raise ValueError(f"the rule for {self.label} has no condition with a weight, so it can never score")
        return self


@dataclass(frozen=True, config=_STRICT)
class Undecided:
    """A signal that suppresses the label if it exceeds the best score: time without a known cause."""

    signal: _Name
    scope: Scope
    because: _Text


@dataclass(frozen=True, config=_STRICT)
class Rules:
    """All rules in order, and the minimum score for a label."""

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]
    least_score: Annotated[float, Field(ge=0, le=1)]
    undecided: tuple[Undecided, ...] = ()

    def of(self, scope: Scope) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.scope == scope)


@dataclasses.dataclass(frozen=True)
class SignalEvidence:
    """A condition that counted, as stored in the table `bottlenecks`."""

    signal: str
    value: float
    unit: str
    threshold: float | None
    weight: float
    source: str


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The verdict on one kernel; `rule` and `score` are null if the evidence is insufficient."""

    rule: Rule | None
    runner_up: str | None
    score: float | None
    evidence: tuple[SignalEvidence, ...]
    missing: tuple[str, ...]


def judge(signals: Mapping[str, Signal], rules: Rules, scope: Scope) -> Judgement:
    """Choose the labels with the highest and second-highest score, with their evidence.

    A rule's score is the weight of its conditions that hold (fractions of it for graded ones) over the weight of all of
    them. A rule is dropped if a required condition does not hold. If several rules give the same label, the best one
    counts. `missing` lists unmeasured signals that would have counted in the rules of label and runner-up or, without a
    label, in any rule.
    """
    scored = [(score, rule) for rule in rules.of(scope) if (score := _score(rule, signals)) is not None]
    # The sort is stable: ties go to the rule that comes first in the file.
    enough = sorted(
        (pair for pair in scored if pair[0] >= rules.least_score), key=lambda pair: (pair[1].tier, -pair[0])
    )
    scored = _one_for_each_label(enough)
    best = next((pair for pair in scored if not pair[1].runner_up_only), None)
    unexplained = [one for one in rules.undecided if one.scope == scope and _value(signals, one.signal) is not None]
    voided = [one for one in unexplained if (_value(signals, one.signal) or 0.0) > (best[0] if best else 0.0)]
    if best is None or voided:
        shown = _evidence([rule for _, rule in scored[:2]], signals)
        known = tuple(_shown(signals, one.signal, None, 0.0) for one in unexplained)
        return Judgement(None, None, None, (*shown, *known), _missing(rules.of(scope), signals))
    supported = [best[1], *[rule for _, rule in scored if rule is not best[1]][:1]]
    runner_up = supported[1].label if len(supported) > 1 else None
    return Judgement(
        best[1], runner_up, best[0], _evidence(supported, signals), _missing((best[1], *supported[1:]), signals)
    )


def _one_for_each_label(scored: Sequence[tuple[float, Rule]]) -> list[tuple[float, Rule]]:
    return list({rule.label: (score, rule) for score, rule in reversed(scored)}.values())[::-1]


def _score(rule: Rule, signals: Mapping[str, Signal]) -> float | None:
    total = sum(condition.weight for condition in rule.conditions)
    reached = 0.0
    for condition in rule.conditions:
        value = _value(signals, condition.signal)
        if condition.required and (value is None or not condition.holds(value)):
            return None
        reached += condition.weight * condition.support(value)
    return reached / total if total else None


def _value(signals: Mapping[str, Signal], name: str) -> float | None:
    signal = signals.get(name)
    return None if signal is None else signal.value


def _evidence(rules: Sequence[Rule], signals: Mapping[str, Signal]) -> tuple[SignalEvidence, ...]:
    """Return the measured signals of both rules without duplicates, the label's before the runner-up's."""
    found: dict[str, SignalEvidence] = {}
    for rule in rules:
        for condition in rule.conditions:
            if condition.signal not in found and _value(signals, condition.signal) is not None:
                found[condition.signal] = _shown(signals, condition.signal, condition.threshold, condition.weight)
    return tuple(found.values())


def _shown(signals: Mapping[str, Signal], name: str, threshold: float | None, weight: float) -> SignalEvidence:
    signal = signals[name]
    assert signal.value is not None
    return SignalEvidence(name, signal.value, signal.unit, threshold, weight, signal.source)


def _missing(rules: Sequence[Rule], signals: Mapping[str, Signal]) -> tuple[str, ...]:
    counting = (one for rule in rules for one in rule.conditions if one.weight > 0 or one.required)
    wanted = dict.fromkeys(condition.signal for condition in counting)
    return tuple(name for name in wanted if _value(signals, name) is None)


RULES_FILE: Final = "bottleneck_rules.yaml"
_RULES: Final = TypeAdapter(Rules)


def rules_of(content: object, path: Path) -> Rules:
    """Parse the rules in the content of the YAML file at `path`. Raises UsageError that names file and key."""
    if not isinstance(content, dict):
        raise UsageError(f"{path}: found no keys; write least_score and rules, as aaco_pipeline's own {RULES_FILE}")
    shared, texts = (content.pop(key, None) or {} for key in ("shared", "recommendations"))
    listed = content.get("rules")
    try:
        members = [
            (place, _written_out(rule, label, shared, texts))
            for place, rule in enumerate(listed if isinstance(listed, list) else ())
            for label in _labels(rule)
        ]
    except KeyError as error:
        raise UsageError(f"{path}: like: there is no {error} under shared; write the condition there or out") from error
    try:
        return _RULES.validate_python({**content, "rules": [rule for _, rule in members]} if members else content)
    except ValidationError as error:
        first = error.errors()[0]
        steps = list(first["loc"])
        if steps[:1] == ["rules"] and len(steps) > 1:
            # A family expands to several rules; the error names its position in the file.
            steps[1] = members[int(steps[1])][0]
        where = ".".join(str(step) for step in steps) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}; write it as in aaco_pipeline's own {RULES_FILE}") from error


def _labels(rule: Any) -> list[Any]:
    """Return the labels of a family, or a rule's only label."""
    label = rule.get("label") if isinstance(rule, dict) else None
    return label if isinstance(label, list) else [label]


def _written_out(rule: Any, label: Any, shared: Mapping[str, Any], texts: Mapping[str, Any]) -> Any:
    """Expand the rule for one label; malformed parts are left unchanged for validation to reject."""
    if not isinstance(rule, dict) or not isinstance(label, str):
        return rule
    text = texts.get(label)
    made = {**({} if text is None else {"recommendation": text}), **rule, "label": label}
    if isinstance(rule.get("conditions"), list):
        made["conditions"] = [_condition(each, shared) for each in rule["conditions"]]
    return _filled(made, label)


def _condition(condition: Any, shared: Mapping[str, Any]) -> Any:
    if not isinstance(condition, dict):
        return condition
    known = shared[condition["like"]] if "like" in condition else {}
    return {**known, **{key: value for key, value in condition.items() if key != "like"}}


def _filled(value: Any, label: str) -> Any:
    """Replace `{label}` in all texts of the value."""
    if isinstance(value, dict):
        return {key: _filled(each, label) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, label) for each in value]
    return value.replace("{label}", label) if isinstance(value, str) else value


#: Tables of a session that provide the signals; a missing table is treated as empty.
INPUTS: Final = (
    *("sessions", "dispatches", "kernels", "kernel_stats", "operator_kernels", "model_nodes", "roofline"),
    *("counter_metrics", "occupancy", "att_stalls", "resource_bounds", "critical_path", "critical_path_summary"),
)


def classify(tables: Mapping[str, pl.DataFrame], rules: Rules, on_cpu: float = 1.0) -> pl.DataFrame:
    """Compute the rows of `bottlenecks` for every kernel with statistics.

    `tables` are those in `INPUTS`; `on_cpu` as in `kernel_signals`. The result does not depend on row order.
    """
    signals = kernel_signals(tables, on_cpu)
    reach = reach_of_kernels(tables)
    rows = [_row(row, rules, reach.get(row["kernel_id"])) for row in signals.iter_rows(named=True)]
    return pl.DataFrame(rows, schema=polars_types("bottlenecks"))


def reach_of_kernels(tables: Mapping[str, pl.DataFrame]) -> dict[int, float]:
    """Return the largest fraction of the run that each kernel could save: its critical-path time over the window.

    By Amdahl's law, removing work off the path does not shorten the run. Kernels without a known position on the path
    are omitted.
    """
    summary = tables["critical_path_summary"].filter(pl.col("scope") == "session")
    window = int(summary.item(0, "window_ns")) if summary.height else 0
    if not window:
        return {}
    critical = tables["critical_path"].filter((pl.col("activity_kind") == "dispatch") & pl.col("is_critical"))
    on_path = tables["dispatches"].join(critical.select(dispatch_id="activity_id"), on="dispatch_id", how="semi")
    sums = on_path.group_by("kernel_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"))
    return {kernel: min(1.0, time / window) for kernel, time in sums.select("kernel_id", "time").iter_rows()}


def _row(row: Mapping[str, Any], rules: Rules, gain: float | None) -> dict[str, object]:
    signals = {
        name: Signal(row[name], unit, source, None if row[name] is not None else why)
        for name, (unit, source, why) in KERNEL_SIGNALS.items()
    }
    judged = judge(signals, rules, "kernel")
    return {
        "scope": "kernel",
        "kernel_id": row["kernel_id"],
        "label": judged.rule.label if judged.rule is not None else None,
        "runner_up": judged.runner_up,
        "score": judged.score,
        "evidence": [asdict(one) for one in judged.evidence],
        "missing": list(judged.missing),
        "recommendation": _recommendation(judged, gain),
    }


def _recommendation(judged: Judgement, gain: float | None) -> str | None:
    if judged.rule is None:
        return None
    text = judged.rule.recommendation
    if gain is None:
        return f"{text} How much that can save is not known: nothing tells its part of the critical path."
    return f"{text} That saves at most {100 * min(1.0, gain):.1f} % of the time."
