"""Connections from this machine are known by their user, whatever they say of themselves."""

import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from aaco_pipeline.web.contents import contents_app
from aaco_pipeline.web.door import Receive, Scope, Send
from aaco_pipeline.web.own_user import is_own
from tests.served import served

SERVERS = [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("::", socket.AF_INET6)]
#: Connects to a port and waits for the end of its standard input.
CLIENT = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); sys.stdin.read()"
#: Asks for an address with headers, and says the status.
ASKING = """
import json, sys, urllib.error, urllib.request
address, headers = json.loads(sys.argv[1])
try:
    print(urllib.request.urlopen(urllib.request.Request(address, headers=headers)).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
BECOME = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
as_another = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or not os.access("/usr/bin/python3", os.X_OK),
    reason="only root, with setpriv and /usr/bin/python3, can connect as another user",
)


@pytest.fixture(params=SERVERS, ids=["IPv4", "IPv6", "both"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    host, family = request.param
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error.strerror}")
    with server:
        yield server


def host_of(listening: socket.socket) -> str:
    host: str = listening.getsockname()[0]
    return "127.0.0.1" if host == "::" else host


def ends(connection: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    return connection.getpeername()[:2], connection.getsockname()[:2]


def test_a_connection_of_this_user_is_its_own(listening: socket.socket) -> None:
    with socket.create_connection((host_of(listening), listening.getsockname()[1])):
        connection, _ = listening.accept()
        with connection:
            assert is_own(*ends(connection))


def test_a_connection_whose_other_end_was_closed_is_nobodys(listening: socket.socket) -> None:
    socket.create_connection((host_of(listening), listening.getsockname()[1])).close()
    connection, _ = listening.accept()
    with connection:
        assert not is_own(*ends(connection))


@as_another
def test_a_connection_of_another_user_is_not(listening: socket.socket) -> None:
    command = [*BECOME, "/usr/bin/python3", "-c", CLIENT, host_of(listening), str(listening.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/") as client:
        connection, _ = listening.accept()
        with connection:
            assert not is_own(*ends(connection))
        assert client.stdin is not None
        client.stdin.close()
        assert client.wait() == 0


def test_a_connection_of_another_machine_is_in_no_table_and_passes() -> None:
    assert is_own(("192.0.2.1", 40_000), ("192.0.2.2", 3000))


def test_one_that_is_said_to_be_of_this_machine_and_is_in_no_table_is_refused() -> None:
    assert not is_own(("127.0.0.1", 1), ("127.0.0.1", 2))


@as_another
@pytest.mark.parametrize("claim", [{}, {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http"}])
def test_another_user_with_this_ones_cookie_is_refused(claim: dict[str, str]) -> None:
    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"behind"})

    with served(contents_app(lambda address: None, behind)) as server:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            connection.request("GET", server.links[0].partition(str(server.port))[2])
            cookie = str(connection.getresponse().headers["Set-Cookie"]).partition(";")[0]
        asked = json.dumps([f"http://127.0.0.1:{server.port}/page", {"Cookie": cookie, **claim}])
        said = [
            subprocess.check_output([*become, "/usr/bin/python3", "-c", ASKING, asked], text=True, cwd="/")
            for become in ([], BECOME)
        ]
    assert said == ["200\n", "403\n"]
