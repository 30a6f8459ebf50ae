"""Reads the rules by which bottlenecks are named: a person's own file, else the one that comes with the package.

The form of a rule is `aaco_pipeline.analysis.bottlenecks.rules`; the file explains itself.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from aaco_pipeline.analysis.bottlenecks.rules import Condition, Rule, Rules, Undecided
from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.configuration import read_yaml

RULES_FILE: Final = "bottleneck_rules.yaml"
#: The same file as `configs/bottleneck_rules.yaml` of a checkout, which is a link to it.
BUILT_IN_RULES: Final = Path(__file__).with_name(RULES_FILE)


def load_bottleneck_rules(path: Path) -> Rules:
    """The rules of the file at `path`, or the package's own where there is none. UsageError naming file and key."""
    content = read_yaml(path)
    if content is None:
        path = BUILT_IN_RULES
        content = read_yaml(path)
    try:
        form = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}; expected it as in aaco_pipeline's own file") from error
    rules = tuple(
        Rule(
            one.label,
            one.scope,
            tuple(_condition(each) for each in one.conditions),
            one.recommendation,
            one.gain,
            one.tier,
        )
        for one in form.rules
    )
    undecided = tuple(Undecided(one.signal, one.scope, one.because) for one in form.undecided)
    return Rules(rules, undecided, form.least_score)


_Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Scope = Literal["kernel", "session"]
_Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Condition(_Strict):
    signal: _Name
    because: _Text
    weight: Annotated[float, Field(ge=0)] = 0.0
    at_least: float | None = None
    at_most: float | None = None
    required: bool = False
    graded: bool = False


class _Rule(_Strict):
    label: _Name
    scope: _Scope
    conditions: Annotated[list[_Condition], Field(min_length=1)]
    recommendation: _Text
    gain: _Name | None = None
    tier: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _can_score(self) -> "_Rule":
        if not any(one.weight > 0 for one in self.conditions):
            raise ValueError(f"the rule for {self.label} has no condition with a weight, so it can never score")
        return self


class _Undecided(_Strict):
    signal: _Name
    scope: _Scope
    because: _Text


class _File(_Strict):
    least_score: _Share
    rules: Annotated[list[_Rule], Field(min_length=1)]
    undecided: list[_Undecided] = []


def _condition(form: _Condition) -> Condition:
    return Condition(form.signal, form.because, form.weight, form.at_least, form.at_most, form.required, form.graded)
