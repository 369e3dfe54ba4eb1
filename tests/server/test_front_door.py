"""What a request meets before a model: keys, sizes, JSON, the queue; and errors in one shape."""

from __future__ import annotations

import json
import re
import socket
import threading

import httpx2 as httpx
import pytest

from qeff.apps.server.access import check_address, is_loopback, read_keys
from qeff.apps.server.body import MAX_DEPTH
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.keys import Keys
from qeff.apps.server.run import listen
from qeff.core.errors import OptionValueError

KEY = "a-secret-key"
JSON = {"content-type": "application/json"}
LONG = {"prompt": "my name is", "max_tokens": 240, "ignore_eos": True, "temperature": 0}


def error_of(answer: httpx.Response) -> dict:
    """The error of an answer, which must be one sentence in OpenAI's shape."""
    body = answer.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].endswith((".", "?"))
    assert "\n" not in body["error"]["message"]
    return body["error"]


# ---- keys --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(run_server):
    with run_server(api_key=(KEY, "another-one")) as one:
        yield one


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_needs_no_key(locked, path) -> None:
    assert locked.get(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/stats", "/version", "/openapi.json", "/nothing"]
)
def test_everything_else_does(locked, path) -> None:
    answer = locked.get(path)
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"x-api-key": KEY},
        {"x-api-key": "another-one"},
    ],
)
def test_a_key_opens(locked, headers) -> None:
    assert httpx.get(locked.url + "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong-key"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer"},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": ""},
        {"x-api-key": "\xe9\xe8".encode("latin-1")},
    ],
)
def test_no_other_does(locked, headers) -> None:
    assert httpx.get(locked.url + "/v1/models", headers=headers).status_code == 401


def test_a_body_is_not_read_without_a_key(locked) -> None:
    answer = httpx.post(locked.url + "/v1/completions", content=b"{", headers=JSON)
    assert answer.status_code == 401


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000"])
def test_names_of_this_machine(server, name) -> None:
    assert httpx.get(server.url + "/version", headers={"host": name}).status_code == 200


def test_a_name_that_points_here_from_elsewhere(server, locked, run_server) -> None:
    headers = {"host": "evil.example:8000"}
    answer = httpx.get(server.url + "/v1/models", headers=headers)
    assert answer.status_code == 403
    assert error_of(answer)["code"] == "unknown_host"
    with_key = {**headers, "x-api-key": KEY}
    assert httpx.get(locked.url + "/v1/models", headers=with_key).status_code == 200
    with run_server(allowed_host=("evil.example",)) as one:
        assert httpx.get(one.url + "/v1/models", headers=headers).status_code == 200


