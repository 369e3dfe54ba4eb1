"""The web page at ``/`` and its files under ``/page/``.

The files are read once and are the same for everybody: they hold no data, so they need no API key.
A strict Content-Security-Policy keeps the page to what this server itself sends. Knows nothing of
what the page does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from qeff.apps.server.errors import ApiError
from qeff.apps.server.routing import Router

router = Router("page", is_shown=False)

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, answered by 304 when it is the same
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
ICON = "icon.svg"


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page, ready to be sent."""

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """All files of the page, by name."""
    found = {}
    for file in files("qeff.apps.server").joinpath("page").iterdir():
        stem, dot, suffix = file.name.rpartition(".")
        if stem and dot + suffix in TYPES:
            content = file.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:32]}"'
            found[file.name] = PageFile(content, TYPES[dot + suffix], etag)
    assert INDEX in found, "the page's files are not installed"
    return found


@router.get("/")
async def page(request: Request) -> Response:
    """The page."""
    return _answer(request, page_files()[INDEX])


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """Where browsers look for an icon without being told."""
    return _answer(request, page_files()[ICON])


@router.get("/page/{name}")
async def page_file(request: Request, name: str) -> Response:
    """One of the page's files. Only names of the list are known, so no path leads out of it."""
    file = page_files().get(name)
    if file is None:
        raise ApiError(404, f"The page has no file {name!r:.100}.")
    return _answer(request, file)


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
