"""A server for one report on this computer alone, so that its page can hand the trace over to Perfetto.

What the page holds is `aaco_pipeline.report`; when it is served is the command's business.
"""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def loopback_server(files: Mapping[str, Path]) -> ThreadingHTTPServer:
    """A server on a free port of 127.0.0.1 that gives exactly `files`, by their address, and nothing else of the disk.

    It refuses names other than its own address, so that no page from elsewhere can read the report by a name that
    resolves to this computer.
    """
    from http.server import ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.partition("?")[0]
            own = f"127.0.0.1:{server.server_port}"
            path = files.get(asked) if self.headers.get("Host") == own else None
            if path is None or not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            self.send_response(200)
            kind = "text/html; charset=utf-8" if path.suffix == ".html" else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: the terminal belongs to the person."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    return server
