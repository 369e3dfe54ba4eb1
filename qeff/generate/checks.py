"""Checks of single settings: each takes a name and a value and says in one sentence what is wrong.

Those that tidy give the tidied value back. Knows nothing of which settings exist.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from qeff.core.errors import OptionTypeError, OptionValueError


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Refuse what is not a whole number, or is below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise OptionValueError(f"{name} must be at least {least}, not {value}")


def check_number(name: str, value: object, least: float, most: float) -> None:
    """Refuse what is not a finite number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionTypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and least <= value <= most):
        raise OptionValueError(f"{name} must be {_bounds(least, most)}, not {value}")


def check_fraction(name: str, value: object) -> None:
    """Refuse what is not above 0 and at most 1, for settings that 1 turns off."""
    check_number(name, value, 0.0, 1.0)
    if value == 0:
        raise OptionValueError(f"{name} must be above 0", "1 turns it off")


def check_flag(name: str, value: object) -> None:
    """Refuse what is not True or False."""
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name} must be True or False, not {value!r}")


def strings(name: str, values: str | Iterable[str], if_empty: str) -> tuple[str, ...]:
    """One string or several as a tuple; ``if_empty`` says why an empty one is refused."""
    found = (values,) if isinstance(values, str) else tuple(_each(name, values))
    for value in found:
        if not isinstance(value, str):
            raise OptionTypeError(f"{name} must hold strings, not {value!r}")
        if not value:
            raise OptionValueError(f"{name} holds an empty string", if_empty)
    return found


def token_ids(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers of any kind as a tuple of token ids."""
    if isinstance(values, str | bytes):
        raise OptionTypeError(f"{name} must hold token ids, not text")
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise OptionTypeError(f"{name} must hold whole numbers: {error}") from None
    if any(value < 0 for value in found):
        raise OptionValueError(f"{name} holds a negative token id")
    return found


def token_sequences(name: str, values: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """Sequences of token ids as a tuple of tuples, none of them empty."""
    if isinstance(values, str | bytes):
        raise OptionTypeError(f"{name} must hold sequences of token ids, not text")
    found = tuple(token_ids(name, value) for value in _each(name, values))
    if not all(found):
        raise OptionValueError(f"{name} holds an empty sequence", "it would forbid nothing")
    return found


def token_biases(name: str, values: Any, most: float) -> tuple[tuple[int, float], ...]:
    """A mapping of token id to bias, or its pairs, as pairs in the order of their ids."""
    pairs = list(values.items()) if isinstance(values, Mapping) else list(_each(name, values))
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise OptionTypeError(f"{name} must map token ids to numbers, not hold {pair!r}")
        (token,) = token_ids(name, pair[:1])
        check_number(name, pair[1], -most, most)
        if token in found:
            raise OptionValueError(f"{name} holds token {token} twice")
        found[token] = float(pair[1])
    return tuple(sorted(found.items()))


def _each(name: str, values: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(values, Iterable):
        raise OptionTypeError(f"{name} must hold several values, not {values!r}")
    return values


def _bounds(least: float, most: float) -> str:
    if math.isinf(most):
        return "a finite number" if math.isinf(least) else f"at least {least:g}"
    return f"from {least:g} to {most:g}"
