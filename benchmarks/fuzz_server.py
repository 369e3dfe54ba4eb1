"""Sends generated requests to a running server and looks for answers that must not come.

    qeff serve CONTAINER --max-tokens 16
    python benchmarks/fuzz_server.py --url http://127.0.0.1:8000 --requests 10000

Schemathesis makes requests from the OpenAPI document, half of them as it describes them and
half that break it; some bodies are damaged byte by byte on top. The names of models are mended, so
that requests get further than that. Every answer must come within a minute, be no 5xx, and where it
is an error have the shape of its protocol with one sentence. Prints a table of what came; the exit
code is 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

TIMEOUT_S = 60
SHARE_DAMAGED = 0.1
MOST_SHOWN = 20
# A path and its words can hardly be broken, and looking for a way takes seconds.
MODES_WITHOUT_BODY = (schemathesis.GenerationMode.POSITIVE,)


@dataclass(slots=True)
class Findings:
    """What came back."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    def note(self, label: str, body: Any, response: requests.Response, seconds: float) -> None:
        """Count an answer, and keep what is wrong with it."""
        self.statuses[label, response.status_code] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        fault = fault_of(response)
        if fault is not None:
            self.faults.append(f"{label}: {fault}; body {body!r:.2000}")


def fault_of(response: requests.Response) -> str | None:
    """What is wrong with an answer, or None."""
    if response.status_code >= 500:
        return f"{response.status_code}: {response.text[:300]}"
    if response.status_code < 400:
        return _stream_fault(response.text) if "event-stream" in _kind(response) else None
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} without a message: {response.text[:300]}"
    if not isinstance(message, str) or "\n" in message or not message.endswith((".", "?", "!")):
        return f"{response.status_code} says no sentence: {message!r:.300}"
    return None


def _kind(response: requests.Response) -> str:
    return response.headers.get("content-type", "")


def _stream_fault(text: str) -> str | None:
    """An error of the server's own in the middle of a stream."""
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            error = event.get("error") if isinstance(event, dict) else None
            if isinstance(error, dict) and error.get("type") in ("server_error", "api_error"):
                return f"a stream broke off: {error}"
    return None


def fuzz(
    url: str,
    num_requests: int,
    *,
    first_seed: int = 0,
    names: tuple[str, ...] = (),
    listen: Callable[[str], None] = lambda line: None,
) -> Findings:
    """Send about so many requests, as many to each operation that takes a body."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    with_bodies = [one for one in operations if one.body]
    each = max(1, num_requests // (2 * len(with_bodies)))
    findings = Findings()
    with requests.Session() as session:
        for operation in operations:
            for mode in schemathesis.GenerationMode if operation.body else MODES_WITHOUT_BODY:
                strategy = operation.as_strategy(generation_mode=mode)
                count = each if operation.body else max(1, each // 10)
                sender = Sender(url, session, names, findings, first_seed)
                _drive(strategy, sender, count, first_seed)
                listen(f"{findings.num_requests} requests, {operation.label} ({mode.value})")
    return findings


class Sender:
    """Sends cases, some of them damaged."""

    def __init__(
        self,
        url: str,
        session: requests.Session,
        names: tuple[str, ...],
        findings: Findings,
        first_seed: int,
    ) -> None:
        self._url = url
        self._session = session
        self._names = names
        self._findings = findings
        self._random = random.Random(first_seed)

    def __call__(self, case: schemathesis.Case) -> None:
        """Send one case."""
        if isinstance(case.body, dict) and self._names and self._random.random() < 0.9:
            case.body["model"] = self._random.choice(self._names)
        damaged = self._damaged(case.body) if self._random.random() < SHARE_DAMAGED else None
        started = time.monotonic()
        label = case.operation.label
        if damaged is None:
            response: Any = case.call(base_url=self._url, session=self._session, timeout=TIMEOUT_S)
        else:
            response = self._session.request(
                case.method,
                self._url + case.formatted_path,
                data=damaged,
                headers={"content-type": "application/json"},
                timeout=TIMEOUT_S,
            )
        self._findings.note(label, damaged or case.body, response, time.monotonic() - started)

    def _damaged(self, body: Any) -> bytes | None:
        """A body with some bytes changed, left out or doubled; None where there is no JSON."""
        if not isinstance(body, dict | list):
            return None
        data = bytearray(json.dumps(body).encode())
        for _ in range(self._random.randint(1, 4)):
            place = self._random.randrange(len(data) + 1)
            change = self._random.randrange(3)
            piece = data[place : place + self._random.randint(1, 8)]
            if change == 0:
                data[place : place + 1] = self._random.randbytes(1)
            elif change == 1:
                data[place:place] = piece
            else:
                del data[place : place + len(piece)]
        return bytes(data)


def _drive(strategy: Any, send: Callable[[Any], None], count: int, first_seed: int) -> None:
    @seed(first_seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: Any) -> None:
        send(case)

    run()


def model_names(url: str) -> tuple[str, ...]:
    """The models of a server."""
    found = requests.get(f"{url}/v1/models", timeout=TIMEOUT_S).json()
    return tuple(card["id"] for card in found["data"])


def table(findings: Findings) -> Iterator[str]:
    """How often each status came, by operation."""
    statuses = sorted({status for _, status in findings.statuses})
    yield "| operation | " + " | ".join(map(str, statuses)) + " |"
    yield "| --- |" + " --- |" * len(statuses)
    for label in sorted({label for label, _ in findings.statuses}):
        counts = (str(findings.statuses[label, status] or "–") for status in statuses)
        yield f"| {label} | " + " | ".join(counts) + " |"


def main() -> int:
    """Fuzz a server and print what came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given_words = parser.parse_args()
    url = given_words.url.rstrip("/")
    findings = fuzz(
        url,
        given_words.requests,
        first_seed=given_words.seed,
        names=model_names(url),
        listen=lambda line: print(line, file=sys.stderr),
    )
    print("\n".join(table(findings)))
    print(f"\n{findings.num_requests} requests, the slowest {findings.slowest_s:.1f} s")
    for fault in findings.faults[:MOST_SHOWN]:
        print(fault)
    print(f"{len(findings.faults)} faults")
    return 1 if findings.faults else 0


if __name__ == "__main__":
    sys.exit(main())
