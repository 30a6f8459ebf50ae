"""A running `aaco ui` for tests and benchmarks: its link, its GraphQL interface, its processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Final

import aaco_pipeline

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
LONGEST_WAIT_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class UserInterface:
    """`process` is the command itself; `log` holds what it and all that it started have printed."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def links(self) -> list[str]:
        return re.findall(r"http://\S+/\?token=\S+", self.log.read_text())

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return bool(self.links)

    def signed_in_again(self) -> urllib.request.OpenerDirector:
        """`signed_in`, after a link was used: coming with that has a new one printed."""
        links = self.links
        with suppress(urllib.error.HTTPError):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(links[-1], timeout=60)
        wait_for(lambda: len(self.links) > len(links), self.log.read_text)
        return self.signed_in()

    def signed_in(self) -> urllib.request.OpenerDirector:
        """Open addresses with the cookie of the newest link, which this uses up."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        opener.open(self.links[-1], timeout=60).close()
        return opener

    def ask(self, opener: urllib.request.OpenerDirector, text: str, **variables: object) -> Any:
        """Return GraphQL's answer."""
        body = json.dumps({"query": text, "variables": variables}).encode()
        asked = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        with opener.open(asked, timeout=60) as answer:
            return json.load(answer)["data"]

    def descendants(self) -> dict[int, str]:
        """The processes below the command that have not ended, with their command lines."""
        return descendants(self.process.pid)


def descendants(root: int) -> dict[int, str]:
    listed = subprocess.run(
        ["ps", "-wweo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    found, parents = dict[int, str](), [str(root)]
    while parents:
        parent = parents.pop()
        for pid, above, state, command in rows:
            if above == parent and not state.startswith("Z"):
                found[int(pid)] = command
                parents.append(pid)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def user_interface(
    folder: Path, environment: Mapping[str, str], *options: str, port: int = 0, before: Sequence[str] = ()
) -> Iterator[UserInterface]:
    """`aaco ui`, started in the empty folder `folder`; `before` are words in front of the command, such as a shell's.

    Whatever of it runs in the end is killed.
    """
    port = port or free_port()
    log = folder / "ui.log"
    command = [*before, sys.executable, "-P", "-c", ENTRY, "ui", "--port", str(port), *options]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield UserInterface(process, port, log)
    finally:
        for pid in (process.pid, *descendants(process.pid)):
            kill(pid)
        process.wait()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LONGEST_WAIT_SECONDS:g} s: {explain()}"
        time.sleep(POLL_SECONDS)
