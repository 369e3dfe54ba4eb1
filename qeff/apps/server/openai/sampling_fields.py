"""The fields of requests that say how tokens are chosen, and what the engine makes of them.

Names, defaults and limits are OpenAI's; what vLLM and llama.cpp add has their names. Unknown fields
are ignored, wrong types and values are refused. Knows nothing of prompts, routes or models.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from qeff.generate import SamplingParams

MAX_WHOLE = 2**31 - 1
MAX_OUTPUTS = 128
MAX_STRINGS = 256  # stop strings, and words that may not come
MAX_BIASES = 4096
TEMPERATURE = 1.0  # where a request gives none, as OpenAI documents

TokenId = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Some = Annotated[str, Field(min_length=1)]
BiasKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Body(BaseModel):
    """A part of a request: types are not turned into each other, unknown fields are ignored.

    What checks a shape is made when the first such request comes: most servers see few of them.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)


class SamplingFields(Body):
    """How tokens are chosen and when to stop; null is the same as leaving a field out."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_OUTPUTS)] | None = None
    stop: Some | Annotated[list[Some], Field(max_length=MAX_STRINGS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    logit_bias: Annotated[dict[BiasKey, Bias], Field(max_length=MAX_BIASES)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    # vLLM's and llama.cpp's
    top_k: Annotated[int, Field(ge=-1, le=MAX_WHOLE)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_WHOLE)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STRINGS)] | None = None
    bad_words: Annotated[list[Some], Field(max_length=MAX_STRINGS)] | None = None
    priority: Annotated[int, Field(ge=-MAX_WHOLE, le=MAX_WHOLE)] | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None


_SAME = (
    "top_p",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "stop_token_ids",
    "bad_words",
)


def sampling_params(fields: SamplingFields, **others: Any) -> SamplingParams:
    """The engine's settings; ``others`` are what each route names in its own way."""
    given = {name: getattr(fields, name) for name in _SAME}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    settings["temperature"] = TEMPERATURE if fields.temperature is None else fields.temperature
    if fields.top_k is not None:
        settings["top_k"] = max(fields.top_k, 0)  # vLLM's -1 is off
    if fields.seed is not None:
        settings["seed"] = fields.seed % 2**64
    if fields.stop:
        settings["stop"] = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if fields.logit_bias:
        settings["logit_bias"] = {int(token): bias for token, bias in fields.logit_bias.items()}
    return SamplingParams(**{**settings, **others})
