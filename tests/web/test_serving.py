"""Files by their addresses, and what is answered where there is none.

Connections from this machine are known by their user, whatever they say of themselves.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.cookiejar import CookieJar

import pytest

from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.web.door import Receive, Scope, Send
from aaco_pipeline.web.serving import contents_app, is_own
from tests.served import served

Fetch = Callable[[str], tuple[int, str, bytes]]


def torn(path: str) -> bytes | None:
    if path == "/torn":
        raise LakeError("a table is torn")
    if path == "/long":
        raise PassingLakeError("another process is at it")
    return {"/page.html": b"<p>page</p>", "/trace.gz": b"trace"}.get(path)


@pytest.fixture
def fetch() -> Iterator[Fetch]:
    """A function that fetches a path with the cookie of the link: status, kind and body."""
    with served(contents_app(torn, first="/page.html")) as server:
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )

        def get(path: str) -> tuple[int, str, bytes]:
            try:
                answer = opener.open(f"http://127.0.0.1:{server.port}{path}", timeout=60)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return answer.status, answer.headers["Content-Type"], answer.read()

        opener.open(server.links[0], timeout=60).close()
        yield get


def test_the_link_leads_to_the_first_file(fetch: Fetch) -> None:
    assert fetch("/") == fetch("/page.html") == (200, "text/html; charset=utf-8", b"<p>page</p>")


def test_what_is_no_page_is_no_text_for_the_browser_either(fetch: Fetch) -> None:
    assert fetch("/trace.gz") == (200, "application/octet-stream", b"trace")


@pytest.mark.parametrize("path", ["/other", "/page.html/", "/../page.html", "//etc/passwd"])
def test_nothing_else_is_there(fetch: Fetch, path: str) -> None:
    assert fetch(path)[0] == 404


@pytest.mark.parametrize(
    ("path", "answer"), [("/torn", (500, b"a table is torn\n")), ("/long", (503, b"another process is at it\n"))]
)
def test_what_cannot_be_made_is_answered_by_the_line_that_says_why(
    path: str, answer: tuple[int, bytes], fetch: Fetch
) -> None:
    status, _, body = fetch(path)
    assert (status, body) == answer


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
