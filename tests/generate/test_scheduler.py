"""The order in which sequences run, wait and give way."""

from __future__ import annotations

from qeff.generate.scheduler import Scheduler, default_step_tokens
from qeff.generate.sequence import SequenceState
from qeff.runtime.session import Capabilities


def scheduler(num_blocks, *, block_len=1, ctx_len=8, sequences=4, chunk=8, budget=None):
    return Scheduler(Capabilities(64, ctx_len, block_len, sequences, chunk), num_blocks, budget)


def add(plan_of, name, length, **more):
    # Every sequence has tokens of its own, so that none finds another's.
    first = 1000 * (1 + ord(name[0]))
    sequence = SequenceState(name, list(range(first, first + length)), length, **more)
    plan_of.add(sequence)
    return sequence


def run(plan_of):
    """One step; every sequence whose logits come back gets a token. Returns names and counts."""
    plan = plan_of.schedule()
    for entry in plan.entries:
        if entry.is_due:
            entry.sequence.tokens.append(0)
        assert plan_of.advance(entry) == []
    return {entry.sequence.id: entry.count for entry in plan.entries}


def test_decodes_come_before_an_older_prompt():
    plans = scheduler(8, block_len=64, ctx_len=64, chunk=4, budget=4)
    young_prompt = add(plans, "long", 20)
    plans.waiting.clear()
    add(plans, "a", 1)
    assert run(plans) == {"a": 1}
    plans.add(young_prompt)
    assert run(plans) == {"a": 1, "long": 3}
    plans.running.reverse()  # the prompt as the older of the two
    assert list(run(plans).items()) == [("a", 1), ("long", 3)]


def test_the_youngest_gives_way_even_when_it_is_the_one_that_grows():
    plans = scheduler(9)
    a, b = add(plans, "a", 3), add(plans, "b", 3)
    c = add(plans, "c", 3)
    assert run(plans) == {"a": 3, "b": 3}  # c does not fit
    assert run(plans) == {"a": 1, "b": 1}
    assert run(plans) == {"a": 1}  # a took the last block, and b, the youngest, went
    assert plans.running == [a] and list(plans.waiting) == [b, c]  # b is before c again
    assert (b.blocks, b.num_computed, len(a.blocks), plans.cache.blocks.num_free) == ([], 0, 5, 4)
    assert plans.num_preemptions == 1


def test_an_older_one_takes_the_blocks_of_the_youngest():
    plans = scheduler(8, sequences=3)
    a, b = add(plans, "a", 3), add(plans, "b", 3)
    assert run(plans) == {"a": 3, "b": 3}
    assert run(plans) == {"a": 1, "b": 1}
    assert run(plans) == {"a": 1}
    assert (plans.running, list(plans.waiting)) == ([a], [b])
    assert run(plans) == {"a": 1}  # b waits while a, which still grows, leaves too little
    plans.remove(a)
    assert run(plans) == {"b": 3}  # computed again, but for two blocks that nobody took
    plans.remove(b)
    assert plans.schedule() is None and plans.cache.blocks.num_free == 8


def test_one_block_each_needs_no_spare():
    plans = scheduler(2, block_len=8, sequences=2)
    add(plans, "a", 3), add(plans, "b", 7), add(plans, "c", 1)
    assert run(plans) == {"a": 3, "b": 7}
    assert [span.blocks for span in plans.schedule().batch.spans] == [(0,), (1,)]


def test_logits_are_asked_for_only_at_the_end_of_a_prompt():
    plans = scheduler(2, block_len=8, sequences=2, chunk=3)
    a, b = add(plans, "a", 5), add(plans, "b", 2)
    plan = plans.schedule()
    assert plan.batch.tokens.tolist() == [*a.tokens[:3], *b.tokens]
    assert plan.batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert plan.batch.logit_rows.tolist() == [4]
    assert [entry.sequence for entry in plan.entries if entry.is_due] == [b]


def test_a_lower_number_runs_first_and_takes_the_place_of_a_higher_one():
    plans = scheduler(8, block_len=8, sequences=2)
    slow, usual = add(plans, "slow", 3, priority=5), add(plans, "usual", 3)
    add(plans, "quick", 3, priority=-1)
    assert run(plans) == {"quick": 3, "usual": 3}
    assert plans.waiting == [slow]
    urgent = add(plans, "xurgent", 2, priority=-9)
    assert run(plans) == {"quick": 1, "xurgent": 2}  # both places are taken: the last gives way
    assert plans.running[0] is urgent and plans.waiting == [usual, slow]
    assert plans.num_preemptions == 1


def test_a_long_prompt_does_not_keep_short_ones_waiting():
    plans = scheduler(64, block_len=16, ctx_len=256, chunk=256, budget=32)
    add(plans, "long", 200)
    assert run(plans) == {"long": 32}
    add(plans, "b", 10), add(plans, "c", 4), add(plans, "d", 30)
    assert run(plans) == {"long": 16, "b": 10, "c": 4, "d": 2}  # half for the first in line
    done = [run(plans) for _ in range(12)]
    assert sum(step.get("long", 0) for step in done) == 200 - 48 + sum(
        step.get("long") == 1 for step in done
    )


