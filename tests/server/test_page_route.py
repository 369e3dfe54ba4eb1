"""The page's files: how they are sent, and what they may not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import canned_page
import httpx2 as httpx

from qeff.apps.server import page_route

FOLDER = Path(page_route.__file__).parent / "page"
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".html"))


@pytest.fixture(scope="module")
def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=canned_page.make_app())
    return httpx.AsyncClient(transport=transport, base_url="http://page")


def get(client: httpx.AsyncClient, path: str, **headers: str) -> httpx.Response:
    import asyncio

    return asyncio.run(client.get(path, headers=headers))


def test_the_policy_lets_nothing_in_from_elsewhere(client: httpx.AsyncClient) -> None:
    for path in ("/", "/page/main.js", "/page/look.css", "/favicon.ico"):
        answer = get(client, path)
        assert answer.status_code == 200
        policy = dict(
            rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
        )
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "connect-src": "'self'",
            "img-src": "'self' data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_types_and_what_is_not_sent_twice(client: httpx.AsyncClient) -> None:
    answer = get(client, "/page/main.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    again = get(client, "/page/main.js", **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page/none.js", "/page/..%2Fpage_route.py", "/page/%2e%2e/app.py", "/page/", "/page"]
)
def test_only_the_page_is_sent(client: httpx.AsyncClient, path: str) -> None:
    assert get(client, path).status_code == 404


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_files_keep_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 400
    assert path.suffix != ".js" or max(map(len, lines)) <= 120
    # Text becomes markup nowhere, and no address of elsewhere is in the files.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert not re.search(r"\bstyle=|\bon\w+=\"", text), "the policy forbids both in markup"
    addresses = set(re.findall(r"https?://[\w.]+", text))
    assert addresses <= {"http://www.w3.org"}, "the name of SVG is no address"


def test_every_file_is_used() -> None:
    whole = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for name in page_route.page_files():
        assert name == page_route.INDEX or f"/{name}" in whole, name
