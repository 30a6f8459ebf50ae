"""What comes back from a process that read a stranger's bytes names no file outside the capture."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.capture.discovery import Part, Run, Unread
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.resources.confinement import requests
from aaco_pipeline.resources.confinement.requests import as_json, receive, run_from, send

TOP = Path("/captures/one")


def run(file: str = "/captures/one/a.csv", folder: str = "/captures/one", unread: str = "/captures/one/b") -> Run:
    part = Part("a.csv", "rocprofv3-csv", "CSV", (Path(file),), "rocprofv3_csv", None)
    whole = Part("c", "kineto", "trace", (Path("/captures/one/c"),), "kineto", Path("/captures/one/c"))
    return Run(Path(folder), [part, whole], [Unread(Path(unread), "no format")])


def test_a_run_survives_its_way() -> None:
    sent = replace(run(), digest="3f" * 32)
    arrived = run_from(as_json(sent), TOP)
    assert (arrived, arrived.digest) == (sent, sent.digest)


@pytest.mark.parametrize("path", ["/etc/passwd", "/captures/one/../two", "/captures/onetwo", "a.csv", "/captures"])
@pytest.mark.parametrize("place", ["file", "folder", "unread"])
def test_a_path_outside_the_capture_is_refused(place: str, path: str) -> None:
    with pytest.raises(CaptureError, match="/captures/one: its reader named a file that is not in it; not taken"):
        run_from(as_json(run(**{place: path})), TOP)


def test_messages_arrive_whole_and_an_end_is_an_end() -> None:
    here, there = socket.socketpair()
    with here, there:
        send(here, {"a": "é" * 10_000})
        send(here, {"b": [1]})
        assert receive(there) == {"a": "é" * 10_000}
        assert receive(there) == {"b": [1]}
        here.send(requests._LENGTH.pack(100) + b"{")
        here.close()
        assert receive(there) is None
