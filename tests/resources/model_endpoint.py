"""An endpoint on loopback that answers with the bytes that a test gives it, one script a connection."""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Pieces for the wire; a float waits so many seconds.
Script = Iterable[bytes | float]


@dataclass
class Endpoint:
    """`requests` are the bodies that came, `headers` the heads, in order; `answered`, scripts sent whole."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    answered: int = 0


def answer(body: bytes, status: str = "200 OK", length: int | None = None, **headers: str) -> list[bytes | float]:
    """A whole HTTP answer; `length` is what it says of its body where that is a lie."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ["\r\n".join([*lines, "", ""]).encode() + body]


def completion(text: str | None, **choice: Any) -> list[bytes | float]:
    """A chat completion with this text."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop", **choice}]
    return answer(json.dumps({"choices": choices}).encode())


@contextmanager
def serving(*scripts: Script | Callable[[str], Script]) -> Iterator[Endpoint]:
    """Serve the scripts, the last for every connection after it; one may depend on the endpoint's own address."""
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    stopping = threading.Event()

    def serve() -> None:
        taken = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if stopping.is_set():
                    return
                script = scripts[min(taken, len(scripts) - 1)]
                taken += 1
                try:
                    _take(connection, endpoint)
                    for piece in script(endpoint.url) if callable(script) else script:
                        if isinstance(piece, bytes):
                            connection.sendall(piece)
                        elif hung_up(connection, piece):
                            break
                    else:
                        endpoint.answered += 1
                except OSError:
                    continue  # the client has had enough, which is what the test is about

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        stopping.set()
        with socket.create_connection(listener.getsockname()):
            pass
        thread.join(5)
        listener.close()
        assert not thread.is_alive()


def hung_up(connection: socket.socket, seconds: float) -> bool:
    """Wait so long; end at once where the client closes the connection."""
    return bool(select.select([connection], [], [], seconds)[0])


def _take(connection: socket.socket, endpoint: Endpoint) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += (piece := connection.recv(65536))
        if not piece:
            raise ConnectionAbortedError
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += (piece := connection.recv(65536))
        if not piece:
            raise ConnectionAbortedError
    endpoint.headers.append(head.decode())
    endpoint.requests.append(json.loads(body))
