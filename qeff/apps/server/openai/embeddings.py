"""POST /v1/embeddings: vectors of texts, from models that make them.

The decoders that are served here do not: they are asked politely, and answer that they cannot. A
served model with an ``embed`` is used. Knows nothing of how vectors come about.
"""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qeff.apps.server.departure import while_connected
from qeff.apps.server.errors import bad_request
from qeff.apps.server.openai.sampling_fields import MAX_WHOLE, Body, TokenId
from qeff.apps.server.routing import Router
from qeff.apps.server.served import Served
from qeff.apps.server.state import serving

MAX_INPUTS = 2048
router = Router("embeddings")
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: str | None = None
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None = None
    user: Any = None


@router.post("/v1/embeddings", EmbeddingRequest)
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Vectors of texts or token ids."""
    return JSONResponse(await while_connected(request, _embed(request, body)))


async def _embed(request: Request, body: EmbeddingRequest) -> dict[str, Any]:
    state = serving(request)
    async with state.models.use(body.model) as served:
        embed = getattr(served, "embed", None)
        if embed is None:
            raise bad_request(
                f"The model {served.name!r} writes text and makes no embeddings.", "model"
            )
        prompts = [await _ids(served, one) for one in _inputs(body.input)]
        async with state.admission.place(sum(map(len, prompts)), len(prompts)) as place:
            vectors = await embed(prompts, body.dimensions)
            place.started()
    num_tokens = sum(map(len, prompts))
    as_base64 = body.encoding_format == "base64"
    return {
        "object": "list",
        "model": served.name,
        "data": [
            {"object": "embedding", "index": index, "embedding": _shown(vector, as_base64)}
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def _inputs(given: Any) -> list[str | list[int]]:
    """The inputs one by one: a text or a list of token ids each."""
    is_one = isinstance(given, str) or isinstance(given[0], int)
    return [given] if is_one else list(given)


async def _ids(served: Served, given: str | list[int]) -> list[int]:
    ids = await served.encode_soon(given) if isinstance(given, str) else given
    if not ids or len(ids) > served.ctx_len or max(ids) >= served.vocab_size:
        raise bad_request(
            f"An input has from 1 to {served.ctx_len} tokens, all of them below "
            f"{served.vocab_size}.",
            "input",
        )
    return ids


def _shown(vector: Any, as_base64: bool) -> str | list[float]:
    numbers = [float(number) for number in vector]
    if not as_base64:
        return numbers
    return base64.b64encode(array("f", numbers).tobytes()).decode("ascii")
