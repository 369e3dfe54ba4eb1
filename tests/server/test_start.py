"""The start of ``qeff serve`` over a compiled container: what it loads, and what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import httpx2 as httpx
import pytest

# What builds, checks and measures: none of it is needed to serve what is compiled.
HEAVY = (
    "torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "safetensors", "gguf", "triton",
    "huggingface_hub", "fastapi", "ray", "httpx", "httpx2", "jsonschema", "prometheus_client",
)  # fmt: skip
# What some requests need, and which comes with the first of them.
LATER = (
    "llguidance",
    "qeff.apps.pipeline",
    "qeff.apps.server.anthropic.shapes",
    "qeff.apps.server.openai.responses_shapes",
    "qeff.apps.server.openapi",
    "qeff.compile.quantize",
    "qeff.generate.drafting",
    "qeff.sources.location",
    "tomllib",
)
SERVE = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
from qeff.apps.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
LOADED = f"""
import sys
from pathlib import Path
from qeff.apps.cli import main, serve
from qeff.apps.server import replicas
from qeff.apps.server.app import create_app
from qeff.apps.server.config import ServerConfig
from qeff.apps.server.models import Entry
from qeff.apps.terminal import served_models
state = replicas.make_state(ServerConfig(), [Entry(name="m", path=Path("."), ctx_len=1)], 1)
create_app(state)
print(*(name for name in {LATER!r} if name in sys.modules))
"""


def test_nothing_that_builds_is_needed(container, server_home) -> None:
    words = [sys.executable, "-c", SERVE, "serve", str(container), "--port", "0", "--threads", "1"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "at http" in line)
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        url = line.split(" at ")[1].strip()
        try:
            messages = [{"role": "user", "content": "hello"}]
            asked = {"model": None, "messages": messages, "max_tokens": 2}
            name = httpx.get(url + "/v1/models").json()["data"][0]["id"]
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                body = {**asked, "model": name, "input": "hello"}
                answer = httpx.post(url + path, json=body, timeout=30)
                assert answer.status_code == 200, answer.text
            assert httpx.get(url + "/openapi.json").status_code == 200
            assert httpx.get(url + "/metrics").status_code == 200
        finally:
            process.terminate()
            reader.join()
    assert process.returncode == 0


def test_what_comes_with_the_first_request_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_routes_that_come_late_are_there(run_server) -> None:
    with run_server() as server:
        answer = server.post("/v1/embeddings", input="hello")
        assert answer.status_code == 400 and "embeddings" in answer.json()["error"]["message"]
        assert httpx.get(server.url + "/v1/responses").status_code == 405
        assert httpx.get(server.url + "/v1/chat/completions").status_code == 405
        lost = httpx.get(server.url + "/v1/nothing")
        assert lost.status_code == 404
        assert lost.json()["error"]["message"] == "There is nothing at this path."
        wrong = server.post("/v1/messages", model="tiny").json()
        assert wrong["type"] == "error" and "messages" in wrong["error"]["message"]


def test_the_document_has_the_routes_that_come_late(server) -> None:
    document = server.get("/openapi.json").json()
    assert {"/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/models/{name}"} <= set(
        document["paths"]
    )
    assert json.dumps(document).count('"$ref"') > 50
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models"])
def test_heads_of_what_can_be_got(server, path) -> None:
    answer = httpx.head(server.url + path)
    assert answer.status_code == 200 and answer.content == b""
