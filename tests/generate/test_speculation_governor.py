"""The governor: how drafts grow, shrink and stop as times and luck say, on a clock that is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_driver import (
    Sequence,
    branch,
    choose,
    hashed,
    plain,
    repetitive,
    verify,
)

from qeff.generate.request import SamplingParams
from qeff.generate.speculation import (
    Governor,
    LookaheadProposer,
    PromptLookupProposer,
    SpeculationConfig,
    make_governor,
)
from qeff.generate.speculation.acceptance import Acceptance
from qeff.generate.speculation.cost import StepCost, TimeMean


class World:
    """A machine whose steps take ``base + per_token · T``, and drafts that are right by chance."""

    def __init__(self, *, base=1.0, per_token=0.15, noise=0.05, proposal=0.0, seed=0):
        self.base, self.per_token, self.noise, self.proposal = base, per_token, noise, proposal
        self.chance = np.random.default_rng(seed)

    def seconds(self, num_tokens):
        return self.base + self.per_token * num_tokens

    def measured(self, num_tokens):
        """With noise, and once in a hundred steps something else ran."""
        factor = 1 + self.noise * abs(self.chance.standard_normal())
        return self.seconds(num_tokens) * factor * (8 if self.chance.random() < 0.01 else 1)

    def run(self, governor, luck, count, *, num_others=0, name="a"):
        """True seconds as a part of plain decoding's, the share of steps with drafts, limits."""
        governor.note_step(64, self.measured(64))
        total, num_made, limits = 0.0, 0, []
        while num_made < count:
            limit, num_kept = governor.limit(name, num_others), 0
            limits.append(limit)
            if limit:
                governor.note_proposal(self.proposal * limit, 1)
                total += self.proposal * limit
                while num_kept < limit and self.chance.random() < luck(num_made + num_kept):
                    num_kept += 1
            governor.note_step(1 + num_others + limit, self.measured(1 + num_others + limit))
            governor.note_draft(name, limit, num_kept)
            total += self.seconds(1 + num_others + limit)
            num_made += 1 + num_kept
        progress = num_others * len(limits) + num_made
        plain_s = self.seconds(1 + num_others) * progress / (num_others + 1)
        return total / plain_s, np.mean(np.array(limits) > 0), limits


def oracle(luck, *, base=1.0, per_token=0.15, proposal=0.0, most=8):
    """The best that any fixed length gives, plain decoding among them."""
    return min(
        (base + per_token * (1 + length) + proposal * length)
        / ((base + per_token) * sum(luck**depth for depth in range(length + 1)))
        for length in range(most + 1)
    )


@pytest.mark.parametrize("per_token", [0.05, 0.15, 0.4, 1.0])
def test_hopeless_drafts_are_given_up_and_cost_little(per_token):
    governor = Governor(8)
    ratio, share, limits = World(per_token=per_token).run(governor, lambda _: 0.0, 1500)
    assert ratio < 1.01
    assert share < (0.02 if per_token > 0.1 else 0.04)  # where they cost little, it may try often
    assert limits[-1] == 0 and any(limits[200:])  # it goes on trying
    report = governor.report()
    assert report.num_accepted == 0 and report.num_switch_offs >= 1
    assert report.num_drafts == np.count_nonzero(limits)


@pytest.mark.parametrize("per_token", [0.02, 0.15, 0.4])
@pytest.mark.parametrize("luck", [0.5, 0.7, 0.9, 0.98])
def test_good_drafts_get_the_length_that_pays(per_token, luck):
    ratios = [
        World(per_token=per_token, seed=seed).run(Governor(8), lambda _: luck, 1000)[0]
        for seed in range(4)
    ]
    best = oracle(luck, per_token=per_token)
    assert best < 0.9
    assert np.mean(ratios) < best + 0.25 * (1 - best)  # most of the gain is there


def test_a_draft_model_is_not_given_up_for_two_bad_drafts():
    given = {}
    for kind in ("draft", "prompt_lookup"):
        governor = make_governor(SpeculationConfig(kind=kind))
        world = World(base=0.95, per_token=0.05, noise=0.0, proposal=0.2)
        first = iter([0.0, 0.0])
        _, _, limits = world.run(governor, lambda _, first=first: next(first, 1.0), 60)
        drafts = np.flatnonzero(limits)
        given[kind] = drafts[2] == drafts[1] + 1  # the third at once
    assert given == {"draft": True, "prompt_lookup": False}


