"""Rules as a file states them: families and shared conditions written out, then checked.

What a rule is, and how one is judged, is `aaco_pipeline.analysis.bottlenecks.rules`; the file explains its own form.
Which file is read is the stage's business.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from aaco_pipeline.analysis.bottlenecks.rules import Rules
from aaco_pipeline.errors import UsageError

RULES_FILE: Final = "bottleneck_rules.yaml"
_RULES: Final = TypeAdapter(Rules)


def rules_of(content: object, path: Path) -> Rules:
    """The rules in the content of the YAML file at `path`. UsageError naming file and key."""
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
            # A family is several rules: the place in the file is the family's.
            steps[1] = members[int(steps[1])][0]
        where = ".".join(str(step) for step in steps) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}; write it as in aaco_pipeline's own {RULES_FILE}") from error


def _labels(rule: Any) -> list[Any]:
    """The labels of a family, or the one of a rule."""
    label = rule.get("label") if isinstance(rule, dict) else None
    return label if isinstance(label, list) else [label]


def _written_out(rule: Any, label: Any, shared: Mapping[str, Any], texts: Mapping[str, Any]) -> Any:
    """The rule of one label; what has not the form of a rule stays as it is, and is refused by the checks."""
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
    """The value with the label wherever a text has `{label}`."""
    if isinstance(value, dict):
        return {key: _filled(each, label) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, label) for each in value]
    return value.replace("{label}", label) if isinstance(value, str) else value
