"""What may be kept of an environment and of a command line: hypothesis looks for secrets that pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import (
    MEASURED_VARIABLES,
    REDACTED,
    safe_command,
    safe_environment,
    without_secrets,
)


def test_only_listed_variables_are_kept_in_order_of_name() -> None:
    kept = safe_environment({"ROCR_VISIBLE_DEVICES": "0", "HOME": "/home/me", "HIP_VISIBLE_DEVICES": "1", "PS1": ">"})
    assert list(kept.items()) == [("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "0")]


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_nothing_outside_the_list_passes(variables: dict[str, str]) -> None:
    assert set(safe_environment(variables)) <= set(MEASURED_VARIABLES)


@pytest.mark.parametrize(
    "secret",
    ["ghp_" + "a1B2" * 9, "hf_abcdefgh", "sk-live", "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOi.x", "https://me:pw@host/x"],
)
def test_a_listed_variable_with_a_secret_keeps_its_name_alone(secret: str) -> None:
    assert without_secrets(secret) == REDACTED
    assert safe_environment({"NCCL_DEBUG": secret}) == {"NCCL_DEBUG": REDACTED}


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("python serve.py --batch 4", "python serve.py --batch 4"),
        ("serve --api-key hunter2 --port 80", f"serve --api-key {REDACTED} --port 80"),
        ("serve --hf-token=hunter2", f"serve {REDACTED}"),
        ("curl https://me:pw@host/x", f"curl {REDACTED}"),
        (["sh", "-c", "x"], "sh -c x"),
    ],
)
def test_a_command_line_is_kept_without_its_secrets(command: str | list[str], kept: str) -> None:
    assert safe_command(command) == kept
