"""Pages of other origins attack a server with a real browser: they get through without the door, none does with it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from aaco_pipeline.web.door import App, Receive, Scope, Send
from aaco_pipeline.web.serving import LOOPBACK, listen, port_of
from benchmarks.reliability.web_attacks import BROWSER_FLAGS, FEWEST_ATTACKS, attack_from_everywhere, attacker
from tests.report.html.browser import CHROMIUM, Browser
from tests.served import served


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
