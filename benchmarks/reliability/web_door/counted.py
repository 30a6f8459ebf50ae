"""A Dagster web server that counts what reaches it, behind the door and without one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.resources.project import DEFAULTS, HOME_VARIABLE, LAKE_VARIABLE
from tests.user_interface import ROOT, UserInterface, free_port, kill, user_interface, wait_for

_FILE_VARIABLE: Final = "AACO_COUNTED_REQUESTS"
#: Python runs this in every process that starts; in the web server it puts a counter into Dagster's application.
_SITECUSTOMIZE: Final = """
import json, os, sys
if any("dagster_webserver" in word for word in sys.orig_argv):
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    class Counted:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            if scope["type"] != "lifespan":
                told = {"type": scope["type"], "path": scope["path"], "query": scope["query_string"].decode()}
                with open(os.environ["AACO_COUNTED_REQUESTS"], "a") as file:
                    file.write(json.dumps(told) + "\\n")
            await self.app(scope, receive, send)

    before = DagsterWebserver.build_middleware
    DagsterWebserver.build_middleware = lambda self: [Middleware(Counted), *before(self)]
"""


@dataclass(frozen=True)
class Counts:
    """The requests that reached Dagster's application so far."""

    file: Path

    def requests(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


def environment(folder: Path) -> tuple[dict[str, str], Counts]:
    """The variables of a lake and home in `folder` whose server counts."""
    (folder / "counting").mkdir(parents=True)
    (folder / "counting" / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    counts = Counts(folder / "requests.jsonl")
    variables = {
        LAKE_VARIABLE: str(folder / "lake"),
        HOME_VARIABLE: str(folder / "home"),
        _FILE_VARIABLE: str(counts.file),
        "PYTHONPATH": f"{folder / 'counting'}:{ROOT}",
    }
    return variables, counts


@contextmanager
def with_the_door(folder: Path) -> Iterator[tuple[UserInterface, Counts]]:
    """`aaco ui` on a lake of its own."""
    variables, counts = environment(folder)
    (folder / "empty").mkdir()
    with user_interface(folder / "empty", variables) as running:
        wait_for(running.is_up, running.log.read_text)
        yield running, counts


@contextmanager
def without_a_door(folder: Path) -> Iterator[tuple[int, Counts]]:
    """Dagster's web server as it comes, on a home of its own: its port."""
    variables, counts = environment(folder)
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text((DEFAULTS / "dagster.yaml").read_text())
    port, log = free_port(), folder / "bare.log"
    arguments = ["-m", "dagster_webserver", "-w", str(DEFAULTS / "workspace.yaml"), "-p", str(port)]
    everything: Mapping[str, str] = {**os.environ, **variables}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments], env=everything, cwd=folder, stdout=stream, stderr=stream
        )
    try:
        wait_for(lambda: "Serving" in log.read_text() or process.poll() is not None, log.read_text)
        yield port, counts
    finally:
        process.terminate()
        process.wait(60)
        kill(process.pid)
