"""A child that reads a capture can do nothing else; what the system cannot keep it from is said in plain words."""

import ctypes
import errno
import socket
from pathlib import Path

import pytest

from aaco_pipeline.resources.confinement import client, sandbox
from tests.resources.confinement.conftest import ROOMY, Ask

needs_landlock = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 1, reason="this kernel has no Landlock"
)


@needs_landlock
def test_it_reads_its_capture_and_no_other_file(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    (tmp_path / "capture/inside").write_text("of the capture")
    (tmp_path / "outside").write_text("of the host")
    (tmp_path / "capture/link").symlink_to(tmp_path / "outside")
    assert ask("read", path=str(tmp_path / "capture/inside")) == "of the capture"
    for path in (tmp_path / "outside", tmp_path / "capture/link", Path("/etc/passwd"), Path("/proc/self/environ")):
        assert ask("read", path=str(path)) == "PermissionError"


@needs_landlock
def test_it_may_look_where_its_stack_ends(ask: Ask) -> None:
    assert "[stack]" in ask("read", path="/proc/self/maps")


@needs_landlock
def test_it_writes_in_the_folders_that_it_is_given_and_nowhere_else(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    (tmp_path / "copy").mkdir()
    assert ask("write at", writable=(tmp_path / "copy",), path=str(tmp_path / "copy/a")) == 1
    assert ask("write at", path=str(tmp_path / "copy/b")) == "PermissionError"
    assert ask("write at", path=str(tmp_path / "capture/c")) == "PermissionError"


@needs_landlock
def test_it_runs_no_program(ask: Ask) -> None:
    assert ask("run") == "PermissionError"


def test_it_calls_nobody(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        came = ask("call", port=listening.getsockname()[1])
    assert came in ("OSError", "PermissionError", "ConnectionRefusedError"), came


def test_the_network_is_kept_from_it_also_where_nobody_is_superuser(misbehaving: None, tmp_path: Path) -> None:
    with client.answered({"does": "nothing"}, tmp_path, [tmp_path], [], ROOMY) as (answer, _):
        told = [reason for reason in answer["unconfined"] if reason.startswith("no network namespace")]
    # A system may forbid user namespaces; that a process of several threads cannot enter one is our own affair.
    assert "no network namespace: Invalid argument" not in told


def test_a_kernel_without_landlock_is_reported_in_plain_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "_libc", refusing(errno.ENOSYS))
    reason = sandbox.only_beneath([tmp_path], [])
    assert reason == "no Landlock: Function not implemented; it needs Linux 5.13 with Landlock switched on"


def test_a_host_that_gives_no_network_namespace_is_reported_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_libc", refusing(errno.EPERM))
    assert sandbox.without_network() == "no network namespace: Operation not permitted"


def refusing(number: int) -> object:
    """The C library of a system that refuses everything that is asked of it here."""

    class Refusing:
        @staticmethod
        def refuse(*arguments: object) -> int:
            ctypes.set_errno(number)
            return -1

        syscall = unshare = refuse

    return Refusing()
