"""A server of reports and traces on this computer alone: a page opens in the browser, a trace goes on to Perfetto.

What the page holds is `aaco_pipeline.report`; when it is served is the command's business. Run as a module it serves a
whole lake until the process that started it has ended.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake

#: Where `aaco ui` serves the lake's reports, so that links in Dagster open.
REPORTS_PORT: Final = 3001
_ADDRESS: Final = re.compile(rf"/(reports|traces)/({SESSION_ID.pattern})/([a-z.]+)")


def loopback_server(find: Callable[[str], bytes | None], port: int = 0) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 (on a free port for 0) of what `find` gives for an address, and of nothing else.

    Where that is a LakeError, its line is the answer. It refuses names other than its own address, so that no page from
    elsewhere can read the report by a name that resolves to this computer. OSError when the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            own = f"127.0.0.1:{server.server_port}"
            address = self.path.partition("?")[0]
            try:
                content = find(address) if self.headers.get("Host") == own else None
            except LakeError as error:
                self.send_error(500, "torn", str(error))
                return
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            kind = "text/html; charset=utf-8" if address.endswith(".html") else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: the terminal belongs to the person."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    return server


def address_of(path: Path) -> str:
    """Where a lake's report or trace is served while `aaco ui` runs."""
    folder, session = path.parts[-3], path.parts[-2].removeprefix("session_id=")
    return f"http://127.0.0.1:{REPORTS_PORT}/{folder}/{session}/{path.name}"


def content_of(lake: TraceLake, address: str) -> bytes | None:
    """The report or trace that an address means, verified; None for any other. LakeError when it is torn."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    folder, session, name = found[1], found[2], found[found.re.groups]
    path = lake.report(session) if folder == "reports" else lake.trace(session)
    return lake.artifact(session, path) if path.name == name else None


def serve_lake(lake: Path) -> "subprocess.Popen[bytes]":
    """Serve a lake's reports and traces beside this process, until it ends."""
    return subprocess.Popen([sys.executable, "-P", "-m", __name__, str(lake), str(os.getpid())])


def main(lake: str, parent: str) -> int:
    """Serve until the parent has ended; 1 when another process has the port, whose links then open that one's lake."""
    try:
        server = loopback_server(lambda address: content_of(TraceLake(lake), address), REPORTS_PORT)
    except OSError as error:
        print(f"aaco: links to reports do not open: port {REPORTS_PORT}: {error.strerror}", file=sys.stderr)
        return 1
    server.timeout = 1.0
    while os.getppid() == int(parent):
        server.handle_request()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for Dagster to answer; this ends without a word
    sys.exit(main(*sys.argv[1:]))
