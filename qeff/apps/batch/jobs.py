"""The lines of a batch's input: what each asks, or why it cannot be asked.

A line has an id that is made of what it says, so that a second run knows which lines were answered.
Reads line by line; knows nothing of how requests are answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from qeff.core.errors import RequestError

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


@dataclass(frozen=True, slots=True)
class Job:
    """One line; ``fault`` says why it cannot be sent."""

    id: str
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] | None = None
    fault: str | None = None


def read(path: Path) -> Iterator[Job]:
    """The jobs of a file in their order; empty lines are none."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield parse(line.strip(), number)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def check(path: Path) -> dict[str, str | None]:
    """The custom id of every job by the job's id; a custom id that stands twice is refused."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is no file", "it is read twice: give a file of its own")
    found: dict[str, str | None] = {}
    seen: set[str] = set()
    for job in read(path):
        if job.custom_id is not None:
            if job.custom_id in seen:
                raise RequestError(
                    f"custom_id {job.custom_id!r} stands on more than one line of {path}",
                    "answers are told apart by it: give every line its own",
                )
            seen.add(job.custom_id)
        found[job.id] = job.custom_id
    return found


def parse(line: bytes, number: int) -> Job:
    """One line, sound or not."""
    try:
        found = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return _faulty(line, number, None, f"line {number} is no JSON: {error}")
    if not isinstance(found, dict):
        return _faulty(line, number, None, f"line {number} is no JSON object")
    custom_id, url, body = found.get("custom_id"), found.get("url"), found.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return _faulty(line, number, None, f"line {number} has no custom_id")
    if found.get("method", "POST") != "POST":
        return _faulty(line, number, custom_id, "method must be POST")
    if url not in URLS:
        return _faulty(line, number, custom_id, f"url must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        return _faulty(line, number, custom_id, "body must be a JSON object")
    if body.get("stream"):
        return _faulty(line, number, custom_id, "an answer of a batch cannot be streamed")
    return Job(_id(line), custom_id, url, body)


def _faulty(line: bytes, number: int, custom_id: str | None, fault: str) -> Job:
    # Two lines without a custom_id may say the same, so their place tells them apart.
    name = _id(line) if custom_id is not None else _id(b"%d\0%s" % (number, line))
    return Job(name, custom_id, fault=fault)


def _id(line: bytes) -> str:
    return f"batch_req_{sha256(line).hexdigest()[:24]}"
