"""A process named beyond doubt: its number alone would name whichever process has it later."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.resources.host import process_identity
from aaco_pipeline.resources.host.process_identity import HOST_TAG, PID_TAG, process_is_gone, process_tags

TELL_TAGS: Final = """
import json
from aaco_pipeline.resources.host.process_identity import process_tags
print(json.dumps(process_tags()), flush=True)
input()
"""
STARTED_TAG: Final = ".dagster/aaco/process/started"
BOOT_TAG: Final = ".dagster/aaco/process/boot"


def test_this_process_lives() -> None:
    assert process_is_gone(process_tags()) is False


def test_tags_are_text_and_name_host_and_process() -> None:
    tags = process_tags()
    assert tags[HOST_TAG] == platform.node()
    assert tags[PID_TAG] == str(os.getpid())
    assert all(isinstance(value, str) and value for value in tags.values())
    assert process_tags() == tags


def test_a_process_lives_until_it_ends_and_a_zombie_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TELL_TAGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        tags = json.loads(process.stdout.readline())
        assert tags[PID_TAG] == str(process.pid)
        assert process_is_gone(tags) is False
        process.kill()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
        assert process_is_gone(tags) is True  # nobody has waited for it yet
    assert process_is_gone(tags) is True


def test_a_number_used_again_is_another_process() -> None:
    assert process_is_gone({**process_tags(), STARTED_TAG: "1"}) is True
    assert process_is_gone({**process_tags(), STARTED_TAG: ""}) is True


def test_nothing_outlives_a_boot() -> None:
    assert process_is_gone({**process_tags(), BOOT_TAG: "another boot"}) is True


@pytest.mark.parametrize(
    "tags", [{}, {HOST_TAG: platform.node()}, {**process_tags(), HOST_TAG: "another host"}, {PID_TAG: "1"}]
)
def test_processes_of_other_hosts_and_of_nobody_are_not_judged(tags: dict[str, str]) -> None:
    assert process_is_gone(tags) is None


@pytest.mark.parametrize("number", ["", "many", "-1", "1.5"])
def test_a_tag_that_somebody_wrote_by_hand_is_not_judged(number: str) -> None:
    """Anybody can set tags in the launchpad; one run's nonsense may not hide every other dead run."""
    assert process_is_gone({**process_tags(), PID_TAG: number}) in (None, True)


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_fields(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = ["S", *map(str, range(4, 60))]
    monkeypatch.setattr(Path, "read_text", lambda self: f"42 (a) Z (b) {' '.join(fields)}\n")
    assert process_identity._process_started(42) == "22"
