"""Sampling settings that are changed while a conversation goes on: ``temperature=0.7``.

Takes words, gives checked settings. Knows nothing of terminals.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields, replace
from typing import Any

from qeff.core.errors import OptionValueError, unknown_name
from qeff.generate import SamplingParams

# A conversation goes on from one answer, which is shown as it comes.
SINGLE = ("n", "best_of", "beam_width", "length_penalty", "early_stopping")
NAMES = {
    field.name: field
    for field in fields(SamplingParams)
    if field.name not in (*SINGLE, "skip_special_tokens")
}


def check_single(params: SamplingParams) -> SamplingParams:
    """The settings, if they give one answer at a time."""
    for name in ("n", "best_of", "beam_width"):
        if (getattr(params, name) or 1) > 1:
            raise OptionValueError(
                f"{name} {getattr(params, name)} gives several answers, a chat goes on from one",
                "use qeff infer --chat",
            )
    return params


def changed(params: SamplingParams, words: str) -> SamplingParams:
    """The settings with one of them changed; a name and ``=`` alone give the default back."""
    name, equals, value = (part.strip() for part in words.partition("="))
    name = name.replace("-", "_")
    if not equals:
        raise OptionValueError(f"{words!r} is not NAME=VALUE", "for example: temperature=0.7")
    if name in SINGLE:
        raise OptionValueError(f"{name} is about several answers, a chat goes on from one")
    if name not in NAMES:
        raise unknown_name("setting", name, NAMES)
    return replace(params, **{name: _value(NAMES[name], value)})


def shown(params: SamplingParams) -> str:
    """Those settings that are not the defaults."""
    given = {
        name: getattr(params, name)
        for name, field in NAMES.items()
        if getattr(params, name) != _default(field)
    }
    return ", ".join(f"{name}={value!r}" for name, value in given.items()) or "all defaults"


def _value(field: Field[Any], text: str) -> Any:
    if not text:
        return _default(field)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict):  # token ids, which JSON writes as strings
        return {int(key) if key.isdecimal() else key: item for key, item in value.items()}
    holds_several = isinstance(_default(field), tuple)
    return [value] if holds_several and not isinstance(value, list) else value


def _default(field: Field[Any]) -> Any:
    assert field.default is not MISSING, f"{field.name} has a default"
    return field.default
