"""The door: what passes, what is refused, and how often a link opens.

Pages of other origins attack a server with a real browser: they get through without the door, none does with it.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn

from aaco_pipeline.errors import UsageError
from aaco_pipeline.web.door import App, Door, Keys, Message, Receive, Scope, Send, names_of
from aaco_pipeline.web.serving import LOOPBACK, listen, port_of
from benchmarks.reliability.web_attacks import BROWSER_FLAGS, FEWEST_ATTACKS, attack_from_everywhere, attacker
from tests.report.html.browser import CHROMIUM, Browser
from tests.served import served

PORT: Final = 3000
HOST: Final = "127.0.0.1:3000"
JSON: Final = ("content-type", "application/json")
Headers = Sequence[tuple[str, str]]


class Behind:
    """An application that counts what reaches it."""

    def __init__(self) -> None:
        self.reached: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope)
        if scope["type"] == "http":
            headers = [(b"X-Frame-Options", b"ALLOWALL"), (b"content-security-policy", b"base-uri 'none'")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"behind"})


class Visitor:
    """Requests to a door of one start."""

    def __init__(self, host: str = "127.0.0.1", allowed: tuple[str, ...] = ()) -> None:
        self.app = Behind()
        self.tokens: list[str] = []
        self.keys = Keys(self.tokens.append)
        self.keys.announce()
        self.door = Door(self.app, names_of(host, PORT, allowed), f"aaco_{PORT}", self.keys)
        self.cookie = ("cookie", f"aaco_{PORT}={self.keys.cookie}")

    def ask(
        self, path: str = "/", *headers: tuple[str, str], method: str = "GET", host: str | None = HOST, **scope: Any
    ) -> list[Message]:
        """Return the door's answer to one request; `path` includes the query."""
        told: list[Message] = []
        address, _, query = path.partition("?")
        named = [*([("host", host)] if host is not None else []), *headers]
        asked: Scope = {
            "type": "http",
            "method": method,
            "path": address,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named],
            **scope,
        }

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            told.append(message)

        asyncio.run(self.door(asked, receive, send))
        return told

    def passes(self, path: str = "/", *headers: tuple[str, str], **scope: Any) -> bool:
        """Return whether the application saw the request; otherwise it must be refused in one plain line."""
        before = len(self.app.reached)
        told = self.ask(path, self.cookie, *headers, **scope)
        if len(self.app.reached) > before:
            return True
        if scope.get("type") == "websocket":
            assert [one["type"] for one in told] == ["websocket.close"]
        else:
            assert told[0]["status"] == 403
            assert told[1]["body"].count(b"\n") == 1
        return False


def headers_of(told: list[Message]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in told[0]["headers"]}


@pytest.fixture
def visitor() -> Visitor:
    return Visitor()


