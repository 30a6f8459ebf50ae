"""What may be kept of an environment: hypothesis looks for variables that pass."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import (
    MEASURED_VARIABLES,
    REDACTED,
    safe_environment,
    safe_environment_text,
    safe_variable,
)


def test_only_listed_variables_are_kept_in_order_of_name() -> None:
    kept = safe_environment({"ROCR_VISIBLE_DEVICES": "0", "HOME": "/home/me", "HIP_VISIBLE_DEVICES": "1", "PS1": ">"})
    assert list(kept.items()) == [("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "0")]


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_nothing_outside_the_list_passes(variables: dict[str, str]) -> None:
    assert set(safe_environment(variables)) <= set(MEASURED_VARIABLES)


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9,
        "AKIAIOSFODNN7EXAMPLE",
        "https://me:pw@host/x",
        "token=hunter2",
        "sshpass -p hunter2 ssh",
        "x" * 201,
    ],
)
def test_a_listed_variable_with_a_secret_keeps_its_name_alone(secret: str) -> None:
    kept = safe_environment({"NCCL_DEBUG": secret})["NCCL_DEBUG"]
    assert REDACTED in kept
    assert secret not in kept


def test_an_empty_variable_is_said_to_be_empty() -> None:
    assert safe_variable("") == "(empty)"


def test_an_environment_as_text_keeps_ranks_and_is_else_empty() -> None:
    stated = json.dumps({"RANK": "3", "HOME": "/home/me", "HIP_VISIBLE_DEVICES": "1", "SLURM_PROCID": "hunter2"})
    assert json.loads(safe_environment_text(stated)) == {"HIP_VISIBLE_DEVICES": "1", "RANK": "3"}
    for damaged in ("", "[1]", "{", "[" * 100_000, "HOME=/home/me"):
        assert safe_environment_text(damaged) == "{}"


def test_an_environment_that_may_be_kept_is_not_touched() -> None:
    assert safe_environment_text('{"HSA_XNACK":"0"}') == '{"HSA_XNACK":"0"}'
