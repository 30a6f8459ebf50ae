"""A run of Dagster may read files of the named folders only, whatever is done to get at others.

A command gets a finding as JSON, without a shell and within its time; a failure is one line.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.resources.project import DEFAULTS
from aaco_pipeline.resources.project_settings import (
    NOTIFICATIONS_FILE,
    TRUSTED_FOLDERS_FILE,
    Hook,
    load_notifications,
    run_hook,
    trusted_folders,
)
from benchmarks.reliability.hostile_paths import CASES, Kind, laid_out, made

TRIES = 300


@pytest.mark.parametrize("kind", ["source", "harness"])
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_path_gives_nothing_from_outside(name: str, kind: Kind, tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", kind, tmp_path / "ran")
    trusted = trusted_folders(place.root / "configs")
    with made(CASES[name], place) as path:
        for _ in range(TRIES if "swapped" in name else 1):
            try:
                content = trusted.read(trusted.locate(path))
            except (UsageError, FileNotFoundError) as error:
                assert "\n" not in str(error)
            else:
                assert content == place.inside
                assert "swapped" in name


def test_a_name_that_leads_elsewhere_after_it_was_located_is_refused(tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", "source", tmp_path / "ran")
    trusted = trusted_folders(place.root / "configs")
    path = trusted.locate(str(place.harmless("sub")))
    place.trusted.joinpath("sub").rename(place.root / "aside")
    place.link(place.hostile.parent, "sub")
    with pytest.raises(UsageError, match="a link, sub, leads to it"):
        trusted.read(path)


def test_a_refusal_names_the_path_the_file_and_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        trusted_folders(tmp_path).locate("/etc/passwd")
    said = str(caught.value)
    assert said.startswith("'/etc/passwd' ")
    assert f"{tmp_path / TRUSTED_FOLDERS_FILE} names these folders" in said
    assert "add a line `- FOLDER` under `folders:`" in said


def test_what_lies_in_a_folder_is_read_by_its_path_and_by_its_name(tmp_path: Path) -> None:
    place = laid_out(tmp_path / "place", "source", tmp_path / "ran")
    path = place.harmless("sub")
    (tmp_path / "shown").symlink_to(place.trusted)
    (place.root / "configs" / TRUSTED_FOLDERS_FILE).write_text(f"folders:\n  - {tmp_path / 'shown'}\n")
    trusted = trusted_folders(place.root / "configs")
    assert trusted.read(trusted.locate(f"sub/{path.name}")) == place.inside
    assert trusted.read(trusted.locate(str(tmp_path / "shown" / "sub" / path.name))) == place.inside
    with pytest.raises(UsageError):
        trusted.locate(str(path))  # the folder is named by its link alone


def test_without_a_file_the_samples_alone_are_allowed(tmp_path: Path) -> None:
    trusted = trusted_folders(tmp_path)
    sample = trusted.locate("row_dot.hip")
    assert b"__global__" in trusted.read(sample)
    assert trusted.read(trusted.locate(str(sample.with_name("row_dot_harness.py"))))
    assert len(trusted.folders) == 1


@pytest.mark.parametrize("text", ["folders: /tmp", "folders: [1]", "folders: ['']", "folder: []"])
def test_a_wrong_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / TRUSTED_FOLDERS_FILE).write_text(text)
    with pytest.raises(UsageError, match=TRUSTED_FOLDERS_FILE) as caught:
        trusted_folders(tmp_path)
    assert "\n" not in str(caught.value)


def python(program: str, *arguments: str, timeout_seconds: int = 20) -> Hook:
    return Hook(command=[sys.executable, "-c", program, *arguments], timeout_seconds=timeout_seconds)


def test_it_gets_the_document_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    copy = "import json, sys; json.dump([json.load(sys.stdin), sys.argv[2:]], open(sys.argv[1], 'w'))"
    hook = python(copy, str(tmp_path / "told"), "$HOME; rm -rf *")
    assert run_hook(hook, {"sentence": "regressed → 1.05"}) is None
    assert json.loads((tmp_path / "told").read_text()) == [{"sentence": "regressed → 1.05"}, ["$HOME; rm -rf *"]]


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (python("import sys; sys.exit('first\\nwhat was wrong')"), "ended with 1: what was wrong"),
        (python("raise SystemExit(3)"), "ended with 3"),
        (Hook(command=["/nowhere/tell"]), "No such file or directory"),
    ],
    ids=["says why", "says nothing", "is not there"],
)
def test_why_it_failed_is_one_line(hook: Hook, reason: str) -> None:
    assert run_hook(hook, {}) == f"{hook.command[0]}: {reason}"


def test_at_its_time_limit_it_goes_with_what_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
        '\'import time; time.sleep(3); open(r"%s", "w")\']); time.sleep(60)' % (tmp_path / "late")
    )
    hook = python(program, timeout_seconds=1)
    assert run_hook(hook, {}) == f"{sys.executable}: did not end within 1 s"
    time.sleep(3.5)
    assert not (tmp_path / "late").exists()


def test_a_document_that_nobody_reads_is_no_failure() -> None:
    assert run_hook(python("pass"), {"long": "x" * 1_000_000}) is None


def test_nothing_is_configured_without_a_file_and_by_the_template() -> None:
    settings = load_notifications(DEFAULTS / "configs")
    assert (settings.regression_found, settings.run_failed) == (None, None)


def test_the_template_is_right_once_its_lines_are_uncommented(tmp_path: Path) -> None:
    lines = (DEFAULTS / "configs" / NOTIFICATIONS_FILE).read_text().splitlines()
    start = lines.index(next(line for line in lines if "regression_found:" in line))
    (tmp_path / NOTIFICATIONS_FILE).write_text(
        "\n".join(line.removeprefix("# ").removeprefix("#") for line in lines[start:])
    )
    settings = load_notifications(tmp_path)
    assert settings.regression_found is not None
    assert settings.regression_found.command[0] == "/usr/local/bin/tell-the-team"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("regression_found: {command: tell me}", "expected a list of arguments, the program first"),
        ("regression_found: {command: []}", "expected a list of arguments, the program first"),
        ("regression_found: {timeout_seconds: 5}", "expected a list of arguments, the program first"),
        ("run_failed: {command: [tell], timeout_seconds: 0}", "expected a whole number from 1 to 600"),
        ("regression_fond: null", "did you mean regression_found"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_notifications(text: str, refusal: str, tmp_path: Path) -> None:
    (tmp_path / NOTIFICATIONS_FILE).write_text(text)
    with pytest.raises(UsageError, match=refusal) as raised:
        load_notifications(tmp_path)
    assert "\n" not in str(raised.value)