@pytest.mark.parametrize("path", ["/", "/graphql", "/server_info", "/logs/x", "/report_asset_check/x", "/favicon.ico"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_without_the_cookie_nothing_passes(visitor: Visitor, path: str, kind: str) -> None:
    told = visitor.ask(path, JSON, method="POST", type=kind)
    assert visitor.app.reached == []
    assert told[0].get("status", told[0].get("code")) == (403 if kind == "http" else 4403)


def test_with_the_cookie_the_pages_and_websockets_of_this_server_pass(visitor: Visitor) -> None:
    origin = ("origin", f"http://{HOST}")
    assert visitor.passes("/assets", ("sec-fetch-site", "none"))
    assert visitor.passes("/graphql", origin, JSON, ("sec-fetch-site", "same-origin"), method="POST")
    assert visitor.passes("/graphql", origin, ("content-type", "application/json; charset=utf-8"), method="POST")
    assert visitor.passes("/graphql", origin, type="websocket")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", ""])
def test_what_another_site_causes_is_refused(visitor: Visitor, site: str) -> None:
    assert not visitor.passes("/", ("sec-fetch-site", site))


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:3001", "https://127.0.0.1:3000"),
        *("http://127.0.0.1:3000.evil.example", "HTTP://127.0.0.1:3000", "file://", "http://127.0.0.1:3000/"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_origins_are_refused(visitor: Visitor, origin: str, kind: str) -> None:
    assert not visitor.passes("/graphql", ("origin", origin), JSON, method="POST", type=kind)


@pytest.mark.parametrize("host", ["127.0.0.1:3000", "localhost:3000", "[::1]:3000"])
def test_the_names_of_loopback_are_its_own(visitor: Visitor, host: str) -> None:
    assert visitor.passes("/", host=host)


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "evil.example:3000", "127.0.0.1", "127.0.0.1:3001", "localhost", "localhost.:3000"),
        *("LOCALHOST:3000", "a.localhost:3000", "[::1]", "::1:3000", "127.0.0.1:3000@evil.example", "127.1:3000"),
        *("0.0.0.0:3000", "127.0.0.1:03000", "2130706433:3000", "127.0.0.1:3000, evil.example"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/?token={}"])
def test_other_names_are_refused_the_link_too(visitor: Visitor, host: str | None, path: str) -> None:
    assert not visitor.passes(path.format(visitor.tokens[0]), host=host)


@pytest.mark.parametrize(
    "twice", [("host", HOST), ("cookie", "a=b"), ("origin", f"http://{HOST}"), ("sec-fetch-site", "none"), JSON]
)
def test_what_is_said_twice_is_refused(visitor: Visitor, twice: tuple[str, str]) -> None:
    assert visitor.passes("/graphql", ("origin", f"http://{HOST}"), ("sec-fetch-site", "none"), JSON, method="POST")
    both = [("origin", f"http://{HOST}"), ("sec-fetch-site", "none"), JSON, (twice[0].upper(), twice[1])]
    assert not visitor.passes("/graphql", *both, method="POST")


def test_a_target_that_names_a_host_is_refused(visitor: Visitor) -> None:
    for path in ("http://evil.example/", f"http://{HOST}/", "*", "evil.example:443", ""):
        assert not visitor.passes(path)


@pytest.mark.parametrize(
    "cookie",
    [
        *("", "aaco_3001={}", "aaco_3000=", "aaco_3000={}x", "aaco_3000={}; aaco_3000={}", "AACO_3000={}"),
        *("x=aaco_3000={}", "aaco_3000=x; aaco_3000={}", "aaco_3000 ={}", '"aaco_3000={}"', "aaco_3000=é"),
    ],
)
def test_other_cookies_are_refused(visitor: Visitor, cookie: str) -> None:
    visitor.cookie = ("cookie", cookie.format(visitor.keys.cookie, visitor.keys.cookie))
    assert not visitor.passes()


def test_the_cookie_is_found_beside_those_of_other_servers(visitor: Visitor) -> None:
    visitor.cookie = ("cookie", f"a=b; aaco_3000={visitor.keys.cookie}; aaco_4000=x")
    assert visitor.passes()


def test_the_cookie_of_another_start_is_refused(visitor: Visitor) -> None:
    visitor.cookie = Visitor().cookie
    assert not visitor.passes()


@pytest.mark.parametrize("path", ["/graphql", "/graphql/", "/graphql?query={version}"])
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("GET", "application/json"),
        ("HEAD", "application/json"),
        ("POST", "text/plain"),
        ("POST", ""),
        ("POST", "application/x-www-form-urlencoded"),
        ("POST", "multipart/form-data; boundary=application/json"),
        ("POST", "text/plain; application/json"),
        ("POST", "application/json-seq"),
        ("POST", "application/graphql"),
        ("PUT", "application/json"),
    ],
)
def test_graphql_takes_post_with_json_alone(visitor: Visitor, path: str, method: str, kind: str) -> None:
    assert not visitor.passes(path, ("content-type", kind), method=method)


def test_a_link_gives_the_cookie_once(visitor: Visitor) -> None:
    link = f"/?token={visitor.tokens[0]}"
    told = visitor.ask(link)
    assert told[0]["status"] == 303
    headers = headers_of(told)
    assert headers["location"] == "/"
    assert headers["set-cookie"] == f"aaco_3000={visitor.keys.cookie}; HttpOnly; SameSite=Strict; Path=/"
    assert headers["referrer-policy"] == "no-referrer"
    again = visitor.ask(link)
    assert again[0]["status"] == 403
    assert "set-cookie" not in headers_of(again)
    assert visitor.app.reached == []


def test_a_used_link_still_works_in_the_browser_that_used_it(visitor: Visitor) -> None:
    link = f"/?token={visitor.tokens[0]}"
    visitor.ask(link)
    told = visitor.ask(link, visitor.cookie)
    assert (told[0]["status"], headers_of(told)["location"]) == (303, "/")
    assert len(visitor.tokens) == 1


def test_the_browser_that_is_in_uses_no_link_up(visitor: Visitor) -> None:
    link = f"/?token={visitor.tokens[0]}"
    assert visitor.ask(link, visitor.cookie)[0]["status"] == 303
    assert "set-cookie" in headers_of(visitor.ask(link))


def test_a_second_browser_with_a_used_link_has_one_new_link_announced(visitor: Visitor) -> None:
    visitor.ask(f"/?token={visitor.tokens[0]}")
    for _ in range(3):
        told = visitor.ask(f"/?token={visitor.tokens[0]}")
        assert b"used already" in told[1]["body"]
    first, second = visitor.tokens
    assert "set-cookie" in headers_of(visitor.ask(f"/?token={second}"))
    for used in (first, second):
        assert visitor.ask(f"/?token={used}")[0]["status"] == 403
    assert len(visitor.tokens) == 3


@pytest.mark.parametrize("guess", ["A" * 43, "{}A", "A{}", "", "{}&x=1", "x&token={}"])
def test_a_guessed_link_opens_nothing_and_announces_nothing(visitor: Visitor, guess: str) -> None:
    for path in ("/?token=", "/assets?token=", "/?TOKEN="):
        told = visitor.ask(path + guess.format(visitor.tokens[0]))
        assert told[0]["status"] == 403
        assert "set-cookie" not in headers_of(told)
    assert visitor.ask(f"/?token={'A' * 43}", visitor.cookie)[0]["status"] == 403
    assert len(visitor.tokens) == 1


@pytest.mark.parametrize("scope", [{"method": "POST"}, {"method": "HEAD"}, {"type": "websocket"}])
def test_a_link_is_opened_by_get_alone(visitor: Visitor, scope: dict[str, str]) -> None:
    visitor.ask(f"/?token={visitor.tokens[0]}", **scope)
    assert "set-cookie" in headers_of(visitor.ask(f"/?token={visitor.tokens[0]}"))


def test_a_link_clicked_in_another_page_is_opened_again_by_a_page_of_ours(visitor: Visitor) -> None:
    """The strict cookie would not go with a redirect; nothing is used up before, by a preview for instance."""
    link = f"/?token={visitor.tokens[0]}"
    for site in ("cross-site", "same-site"):
        told = visitor.ask(link, ("sec-fetch-site", site))
        assert (told[0]["status"], headers_of(told)["refresh"]) == (200, f"0;url={link}")
        assert "set-cookie" not in headers_of(told)
    assert "set-cookie" in headers_of(visitor.ask(link, ("sec-fetch-site", "same-origin")))


def test_answers_are_not_framed_guessed_at_or_kept(visitor: Visitor) -> None:
    told = visitor.ask("/", visitor.cookie)
    assert ("x-frame-options", "SAMEORIGIN") in headers_of(told).items()
    assert [name for name, _ in told[0]["headers"]].count(b"x-frame-options") == 1
    policies = [value for name, value in told[0]["headers"] if name == b"content-security-policy"]
    assert policies == [b"base-uri 'none'", b"frame-ancestors 'self'"]
    headers = headers_of(told)
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "private, no-cache")
    assert headers["referrer-policy"] == "no-referrer"