def test_equal_beginnings_share_blocks():
    plans = scheduler(32, ctx_len=64, block_len=4, chunk=64)
    first = SequenceState("1", list(range(23)), 23)
    plans.add(first)
    run(plans)
    second = SequenceState("2", [*range(22), 9, 9], 24)
    other = SequenceState("3", list(range(23)), 23, salt="tenant")
    plans.add(second), plans.add(other)
    plan = plans.schedule()
    assert {e.sequence.id: e.count for e in plan.entries} == {"1": 1, "2": 4, "3": 23}
    assert second.blocks[:5] == first.blocks[:5]
    assert not set(other.blocks) & set(first.blocks)
    assert plan.copies == ()  # two tokens of the sixth block are not worth a copy
    assert (second.num_reused, other.num_reused) == (20, 0)
    for sequence in (first, second, other):
        plans.remove(sequence)
    assert plans.cache.blocks.num_free == 32 and plans.cache.blocks.num_kept > 0


def test_a_part_of_a_block_is_copied():
    plans = scheduler(8, ctx_len=64, block_len=16, chunk=64)
    first = SequenceState("1", list(range(30)), 30)
    plans.add(first)
    run(plans)
    plans.remove(first)
    second = SequenceState("2", [*range(25), 7], 26)
    plans.add(second)
    plan = plans.schedule()
    assert [entry.count for entry in plan.entries] == [1]
    ((source, target),) = plan.copies
    assert second.blocks[1] == target != source


def test_a_full_block_is_waited_for_and_no_part_of_one():
    plans = scheduler(8, block_len=64, ctx_len=128, chunk=10)
    first, second, third = ([*range(n), 900 + n] for n in (70, 70, 60))
    one, other, short = (
        SequenceState(name, tokens + [7] * 30, len(tokens) + 30)
        for name, tokens in (("one", first), ("other", second), ("short", third))
    )
    for sequence in (one, other, short):
        plans.add(sequence)
    for _ in range(6):
        assert set(run(plans)) == {"one", "short"}  # which has no full block in common with it
    run(plans)  # the first 64 are computed
    assert "other" in run(plans) and (other.num_reused, short.num_reused) == (64, 0)


def test_a_beginning_that_is_being_computed_is_waited_for():
    plans = scheduler(64, ctx_len=256, block_len=16, chunk=64, sequences=8)
    for name in "abcd":
        plans.add(SequenceState(name, [*range(100), ord(name)], 101))
    plans.add(SequenceState("e", [1, 2, 3], 3))
    assert run(plans) == {"a": 64, "e": 3}
    assert run(plans) == {"a": 37, "e": 1}
    assert run(plans) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}  # 96 shared, 4 copied, 1 run


def test_a_fork_writes_into_blocks_of_its_own():
    plans = scheduler(16, ctx_len=64, block_len=8, sequences=3)
    first = SequenceState("1", list(range(100, 111)), 11)
    plans.add(first)
    plans.max_step_tokens = 64
    run(plans), run(plans)
    second = plans.fork(first, "2")
    second.tokens[-1] = 5
    assert second.blocks == first.blocks
    plan = plans.schedule()
    assert second.blocks[0] == first.blocks[0] and second.blocks[1] != first.blocks[1]
    assert len(plan.copies) == 1
    plans.remove(first), plans.remove(second)
    assert plans.cache.blocks.num_free == 16


def test_blocks_that_every_window_has_left_are_free():
    caps = Capabilities(64, 64, 4, 1, 8, window=8)
    plans = Scheduler(caps, 16, reuses_prefixes=False)
    sequence = SequenceState("a", list(range(20)), 20)
    plans.add(sequence)
    run(plans), run(plans), run(plans)
    assert sequence.num_computed == 20 and sequence.num_dropped == 3
    plan = plans.schedule()
    table = plan.batch.spans[0].blocks
    assert len(table) == 6 and set(table[:3]) == {table[3]} and len(set(table)) == 3
    plans.remove(sequence)
    assert plans.cache.blocks.num_free == 16


def test_the_budget_lets_a_chunk_run_beside_all_decodes():
    def default(sequences, chunk):
        return default_step_tokens(Capabilities(64, 4096, 16, sequences, chunk))

    assert default(4, 32) == 128  # everything at once
    assert default(64, 512) == 2048
    assert default(64, 4096) == 4160


def test_salts_are_forgotten_with_their_blocks():
    plans = scheduler(16, ctx_len=64, block_len=4)
    for number in range(198):
        length = 3 + number % 9  # some leave nothing that others could take over
        sequence = SequenceState(str(number), list(range(length)), length, salt=f"user {number}")
        plans.add(sequence)
        while sequence.num_output < 2:
            run(plans)
        plans.remove(sequence)
    index = plans.cache.index
    assert 0 < len(index._roots) == len(index._salts) <= 16
    again = SequenceState("again", list(range(length)), length, salt=f"user {number}")
    plans.add(again)
    run(plans)
    assert again.num_reused == length // 4 * 4
