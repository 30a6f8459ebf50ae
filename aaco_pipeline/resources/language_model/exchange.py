"""One HTTP exchange under limits of time and size that hold whatever the other side does.

Our own over `http.client`, because the other side may be hostile or broken and the libraries bound too little: their
time limits are for each read, so that an answer of one byte a second never ends; they read a body of any size, follow
redirects with the key in the header, take proxies from the environment, and some write request headers to a log. Here
one deadline holds for connecting, the handshake, sending and all reading (the system's resolver of names keeps its
own time), a body has a largest size and its declared length, and a redirect is an answer like any other.
"""

import http.client
import io
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

LARGEST_ANSWER_BYTES: Final = 4 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024


class ExchangeError(Exception):
    """No whole answer came. `again` tells that another try may do better."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


@dataclass(frozen=True)
class Reply:
    """An answer: its status, the seconds it asks to wait before the next try if it says so, and its body."""

    status: int
    retry_after_seconds: float | None
    body: bytes


def post(url: str, headers: Mapping[str, str], content: bytes, deadline: float) -> Reply:
    """Send `content` as JSON to `url` and read the whole answer before `deadline` of the monotonic clock.

    ExchangeError when that does not come to an end in time, or ends as no HTTP answer should.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = make(cast(str, parts.hostname), parts.port)
    connected: _Connected | None = None
    try:
        connected = _Connected(connection.host, connection.port, secure, deadline)
        connection.sock = cast(socket.socket, connected)
        connection.request("POST", parts.path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return Reply(response.status, _seconds(response.headers.get("Retry-After")), _body(response))
    except TimeoutError as error:
        raise ExchangeError("it did not answer in time", again=False) from error
    except ConnectionRefusedError as error:
        raise ExchangeError("the connection was refused", again=False) from error
    except (socket.gaierror, ssl.SSLCertVerificationError) as error:
        raise ExchangeError(
            f"it cannot be reached ({error.strerror or 'no valid certificate'})", again=False
        ) from error
    except http.client.HTTPException as error:
        raise ExchangeError(f"what it sent is no HTTP answer ({type(error).__name__})", again=True) from error
    except OSError as error:
        raise ExchangeError(f"the connection broke ({error.strerror or type(error).__name__})", again=True) from error
    finally:
        connection.close()
        if connected is not None:
            connected.hang_up()


def _body(response: http.client.HTTPResponse) -> bytes:
    """The whole body. ExchangeError when it is too large or not as long as it was declared."""
    declared = response.length
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ExchangeError(f"its answer is larger than {LARGEST_ANSWER_BYTES} bytes", again=False)
    if declared is not None and len(body) != declared:
        raise ExchangeError(f"its answer ended after {len(body)} of {declared} bytes", again=True)
    return bytes(body)


def _seconds(text: str | None) -> float | None:
    """What a Retry-After header says in seconds; a date, or anything else, says nothing here."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


def read_json(body: bytes) -> Any:
    """The body as plain values. ExchangeError, worth another try, when it is no JSON in UTF-8."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ExchangeError("its answer is not JSON", again=True) from error


class _Connected:
    """A connected socket, encrypted if `secure`, whose every operation ends at one deadline.

    A socket's own time limit is for one operation, and so no limit on an answer that comes byte by byte.
    """

    def __init__(self, host: str, port: int, secure: bool, deadline: float) -> None:
        self._deadline = deadline
        self._socket = socket.create_connection((host, port), self._left())
        if secure:
            context = ssl.create_default_context()
            try:
                self._socket.settimeout(self._left())
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def sendall(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            self._socket.settimeout(self._left())
            view = view[self._socket.send(view) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def receive_into(self, buffer: Any) -> int:
        self._socket.settimeout(self._left())
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Nothing: `http.client` closes once it has read the head of a last answer, whose body is then to come."""

    def hang_up(self) -> None:
        self._socket.close()


class _Incoming(io.RawIOBase):
    """What arrives on the socket, as `http.client` reads it."""

    def __init__(self, connected: _Connected) -> None:
        self._connected = connected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connected.receive_into(buffer)
