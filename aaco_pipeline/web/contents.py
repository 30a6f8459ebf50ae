"""The ASGI application that gives files by their addresses: reports and traces, and nothing else of the disk."""

import asyncio
from collections.abc import Callable
from typing import Final

from aaco_pipeline.errors import AacoError, PassingLakeError
from aaco_pipeline.web.door import App, Receive, Scope, Send

_KINDS: Final = {".html": "text/html; charset=utf-8", ".json": "application/json"}


def contents_app(find: Callable[[str], bytes | None], otherwise: App | None = None, *, first: str = "") -> App:
    """What `find` gives for a path; where it gives nothing, what `otherwise` answers, else 404.

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
