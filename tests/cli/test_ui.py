"""`aaco ui` where it cannot serve: one line, exit code 2, nothing made. Where it can: tests/test_user_interface.py."""

import socket
from pathlib import Path

import pytest

from aaco_pipeline.cli.main import main


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port), "--lake", str(tmp_path / "lake")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"aaco: 127.0.0.1:{port}: Address already in use")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--host", "no such host"], ["--allowed-host", "https://build.example/"]])
def test_what_is_no_name_is_one_line(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--port", "1", *options, "--lake", str(tmp_path / "lake")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert options[1] in line