def test_keys_of_a_file(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-key\n\nsecond-key\n")
    assert read_keys(["zeroth-key"], str(file)) == ["zeroth-key", "first-key", "second-key"]
    keys = Keys(read_keys([], str(file)))
    assert keys.find("first-key") and keys.find("second-key") and not keys.find("# ours")


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", "with space\n", "kéys-of-ours\n"])
def test_bad_key_files(tmp_path, text) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(OptionValueError):
        read_keys([], str(file))
    with pytest.raises(OptionValueError, match="cannot be read"):
        read_keys([], str(tmp_path / "none"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_a_public_address_wants_a_key(host) -> None:
    with pytest.raises(OptionValueError, match="no API key"):
        check_address(host, False, False)
    check_address(host, True, False)
    check_address(host, False, True)


def test_a_port_that_is_taken() -> None:
    with listen(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(OptionValueError, match=f"port {port}"):
            listen(ServerConfig(port=port))


# ---- bodies ------------------------------------------------------------------------------------


def post_bytes(server, body: bytes, path: str = "/v1/completions", **headers) -> httpx.Response:
    return httpx.post(server.url + path, content=body, headers={**JSON, **headers}, timeout=30)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b'{"prompt": "a"} x', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN"),
        (b'{"prompt": "a", "temperature": -Infinity}', "-Infinity"),
        (b'{"prompt": "a", "user": Infinity}', "Infinity"),
        (b'{"prompt": "a", "temperature": 1e400}', "number"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "a \\ud800 b"}', "surrogate"),
        (b'{"prompt": "a", "unknown": {"x": ["\\uDFFF"]}}', "surrogate"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", "number"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested too deeply"),
    ],
)
def test_bodies_that_are_no_requests(server, body, said) -> None:
    answer = post_bytes(server, body)
    assert answer.status_code == 400
    assert said in error_of(answer)["message"]


def test_brackets_in_strings_are_no_depth(server) -> None:
    answer = server.post("/v1/completions", prompt="[{" * 300 + '"]\\', max_tokens=1)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "context_length_exceeded"


def test_a_pair_of_surrogates_is_a_character(server) -> None:
    answer = post_bytes(server, b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1}')
    assert answer.status_code == 200


def test_half_a_character_in_json_inside_of_json(server) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    answer = server.post("/v1/chat/completions", messages=asked, max_tokens=1)
    assert answer.status_code == 400 and "character" in error_of(answer)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data; boundary=x"])
def test_other_content_types(server, kind) -> None:
    answer = httpx.post(
        server.url + "/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind}
    )
    assert answer.status_code == 415
    assert "application/json" in error_of(answer)["message"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large(run_server, is_chunked) -> None:
    body = json.dumps({"prompt": "a" * 3000}).encode()

    def parts():
        yield from (body[start : start + 500] for start in range(0, len(body), 500))

    with run_server(max_body_bytes=2000) as one, one.client() as client:
        answer = client.post(
            "/v1/completions", content=parts() if is_chunked else body, headers=JSON
        )
        assert answer.status_code == 413
        assert "2000 bytes" in error_of(answer)["message"]
        assert one.get("/health").status_code == 200


def test_a_prompt_of_ten_megabytes(server) -> None:
    answer = server.post("/v1/completions", prompt="time " * 2_000_000, max_tokens=1)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "context_length_exceeded"


# ---- connections -------------------------------------------------------------------------------


def talk(server, *sent: bytes) -> bytes:
    """What a connection says to bytes, up to its end."""
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=20) as one:
        try:
            for part in sent:
                one.sendall(part)
        except ConnectionError:
            pass  # it was ended before all was sent
        try:
            return b"".join(iter(lambda: one.recv(65536), b""))
        except ConnectionError:
            return b""


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nX-Slow: "])
def test_a_head_that_does_not_come_is_not_waited_for(run_server, monkeypatch, begun) -> None:
    monkeypatch.setattr("qeff.apps.server.connection.PATIENCE_S", 0.2)
    with run_server(keep_alive=0.2) as one:
        assert talk(one, begun) == b""
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert talk(one, whole, whole + begun).count(b"200 OK") == 2, "what is whole is answered"


@pytest.mark.parametrize("part", [b"X-Many: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
def test_an_endless_head(server, part) -> None:
    begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-First: "
    answer = talk(server, begun, *[part * 50] * 400)  # 20 MB, sent as long as somebody takes it
    assert not answer or (b"400 Bad Request" in answer and b"too long" in answer)
    assert server.get("/health").status_code == 200


def test_a_long_time_is_taken_for_an_answer_and_not_for_a_head(server, monkeypatch) -> None:
    monkeypatch.setattr("qeff.apps.server.connection.PATIENCE_S", 0.05)
    answer = server.post("/v1/completions", **LONG)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.elapsed.total_seconds() > 0.05, "or this shows nothing"


# ---- errors ------------------------------------------------------------------------------------


def test_paths_and_methods_that_there_are_not(server) -> None:
    nothing, method = server.get("/nothing"), server.get("/v1/completions")
    assert (nothing.status_code, method.status_code) == (404, 405)
    assert error_of(nothing) and error_of(method)
    assert method.headers["allow"] == "POST"


def test_unknown_models(server) -> None:
    answer = server.post("/v1/completions", model="gpt-9", prompt="a")
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "model_not_found"
    assert error_of(answer)["param"] == "model"
    assert server.get("/v1/models/gpt-9").status_code == 404


def test_every_answer_has_an_id(server) -> None:
    ids = {server.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_mistake_of_ours_has_an_id_and_its_line(run_server, monkeypatch, capsys) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("qeff.apps.server.openai.completions._check", mistaken)
    with run_server(log_format="json") as one:
        answer = one.post("/v1/completions", prompt="a")
    own = answer.headers["x-request-id"]
    assert answer.status_code == 500 and own in error_of(answer)["message"]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    assert [line["status"] for line in lines if line.get("id") == own] == [500]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", {"prompt": []}, "at least 1 item"),
        ("/v1/completions", {"prompt": ["a"] * 1025}, "at most 1024 items"),
        ("/v1/completions", {"prompt": [1, -2]}, "prompt[1]"),
        ("/v1/completions", {"prompt": "a", "stop": ["a"] * 257}, "at most 256 items"),
        ("/v1/responses", {"input": []}, "at least 1 item"),
    ],
)
def test_of_alternatives_the_one_that_was_meant_is_explained(server, path, body, said) -> None:
    answer = server.post(path, **body)
    assert answer.status_code == 400 and said in error_of(answer)["message"]


def test_the_error_shape_is_anthropics_on_its_paths(locked) -> None:
    answer = httpx.post(locked.url + "/v1/messages", content=b"{}", headers=JSON)
    body = answer.json()
    assert answer.status_code == 401
    assert body["type"] == "error" and body["error"]["type"] == "authentication_error"


# ---- the queue ---------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_back(run_server) -> None:
    with run_server(max_waiting=0) as one:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(one.post("/v1/completions", **LONG))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes = sorted(answer.status_code for answer in answers)
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 8
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "queue_full"
        assert f"qeff:requests_refused_total {codes.count(429)}" in one.get("/metrics").text
        assert one.post("/v1/completions", **LONG).status_code == 200


def test_more_outputs_than_the_queue_holds(run_server) -> None:
    with run_server(max_waiting=1) as one:
        answer = one.post("/v1/completions", prompt="a", n=10, temperature=1)
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "n"


def test_a_request_that_takes_too_long(run_server) -> None:
    with run_server(request_timeout_s=0.05) as one:
        many = ["my name is", "the flat earth"] * 20
        answer = one.post("/v1/completions", **{**LONG, "prompt": many})
        assert answer.status_code == 504
        assert error_of(answer)["code"] == "timeout"
        assert answer.headers["x-should-retry"] == "false"
        one.wait_until(lambda stats: stats["running"] == stats["waiting"] == 0)
        body = {**LONG, "prompt": many, "stream": True}
        streamed = one.post("/v1/completions", **body)
        assert "within 0.05 seconds" in streamed.text


# ---- clients that leave ------------------------------------------------------------------------


def raw_post(server, body: dict) -> socket.socket:
    """Send a request by hand and read nothing."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_frees_its_blocks(run_server, streams) -> None:
    with run_server() as one:
        body = {**LONG, "prompt": ["my name is"] * 20, "stream": streams}
        connection = raw_post(one, body)
        one.wait_until(lambda stats: stats["running"] > 0)
        connection.close()
        one.wait_until(lambda stats: stats["running"] == stats["waiting"] == 0)
        stats = one.get("/stats").json()
        assert stats["cache_use"] == 0
        assert stats["output_tokens"] < 20 * 240, "it was cancelled, not finished"
        ends = dict(re.findall(r'finished_reason="(\w+)"} (\d+)', one.get("/metrics").text))
        assert int(ends["abort"]) > 0 and sum(map(int, ends.values())) == 20
        assert one.state.admission.num_inside == 0


def test_a_client_that_does_not_read_slows_nobody(server) -> None:
    stuck = [raw_post(server, {**LONG, "n": 4, "temperature": 1, "stream": True}) for _ in range(3)]
    try:
        assert server.post("/v1/completions", prompt="my", max_tokens=4).status_code == 200
        server.wait_until(lambda stats: stats["running"] == stats["waiting"] == 0, 20)
    finally:
        for connection in stuck:
            connection.close()
