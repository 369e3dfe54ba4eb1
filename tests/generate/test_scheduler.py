"""The order in which sequences run, wait and give way."""

from __future__ import annotations

from qeff.generate.scheduler import Scheduler, SequenceState, default_step_tokens
from qeff.runtime.session import Capabilities


def scheduler(num_blocks, *, block_len=1, ctx_len=8, sequences=4, chunk=8, budget=None):
    return Scheduler(Capabilities(64, ctx_len, block_len, sequences, chunk), num_blocks, budget)


def add(plan_of, name, length):
    sequence = SequenceState(name, list(range(length)), length)
    plan_of.add(sequence)
    return sequence


def run(plan_of):
    """One step; every sequence whose logits come back gets a token. Returns names and counts."""
    plan = plan_of.schedule()
    plan_of.advance(plan)
    for sequence in plan.sampled:
        sequence.tokens.append(0)
    return {sequence.id: count for sequence, count in plan.counts}


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
    assert (b.blocks, b.num_computed, len(a.blocks), plans.blocks.num_free) == ([], 0, 5, 4)
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
    assert run(plans) == {"b": 5}  # prompt and output are computed again
    plans.remove(b)
    assert plans.schedule() is None and plans.blocks.num_free == 8


def test_one_block_each_needs_no_spare():
    plans = scheduler(2, block_len=8, sequences=2)
    add(plans, "a", 3), add(plans, "b", 7), add(plans, "c", 1)
    assert run(plans) == {"a": 3, "b": 7}
    assert [span.blocks for span in plans.schedule().batch.spans] == [(0,), (1,)]


def test_logits_are_asked_for_only_at_the_end_of_a_prompt():
    plans = scheduler(2, block_len=8, sequences=2, chunk=3)
    add(plans, "a", 5), add(plans, "b", 2)
    plan = plans.schedule()
    assert plan.batch.tokens.tolist() == [0, 1, 2, 0, 1]
    assert plan.batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert plan.batch.logit_rows.tolist() == [4]
    assert [sequence.id for sequence in plan.sampled] == ["b"]


def test_the_budget_lets_a_chunk_run_beside_all_decodes():
    def default(sequences, chunk):
        return default_step_tokens(Capabilities(64, 4096, 16, sequences, chunk))

    assert default(4, 32) == 128  # everything at once
    assert default(64, 512) == 2048
    assert default(64, 4096) == 4160
