"""From a container to an engine: how it is run, besides what each request asks for.

Opens the session, a draft model's where one guesses ahead, and the engine over both. Knows nothing
of prompts, words on a command line or where answers go.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from qeff.container import Container
from qeff.core.errors import OptionValueError
from qeff.core.progress import log
from qeff.generate import Engine, SpeculationConfig, Text
from qeff.generate.cache_blocks import num_blocks_for
from qeff.runtime import open_session
from qeff.runtime.session import (
    Batch,
    Begun,
    Capabilities,
    Overlapping,
    Preparing,
    Session,
    StepOutput,
)

if TYPE_CHECKING:
    from qeff.generate.drafting import Drafting


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of an engine.

    Args:
        threads: Of the processor; one for each physical core when None.
        chunk_tokens: Most tokens of one sequence in a step; as compiled when None.
        step_tokens: Most tokens of all sequences in a step; the scheduler's choice when None.
        reuses_prefixes: Whether equal beginnings of prompts are computed once.
        speculation: How tokens are guessed ahead; None guesses none.
        draft: The container of the draft model, for the speculation that needs one.
        cache_tokens: Tokens that the cache holds of all sequences together; a full context of each
            when None.
        vram_budget: Most bytes of GPU memory; all that is free when None.
        deterministic: Whether an answer may not depend on what else runs beside it.
        prepares: Whether a device is made ready for all steps before the first one.
    """

    threads: int | None = None
    chunk_tokens: int | None = None
    step_tokens: int | None = None
    reuses_prefixes: bool = True
    speculation: SpeculationConfig | None = None
    draft: Path | None = None
    cache_tokens: int | None = None
    vram_budget: int | None = None
    deterministic: bool = False
    prepares: bool = False


def open_engine(container: Container, text: Text, setup: Setup) -> Engine:
    """An engine over the container; closing it closes everything that was opened for it."""
    with ExitStack() as opened:
        session: Session = _open(container, setup)
        opened.callback(session.close)
        if setup.chunk_tokens is not None:
            session = Chunked(session, setup.chunk_tokens)
        drafting = None
        if setup.speculation is not None:
            drafting = _open_drafting(session, text, setup.speculation, setup)
            opened.callback(drafting.close)
        engine = Engine(
            session,
            text,
            num_blocks=_num_blocks(session.caps, setup.cache_tokens),
            max_step_tokens=setup.step_tokens,
            reuse_prefixes=setup.reuses_prefixes,
            drafting=drafting,
        )
        if setup.prepares:
            prepare(session)
        opened.pop_all()
        return engine


def prepare(session: Session) -> None:
    """Make a session ready for all steps before the first; its cache is reserved already."""
    if session.caps.prepares:
        began = time.perf_counter()
        cast(Preparing, session).prepare()
        log.info("prepared every size of a step in %.1f s", time.perf_counter() - began)


def _open(container: Container, setup: Setup) -> Session:
    return open_session(
        container,
        threads=setup.threads,
        vram_budget=setup.vram_budget,
        deterministic=setup.deterministic,
    )


def _num_blocks(caps: Capabilities, cache_tokens: int | None) -> int | None:
    """Blocks for so many tokens, but at least one whole context and at most all of them."""
    if cache_tokens is None:
        return None
    each = num_blocks_for(caps.ctx_len, caps.block_len)
    wanted = num_blocks_for(cache_tokens, caps.block_len)
    return min(max(each, wanted), each * caps.max_sequences)


def _open_drafting(
    session: Session, text: Text, config: SpeculationConfig, setup: Setup
) -> Drafting:
    from qeff.generate.drafting import Drafting  # most engines guess nothing

    if setup.draft is None:
        return Drafting.start(config, session.caps)
    container = Container.open(setup.draft)
    num_tokens = text.vocab_size, Text.from_container(container).vocab_size
    with ExitStack() as opened:
        draft = _open(container, setup)
        opened.callback(draft.close)
        drafting = Drafting.start(config, session.caps, draft=draft, num_tokens=num_tokens)
        if setup.prepares:
            prepare(draft)
        opened.pop_all()
        return drafting


class Chunked:
    """A session that takes fewer tokens of a sequence in a step than it could."""

    def __init__(self, session: Session, chunk_tokens: int) -> None:
        most = session.caps.max_step_tokens
        if chunk_tokens > most:
            raise OptionValueError(
                f"blocks of {chunk_tokens} tokens are larger than the {most} that the container"
                " runs in one step",
                f"give at most {most}, or compile with a larger --ctx-len and --prompt-len",
            )
        self._session = session
        self._caps = replace(session.caps, max_step_tokens=chunk_tokens)

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def reserve(self, num_blocks: int) -> None:
        """As the session."""
        self._session.reserve(num_blocks)

    def step(self, batch: Batch) -> StepOutput:
        """As the session."""
        return self._session.step(batch)

    def begin(self, batch: Batch) -> Begun:
        """As the session, where it overlaps steps."""
        return cast(Overlapping, self._session).begin(batch)

    def prepare(self) -> None:
        """As the session, where it has to."""
        cast(Preparing, self._session).prepare()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As the session."""
        self._session.copy_blocks(pairs)

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As the session."""
        self._session.copy_rows(pairs)

    def close(self) -> None:
        """As the session."""
        self._session.close()
