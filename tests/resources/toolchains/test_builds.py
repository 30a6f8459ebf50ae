"""A command makes its file, or it is said why not, and nothing that it started goes on.

Revisions come in the order of the main line, and are checked out without touching the repository's work tree.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.resources.toolchains import builds
from aaco_pipeline.resources.toolchains.builds import (
    TOLD_LINES,
    MakeError,
    checked_out,
    make,
    revisions_between,
    words_of,
)


def run(program: str, tmp_path: Path, limit_seconds: float = 60.0, *more: str) -> Path:
    output = tmp_path / "out"
    words = [sys.executable, "-c", program, "{output}", *more]
    make(words, "abc", output, tmp_path, log=tmp_path / "make.log", limit_seconds=limit_seconds)
    return output


def test_revision_and_output_are_put_in_their_places_and_no_shell_reads_them(tmp_path: Path) -> None:
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2] + os.getcwd())"
    output = run(program, tmp_path, 60.0, "--rev={revision}; echo $HOME")
    assert output.read_text() == f"--rev=abc; echo $HOME{tmp_path}"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal SIGKILL"),
        ("pass", "ended well and left no file at {output}"),
        ("import os, sys; os.mkdir(sys.argv[1])", "ended well and left no file at {output}"),
    ],
)
def test_why_nothing_was_made_is_said(program: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(MakeError) as raised:
        run(program, tmp_path)
    assert str(raised.value) == f"{Path(sys.executable).name} {words}"
    assert raised.value.exit_code == 3


def test_the_last_lines_of_what_it_printed_are_kept(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(99999): print(n)\nsys.stderr.write('no such header\\n'); raise SystemExit(1)"
    with pytest.raises(MakeError) as raised:
        run(program, tmp_path)
    assert len(raised.value.lines) == TOLD_LINES
    assert {"no such header", "99998"} <= set(raised.value.lines)


def test_at_its_limit_it_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    with pytest.raises(MakeError, match=r"took more than 1\.5 s"):
        run(program, tmp_path, 1.5)
    child = Path("/proc") / (tmp_path / "child").read_text()
    while child.exists() and (child / "stat").read_text().split()[2] not in "ZX":
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MakeError, match="/no/make: No such file"):
        make(["/no/make", "{output}"], "abc", tmp_path / "out", tmp_path, log=tmp_path / "log", limit_seconds=1)


@pytest.mark.parametrize(
    ("command", "words"),
    [("sh 'build", "is not a command: No closing quotation"), ("make all", "put {output} where"), ("", "put {output}")],
)
def test_what_is_no_command_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        words_of(command)
    assert words in str(raised.value)


def git(repository: Path, *arguments: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", repository, *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A main line of four commits, the third of which merges a branch; the work tree stands at the last."""
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    for number in (0, 1):
        commit(made, number)
    git(made, "checkout", "-q", "-b", "branch")
    commit(made, 10)
    git(made, "checkout", "-q", "main")
    git(made, "merge", "-q", "--no-ff", "-m", "Merge the branch", "branch")
    commit(made, 3)
    return made


def commit(repository: Path, number: int) -> None:
    (repository / "number").write_text(f"{number}\n")
    git(repository, "add", "number")
    git(repository, "commit", "-q", "-m", f"Number {number}\n\nSaid at length.")
    git(repository, "tag", f"v{number}")


def test_the_main_line_is_followed_from_the_good_one_to_the_bad_one(repository: Path) -> None:
    found = revisions_between(repository, "v0..main")
    assert [one.title for one in found] == ["Number 0", "Number 1", "Merge the branch", "Number 3"]
    assert [found[0].name, found[-1].name] == [git(repository, "rev-parse", name) for name in ("v0", "main")]


def test_after_a_commit_of_a_branch_come_those_of_the_main_line_that_have_it(repository: Path) -> None:
    assert [one.title for one in revisions_between(repository, "v10..main")] == [
        "Number 10",
        "Merge the branch",
        "Number 3",
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("v0", "'v0' is no range of revisions; expected GOOD..BAD"),
        ("v0..", "no range"),
        ("..v1", "no range"),
        ("v0...v1", "no range"),
        ("nope..main", "'nope' is no revision of "),
        ("--all..main", "'--all' is no revision of "),
        ("v0..number", "'number' is no revision of "),
        ("main..main", "main..main: nothing follows main on the way to main"),
        ("main..v0", "main..v0: nothing follows main on the way to v0"),
    ],
)
def test_what_is_no_range_is_refused(asked: str, words: str, repository: Path) -> None:
    with pytest.raises(UsageError) as raised:
        revisions_between(repository, asked)
    assert words in str(raised.value)


def test_more_revisions_than_anybody_searches_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "MOST_REVISIONS", 2)
    with pytest.raises(UsageError, match="more than 2 revisions"):
        revisions_between(repository, "v0..main")


def test_a_folder_that_is_no_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a git repository"):
        revisions_between(tmp_path, "v0..v1")


def test_without_git_it_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="git: not found"):
        revisions_between(repository, "v0..main")


def test_a_revision_is_there_while_it_is_needed_and_nothing_is_left(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (repository / ".git/hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook\n")
    (repository / ".git/hooks/post-checkout").chmod(0o755)
    with pytest.raises(ZeroDivisionError), checked_out(repository, git(repository, "rev-parse", "v1"), folder):
        assert (folder / "number").read_text() == "1\n"
        raise ZeroDivisionError
    assert not folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert (repository / "number").read_text() == "3\n"
    assert not (tmp_path / "hook").exists()  # a hook is a program of the repository's


def test_what_a_killed_search_left_is_in_nobodys_way(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    git(repository, "worktree", "add", "--detach", str(folder), "v1")
    subprocess.run(["rm", "-r", folder], check=True)
    with checked_out(repository, "v0", folder):
        assert (folder / "number").read_text() == "0\n"


def test_a_variable_of_git_names_no_other_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert len(revisions_between(repository, "v0..v1")) == 2
