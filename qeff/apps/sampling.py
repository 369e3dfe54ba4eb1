"""Sampling settings of the Python class: one for all prompts, or lists with a value for each.

Takes the names of ``SamplingParams`` and QEfficient's plural ones (``temperatures``, ``top_ks``,
…), gives one ``SamplingParams`` for each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from qeff.apps.combinations import check_names
from qeff.core.errors import OptionNotSupported, OptionTypeError, OptionValueError
from qeff.generate import SamplingParams

# QEfficient's names hold an array with a value for each prompt.
PLURALS = {
    "temperatures": "temperature",
    "top_ks": "top_k",
    "top_ps": "top_p",
    "min_ps": "min_p",
    "repetition_penalties": "repetition_penalty",
    "presence_penalties": "presence_penalty",
    "frequency_penalties": "frequency_penalty",
}
NAMES = tuple(field.name for field in fields(SamplingParams))

# QEfficient's other keywords: the value that needs nothing, and what another one asks for.
SWITCHES = {
    "write_io": (False, "writing every step's inputs and outputs to files"),
    "return_pdfs": (False, "returning the probabilities of all tokens"),
    "include_guided_decoding": (False, "guided decoding"),
    "iteration": (1, "repeating the run"),
}
IGNORED = ("automation", "include_sampler")  # printing for scripts; where the sampler runs


def params_for(
    count: int,
    given: SamplingParams | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    generation_len: int | None,
) -> list[SamplingParams]:
    """One setting for each of ``count`` prompts."""
    check_names("option", options, (*NAMES, *SWITCHES, *IGNORED))
    for name, (plain, meaning) in SWITCHES.items():
        if options.get(name, plain) != plain:
            raise OptionNotSupported(f"{name}={options[name]!r}: {meaning} is not offered")
    single = {name: value for name, value in options.items() if name in NAMES}
    if generation_len is not None:
        single["max_tokens"] = generation_len
    if isinstance(given, SamplingParams):
        return [replace(given, **single)] * count
    if given is not None and not isinstance(given, Mapping):
        raise OptionTypeError(f"sampling_params must be SamplingParams or a mapping, not {given!r}")
    rows = _rows(count, given or {})
    return [SamplingParams(**{**row, **single}) for row in rows]


def _rows(count: int, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "random_numbers" in given:
        raise OptionNotSupported("fixed random numbers are not offered", "use seed")
    check_names("sampling setting", given, (*NAMES, *PLURALS))
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in given.items():
        if name not in PLURALS:
            for row in rows:
                row[name] = value
            continue
        values = np.asarray(value).reshape(-1)
        if values.dtype.kind not in "iuf":
            raise OptionTypeError(f"{name} must hold numbers, not {value!r:.60}")
        if values.size not in (1, count):
            raise OptionValueError(f"{name} has {values.size} values for {count} prompts")
        for row, number in zip(rows, np.broadcast_to(values, (count,)).tolist(), strict=True):
            is_whole = name == "top_ks" and float(number).is_integer()
            row[PLURALS[name]] = int(number) if is_whole else number
    return rows