@pytest.mark.parametrize("luck", [0.0, 0.2, 0.4, 0.5, 0.6])
def test_near_the_break_even_nothing_is_lost(luck):
    for seed in range(4):
        ratio, _, _ = World(per_token=0.8, seed=seed).run(Governor(8), lambda _: luck, 1000)
        assert ratio < 1.015


@pytest.mark.parametrize("makes_trees", [False, True])
def test_a_plain_step_may_be_quicker_than_larger_ones_let_expect(makes_trees):
    """Drafts that are mostly right, on a machine that is best at one token: it finds that out."""
    governor, total, num_tokens = Governor(5, makes_trees=makes_trees), 0.0, 0
    governor.note_step(64, 22.0 + 64)
    for step in range(500):
        limit = governor.limit("a", 0)
        num_kept = min(limit, 1 + (step % 5 > 0))
        seconds = 23.0 + limit if limit else 8.0
        governor.note_step(1 + limit, seconds)
        governor.note_draft("a", limit, num_kept)
        total, num_tokens = total + seconds, num_tokens + 1 + num_kept
    assert total < 1.07 * 8 * num_tokens  # where it went on guessing it would be 1.2


def test_a_plain_step_that_never_comes_is_not_waited_for():
    """Prompts are read beside every step, so that none has the tokens of the decodes alone."""
    governor = Governor(8)
    limits = []
    for _ in range(12):
        limits.append([governor.limit(name, 1) for name in "ab"])
        governor.note_step(66, 1 + 0.01 * 66)
    assert limits[:3] == [[0, 0]] * 3 and min(map(sum, limits[4:])) > 0


def test_a_slow_proposer_counts():
    fast = World(per_token=0.05).run(Governor(8), lambda _: 0.6, 600)
    slow = World(per_token=0.05, proposal=0.9).run(Governor(8), lambda _: 0.6, 600)
    assert fast[0] < 0.7 and fast[1] > 0.9
    assert slow[0] < 1.03 and slow[1] < 0.1


def test_drafts_get_shorter_the_more_runs_beside_them():
    governor = Governor(8)
    World(per_token=0.1).run(governor, lambda _: 0.8, 300)
    for _ in range(20):
        for size in (2, 8, 32, 128):
            governor.note_step(size, 1 + 0.1 * size)
            governor.note_step(size + 8, 1 + 0.1 * (size + 8))
    limits = [governor.limit("a", others) for others in (0, 2, 8, 128)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] >= 4 and limits[-1] == 0


def test_it_comes_back_when_luck_turns_and_leaves_when_it_turns_again():
    governor = Governor(8)
    ratio, _, limits = World().run(governor, lambda place: 0.95 * (place > 800), 2400)
    assert np.mean(limits[600:790]) < 0.1
    assert np.mean(limits[-50:]) > 4
    assert ratio < 0.7
    ratio, _, limits = World().run(governor, lambda place: 0.95 * (place < 300), 1500)
    assert limits[-1] == 0


def test_each_sequence_has_its_own_luck():
    governor, world = Governor(8), World()
    governor.note_step(64, world.measured(64))
    given = {"good": [], "bad": []}
    for _ in range(300):
        for name, luck in (("good", 0.95), ("bad", 0.0)):
            limit, num_kept = governor.limit(name, 1), 0
            while num_kept < limit and world.chance.random() < luck:
                num_kept += 1
            governor.note_proposal(1e-5, 1)
            governor.note_draft(name, limit, num_kept)
            governor.note_step(2 + limit, world.measured(2 + limit))
            given[name].append(limit)
    assert np.mean(given["good"][50:]) > 4
    assert np.mean(np.array(given["bad"][50:]) > 0) < 0.1


def test_a_stream_of_short_hopeless_requests_does_not_start_anew_each_time():
    governor, world = Governor(8), World()
    ratios = []
    for request in range(60):
        ratio, _, limits = world.run(governor, lambda _: 0.0, 30, name=str(request))
        governor.forget(str(request))
        ratios.append(ratio)
        assert request < 10 or not any(limits[:8])
    assert np.mean(ratios) < 1.012


