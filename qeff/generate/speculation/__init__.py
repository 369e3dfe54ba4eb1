"""Speculation: guesses of the tokens to come, which a step checks all at once.

One contract (``draft``), four proposers and a governor of their lengths. A guess can only save
time: which tokens a request gets does not depend on anything here. Knows nothing of schedules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.generate.speculation.config import SpeculationConfig, make_governor, make_proposer
    from qeff.generate.speculation.draft import NO_PARENT, Ask, Draft, Proposer
    from qeff.generate.speculation.draft_model import DraftModelProposer, Vocabulary
    from qeff.generate.speculation.governor import Governor, SpeculationStats
    from qeff.generate.speculation.heads import HeadsProposer
    from qeff.generate.speculation.lookahead import LookaheadProposer
    from qeff.generate.speculation.prompt_lookup import PromptLookupProposer

_HOMES = {
    "NO_PARENT": "draft",
    "Ask": "draft",
    "Draft": "draft",
    "DraftModelProposer": "draft_model",
    "Governor": "governor",
    "HeadsProposer": "heads",
    "LookaheadProposer": "lookahead",
    "PromptLookupProposer": "prompt_lookup",
    "Proposer": "draft",
    "SpeculationConfig": "config",
    "SpeculationStats": "governor",
    "Vocabulary": "draft_model",
    "make_governor": "config",
    "make_proposer": "config",
}

__all__ = [
    "NO_PARENT",
    "Ask",
    "Draft",
    "DraftModelProposer",
    "Governor",
    "HeadsProposer",
    "LookaheadProposer",
    "PromptLookupProposer",
    "Proposer",
    "SpeculationConfig",
    "SpeculationStats",
    "Vocabulary",
    "make_governor",
    "make_proposer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
