"""Embeddings: decoders make none and say so; a model that makes them is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest

from qeff.apps.server.served import Served


@pytest.fixture(scope="module")
def client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_decoder_says_that_it_makes_none(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
        client.embeddings.create(model="tiny", input="the sun")
    assert caught.value.param == "model"


async def embed(self: Served, prompts: Sequence[Sequence[int]], dimensions: int | None) -> Any:
    return [[float(len(prompt)), 0.5, -2.0][:dimensions] for prompt in prompts]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_a_model_that_embeds_is_used(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.setattr(Served, "embed", embed, raising=False)
    found = client.embeddings.create(
        model="tiny", input=[[1, 2, 3], [4]], dimensions=2, encoding_format=form
    )
    vectors = [one.embedding for one in found.data]
    if form == "float":
        assert vectors == [[3.0, 0.5], [1.0, 0.5]]
    else:
        assert vectors == ["AABAQAAAAD8=", "AACAPwAAAD8="]
    assert found.usage.prompt_tokens == 4
    one = client.embeddings.create(model="tiny", input="sun")  # the client asks for base64 itself
    assert list(one.data[0].embedding)[1:] == [0.5, -2.0]


@pytest.mark.parametrize("given", ["", [], [[]], [100000], [[1], "a"], 5, None, [-1]])
def test_inputs_that_are_none(server: Any, monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    monkeypatch.setattr(Served, "embed", embed, raising=False)
    response = server.post("/v1/embeddings", model="tiny", input=given)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("input")
