"""A whole batch: every line that has no answer is asked, so many at a time, and its answer kept.

A full queue is waited for. A server that does not answer is tried again for a while; then the batch
stops, and can be gone on with. Knows nothing of models.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qeff.apps.batch import jobs
from qeff.apps.batch.jobs import Job
from qeff.apps.batch.ledger import Ledger
from qeff.apps.batch.senders import Reply, Sender
from qeff.apps.load.client import ConnectionLost
from qeff.core.errors import RequestError
from qeff.core.progress import Event, Progress, silent

BUSY = (429, 503)
REFUSED = (401, 403)  # whatever is asked
MAX_WAITS = 100  # for a full queue, before its refusal is the answer
WAIT_S = 1.0  # where a refusal does not say how long


@dataclass(slots=True)
class Summary:
    """What became of the lines of a batch; ``failed`` of those that were answered in this run."""

    lines: int = 0
    answered_before: int = 0
    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def count(self, line: dict[str, Any]) -> None:
        """Take one answer in."""
        self.answered += 1
        response = line["response"]
        if response is None or response["status_code"] >= 400:
            self.failed += 1
            return
        body = response["body"]
        usage = (body.get("usage") if isinstance(body, dict) else None) or {}
        self.prompt_tokens += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self.completion_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Worker:
    """Asks for answers and keeps them.

    Args:
        sender: The way to the routes.
        ledger: Where the answers go.
        patience_s: How long a server that does not answer is tried again.
    """

    sender: Sender
    ledger: Ledger
    patience_s: float = 60.0

    async def answer(self, job: Job) -> dict[str, Any]:
        """The line of the output for one job."""
        if job.body is None:
            error = {"code": "invalid_request", "message": job.fault}
            return {"id": job.id, "custom_id": job.custom_id, "response": None, "error": error}
        reply = await self._ask(job.url, job.body)
        response = {
            "status_code": reply.status,
            "request_id": reply.request_id,
            "body": reply.body,
        }
        return {"id": job.id, "custom_id": job.custom_id, "response": response, "error": None}

    async def _ask(self, url: str, body: dict[str, Any]) -> Reply:
        """Ask until the queue has room and the server is there."""
        num_waits, lost_at = 0, None
        while True:
            try:
                reply = await self.sender.post(url, body)
            except ConnectionLost as error:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at >= self.patience_s:
                    raise ConnectionLost(
                        error.what, "what is answered is kept: run the same command again to go on"
                    ) from error
                await asyncio.sleep(min(WAIT_S, self.patience_s))
                continue
            if reply.status in REFUSED:
                raise RequestError(
                    f"the server lets nobody in without a key that it knows ({reply.status})",
                    "give --api-key; what is answered is kept",
                )
            lost_at = None
            num_waits += 1
            if reply.status not in BUSY or num_waits > MAX_WAITS:
                return reply
            await asyncio.sleep(WAIT_S if reply.retry_after_s is None else reply.retry_after_s)


async def work(
    source: Path, num_lines: int, worker: Worker, at_once: int, *, progress: Progress = silent
) -> Summary:
    """Answer what has no answer of the lines of ``source``; the summary of this run."""
    ledger = worker.ledger
    summary = Summary(lines=num_lines, answered_before=len(ledger.answered))
    began = time.monotonic()
    left = _left(source, frozenset(ledger.answered))

    async def some() -> None:
        for job in left:  # shared: every job is taken by one of us
            line = await worker.answer(job)
            ledger.append(line)
            summary.count(line)
            progress(Event("batch", len(ledger.answered), num_lines, "lines"))

    tasks = [asyncio.create_task(some()) for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    summary.seconds = time.monotonic() - began
    return summary


def _left(source: Path, answered: frozenset[str]) -> Iterator[Job]:
    return (job for job in jobs.read(source) if job.id not in answered)
