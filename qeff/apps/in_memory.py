"""A model that is already in memory: kept in the cache as a checkpoint, named by its content.

For ``QEFFAutoModelForCausalLM(model)``. Everything after it works from files, as for any other
checkpoint.
"""

from __future__ import annotations

from typing import Any

from qeff.apps.staging import draft_folder, publish
from qeff.core.env import cache_root
from qeff.core.errors import OptionTypeError
from qeff.sources import Location, locate

_ENDINGS = ("ForCausalLM", "LMHeadModel")


def keep_model(model: Any) -> Location:
    """Save a transformers decoder under the cache and return where it is."""
    kind = type(model).__name__
    if not kind.endswith(_ENDINGS):
        raise OptionTypeError(
            f"a {kind} is not a causal language model",
            "give a model whose class ends with ForCausalLM or LMHeadModel, or use from_pretrained",
        )
    with draft_folder(cache_root() / "in_memory") as draft:
        model.save_pretrained(draft)
        folder = draft.with_name(f"{kind}-{locate(draft).content_hash()[:16]}")
        # The name is the content's hash, so that whatever is there is the same.
        publish(draft, folder, lambda out: True)
    return locate(folder)
