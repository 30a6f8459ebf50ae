"""Who is at the other end of a connection from this machine: the kernel's table of sockets names the user of each.

A browser sends a cookie to every port of a host name, so that another user's server can be given ours; what that user
then sends comes from a socket of theirs.
"""

import os
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from aaco_pipeline.web.door import App, Receive, Scope, Send, refuse

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED: Final = "01"
_ANOTHERS: Final = "Not let in: this connection is another user's of this machine."


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
