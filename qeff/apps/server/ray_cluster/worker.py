"""One replica on Ray: the whole server but its socket, with models opened from mapped containers.

Requests come as plain values and are answered by the same application as everywhere. Replicas ask
each other for their numbers, so that any of them can tell those of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from qeff.apps.server.config import ServerConfig
from qeff.apps.server.entrance import Entrance
from qeff.apps.server.measures import gather
from qeff.apps.server.models import Entry
from qeff.apps.server.ray_cluster.driving import Life, answer
from qeff.apps.server.ray_cluster.forwarded import Forwarded
from qeff.apps.server.run import GRACE_S, finish, make_state, shut

REPLICA = b"x-qeff-replica"
PATIENCE_S = 3.0  # how long numbers may take to come
PAUSE_S = 0.02


class Worker:
    """A deployment: each of its replicas is a server.

    Args:
        config: This replica's share of the limits.
        entries: Its models.
        num_sequences: Sequences that its engine runs.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: ServerConfig, entries: Sequence[Entry], num_sequences: int
    ) -> None:
        context = serve.get_replica_context()
        self._id: str = context.replica_id.unique_id
        self._own = context.deployment, context.app_name
        self._all: DeploymentHandle | None = None
        self._num_answers = 0
        self._state = make_state(config, entries, num_sequences)
        self._state.siblings = self._ask_others
        self._app = Entrance(self._state)
        self._life = Life(self._app)
        await self._life.start()
        self._state.is_ready = True

    async def answer(self, asked: Forwarded) -> AsyncIterator[list[Message]]:
        """The messages of a response, as they are made."""
        self._num_answers += 1
        try:
            async for messages in answer(self._app, asked):
                yield [self._signed(message) for message in messages]
        finally:
            self._num_answers -= 1

    async def numbers(self) -> tuple[str, dict[str, Any]]:
        """The name of this replica and its numbers."""
        state = self._state
        return self._id, await gather(state.models, state.admission, state.gauges)

    async def drain(self) -> None:
        """Let nothing in any more; returns when all answers are sent."""
        shut(self._state)
        await finish(self._state)
        loop = asyncio.get_running_loop()
        ends = loop.time() + GRACE_S
        while self._num_answers and loop.time() < ends:
            await asyncio.sleep(PAUSE_S)

    async def __del__(self) -> None:
        await self._life.stop()

    def _signed(self, message: Message) -> Message:
        """The message; with the name of this replica where it begins a response."""
        if message["type"] != "http.response.start":
            return message
        headers = [*message.get("headers", ()), (REPLICA, self._id.encode())]
        return {**message, "headers": headers}

    async def _ask_others(self) -> list[dict[str, Any]]:
        """The numbers of the other replicas; none where Ray does not reach them."""
        if self._all is None:
            self._all = serve.get_deployment_handle(*self._own)
        try:
            async with asyncio.timeout(PATIENCE_S):
                told = await everyone(self._all, "numbers")
        except (TimeoutError, RayError, RayServeException):
            return []
        return [numbers for replica, numbers in told if replica != self._id]


async def everyone(replicas: DeploymentHandle, method: str) -> list[Any]:
    """What all replicas that answer say; a handle that knows none yet is waited for."""
    while True:
        try:
            said = await replicas.broadcast(method).results_async(return_exceptions=True)
            return [one for one in said if not isinstance(one, BaseException)]
        except DeploymentUnavailableError:
            await asyncio.sleep(PAUSE_S)
