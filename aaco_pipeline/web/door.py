"""Access control for all web servers of this package: checks hosts, origins and login links. Pure ASGI, stdlib only.

A request passes if its Host and Origin are names of this server, no other site caused it, and it carries the cookie set
by the printed link. The requests themselves are not inspected, with one exception for Dagster: `/graphql` accepts only
POST with JSON.
"""

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from aaco_pipeline.errors import UsageError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN_BYTES: Final = 32
_LINK: Final = re.compile(rb"token=([A-Za-z0-9_-]{43})")
_HOST: Final = re.compile(r"(?P<name>[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_SINGLE: Final = (b"host", b"origin", b"cookie", b"sec-fetch-site", b"content-type")
_ADDED: Final = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_NOT_IN: Final = "Not let in: open the link that the command printed where it was started."
_USED: Final = "This link was used already: a new one stands where the command was started."
_OTHER_NAME: Final = "Not let in: this server goes by other names; `aaco ui --allowed-host NAME` adds one."
_JSON_ALONE: Final = "Not let in: GraphQL takes POST with application/json alone."
_NO_TEXT: Final = "Not let in: this request can be read in more than one way."


@dataclass(frozen=True)
class Names:
    """Names that a server accepts in Host, and the origins of its pages."""

    hosts: frozenset[str]
    origins: frozenset[str]


def names_of(host: str, port: int, allowed: tuple[str, ...] = ()) -> Names:
    """Return the names of a server listening on `host`: loopback names, its own, and `allowed` names, also behind
    HTTPS.

    An allowed NAME matches the server's port and the browser's default port; NAME:PORT matches only that port.
    UsageError for an invalid name.
    """
    own = {f"{name}:{port}" for name in (*_LOOPBACK, _bracketed(host))}
    if port == 80:
        own |= {*_LOOPBACK, _bracketed(host)}
    others = set()
    for name in (one.lower() for one in allowed):
        found = _HOST.fullmatch(name)
        if found is None:
            raise UsageError(f"--allowed-host {name}: write a name or NAME:PORT, without scheme and path")
        others |= {name} if found["name"] != name else {name, f"{name}:{port}"}
    plain = {f"http://{name}" for name in own | others}
    return Names(frozenset(own | others), frozenset(plain | {f"https://{name}" for name in others}))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()


class Keys:
    """Secrets of one server start: the cookie's value, and links that each open once.

    A link that leaks after its use (terminal history, log, shared screen) is worthless. Opening a used link without a
    cookie, for example in a second browser, announces a new link; only one unused link exists at a time.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        """`announce` receives each new token; it must reach only the user who started the server."""
        self._announce = announce
        self.cookie: Final = secrets.token_urlsafe(_TOKEN_BYTES)
        self._tokens: list[str] = []
        self._newest_is_unused = False

    def announce(self) -> None:
        """Create and announce a link token, unless an unused one exists."""
        if not self._newest_is_unused:
            self._tokens.append(secrets.token_urlsafe(_TOKEN_BYTES))
            self._newest_is_unused = True
            self._announce(self._tokens[-1])

    def knows(self, token: str) -> bool:
        return any([_same(token, own) for own in self._tokens])  # noqa: C419 - constant time: compare every token

    def use(self, token: str) -> bool:
        """Accept a link that has not been used yet."""
        unused = self._newest_is_unused and _same(token, self._tokens[-1])
        if unused:
            self._newest_is_unused = False
        return unused


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class Door:
    """Middleware: `app` sees only the requests that pass."""

    def __init__(self, app: App, names: Names, cookie_name: str, keys: Keys) -> None:
        self._app = app
        self._names = names
        self._cookie_name = cookie_name
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] not in ("http", "websocket"):
            raise ValueError(f"the door knows no connections of type {scope['type']}")
        headers = _single_headers(scope)
        refusal = _NO_TEXT if headers is None else self._misnamed(scope, headers)
        if headers is not None and refusal is None:
            link = _link_token(scope)
            if link is not None:
                return await self._open(link, headers, send)
            refusal = self._refusal(scope, headers)
        if refusal is None:
            return await self._app(scope, receive, send if scope["type"] == "websocket" else _with_headers(send))
        return await refuse(scope, receive, send, refusal)

    def _misnamed(self, scope: Scope, headers: dict[bytes, str]) -> str | None:
        """Return why a request is refused before its link is checked: it targets another server, or another page caused
        it.
        """
        if not scope["path"].startswith("/"):
            return _NO_TEXT
        if headers.get(b"host") not in self._names.hosts:
            return _OTHER_NAME
        return None if headers.get(b"origin") in (None, *self._names.origins) else _NOT_IN

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> str | None:
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin") or not self._has_cookie(headers):
            return _NOT_IN
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/graphql":
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if scope["method"] != "POST" or kind != "application/json":
                return _JSON_ALONE
        return None

    def _has_cookie(self, headers: dict[bytes, str]) -> bool:
        pairs = [pair.strip().partition("=") for pair in headers.get(b"cookie", "").split(";")]
        values = [value for name, _, value in pairs if name == self._cookie_name]
        return len(values) == 1 and _same(values[0], self._keys.cookie)

    async def _open(self, token: str, headers: dict[bytes, str], send: Send) -> None:
        """Answer a request for the printed link."""
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link clicked on another page, such as a terminal in the browser: a redirect would not carry the strict
            # cookie. A page of ours opens the link again, so nothing is decided or used up before that.
            return await _answer(send, 200, "Opening …", (b"refresh", f"0;url=/?token={token}".encode()))
        if not self._keys.knows(token):
            return await _answer(send, 403, _NOT_IN)
        if self._has_cookie(headers):
            return await _answer(send, 303, "", (b"location", b"/"))
        if self._keys.use(token):
            cookie = f"{self._cookie_name}={self._keys.cookie}; HttpOnly; SameSite=Strict; Path=/"
            return await _answer(send, 303, "", (b"location", b"/"), (b"set-cookie", cookie.encode()))
        self._keys.announce()
        return await _answer(send, 403, _USED)


def _single_headers(scope: Scope) -> dict[bytes, str] | None:
    """Return the deciding headers, or None if one occurs twice, because two readers may pick different ones."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name.lower() in _SINGLE:
            if name.lower() in found:
                return None
            found[name.lower()] = value.decode("latin-1")
    return found


def _link_token(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
        return None
    found = _LINK.fullmatch(scope["query_string"])
    return None if found is None else found[1].decode()


async def refuse(scope: Scope, receive: Receive, send: Send, line: str) -> None:
    """Answer 403 with one line of text, or close a WebSocket before it opens."""
    if scope["type"] == "websocket":
        await receive()
        return await send({"type": "websocket.close", "code": 4403})
    return await _answer(send, 403, line)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            replaced = {name for name, _ in _ADDED}
            kept = [(name, value) for name, value in headers if name not in replaced]
            # A separate policy that leaves Dagster's unchanged: browsers enforce both.
            added = [*_ADDED, (b"content-security-policy", b"frame-ancestors 'self'")]
            if all(name != b"cache-control" for name, _ in kept):
                added.append((b"cache-control", b"private, no-cache"))
            message = {**message, "headers": [*kept, *added]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, line: str, *headers: tuple[bytes, bytes]) -> None:
    body = f"{line}\n".encode() if line else b""
    told = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    policy = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
    fixed = [(b"cache-control", b"no-store"), policy, *_ADDED]
    await send({"type": "http.response.start", "status": status, "headers": [*told, *fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