def test_a_draft_model_that_must_catch_up_first_is_not_judged_by_that():
    """The first proposal reads the prompt; what follows is quick and worth it."""
    governor, world = Governor(5), World(per_token=0.1, seed=1)
    governor.note_step(64, world.measured(64))
    limits = []
    for step in range(60):
        limit = governor.limit("a", 0)
        if limit:
            governor.note_proposal(0.1 * limit + (20.0 if step == 3 else 0), 1)
        governor.note_step(1 + limit, world.measured(1 + limit))
        governor.note_draft("a", limit, limit)
        limits.append(limit)
    assert limits[:3] == [0, 0, 0]  # first it must know how long a plain step takes
    assert min(limits[3:]) > 0 and limits[-1] == 5


def test_catching_up_for_trials_stays_cheap():
    """A hopeless draft model that has to read everything that it missed, at a tenth of a step."""
    governor, world, total, num_missed = Governor(5), World(per_token=0.1), 0.0, 50
    governor.note_step(64, world.measured(64))
    for _ in range(3000):
        limit = governor.limit("a", 0)
        num_missed += 1
        if limit:
            seconds = 0.3 * limit + 0.1 * num_missed
            governor.note_proposal(seconds, 1)
            total, num_missed = total + seconds, 0
        governor.note_step(1 + limit, world.measured(1 + limit))
        governor.note_draft("a", limit, 0)
        total += world.seconds(1 + limit)
    assert total < 1.015 * 3000 * world.seconds(1)


def test_a_fixed_length_is_never_changed():
    governor = Governor(6, is_adaptive=False)
    _, share, limits = World().run(governor, lambda _: 0.0, 100)
    assert share == 1 and set(limits) == {6}


@pytest.mark.parametrize("makes_trees", [False, True])
def test_a_rest_is_as_good_as_asking_all_along(makes_trees):
    asked, rested = (Governor(8, makes_trees=makes_trees) for _ in range(2))
    num_left, limits, rests = 0, [], []
    for governor in (asked, rested):
        governor.note_step(64, 1 + 0.2 * 64)
    for step in range(1800):
        luck = 8 * (600 < step < 1500)
        limits.append([asked.limit(name, 1) for name in "ab"])
        tell(asked, limits[-1], luck)
        if num_left:
            num_left -= 1
            assert limits[-1] == [0, 0], step
            if num_left == 0:
                rested.note_rest("ab", rests[-1], 2)
            continue
        found = [rested.limit(name, 1) for name in "ab"]
        assert found == limits[-1], step
        tell(rested, found, luck)
        if not any(found):
            num_left = rested.rest("ab")
            rests.append(num_left)
    assert np.count_nonzero(limits) > 100 and max(rests) > 12
    assert np.sum(rests) > 500
    rested.note_rest("ab", rests[-1] - num_left if num_left else 0, 2)
    assert rested.report() == asked.report()


def tell(governor, limits, luck):
    for name, limit in zip("ab", limits, strict=True):
        governor.note_draft(name, limit, min(limit, luck))
    governor.note_step(2 + sum(limits), 1 + 0.2 * (2 + sum(limits)))


def test_the_report_counts():
    governor = Governor(4)
    assert governor.report().acceptance_rate == governor.report().mean_accepted == 0
    governor.note_step(5, 1.0)
    governor.note_proposal(0.25, 2)
    governor.note_draft("a", 4, 3)
    governor.note_draft("b", 4, 0)
    governor.note_draft("b", 0, 0)  # no draft
    report = governor.report()
    assert (report.num_steps, report.num_drafts, report.proposal_s) == (1, 2, 0.25)
    assert (report.num_drafted, report.num_accepted) == (8, 3)
    assert report.acceptance_rate == 0.375 and report.mean_accepted == 1.5


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.floats(0, 5), st.integers(0, 9)),
        max_size=60,
    ),
    st.booleans(),
)
def test_any_times_give_a_limit_in_bounds_and_the_same_again(events, makes_trees):
    def replay():
        governor, given = Governor(9, makes_trees=makes_trees), []
        for name, others, seconds, num_kept in events:
            limit = governor.limit(name, others)
            assert 0 <= limit <= 9
            if limit:
                governor.note_proposal(seconds / 7, 1)
            governor.note_step(others + 1 + limit, seconds)
            governor.note_draft(name, limit, min(num_kept, limit))
            if num_kept == 9:
                governor.forget(name)
            given.append(limit)
        return given

    assert replay() == replay()