def test_only_known_kinds_of_connections_are_handled(visitor: Visitor) -> None:
    visitor.ask(type="lifespan")
    assert [scope["type"] for scope in visitor.app.reached] == ["lifespan"]
    with pytest.raises(ValueError, match="webtransport"):
        visitor.ask(type="webtransport")


def test_a_name_that_is_allowed_is_meant_with_and_without_the_port_and_behind_https() -> None:
    visitor = Visitor(allowed=("Build.Example", "other.example:8443"))
    for host in ("build.example", "build.example:3000", "other.example:8443"):
        for scheme in ("http", "https"):
            assert visitor.passes("/graphql", JSON, ("origin", f"{scheme}://{host}"), method="POST", host=host)
    for host in ("other.example", "other.example:3000", "build.example:443", "a.build.example"):
        assert not visitor.passes(host=host)


@pytest.mark.parametrize(
    ("listening", "host"), [("192.0.2.7", "192.0.2.7:3000"), ("fd00::7", "[fd00::7]:3000"), ("Node7", "node7:3000")]
)
def test_the_address_that_it_listens_on_is_a_name_of_its_own(listening: str, host: str) -> None:
    assert Visitor(listening).passes(host=host)


def test_port_80_may_be_left_out_as_browsers_do() -> None:
    assert {"localhost", "localhost:80"} <= names_of("127.0.0.1", 80).hosts


