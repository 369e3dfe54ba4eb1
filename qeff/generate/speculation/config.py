"""The settings of speculation, and the proposer and the governor that they name.

Checked when they are made, so that a bad setting is answered before a model is opened. Knows
nothing of how guesses are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qeff.core.errors import OptionTypeError, OptionValueError, unknown_name
from qeff.generate.speculation.draft import Proposer

if TYPE_CHECKING:
    from qeff.generate.speculation.draft_model import Vocabulary
    from qeff.generate.speculation.governor import Governor
    from qeff.runtime.session import Session

Kind = Literal["prompt_lookup", "lookahead", "draft", "heads"]
NUM_TOKENS: dict[str, int] = {"prompt_lookup": 10, "draft": 5, "heads": 16}
DRAFT_MODEL_TRUST = 6.0  # drafts that a draft model is believed in for, before it has made any


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How guesses are made; every kind gives the tokens that plain decoding gives.

    Args:
        kind: ``prompt_lookup`` copies from the text so far, ``lookahead`` lets the model guess
            several places ahead, ``draft`` runs a second, smaller model, ``heads`` takes what the
            heads guess that the model brings.
        num_tokens: Most tokens of a draft; for lookahead by default the whole tree, for heads all.
        max_ngram: Prompt lookup: the longest n-gram looked for.
        min_ngram: Prompt lookup: the shortest one.
        ngram: Lookahead: tokens of a pool entry.
        window: Lookahead: places ahead that are guessed at once.
        gcap: Lookahead: most candidates in a step.
        min_confidence: Draft: a draft ends before a token that its model thinks less likely.
        is_adaptive: Shorten drafts, down to none, where plain decoding is quicker.
    """

    kind: Kind
    num_tokens: int | None = None
    max_ngram: int = 4
    min_ngram: int = 2
    ngram: int = 4
    window: int = 4
    gcap: int = 4
    min_confidence: float = 0.3
    is_adaptive: bool = True

    def __post_init__(self) -> None:
        if self.kind not in (*NUM_TOKENS, "lookahead"):
            raise unknown_name("kind of speculation", self.kind, (*NUM_TOKENS, "lookahead"))
        if self.num_tokens is not None:
            _check_whole("num_tokens", self.num_tokens, 1)
        _check_whole("min_ngram", self.min_ngram, 1)
        _check_whole("max_ngram", self.max_ngram, 1)
        if self.min_ngram > self.max_ngram:
            raise OptionValueError(
                f"min_ngram {self.min_ngram} is larger than max_ngram {self.max_ngram}"
            )
        _check_whole("ngram", self.ngram, 3)
        _check_whole("window", self.window, 1)
        _check_whole("gcap", self.gcap, 1)
        confidence = self.min_confidence
        if isinstance(confidence, bool) or not isinstance(confidence, int | float):
            raise OptionTypeError(f"min_confidence must be a number, not {confidence!r}")
        if not 0 <= confidence <= 1:
            raise OptionValueError(f"min_confidence must be from 0 to 1, not {confidence}")
        if not isinstance(self.is_adaptive, bool):
            raise OptionTypeError(f"is_adaptive must be True or False, not {self.is_adaptive!r}")

    @property
    def max_tokens(self) -> int:
        """Most tokens that a draft may have."""
        from qeff.generate.speculation.lookahead import num_tree_tokens

        if self.num_tokens is not None:
            return self.num_tokens
        if self.kind == "lookahead":
            return num_tree_tokens(self.ngram, self.window, self.gcap)
        return NUM_TOKENS[self.kind]


def make_proposer(
    config: SpeculationConfig,
    *,
    session: Session | None = None,
    target: Vocabulary | None = None,
    draft: Vocabulary | None = None,
) -> Proposer:
    """The proposer of a config; the draft kind takes an opened session and the vocabularies."""
    from qeff.generate.speculation.draft_model import DraftModelProposer
    from qeff.generate.speculation.heads import HeadsProposer
    from qeff.generate.speculation.lookahead import LookaheadProposer
    from qeff.generate.speculation.prompt_lookup import PromptLookupProposer

    if config.kind == "prompt_lookup":
        return PromptLookupProposer(max_ngram=config.max_ngram, min_ngram=config.min_ngram)
    if config.kind == "heads":
        return HeadsProposer()
    if config.kind == "lookahead":
        return LookaheadProposer(ngram=config.ngram, window=config.window, gcap=config.gcap)
    if session is None or target is None:
        raise OptionTypeError(
            "speculation with a draft model needs the draft model",
            "name its container, or use prompt_lookup, which needs none",
        )
    return DraftModelProposer(session, target, draft=draft, min_confidence=config.min_confidence)


def make_governor(config: SpeculationConfig) -> Governor:
    """The governor of a config."""
    from qeff.generate.speculation.acceptance import PRIOR_COUNT
    from qeff.generate.speculation.governor import Governor

    return Governor(
        config.max_tokens,
        is_adaptive=config.is_adaptive,
        makes_trees=config.kind == "lookahead",
        prior_count=DRAFT_MODEL_TRUST if config.kind == "draft" else PRIOR_COUNT,
    )


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise OptionValueError(f"{name} must be at least {least}, not {value}")
