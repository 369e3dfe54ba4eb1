"""Speculation as the Python class takes it: a kind or a whole config, and perhaps a draft model.

Gives the setup of an engine. Knows nothing of how guesses are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qeff.apps.container_path import resolve
from qeff.apps.opening import Setup
from qeff.core.errors import ContainerError, OptionTypeError, OptionValueError
from qeff.generate import SpeculationConfig


def speculating_setup(
    speculation: SpeculationConfig | str | None, draft_model: Any, num_tokens: int | None
) -> Setup:
    """How an engine guesses; ``num_tokens`` is what the model was compiled for, if anything."""
    if speculation is None and draft_model is None:
        return Setup()
    if isinstance(speculation, SpeculationConfig):
        config = speculation
    else:
        kind = "draft" if speculation is None else str(speculation).replace("-", "_")
        most = None if kind == "lookahead" else num_tokens or None
        config = SpeculationConfig(kind=kind, num_tokens=most)  # type: ignore[arg-type]
    if config.kind == "draft" and draft_model is None:
        raise OptionTypeError(
            "speculation with a draft model needs draft_model",
            "give a compiled model, or the path of its container",
        )
    if config.kind != "draft" and draft_model is not None:
        raise OptionValueError(
            f"speculation {config.kind!r} uses no draft_model", "leave one of the two out"
        )
    draft = None if draft_model is None else _container_of(draft_model)
    return Setup(speculation=config, draft=draft)


def _container_of(draft_model: Any) -> Path:
    """The container of a compiled model, or the one at a path."""
    if isinstance(draft_model, str | Path):
        folder = resolve(draft_model)
        if folder is None:
            raise ContainerError(
                f"there is no container at {draft_model}", "compile the draft model first"
            )
        return folder
    if not hasattr(draft_model, "qpc_path"):
        raise OptionTypeError(
            f"draft_model must be a compiled model or a container's path, not {draft_model!r}"
        )
    if draft_model.qpc_path is None:
        raise OptionTypeError("the draft model is not compiled", "call its compile first")
    return Path(draft_model.qpc_path)
