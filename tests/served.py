"""A server behind the door in a thread of a test's process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aaco_pipeline.web.door import App, names_of
from aaco_pipeline.web.serving import LOOPBACK, link_to, listen, port_of, server_behind_the_door


@dataclass(frozen=True)
class Served:
    """`links` are those that were announced, the first at once."""

    port: int
    links: list[str]


@contextmanager
def served(app: App) -> Iterator[Served]:
    """Serve `app` on a free port of loopback, as the command does."""
    with listen(LOOPBACK, 0) as listening:
        port, links = port_of(listening), list[str]()
        server = server_behind_the_door(
            app, listening, names_of(LOOPBACK, port), lambda token: links.append(link_to(LOOPBACK, port, token))
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Served(port, links)
        finally:
            server.should_exit = True
            thread.join()
