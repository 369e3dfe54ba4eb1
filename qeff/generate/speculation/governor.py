"""How long the next draft of each sequence may be: what gives the most tokens a second.

It is fed the times of steps and of proposals and what became of drafts, and weighs the tokens that
a draft probably adds against the time that it costs the whole step. Where plain decoding wins it
says 0, and tries a short draft now and then, which may cost a hundredth of the time and no more;
``rest`` says for how many steps it need not be asked. Pure: knows no clock, no random numbers, no
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from qeff.generate.speculation.acceptance import PRIOR_COUNT, Acceptance
from qeff.generate.speculation.cost import Mean, StepCost, TimeMean

MIN_GAIN = 1.02  # a draft must promise this much; less is within what is not known
REPAID_STEPS = 64  # in which drafts must earn what it takes to begin with them
PROBE_LEN = 4  # tokens of a first draft, and most that a trial must get right
PROBE_COST = 0.01  # most that trials may add to the time of plain steps
MIN_INTERVAL = 8  # plain steps of a sequence between trials
MAX_INTERVAL = 512  # what this grows to while trials fail
MAX_STREAK = 4  # good trials in a row that follow one another at once
SEQUENCE_MEMORY = 24  # drafted tokens that a sequence's own mean is of
PLAIN_MEMORY = 128  # plain steps after which that mean has lost most of its weight
MIN_LOOK, MAX_LOOK = 4, 16  # plain steps to the next look at least; it may be twice as many
SEQUENCE_TRUST = 3.0  # it counts as much as that of all sequences after this many


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation has done so far."""

    num_steps: int  # of the engine, with drafts or without
    num_drafts: int
    num_drafted: int  # tokens, a tree counted by its depth
    num_accepted: int
    num_switch_offs: int  # times that a sequence went back to plain decoding
    proposal_s: float  # time spent making drafts

    @property
    def acceptance_rate(self) -> float:
        """The part of drafted tokens that was kept; 0 when there was none."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def mean_accepted(self) -> float:
        """Tokens that a draft added to its step; 0 when there was none."""
        return self.num_accepted / self.num_drafts if self.num_drafts else 0.0


@dataclass(slots=True)
class _Sequence:
    """A sequence's own luck, and when it tries again."""

    num_plain: int = 0  # asks since its last trial that were given 0
    rest: int = 0  # plain steps from the last look to the next one,
    num_unseen: int = 0  # and how many of them are to come
    interval: int = MIN_INTERVAL
    num_good: int = 0  # trials in a row
    loss_s: float = 0.0  # what each of them probably costs
    num_tried: float = 0.0
    num_kept: float = 0.0
    has_drafted: bool = False
    is_on: bool = False
    is_probing: bool = False
    size: int = 0  # the limit that it was given last


@dataclass(slots=True)
class _Round:
    """The limits given out for one step."""

    largest: int = 0
    num_plain: int = 0
    num_probing: int = 0
    num_cold: int = 0  # drafts for sequences that had none just before,
    num_missed: int = 0  # and the plain steps since, of those that ever had one


