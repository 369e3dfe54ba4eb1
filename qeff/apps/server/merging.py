"""Several iterators read as one: whatever any of them gives next, with its number.

Leaving the loop ends all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def merged(sources: Sequence[AsyncIterator[Item]]) -> AsyncIterator[tuple[int, Item]]:
    """Items of all sources as they come; the first error of any ends the others."""
    if len(sources) == 1:  # the common case needs no tasks
        async with aclosing(sources[0]) as only:  # type: ignore[type-var]
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Item] | None] = asyncio.Queue()

    async def read(number: int, source: AsyncIterator[Item]) -> None:
        try:
            async with aclosing(source) as items:  # type: ignore[type-var]
                async for item in items:
                    queue.put_nowait((number, item))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(read(number, one)) for number, one in enumerate(sources)]
    try:
        num_left = len(tasks)
        while num_left:
            found = await queue.get()
            if found is not None:
                yield found
                continue
            num_left -= 1
            for task in tasks:
                if task.done() and task.exception() is not None:
                    task.result()
            await asyncio.sleep(0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
