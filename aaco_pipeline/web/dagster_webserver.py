"""Dagster's web server behind the access check, on a socket that `aaco ui` has opened; also serves the lake's reports.

`python -m aaco_pipeline.web.dagster_webserver SETTINGS ARGUMENTS...`: SETTINGS is JSON, ARGUMENTS are those of
`dagster-webserver`.
"""

import json
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import uvicorn

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.formatting import printable
from aaco_pipeline.report.on_demand import content_of
from aaco_pipeline.web.dagster_program import run_program
from aaco_pipeline.web.door import App, names_of
from aaco_pipeline.web.serving import contents_app, link_to, port_of, server_behind_the_door

_PROGRAM: Final = "dagster-webserver"


@dataclass(frozen=True)
class Settings:
    """Settings of this process. Its secrets are created here; only the printed link exposes one."""

    lake: str
    folder: str
    #: File descriptor of the inherited socket.
    listening: int
    host: str
    allowed_hosts: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def serve(settings: Settings, arguments: list[str]) -> None:
    """Run Dagster's program until it would serve its application, and serve that behind the access check instead.

    The check is bound to the socket, not to the application: if a future Dagster serves differently, the port is in use
    and startup fails.
    """
    listening = socket.socket(fileno=settings.listening)
    port = port_of(listening)

    def announce(token: str) -> None:
        link = link_to(settings.host, port, token)
        print(printable(f"Dagster on {link} — lake {settings.lake} — stop with Ctrl-C"), flush=True)

    def run(app: App, **_: Any) -> None:
        lake = TraceLake(settings.lake)
        both = contents_app(lambda address: content_of(lake, address), app)
        names = names_of(settings.host, port, settings.allowed_hosts)
        with suppress(KeyboardInterrupt):  # the normal way to stop
            by_proxy = bool(settings.allowed_hosts)
            server_behind_the_door(both, listening, names, announce, by_proxy=by_proxy).run(sockets=[listening])

    uvicorn.run = run  # type: ignore[assignment]
    run_program(settings.folder, _PROGRAM, [*arguments, "--host", settings.host, "--port", str(port)])


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    serve(Settings(**{**given, "allowed_hosts": tuple(given["allowed_hosts"])}), sys.argv[2:])
