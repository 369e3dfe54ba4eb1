"""Which tokens of which sequences run in the next step.

Iteration-level: every step is planned anew from the waiting and the running sequences. Decodes come
first, with the drafts that were made for them; prompts follow in chunks under a budget of tokens.
When blocks run out, the last in rank gives its own back and is computed again later. A sequence
takes over what the prefix index knows of its beginning, and waits a step where another one is just
computing it. Knows nothing of sampling, text or finishing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from qeff.generate.cache_blocks import CacheBlocks
from qeff.generate.plan import Entry, Plan, build_plan
from qeff.generate.prefix import common_length
from qeff.generate.sequence import SequenceState
from qeff.generate.speculation.draft import NO_DRAFT, Draft
from qeff.generate.steady import Steady
from qeff.runtime.session import Capabilities

DEFAULT_STEP_TOKENS = 2048
MAX_PROMPTS = 4  # prompts that are read beside each other where the budget is too small for them
MIN_SHARED_TOKENS = 32  # worth a step of waiting

_by_rank = attrgetter("rank")


def default_step_tokens(caps: Capabilities) -> int:
    """A budget that lets one whole chunk, or all that is quick, run beside every decode."""
    most = caps.max_sequences * caps.max_step_tokens
    beside = max(caps.max_step_tokens, caps.quick_tokens or 0)
    return min(most, max(DEFAULT_STEP_TOKENS, caps.max_sequences + beside))


class Scheduler:
    """Two queues in order of rank, the blocks, and what is known of their content.

    Args:
        caps: What the session can take.
        num_blocks: Cache blocks that it has reserved.
        max_step_tokens: Most tokens in a step.
        prompt_tokens: Most tokens of prompts in a step that also has decodes.
        reuses_prefixes: Whether sequences may take over what others have computed.
    """

    def __init__(
        self,
        caps: Capabilities,
        num_blocks: int,
        max_step_tokens: int | None = None,
        *,
        prompt_tokens: int | None = None,
        reuses_prefixes: bool = True,
    ) -> None:
        self.caps = caps
        self.cache = CacheBlocks(caps, num_blocks, reuses_prefixes=reuses_prefixes)
        self.max_step_tokens = max_step_tokens or default_step_tokens(caps)
        self.prompt_tokens = prompt_tokens or caps.quick_tokens or self.max_step_tokens
        self.waiting: list[SequenceState] = []
        self.running: list[SequenceState] = []
        self.num_preemptions = 0
        self._num_added = 0
        self._steady: Steady | None = None  # the last step, where it can be repeated

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def steady(self) -> Steady | None:
        """The last step, where the next one is probably the same, one token further."""
        return self._steady

    def add(self, sequence: SequenceState) -> None:
        """Put a sequence into the queue, behind all of its priority."""
        assert len(sequence.tokens) <= self.caps.ctx_len, "a sequence longer than the context"
        self._num_added += 1
        sequence.arrival = self._num_added
        self._steady = None
        insort(self.waiting, sequence, key=_by_rank)

    def remove(self, sequence: SequenceState) -> None:
        """Take a finished or cancelled sequence out and free its blocks."""
        self._steady = None
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.cache.release(sequence)

    def fork(self, sequence: SequenceState, name: str) -> SequenceState:
        """A sequence a second time, with the same blocks until one of the two writes."""
        copy = SequenceState(
            name, list(sequence.tokens), sequence.num_prompt, sequence.priority, sequence.salt
        )
        self._num_added += 1
        copy.arrival = self._num_added
        self._steady = None
        if sequence not in self.running or len(self.running) >= self.caps.max_sequences:
            insort(self.waiting, copy, key=_by_rank)
            return copy
        self.cache.share(sequence, copy)
        insort(self.running, copy, key=_by_rank)
        return copy

    def due(self) -> list[SequenceState]:
        """Running sequences whose next token is all they need: those that a draft is good for."""
        return [
            one
            for one in self.running
            if len(one.tokens) - one.num_computed == 1 and not one.is_parked
        ]

    def schedule(self, drafts: Mapping[str, Draft] | None = None) -> Plan | None:
        """Plan the next step; None when there is nothing to do."""
        if not self.has_work:
            return None
        if self._steady is not None and not drafts:
            plan = self._steady.repeat()
            if plan is not None:
                return plan
        self._steady = None
        plan = self._plan(drafts)
        if len(plan.entries) == len(self.running) and Steady.fits(plan, self.cache):
            self._steady = Steady(plan, self.cache)
        return plan

    def _plan(self, drafts: Mapping[str, Draft] | None) -> Plan:
        self.cache.copies = []
        entries: dict[SequenceState, Entry] = {}
        budget = self.max_step_tokens
        has_preempted = False
        for sequence in self.due():
            if budget <= 0 or (has_preempted and sequence not in self.running):
                continue
            draft = drafts.get(sequence.id, NO_DRAFT) if drafts else NO_DRAFT
            if draft is not NO_DRAFT:
                draft = self._fit(sequence, draft, budget)
            num_tokens = 1 + len(draft.tokens)
            entries[sequence] = Entry(sequence, 1, draft)
            if not self.cache.has_place(sequence, num_tokens):
                has_preempted |= self._grow(sequence, entries)
            if sequence in entries:
                budget -= num_tokens
        # Blocks just taken from a sequence are needed by one before it: nothing is let in then.
        if not has_preempted:
            num_decodes = len(entries)
            self._admit(self._prompt_budget(entries, budget), entries)
            if len(entries) < num_decodes:  # what gave way for a more urgent one left its tokens
                budget = self.max_step_tokens - sum(one.num_tokens for one in entries.values())
        budget = self._prompt_budget(entries, budget)
        prompts = [
            one
            for one in self.running
            if one not in entries and one.num_pending > 0 and not one.is_parked
        ]
        for sequence, count in _share(prompts, budget, self.caps.max_step_tokens):
            if sequence in self.running:
                entries[sequence] = Entry(sequence, count)
                self._grow(sequence, entries)
        assert entries, "sequences are there but none can run"
        return build_plan(list(entries.values()), self.cache.copies, chooses=self.caps.chooses)

    def advance(self, entry: Entry, path: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Note that an entry was run and which tokens of its draft were kept.

        Returns the cache rows to copy, (from, to) in order, so that the kept ones stand in line.
        """
        sequence = entry.sequence
        first = sequence.num_computed + entry.count
        sequence.num_computed = first + len(path)
        moves: list[tuple[int, int]] = []
        for depth, node in enumerate(path):
            if node != depth:
                source = self.cache.row(sequence, first + node)
                moves.append((source, self.cache.row(sequence, first + depth)))
        self.cache.note_content(sequence)
        self.cache.drop_old(sequence)
        return moves

    # ---- what a step may hold ------------------------------------------------------------------

    def _fit(self, sequence: SequenceState, draft: Draft, budget: int) -> Draft:
        """As much of a draft as context, budget and free blocks allow: it pushes nobody out."""
        caps = self.caps
        room = min(caps.ctx_len - len(sequence.tokens), budget - 1, caps.max_step_tokens - 1)
        spare = max(self.cache.blocks.num_free - len(self.running), 0)
        held = (len(sequence.blocks) + spare) * caps.block_len - len(sequence.tokens)
        return draft.cut(max(min(room, held), 0))

    def _prompt_budget(self, decodes: Mapping[SequenceState, Entry], left: int) -> int:
        """What prompts may take of the tokens that decodes leave."""
        return min(left, self.prompt_tokens) if decodes else left

    def _admit(self, budget: int, entries: dict[SequenceState, Entry]) -> None:
        """Let waiting sequences in while there is a place, blocks and something to do for them."""
        prompts = [one for one in self.running if one.num_pending > 1]
        asked = sum(one.num_pending for one in prompts)
        for sequence in list(self.waiting):
            if sequence.is_parked:
                continue
            if asked >= budget and len(prompts) >= MAX_PROMPTS:
                return
            if self._waits_for_another(sequence, prompts):
                continue
            if not self._make_room(sequence, entries):
                return
            self.waiting.remove(sequence)
            self.cache.start(sequence)
            insort(self.running, sequence, key=_by_rank)
            prompts.append(sequence)
            asked += sequence.num_pending

    def _waits_for_another(self, sequence: SequenceState, prompts: Iterable[SequenceState]) -> bool:
        """Whether a running prompt is about to compute a good part of this sequence's beginning."""
        if not (self.cache.reuses_prefixes and sequence.shares):
            return False
        for other in prompts:
            if other.salt != sequence.salt or not other.shares:
                continue
            num_equal = common_length(sequence.tokens, other.tokens[: other.num_prompt])
            num_equal = min(num_equal, len(sequence.tokens) - 1)
            gain = self._known_soon(other, num_equal) - self._whole(other.num_computed)
            if gain >= min(MIN_SHARED_TOKENS, self.caps.block_len):
                return True
        return False

    def _known_soon(self, other: SequenceState, num_equal: int) -> int:
        """How many of a prompt's first tokens others can take over when they are computed."""
        is_last_step = other.num_prompt - other.num_computed <= self.caps.max_step_tokens
        return num_equal if is_last_step else self._whole(num_equal)

    def _whole(self, num_tokens: int) -> int:
        """Tokens in full blocks: what is in others is known at the end of a prompt only."""
        return num_tokens // self.caps.block_len * self.caps.block_len

    def _make_room(self, sequence: SequenceState, entries: dict[SequenceState, Entry]) -> bool:
        """Whether a sequence fits, after those that are parked or less urgent have given way."""
        while not self._has_room(sequence):
            victim = next((one for one in reversed(self.running) if one.is_parked), None)
            if victim is None:
                if not self.running or self.running[-1].priority <= sequence.priority:
                    return False
                victim = self.running[-1]
            entries.pop(victim, None)
            self._preempt(victim)
        return True

    def _has_room(self, sequence: SequenceState) -> bool:
        # Room for all known tokens at once, so that prompts do not push one another out half-way,
        # and a block more for each that runs, so that one let in is not pushed out at once.
        if len(self.running) >= self.caps.max_sequences:
            return False
        num_spare = len(self.running) if self.caps.block_len < self.caps.ctx_len else 0
        return self.cache.can_hold(sequence, num_spare)

    def _grow(self, sequence: SequenceState, entries: dict[SequenceState, Entry]) -> bool:
        """Make room for a planned sequence; True when somebody, perhaps itself, had to give way."""
        has_preempted = False
        while not self.cache.reserve(
            sequence, sequence.num_computed + entries[sequence].num_tokens
        ):
            victim = self.running[-1]
            if victim is sequence:  # one that has nothing to do gives way before it
                parked = (one for one in reversed(self.running) if one.is_parked)
                victim = next(parked, victim)
            self._preempt(victim)
            entries.pop(victim, None)
            has_preempted = True
            if victim is sequence:
                break
        return has_preempted

    def _preempt(self, victim: SequenceState) -> None:
        self.running.remove(victim)
        self.cache.release(victim)
        insort(self.waiting, victim, key=_by_rank)
        self.num_preemptions += 1


def _share(
    prompts: list[SequenceState], budget: int, most: int
) -> Iterable[tuple[SequenceState, int]]:
    """Deals a step's tokens out: the first in rank gets half at least, the shortest come next."""
    if not prompts or budget <= 0:
        return []
    first, *others = prompts
    half = min(first.num_pending, most, -(-budget // 2))
    left = budget - half
    counts = {first: half}
    for sequence in sorted(others, key=attrgetter("num_pending")):
        counts[sequence] = min(sequence.num_pending, most, left)
        left -= counts[sequence]
    counts[first] = min(first.num_pending, most, half + left)
    return [(sequence, counts[sequence]) for sequence in prompts if counts[sequence] > 0]