class Governor:
    """Chooses draft lengths for the sequences of one engine.

    Args:
        max_tokens: Most tokens of a draft.
        is_adaptive: False gives every draft this many, whatever it costs.
        makes_trees: Whether drafts are trees, whose tokens are more than their depth. Trees come in
            three sizes, and each has its own luck.
        prior_count: How many drafts the thought weighs that drafts are good. Coming back to a draft
            model is dear, since it has to read what it missed: it is not given up lightly.
    """

    def __init__(
        self,
        max_tokens: int = 8,
        *,
        is_adaptive: bool = True,
        makes_trees: bool = False,
        prior_count: float = PRIOR_COUNT,
    ) -> None:
        assert max_tokens > 0, "a governor of drafts without tokens"
        self.max_tokens = max_tokens
        self.is_adaptive = is_adaptive
        self.cost = StepCost()
        self._makes_trees = makes_trees
        sizes = [max_tokens]
        if makes_trees:
            sizes = sorted({max(1, max_tokens // 4), max(1, max_tokens // 2), max_tokens})
        self._options = sizes if makes_trees else list(range(1, max_tokens + 1))
        self._acceptance: dict[int, Acceptance] = {}  # all chains share one
        for smaller, size in zip([0, *sizes], sizes, strict=False):
            self._acceptance[size] = Acceptance(self._acceptance.get(smaller), prior_count)
        self._nodes = {size: Mean(float(size)) for size in sizes}
        self._known_times: dict[int, tuple[float, list[float]]] = {}  # by tokens of the others
        self._sequences: dict[str, _Sequence] = {}
        self._proposal = TimeMean()  # seconds for each token of the limit, for one sequence
        self._first = Mean()  # seconds more for the first draft of a sequence,
        self._catch_up = Mean()  # and for each plain step since its last one
        self._round = _Round()
        self._credit = 0.0  # seconds that trials may cost
        self._num_probes = 0  # that have ended
        self._num_steps = self._num_drafts = self._num_drafted = self._num_accepted = 0
        self._num_switch_offs = 0
        self._proposal_s = 0.0

    def limit(self, sequence_id: str, num_other_tokens: int) -> int:
        """Most tokens for the next draft beside this many tokens of other sequences; 0 for none."""
        sequence = self._sequence(sequence_id)
        if sequence.num_unseen:
            sequence.num_unseen -= 1
            sequence.num_plain += 1
            self._round.num_plain += 1
            return 0
        had_draft = sequence.size > 0
        if not self.is_adaptive:
            sequence.size = self.max_tokens
        elif self.cost.wants_plain(num_other_tokens + 1, is_same_step=self._round.num_plain > 0):
            sequence.size = 0
            sequence.num_plain += 1
        else:
            gains = self._gains(sequence, num_other_tokens)
            best = max(range(len(gains)), key=gains.__getitem__)
            if gains[best] >= MIN_GAIN:
                sequence.is_on, sequence.is_probing = True, False
                sequence.size, sequence.interval = self._options[best], MIN_INTERVAL
            else:
                self._num_switch_offs += sequence.is_on
                sequence.is_on = False
                if self._makes_trees:  # in turn, for each has its own luck
                    best = self._num_probes % len(gains)
                plain_s, seconds = self._times(num_other_tokens)
                loss_s = max(0.0, seconds[best] * (1 - gains[best]))
                is_due = self._is_probe_due(sequence, loss_s)
                sequence.size = self._options[best] if is_due else 0
                sequence.rest = 0 if is_due else self._rest(sequence, loss_s, plain_s)
                sequence.num_unseen = sequence.rest
        if self.is_adaptive and not self._makes_trees and not self._proposal.count:
            sequence.size = min(sequence.size, PROBE_LEN)  # who knows how slow the proposer is
        self._note_limit(sequence, is_cold=sequence.size > 0 and not had_draft)
        return sequence.size

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """A step of this many tokens, drafted ones and prompts among them, took this long."""
        self._num_steps += 1
        self.cost.note(num_tokens, seconds)
        if self._round.num_plain:
            self._credit += PROBE_COST * seconds
        self._round = _Round()
        self._known_times.clear()

    def rest(self, sequence_ids: Iterable[str]) -> int:
        """For how many steps all of these sequences are given 0 whatever comes."""
        return min((self._sequence(name).num_unseen for name in sequence_ids), default=0)

    def note_rest(self, sequence_ids: Iterable[str], num_steps: int, num_tokens: int) -> None:
        """So many steps of so many tokens were run without asking about these sequences."""
        self._num_steps += num_steps
        self._credit += PROBE_COST * num_steps * self.cost.seconds(num_tokens)
        for sequence in map(self._sequences.get, sequence_ids):
            if sequence is not None:  # it may be done by now
                sequence.num_unseen -= num_steps
                sequence.num_plain += num_steps
                assert sequence.num_unseen >= 0, "a rest that was longer than it was given"

    def note_proposal(self, seconds: float, num_sequences: int) -> None:
        """Making the drafts of this many sequences took this long."""
        self._proposal_s += seconds
        given = self._round
        if not num_sequences or not given.largest:
            return
        if not given.num_cold:
            self._proposal.add(seconds / (num_sequences * given.largest))
            return
        # A draft model reads what it missed first, which says nothing of its usual time.
        more = max(0.0, seconds - self._proposal.value * num_sequences * given.largest)
        self._credit -= more * min(1.0, given.num_probing / given.num_cold)
        if given.num_missed:
            self._catch_up.add(more / given.num_missed)
        else:
            self._first.add(more / given.num_cold)

    def note_draft(
        self,
        sequence_id: str,
        num_drafted: int,
        num_accepted: int,
        num_nodes: int | None = None,
    ) -> None:
        """What became of a draft: its depth, tokens kept, and for a tree all tokens it has."""
        assert 0 <= num_accepted <= num_drafted, f"{num_accepted} kept of {num_drafted}"
        if num_drafted == 0:
            return
        self._num_drafts += 1
        self._num_drafted += num_drafted
        self._num_accepted += num_accepted
        sequence = self._sequence(sequence_id)
        sequence.has_drafted = True
        size = self._class_of(sequence.size or self.max_tokens)
        self._acceptance[size].note(num_drafted, num_accepted)
        self._nodes[size].add(float(num_nodes if num_nodes is not None else num_drafted))
        for index in range(min(num_drafted, num_accepted + 1)):
            sequence.num_tried += 1 - sequence.num_tried / SEQUENCE_MEMORY
            sequence.num_kept += (index < num_accepted) - sequence.num_kept / SEQUENCE_MEMORY
        if sequence.is_probing:
            num_tried = min(num_drafted, PROBE_LEN)  # a tree is deeper than it is ever right
            self._end_probe(sequence, is_good=2 * num_accepted >= num_tried)

    def forget(self, sequence_id: str) -> None:
        """The sequence is done."""
        self._sequences.pop(sequence_id, None)

    def report(self) -> SpeculationStats:
        """What was done so far."""
        return SpeculationStats(
            num_steps=self._num_steps,
            num_drafts=self._num_drafts,
            num_drafted=self._num_drafted,
            num_accepted=self._num_accepted,
            num_switch_offs=self._num_switch_offs,
            proposal_s=self._proposal_s,
        )

    def _note_limit(self, sequence: _Sequence, *, is_cold: bool) -> None:
        given = self._round
        given.largest = max(given.largest, sequence.size)
        given.num_plain += sequence.size == 0
        given.num_probing += sequence.is_probing
        given.num_cold += is_cold
        if is_cold and sequence.has_drafted:
            given.num_missed += sequence.num_plain
        if sequence.is_on:
            sequence.num_plain = 0

    def _sequence(self, sequence_id: str) -> _Sequence:
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            sequence = self._sequences[sequence_id] = _Sequence()
        return sequence

    def _class_of(self, limit: int) -> int:
        """The size whose luck a draft of this limit shares: all chains share one."""
        return next((size for size in self._acceptance if size >= limit), self.max_tokens)

    def _gains(self, sequence: _Sequence, num_others: int) -> list[float]:
        """For each option, how many times the tokens a second of plain decoding it gives."""
        plain_s, seconds = self._times(num_others)
        start_s = 0.0 if sequence.size else self._start_s(sequence) / REPAID_STEPS
        # Every token of the others is progress too, and waits for the whole step.
        progress = num_others + 1
        plain = progress / plain_s
        return [
            (progress + expected) / ((option_s + start_s) * plain)
            for expected, option_s in zip(self._num_kept(sequence), seconds, strict=True)
        ]

    def _times(self, num_others: int) -> tuple[float, list[float]]:
        """Seconds of a step without a draft, and with one of each option."""
        known = self._known_times.get(num_others)
        nodes = self._nodes if self._makes_trees else None
        if known is None:
            known = self._known_times[num_others] = (
                self.cost.plain(num_others + 1),
                [
                    # A tree may not use all of its limit.
                    self.cost.seconds(num_others + 1 + max(1, round(nodes[size].value)))
                    if nodes
                    else self.cost.seconds(num_others + 1 + size) + size * self._proposal.value
                    for size in self._options
                ],
            )
        return known

    def _start_s(self, sequence: _Sequence) -> float:
        """Seconds that the proposer probably takes to catch up with a sequence."""
        if sequence.has_drafted:
            return self._catch_up.value * sequence.num_plain
        return self._first.value

    def _num_kept(self, sequence: _Sequence) -> list[float]:
        """How many tokens are probably kept of a draft of each option."""
        if not self._makes_trees:
            return self._expected(sequence, self.max_tokens, self.max_tokens)
        return [
            self._expected(sequence, size, self._acceptance[size].depth or PROBE_LEN)[-1]
            for size in self._options
        ]

    def _expected(self, sequence: _Sequence, size: int, depth: int) -> list[float]:
        """How many tokens are probably kept of drafts of each depth up to this one."""
        own, trust = sequence.num_kept, sequence.num_tried + SEQUENCE_TRUST
        expected, total, reached = [], 0.0, 1.0
        for rate in self._acceptance[size].rates(depth):
            reached *= (own + SEQUENCE_TRUST * rate) / trust
            total += reached
            expected.append(total)
        return expected

    def _is_probe_due(self, sequence: _Sequence, loss_s: float) -> bool:
        """Whether it is time for a trial that probably costs this much, and there is credit."""
        if not sequence.is_probing:
            sequence.num_plain += 1
            kept = (1 - 1 / PLAIN_MEMORY) ** (1 + sequence.rest)
            sequence.num_tried *= kept
            sequence.num_kept *= kept
            price = loss_s + self._start_s(sequence)
            if sequence.num_plain >= sequence.interval and self._credit >= price:
                self._credit -= loss_s  # the start is taken when it is known
                sequence.loss_s = loss_s
                sequence.is_probing = True  # until there is a draft, which may not be at once
        return sequence.is_probing

    def _rest(self, sequence: _Sequence, loss_s: float, plain_s: float) -> int:
        """Plain steps to the next look: none finds anything before a trial can be due.

        The looks of all sequences fall on the same steps, so that there are many without any.
        """
        missing_s = loss_s + self._start_s(sequence) - self._credit
        num_plain = sequence.interval - sequence.num_plain + 1
        waiting = max(num_plain, missing_s / (PROBE_COST * plain_s))
        num_steps = ceil(max(MIN_LOOK, min(waiting, MAX_LOOK)))
        raster = 1 << num_steps.bit_length() - 1
        return -(-(self._num_steps + num_steps) // raster) * raster - self._num_steps - 1

    def _end_probe(self, sequence: _Sequence, *, is_good: bool) -> None:
        self._num_probes += 1
        sequence.num_plain = 0
        sequence.num_good = sequence.num_good + 1 if is_good else 0
        if is_good and sequence.num_good < MAX_STREAK:  # goes on at once, until it is back or fails
            sequence.interval = MIN_INTERVAL
            self._credit -= sequence.loss_s
        else:
            sequence.num_good = 0
            sequence.is_probing = False
            sequence.interval = min(2 * sequence.interval, MAX_INTERVAL)