@pytest.mark.parametrize("name", ["", "*", "https://build.example", "build.example/x", "a b", "build.example:", "a,b"])
def test_what_is_no_name_is_refused_when_it_is_allowed(name: str) -> None:
    with pytest.raises(UsageError, match="--allowed-host"):
        names_of("127.0.0.1", PORT, (name,))


def test_tokens_have_256_bits() -> None:
    visitor, other = Visitor(), Visitor()
    for token in (visitor.tokens[0], visitor.keys.cookie):
        assert len(token) == 43  # of six bits
    assert len({visitor.tokens[0], visitor.keys.cookie, other.tokens[0], other.keys.cookie}) == 4


class Careless:
    """An application that takes every request and every WebSocket, as Dagster's does, and counts them."""

    def __init__(self) -> None:
        self.attacks: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        self.attacks.append(f"{scope['type']} {scope['path']}?{scope['query_string'].decode()}")
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept", "subprotocol": "graphql-ws"})
            await send({"type": "websocket.send", "text": "{}"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
            await send({"type": "http.response.body", "body": b"data"})


@contextmanager
def without_a_door(app: App) -> Iterator[int]:
    with listen(LOOPBACK, 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield port_of(listening)
        server.should_exit = True
        thread.join()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this host: what pages of others reach through a browser is not tested")
    opened = Browser(tmp_path / "profile", *BROWSER_FLAGS)
    yield opened
    opened.close()


@pytest.mark.nightly
def test_no_page_of_another_origin_reaches_what_is_behind_the_door(browser: Browser, tmp_path: Path) -> None:
    behind, bare = Careless(), Careless()
    with attacker() as evil:
        with without_a_door(bare) as port:
            seen = attack_from_everywhere(browser, port, evil, tmp_path)
        assert min(map(len, seen.values())) >= FEWEST_ATTACKS
        assert len(set(bare.attacks)) > 100
        with served(behind) as server:
            browser.open(server.links[0])
            assert browser.run("document.body.innerText") == "data"
            signed_in = len(behind.attacks)
            tried = attack_from_everywhere(browser, server.port, evil, tmp_path)
        assert {place: set(names) for place, names in tried.items()} == {
            place: set(names) for place, names in seen.items()
        }
        assert behind.attacks[signed_in:] == []
