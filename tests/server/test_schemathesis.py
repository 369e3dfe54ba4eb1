"""Generated requests, as the OpenAPI document describes them and not; many more in benchmarks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import qeff

pytest.importorskip("schemathesis")

FUZZ = Path(qeff.__file__).parent.parent / "benchmarks" / "fuzz_server.py"
NUM_REQUESTS = 210


@pytest.fixture(scope="module")
def fuzz_server() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_server", FUZZ)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_server"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_no_generated_request_breaks_the_server(fuzz_server: ModuleType, run_server: Any) -> None:
    with run_server(max_tokens=4) as server:
        findings = fuzz_server.fuzz(server.url, NUM_REQUESTS, names=("tiny",))
        assert findings.faults == []
        assert findings.num_requests >= NUM_REQUESTS
        reached = {label for label, status in findings.statuses if status == 200}
        assert len({label for label in reached if label.startswith("POST")}) >= 4
        assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("status", "kind", "text", "is_fault"),
    [
        (200, "application/json", "{}", False),
        (400, "application/json", '{"error": {"message": "It is wrong."}}', False),
        (400, "application/json", '{"error": {"message": "wrong"}}', True),
        (422, "application/json", '{"detail": []}', True),
        (500, "application/json", '{"error": {"message": "Oh."}}', True),
        (200, "text/event-stream", 'data: {"error": {"type": "server_error"}}', True),
        (200, "text/event-stream", 'data: {"id": 1}\n\ndata: [DONE]', False),
    ],
)
def test_what_counts_as_a_fault(
    fuzz_server: ModuleType, status: int, kind: str, text: str, is_fault: bool
) -> None:
    import requests

    response = requests.Response()
    response.status_code = status
    response._content = text.encode()
    response.headers["content-type"] = kind
    assert (fuzz_server.fault_of(response) is not None) is is_fault


def test_the_document_tells_the_truth_about_errors(server: Any) -> None:
    document = server.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert "422" not in operation["responses"], path
            assert "4XX" in operation["responses"], path
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]
    assert set(chat["content"]) == {"application/json", "text/event-stream"}
