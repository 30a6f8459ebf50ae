"""Files by their addresses, and what is answered where there is none."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar

import pytest

from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.web.contents import contents_app
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