def test_the_time_of_a_step_is_learnt_through_noise_and_accidents():
    world, cost = World(per_token=0.2), StepCost()
    assert not cost.is_known
    for size in world.chance.integers(1, 12, 400).tolist() + [512, 300] * 5:
        cost.note(size, world.measured(size))
    for size in (1, 4, 9, 20, 400):
        assert cost.seconds(size) == pytest.approx(world.seconds(size), rel=0.15)
    assert cost.line.per_token == pytest.approx(0.2, rel=0.2)


def test_a_kernel_that_works_in_tiles_is_learnt_too():
    cost = StepCost()
    for size in list(range(1, 17)) * 12:
        cost.note(size, 1.0 + 0.5 * (-(-size // 4)))
    for size in range(1, 17):
        assert cost.seconds(size) == pytest.approx(1 + 0.5 * (-(-size // 4)), rel=0.06)


def test_one_size_alone_and_times_that_fall_are_no_nonsense():
    cost = StepCost()
    cost.note(1, 2.0)
    assert cost.seconds(1) == pytest.approx(2.0) and 2.0 < cost.seconds(9) < 5.0
    for _ in range(10):
        cost.note(5, 1.0)  # five tokens in half the time: the one was an accident
    assert cost.seconds(1) <= cost.seconds(5) * 1.01
    cost = StepCost()
    for size in (10, 20, 40):
        cost.note(size, size * 0.1)
    assert cost.seconds(30) == pytest.approx(3.0, rel=0.05)


def test_a_mean_of_times_is_hard_to_move_up_and_easy_to_move_down():
    mean = TimeMean()
    mean.add(50.0)
    mean.add(1.0)
    assert mean.value == 1.0
    for _ in range(20):
        mean.add(1.0)
    mean.add(100.0)
    assert mean.value < 1.05
    for _ in range(60):
        mean.add(2.0)
    assert mean.value == pytest.approx(2.0, rel=0.05)


def test_acceptance_is_counted_by_depth_and_forgets():
    acceptance = Acceptance()
    first = acceptance.rates(3)
    assert first[0] == first[2] > 0.5  # worth a try
    for _ in range(200):
        acceptance.note(4, 2)
    rates = acceptance.rates(5)
    assert rates[0] > 0.95 and rates[1] > 0.95 and rates[2] < 0.05
    assert rates[4] == rates[3] == rates[2]  # never reached: as good as the one before
    for _ in range(300):
        acceptance.note(4, 0)
    assert acceptance.rates(1)[0] < 0.05
    assert Acceptance(acceptance).rates(2) == acceptance.rates(2)


def speculate(model, proposer, governor, sequence, count, world):
    """The driver with a governor; seconds as a part of plain decoding's."""
    total = 0.0
    governor.note_step(64, world.measured(64))
    while len(sequence.output) < count:
        sequence.limit = governor.limit(sequence.sequence_id, 0)
        drafts = proposer.propose([sequence]) if sequence.limit else []
        known, num_nodes = tuple(sequence.tokens), 0
        if drafts:
            governor.note_proposal(1e-5, 1)
            num_nodes = len(drafts[0])
            path = verify(model, sequence, drafts[0])
            watched = {n: model((*known, *branch(drafts[0], n))) for n in drafts[0].watched}
            proposer.learn(
                sequence.sequence_id, drafts[0], {n: int(x.argmax()) for n, x in watched.items()}
            )
            governor.note_draft(sequence.sequence_id, drafts[0].depth, len(path), num_nodes)
        else:
            sequence.tokens.append(choose(model(known), sequence.row([])))
        governor.note_step(1 + num_nodes, world.measured(1 + num_nodes))
        total += world.seconds(1 + num_nodes)
    return total / (len(sequence.output) * world.seconds(1))


@pytest.mark.parametrize("kind", ["lookup", "lookahead"])
def test_proposers_and_governor_together(kind):
    for model, is_good in ((hashed, False), (repetitive, True)):
        makes_trees = kind == "lookahead"
        proposer = LookaheadProposer() if makes_trees else PromptLookupProposer()
        governor = Governor(23 if makes_trees else 8, makes_trees=makes_trees)
        sequence = Sequence("a", [1, 2, 3, 1], SamplingParams(), 0)
        ratio = speculate(model, proposer, governor, sequence, 500, World(per_token=0.06))
        assert sequence.output == plain(model, sequence, len(sequence.output))
        assert ratio < (0.7 if is_good else 1.015)
        assert (governor.report().num_accepted > 200) == is_good
