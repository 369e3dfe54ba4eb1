"""The settings of speculation: what they make, and what they refuse."""

from __future__ import annotations

import pytest
from mock_session import MockSession

from qeff.core.errors import OptionTypeError, OptionValueError, UsageError
from qeff.generate import speculation
from qeff.generate.speculation import (
    DraftModelProposer,
    LookaheadProposer,
    PromptLookupProposer,
    SpeculationConfig,
    Vocabulary,
    make_governor,
    make_proposer,
)


def test_each_kind_makes_its_proposer():
    lookup = make_proposer(SpeculationConfig(kind="prompt_lookup"))
    assert isinstance(lookup, PromptLookupProposer) and not lookup.makes_trees
    ahead = make_proposer(SpeculationConfig(kind="lookahead", ngram=5, window=3, gcap=2))
    assert isinstance(ahead, LookaheadProposer) and ahead.makes_trees
    assert (ahead.ngram, ahead.window, ahead.gcap) == (5, 3, 2)
    draft = make_proposer(
        SpeculationConfig(kind="draft"), session=MockSession(), target=Vocabulary(64)
    )
    assert isinstance(draft, DraftModelProposer) and not draft.makes_trees


def test_the_length_of_drafts():
    assert SpeculationConfig(kind="prompt_lookup").max_tokens == 10
    assert SpeculationConfig(kind="draft").max_tokens == 5
    assert SpeculationConfig(kind="draft", num_tokens=3).max_tokens == 3
    assert SpeculationConfig(kind="lookahead").max_tokens == 4 * 3 - 1 + 4 * 3
    config = SpeculationConfig(kind="lookahead", num_tokens=7, is_adaptive=False)
    governor = make_governor(config)
    assert governor.max_tokens == 7 and governor.limit("a", 0) == 7


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"kind": "lookup"}, UsageError, "unknown kind of speculation 'lookup'"),
        ({"num_tokens": 0}, OptionValueError, "num_tokens must be at least 1, not 0"),
        ({"num_tokens": "4"}, OptionTypeError, "num_tokens must be a whole number, not '4'"),
        ({"max_ngram": 1}, OptionValueError, "min_ngram 2 is larger than max_ngram 1"),
        ({"min_ngram": 0}, OptionValueError, "min_ngram must be at least 1"),
        ({"ngram": 2}, OptionValueError, "ngram must be at least 3, not 2"),
        ({"window": True}, OptionTypeError, "window must be a whole number, not True"),
        ({"gcap": 0}, OptionValueError, "gcap must be at least 1"),
        ({"min_confidence": 1.5}, OptionValueError, "min_confidence must be from 0 to 1"),
        ({"min_confidence": "low"}, OptionTypeError, "min_confidence must be a number"),
        ({"is_adaptive": 1}, OptionTypeError, "is_adaptive must be True or False, not 1"),
    ],
)
def test_a_setting_without_meaning_is_refused(settings, error, sentence):
    with pytest.raises(error, match=sentence):
        SpeculationConfig(**({"kind": "prompt_lookup"} | settings))


def test_a_draft_model_must_be_given():
    with pytest.raises(OptionTypeError, match="needs the draft model"):
        make_proposer(SpeculationConfig(kind="draft"))


def test_the_door_gives_every_name_and_no_other():
    for name in speculation.__all__:
        assert getattr(speculation, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        speculation.Oracle  # noqa: B018
