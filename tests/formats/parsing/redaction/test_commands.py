"""A command line is kept with the names of its options, and without what they hide."""

import pytest

from aaco_pipeline.formats.parsing.redaction import REDACTED, safe_command
from aaco_pipeline.formats.parsing.redaction.commands import LONGEST_COMMAND, safe_words


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("python serve.py  --batch 4", "python serve.py  --batch 4"),
        ("serve --api-key hunter2 --port 80", f"serve --api-key {REDACTED} --port 80"),
        ("serve --hf-token=hunter2", f"serve --hf-token={REDACTED}"),
        ("curl https://me:pw@host/x", f"curl https://{REDACTED}@host/x"),
        ("docker run -e A_TOKEN=hunter2 -e B=1", f"docker run -e A_TOKEN={REDACTED} -e B=1"),
        ("sh -c 'mysql -phunter2 db'", f"sh -c 'mysql -p{REDACTED} db'"),
        (["sh", "-c", "x"], "sh -c x"),
        (["serve", "--api-key", "hunter2"], f"serve --api-key {REDACTED}"),
    ],
)
def test_a_command_line_is_kept_without_its_secrets(command: str | list[str], kept: str) -> None:
    assert safe_command(command) == kept


def test_words_stay_words() -> None:
    assert safe_words(["app", "--password", "a b", "--n", "1"]) == ["app", "--password", REDACTED, "--n", "1"]


def test_a_line_without_end_is_cut() -> None:
    assert len(safe_command("x" * (LONGEST_COMMAND + 10))) < LONGEST_COMMAND + 10
