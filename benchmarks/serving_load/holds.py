"""What must hold of a server whatever its clients do, each as a check that says what it found.

Every check takes the address of a running server of ours, and sizes, so that it can be run small.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from qeff.apps.load.client import Address, request
from qeff.apps.load.prompts import Ask
from qeff.apps.load.record import Record
from qeff.apps.load.sending import Target, send
from serving_load.findings import Finding, read_metrics

PATH, CHAT = "/v1/completions", "/v1/chat/completions"


async def _inside(address: Address, count: int) -> None:
    """Wait until so many requests are in the server; those that ended do not come back."""
    for _ in range(100):
        metrics = await read_metrics(address)
        inside = metrics["vllm:num_requests_waiting"] + metrics["vllm:num_requests_running"]
        if inside >= count or not inside:
            return
        await asyncio.sleep(0.05)


async def stopped_reader(
    target: Target,
    num_others: int,
    new_tokens: int,
    num_outputs: int,
    *,
    rounds: int = 3,
    slack: float = 1.25,
) -> Finding:
    """A client that stops reading: the others are as quick as beside one that reads.

    Sockets hold about 3 MB; the answer has to be larger for the server to be held up at all.
    """
    found = Finding("a client that stops reading")
    asks = [Ask(f"{n} others", max(1, new_tokens // 4)) for n in range(num_others)]

    async def others() -> float:
        began = time.perf_counter()
        records = await asyncio.gather(*(send(target, ask) for ask in asks))
        reasons = sorted({record.error for record in records if record.error})
        found.expect(not reasons, f"the others failed: {reasons}")
        return time.perf_counter() - began

    heavy = _heavy_body(target, new_tokens, num_outputs)
    await others()  # whatever is slow the first time
    beside_reading, beside_deaf, wanted, got = [], [], 0, 0
    for _ in range(rounds):
        reading = asyncio.create_task(_read_all(target, heavy))
        await asyncio.sleep(0.05)
        beside_reading.append(await others())
        wanted = await reading
        async with deaf(target, heavy) as rest:
            await asyncio.sleep(0.05)
            beside_deaf.append(await others())
            got = len(await rest())
    found.seen["others beside one that reads, s"] = f"{min(beside_reading):.2f}"
    found.seen["beside one that does not, s"] = f"{min(beside_deaf):.2f}"
    found.seen["its answer, bytes"] = got
    most_s = slack * min(beside_reading) + 0.25
    found.expect(min(beside_deaf) <= most_s, "the others were slowed")
    # The same text, in fewer chunks.
    found.expect(0.9 * wanted < got < 1.1 * wanted, f"it got {got} bytes of {wanted} in the end")
    return found


def _heavy_body(target: Target, new_tokens: int, num_outputs: int) -> dict[str, Any]:
    """A request with a large answer: several outputs, and many candidates of each token."""
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": "a long answer"}],
        "max_tokens": new_tokens,
        "n": num_outputs,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "ignore_eos": True,
        "stream": True,
    }


async def _read_all(target: Target, body: dict[str, Any]) -> int:
    async with request(target.address, "POST", CHAT, body=body, headers=target.headers) as reply:
        text = await reply.read()
        assert reply.status == 200, text
        return len(text)


@asynccontextmanager
async def deaf(target: Target, body: dict[str, Any]) -> AsyncIterator[Callable[[], Any]]:
    """A connection with a small buffer that reads nothing until told to."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, (target.address.host, target.address.port))
    payload = json.dumps(body).encode()
    lines = [f"POST {CHAT} HTTP/1.1", f"Host: {target.address.host}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    lines += [f"{name}: {value}" for name, value in target.headers.items()]
    await loop.sock_sendall(one, "\r\n".join([*lines, "", ""]).encode() + payload)

    async def rest() -> bytes:
        parts = []
        while part := await loop.sock_recv(one, 1 << 20):
            parts.append(part)
        return b"".join(parts).partition(b"\r\n\r\n")[2]

    try:
        yield rest
    finally:
        one.close()


async def disconnect(
    target: Target, num_read: int, new_tokens: int, *, more_steps: int = 2
) -> Finding:
    """A client that goes away: how many steps the engine still makes for it.

    A step is under way when the client goes, and another may begin before anybody can know. Where a
    step takes less time than a message ``more_steps`` are allowed.
    """
    found = Finding("a client that disconnects")
    await asyncio.sleep(0.2)
    before = await read_metrics(target.address)
    body = target.body(Ask("somebody leaves", new_tokens)) | {"ignore_eos": True}
    num_events = 0
    async with request(target.address, "POST", PATH, body=body, headers=target.headers) as reply:
        async for _ in reply.events():
            num_events += 1
            if num_events == num_read:
                break
        left_at = time.perf_counter()
    while (now := await read_metrics(target.address))["qeff:cache_blocks_used"]:
        found.expect(time.perf_counter() - left_at < 5, "the blocks were not freed")
        if found.failures:
            break
    freed_s = time.perf_counter() - left_at
    steps = int(now["qeff:steps_total"] - before["qeff:steps_total"])
    await asyncio.sleep(0.2)
    later = await read_metrics(target.address)
    found.seen["tokens read before"] = num_events
    found.seen["steps made"] = steps
    found.seen["blocks free after, ms"] = f"{1e3 * freed_s:.1f}"
    found.seen["running"] = int(later["vllm:num_requests_running"])
    most = num_events + more_steps
    found.expect(steps <= most, f"{steps} steps were made for {num_events} tokens")
    found.expect(later["qeff:steps_total"] == now["qeff:steps_total"], "steps went on")
    return found


async def leavers(target: Target, count: int, within_s: float, at_once: int = 32) -> Finding:
    """Clients that leave at random moments: nothing of them stays, and others are answered."""
    found = Finding(f"{count} clients that leave at random moments")
    moments = random.Random(1)
    door = asyncio.Semaphore(at_once)
    num_left = 0

    async def one(number: int) -> None:
        nonlocal num_left
        async with door:
            asking = asyncio.create_task(send(target, Ask(f"{number} leaves", 200)))
            done, _ = await asyncio.wait({asking}, timeout=moments.uniform(0.0, within_s))
            num_left += not done
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    await asyncio.gather(*(one(number) for number in range(count)))
    now: dict[str, float] = {}
    for _ in range(100):
        now = await read_metrics(target.address)
        if not (now["qeff:cache_blocks_used"] or now["vllm:num_requests_waiting"]):
            break
        await asyncio.sleep(0.05)
    last = await send(target, Ask("who is there", 8))
    found.seen["left before the end"] = num_left
    found.seen["blocks used after"] = int(now["qeff:cache_blocks_used"])
    found.seen["waiting after"] = int(now["vllm:num_requests_waiting"])
    found.expect(num_left > count // 4, "hardly anybody left")
    found.expect(not now["qeff:cache_blocks_used"], "blocks were not freed")
    found.expect(not now["vllm:num_requests_waiting"], "requests of nobody wait")
    found.expect(last.is_whole, f"who stayed was not answered: {last.error}")
    return found


async def break_off(
    target: Target, num_streams: int, new_tokens: int, kill: Callable[[], None]
) -> Finding:
    """SIGKILL in the middle of streams: every client gets an end or an error, at once.

    As many of them are in the middle as the server's container has sequences; the others wait.
    """
    found = Finding(f"SIGKILL in the middle of {num_streams} streams")
    first = replace(target, extra={**target.extra, "priority": -1, "ignore_eos": True})
    asks = [Ask(f"{n} stream", new_tokens) for n in range(num_streams)]
    tasks = [asyncio.create_task(send(first, ask)) for ask in asks]
    await asyncio.sleep(0.1)
    await _inside(target.address, num_streams)
    steps = (await read_metrics(target.address))["qeff:steps_total"]
    while (await read_metrics(target.address))["qeff:steps_total"] < steps + new_tokens // 3:
        if any(task.done() for task in tasks):
            break
        await asyncio.sleep(0.01)
    await asyncio.to_thread(kill)
    killed_at = time.perf_counter()
    done, pending = await asyncio.wait(tasks, timeout=10)
    told_s = time.perf_counter() - killed_at
    for task in pending:
        task.cancel()
    records = [task.result() for task in done]
    begun = sum(record.first is not None for record in records)
    found.seen["streams that had begun"] = begun
    found.seen["whole"] = _whole(records)
    found.seen["ended with an error"] = sum(record.error is not None for record in records)
    found.seen["all told after, s"] = f"{told_s:.2f}"
    found.expect(not pending, f"{len(pending)} clients were never told")
    found.expect(begun > 0 and _whole(records) < num_streams, "it was not in the middle")
    return found


def _whole(records: list[Record]) -> int:
    return sum(record.is_whole for record in records)
