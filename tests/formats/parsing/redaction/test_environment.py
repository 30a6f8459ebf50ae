"""What may be kept of an environment: hypothesis looks for variables that pass."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import (
    MEASURED_VARIABLES,
    RANK_VARIABLES,
    REDACTED,
    safe_environment,
    safe_environment_block,
    safe_environment_text,
    safe_setting,
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


@pytest.mark.parametrize(
    ("assigned", "kept"),
    [
        ('OMP_NUM_THREADS="2"', 'OMP_NUM_THREADS="2"'),
        ('LD_PRELOAD=""', 'LD_PRELOAD=""'),
        ('SLURM_PROCID="3"', 'SLURM_PROCID="3"'),
        ('SLURM_PROCID="hunter2"', REDACTED),
        ('HOME="/home/me"', REDACTED),
        ('NCCL_DEBUG="token=hunter2"', 'NCCL_DEBUG="token=redacted"'),
        ("no variable", REDACTED),
    ],
)
def test_a_row_of_settings_that_is_a_variable_keeps_it_where_it_may_be_kept(assigned: str, kept: str) -> None:
    assert safe_setting("PROCESS_0:ENVIRONMENT_VARIABLE", assigned) == kept


def test_settings_with_a_whole_environment_and_others() -> None:
    assert safe_setting("DeviceEnvironment", "HOME=/home/me;HIP_VISIBLE_DEVICES=1;LS_COLORS=a=1;b=2") == (
        "HIP_VISIBLE_DEVICES=1"
    )
    assert safe_setting("DeviceEnvironment", "hunter2") == ""
    assert safe_setting("db_password", "hunter2x") == REDACTED
    assert safe_setting("Hostname", "node7") == "node7"


def test_an_environment_as_the_system_keeps_it_is_reduced_and_other_texts_stay() -> None:
    assert safe_environment_block("HOME=/home/me\0RANK=3\0PS1=>\0HSA_XNACK=0") == "RANK=3\0HSA_XNACK=0"
    for other in ("", "HOME=/home/me", "python\0train.py\0--lr=1", "a\0b\0c=1"):
        assert safe_environment_block(other) == other


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text(st.characters(exclude_characters="\0"))))
def test_no_variable_outside_the_list_stays_in_a_block(variables: dict[str, str]) -> None:
    kept = safe_environment_block("\0".join(f"{name}={value}" for name, value in variables.items()))
    if len(variables) > 1:
        assert {part.partition("=")[0] for part in kept.split("\0") if part} <= {*MEASURED_VARIABLES, *RANK_VARIABLES}
