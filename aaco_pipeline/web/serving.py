"""Listen and serve behind the access check: files by address, only for the user who runs the server.

`door` decides which links grant access.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

import uvicorn

from aaco_pipeline.errors import AacoError, PassingLakeError, UsageError
from aaco_pipeline.web.door import App, Door, Keys, Names, Receive, Scope, Send, refuse

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"
_ANOTHERS: Final = "Not let in: this connection is another user's of this machine."
Listening = socket.socket
#: Time that unfinished responses get at shutdown.
_GRACE_SECONDS: Final = 3
_BACKLOG: Final = 2048
LOOPBACK: Final = "127.0.0.1"
_ANYWHERE: Final = ("0.0.0.0", "::")
_KINDS: Final = {".html": "text/html; charset=utf-8", ".json": "application/json"}


class OwnUser:
    """Middleware: `app` sees only connections of this user, of root, and of other machines."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_own(scope["client"], scope["server"]):
            return await self._app(scope, receive, send)
        return await refuse(scope, receive, send, _ANOTHERS)


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether this user owns the client's end, an (address, port); remote clients are in no local table."""
    address = ip_address(client[0])
    users = set(_users(address, client[1], server[1]))
    return users <= {0, os.geteuid()} if users else not (_plain(address).is_loopback)


def _users(address: IPv4Address | IPv6Address, port: int, to_port: int) -> Iterator[int]:
    """Return the users of established connections from an address and port to a port; closed connections have none."""
    plain = _plain(address)
    names = {f"{_words(one)}:{port:04X}" for one in (plain, _mapped(plain))}
    for table in _TABLES:
        for line in table.read_text("ascii").splitlines()[1:]:
            words = line.split()
            if words[1] in names and words[2].endswith(f":{to_port:04X}") and words[3] == _ESTABLISHED:
                yield int(words[7])


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _mapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return IPv6Address(f"::ffff:{address}") if isinstance(address, IPv4Address) else address


def _words(address: IPv4Address | IPv6Address) -> str:
    """Return an address as the kernel prints it: 32-bit words in this machine's byte order."""
    packed = address.packed
    return "".join(f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}" for at in range(0, len(packed), 4))


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket on `host` and `port` (0: any free port); UsageError if that fails."""
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror if not isinstance(error, socket.gaierror) else "no such address"
        raise UsageError(f"{host}:{port}: {reason}; choose another with --port or --host") from error


def port_of(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


def link_to(host: str, port: int, token: str) -> str:
    """Return the link to print; it uses the loopback address if the server listens on all addresses."""
    name = LOOPBACK if host in _ANYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={token}"


def server_behind_the_door(
    app: App, listening: socket.socket, names: Names, announce: Callable[[str], None], *, by_proxy: bool = False
) -> uvicorn.Server:
    """Create a server for `app`, to run on the socket; `announce` receives the current link token and every new one.

    Connections of other users of this machine are refused, unless `by_proxy`: a proxy may run as any user.
    """
    keys = Keys(announce)
    keys.announce()
    door = Door(app, names, f"aaco_{port_of(listening)}", keys)
    # h11 passes request targets through unchanged and refuses a missing or second Host; an access log would contain the
    # link.
    settings = uvicorn.Config(
        door if by_proxy else OwnUser(door),
        http="h11",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # otherwise clients could claim another address
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(settings)


def contents_app(find: Callable[[str], bytes | None], otherwise: App | None = None, *, first: str = "") -> App:
    """Serve the result of `find` for a path; if there is none, `otherwise` answers, or 404.

    An expected error is answered with its message, with status 503 if a retry may help. `/` redirects to `first`.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and scope["method"] == "GET":
            if first and path == "/":
                return await _answer(send, 303, b"", "text/plain", (b"location", first.encode()))
            try:
                content = await asyncio.to_thread(find, path)
            except AacoError as error:
                status = 503 if isinstance(error, PassingLakeError) else 500
                return await _answer(send, status, f"{error}\n".encode(), "text/plain; charset=utf-8")
            if content is not None:
                kind = _KINDS.get(f".{path.rpartition('.')[2]}", "application/octet-stream")
                return await _answer(send, 200, content, kind)
        if otherwise is not None:
            return await otherwise(scope, receive, send)
        if scope["type"] == "http":
            return await _answer(send, 404, b"not here\n", "text/plain")
        raise ValueError(f"no connections of type {scope['type']} here")

    return app


async def _answer(send: Send, status: int, body: bytes, kind: str, *headers: tuple[bytes, bytes]) -> None:
    told = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*told, *headers]})
    await send({"type": "http.response.body", "body": body})
