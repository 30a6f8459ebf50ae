"""Listening and serving: every server of ours takes a socket that is listened on already, and stands behind the door.

The socket is there before the link is: nobody else on the host can take the port in between and be given the link.
"""

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from aaco_pipeline.errors import UsageError
from aaco_pipeline.web.door import App, Door, Keys, Names
from aaco_pipeline.web.own_user import OwnUser

Listening = socket.socket
#: How long answers that are under way at the end may still take.
_GRACE_SECONDS: Final = 3
_BACKLOG: Final = 2048
LOOPBACK: Final = "127.0.0.1"
_ANYWHERE: Final = ("0.0.0.0", "::")


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
