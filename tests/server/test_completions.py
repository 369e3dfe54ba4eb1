"""``/v1/completions`` through the official client, and what only plain HTTP can ask."""

from __future__ import annotations

import json
import math

import pytest

PROMPT = "my name is the"
GREEDY = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def error_of(answer) -> dict:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_a_prompt_goes_on(client) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, seed=1)
    assert answer.object == "text_completion" and answer.model == "tiny"
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_default_is_sixteen_tokens(server) -> None:
    answer = server.post("/v1/completions", **GREEDY).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_is_the_same_text(client, server) -> None:
    whole = server.post("/v1/completions", **GREEDY, max_tokens=40).json()
    stream = client.completions.create(
        model="tiny",
        prompt=PROMPT,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole["choices"][0]["text"]
    assert len(chunks) > 10, "it comes piece by piece"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 40
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_ends_with_done(server) -> None:
    answer = server.post("/v1/completions", **GREEDY, max_tokens=3, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    assert "usage" not in json.loads(events[0].removeprefix("data: "))


def test_several_prompts_and_outputs(server) -> None:
    answer = server.post(
        "/v1/completions", prompt=["my", "name is"], n=3, temperature=1, seed=5, max_tokens=4
    ).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert len({choice["text"] for choice in answer["choices"][:3]}) > 1, "seeds differ"
    alone = server.post(
        "/v1/completions", prompt="name is", temperature=1, seed=5, max_tokens=4
    ).json()
    assert alone["choices"][0]["text"] == answer["choices"][3]["text"], "as in a batch"


def test_several_in_a_stream(server) -> None:
    body = {"prompt": ["my", "name is"], "n": 2, "temperature": 1, "seed": 5, "max_tokens": 6}
    whole = server.post("/v1/completions", **body).json()
    streamed = server.post("/v1/completions", **body, stream=True).text
    texts = ["", "", "", ""]
    for line in streamed.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_prompts_as_token_ids(server) -> None:
    ids = server.post("/tokenize", prompt=PROMPT).json()["tokens"]
    expected = server.post("/v1/completions", **GREEDY).json()["choices"][0]["text"]
    for prompt in (ids, [ids]):
        answer = server.post("/v1/completions", **{**GREEDY, "prompt": prompt}).json()
        assert answer["choices"][0]["text"] == expected


def test_a_limit_of_the_server_lowers_what_is_asked(run_server) -> None:
    asked = {"prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}
    with run_server(max_tokens=3) as one:
        for path in ("/v1/completions", "/v1/chat/completions"):
            answer = one.post(path, **asked, max_tokens=9, min_tokens=5).json()
            assert answer["usage"]["completion_tokens"] == 3
            refused = one.post(path, **asked, max_tokens=4, min_tokens=5)
            assert refused.status_code == 400, "that is the client's own mistake"


def test_logprobs(client) -> None:
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=4, logprobs=2
    )
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
    assert "".join(found.tokens).startswith(answer.choices[0].text)
    assert all(number <= 0 for number in found.token_logprobs)
    for token, number, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == number == max(top.values())
    assert found.text_offset[0] == 0


def test_an_echo_scores_the_prompt(server) -> None:
    answer = server.post(
        "/v1/completions", prompt=PROMPT, echo=True, max_tokens=0, logprobs=1
    ).json()
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPT
    numbers = choice["logprobs"]["token_logprobs"]
    assert numbers[0] is None and all(number < 0 for number in numbers[1:])
    assert len(numbers) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    more = server.post("/v1/completions", **GREEDY, echo=True, max_tokens=2).json()
    assert more["choices"][0]["text"].startswith(PROMPT)
    streamed = server.post("/v1/completions", **GREEDY, echo=True, max_tokens=2, stream=True).text
    first = json.loads(streamed.splitlines()[0].removeprefix("data: "))
    assert first["choices"][0]["text"].startswith(PROMPT)


def test_the_best_of_several(server) -> None:
    body = {"prompt": PROMPT, "temperature": 1.0, "seed": 3, "max_tokens": 6, "logprobs": 0}
    answer = server.post("/v1/completions", **body, best_of=4, n=2).json()
    sums = [math.fsum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
    assert len(sums) == 2 and sums == sorted(sums, reverse=True)


def test_stop_strings(server) -> None:
    text = server.post("/v1/completions", **GREEDY, max_tokens=20).json()["choices"][0]["text"]
    stop = text[5:7]
    answer = server.post("/v1/completions", **GREEDY, max_tokens=20, stop=[stop, "never"]).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_cached_tokens_are_told(server) -> None:
    prompt = "once upon a time in the flat earth theory that sun rises from " * 3
    for _ in range(2):
        usage = server.post("/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_an_output_ends_with_the_context(server) -> None:
    answer = server.post("/v1/completions", **GREEDY, max_tokens=10**6).json()
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", "8", "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_tokens", 10**30, "max_tokens"),
        ("temperature", -0.1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.1, "top_p"),
        ("n", 0, "n"),
        ("n", 10**9, "n"),
        ("n", True, "n"),
        ("best_of", 1000, "best_of"),
        ("logprobs", 100, "logprobs"),
        ("logprobs", True, "logprobs"),
        ("seed", 2**70, "seed"),
        ("stop", [""], "stop"),
        ("logit_bias", {"3": 1000}, "logit_bias"),
        ("logit_bias", {"99999": 1}, None),
        ("prompt", [], "prompt"),
        ("prompt", "", "prompt"),
        ("prompt", [[]], "prompt"),
        ("prompt", [1, "a"], "prompt"),
        ("prompt", [-1], "prompt"),
        ("prompt", [10**9], None),
        ("prompt", 3, "prompt"),
        ("prompt", None, "prompt"),
        ("prompt", ["a"] * 10_000, "prompt"),
        ("prompt", "a b c d " * 400, "prompt"),
        ("stream", "yes", "stream"),
        ("suffix", "end", "suffix"),
        ("model", 7, "model"),
    ],
)
def test_values_that_cannot_be(server, field, value, param) -> None:
    error = error_of(
        server.post("/v1/completions", **{"prompt": "a", "temperature": 1} | {field: value})
    )
    assert error["message"].endswith(".") and "\n" not in error["message"]
    if param is not None:
        assert (error["param"] or "").startswith(param)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a"] * 100, "n": 2, "temperature": 1},
        {"prompt": "a", "n": 2, "temperature": 0},
        {"prompt": "a", "best_of": 2, "n": 3, "temperature": 1},
        {"prompt": "a", "best_of": 2, "stream": True, "temperature": 1},
        {"prompt": "a", "echo": True, "logprobs": 1, "stream": True},
    ],
)
def test_settings_that_exclude_each_other(server, body) -> None:
    assert error_of(server.post("/v1/completions", **body))["message"]


def test_unknown_fields_are_ignored(server) -> None:
    answer = server.post("/v1/completions", **GREEDY, max_tokens=2, user="me", store=True)
    assert answer.status_code == 200


def test_the_client_raises_what_it_should(client) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="tiny", prompt="a", max_tokens=-1)
