"""Listen and serve behind the door: files by their addresses, and only for the user who runs the server.

Who may come in over a link is decided in `door`.
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
#: Time that unfinished answers still get at the end.
_GRACE_SECONDS: Final = 3
_BACKLOG: Final = 2048
LOOPBACK: Final = "127.0.0.1"
_ANYWHERE: Final = ("0.0.0.0", "::")
_KINDS: Final = {".html": "text/html; charset=utf-8", ".json": "application/json"}


class OwnUser:
    """The middleware: `app` sees connections of this user, of root, and of other machines."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_own(scope["client"], scope["server"]):
            return await self._app(scope, receive, send)
        return await refuse(scope, receive, send, _ANOTHERS)


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Decide by the user who holds the client's end, an (address, port); one of another machine is in no table here."""
    address = ip_address(client[0])
    users = set(_users(address, client[1], server[1]))
    return users <= {0, os.geteuid()} if users else not (_plain(address).is_loopback)


def _users(address: IPv4Address | IPv6Address, port: int, to_port: int) -> Iterator[int]:
    """Users of the established connections from an address and port to a port. A closed one has no user any more."""
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
    """An address as the kernel prints it: words of 32 bits in this machine's byte order."""
    packed = address.packed
    return "".join(f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}" for at in range(0, len(packed), 4))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on `host` and `port` (0: a free one); UsageError when that cannot be had."""
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
    """The link to print; where a server listens on every address, by the loopback one."""
    name = LOOPBACK if host in _ANYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={token}"


def server_behind_the_door(
    app: App, listening: socket.socket, names: Names, announce: Callable[[str], None], *, by_proxy: bool = False
) -> uvicorn.Server:
    """A server of `app`, to be run on the socket; `announce` is given a link's token now, and whenever one is new.

    Connections of other users of this machine are refused, unless `by_proxy`: a proxy runs as any user.
    """
    keys = Keys(announce)
    keys.announce()
    door = Door(app, names, f"aaco_{port_of(listening)}", keys)
    # h11 hands on the target of a request as it came, and refuses a missing or second Host; a line of the access log
    # would hold the link.
    settings = uvicorn.Config(
        door if by_proxy else OwnUser(door),
        http="h11",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # whoever asks would name another client
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(settings)


def contents_app(find: Callable[[str], bytes | None], otherwise: App | None = None, *, first: str = "") -> App:
    """Serve what `find` returns for a path; where it returns nothing, `otherwise` answers, else 404.

    An expected error is answered by its line, with 503 where asking again may do. `first` is where `/` leads.
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
