"""What a client is told when a request fails: a status, one sentence, and the shape of the body.

Every error of the project becomes an ``ApiError`` here, and every ``ApiError`` a body in OpenAI's
shape, or in Anthropic's on the paths of that protocol. Knows nothing of how errors come about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qeff.core.errors import QeffError, RequestError, ResourceError, UsageError

ANTHROPIC_PATH = "/v1/messages"
BAD_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
# What Anthropic's clients expect for a status; others follow from the hundred.
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A request that fails, in the words of the protocol.

    Args:
        status: The HTTP status.
        message: One sentence for the person who wrote the client.
        kind: OpenAI's ``type``.
        param: The field of the request that is wrong.
        code: OpenAI's ``code``, for programs.
        headers: Response headers, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the client can mend it."""
    return ApiError(400, message, BAD_REQUEST, param, code)


def unknown_model(name: str, known: list[str]) -> ApiError:
    """A 404 with the names that there are."""
    return ApiError(
        404,
        f"The model {name!r:.100} does not exist; served here: {', '.join(known)}.",
        BAD_REQUEST,
        "model",
        "model_not_found",
    )


def timed_out(seconds: float) -> ApiError:
    """A request that took longer than it may; asking again would take as long."""
    return ApiError(
        504,
        f"The answer was not finished within {seconds:g} seconds.",
        SERVER_ERROR,
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def draining() -> ApiError:
    """The error of a server that is about to stop."""
    return ApiError(
        503,
        "The server is shutting down.",
        SERVER_ERROR,
        code="shutting_down",
        headers={"Retry-After": "5"},
    )


def from_qeff(error: QeffError, param: str | None = None) -> ApiError:
    """The same as the project says it: its users' mistakes are the client's, resources are ours."""
    hint = f" ({error.hint})" if error.hint else ""
    message = sentence(f"{error.what}{hint}")
    if isinstance(error, RequestError | UsageError):
        return bad_request(message, param or _first_word_param(error.what))
    if isinstance(error, ResourceError):
        return ApiError(
            503, message, SERVER_ERROR, code="unavailable", headers={"Retry-After": "5"}
        )
    return ApiError(500, message, SERVER_ERROR)


def sentence(text: str) -> str:
    """The text on one line, beginning and ending as a sentence does."""
    line = " ".join(text.split())
    first = line.split(" ", 1)[0]
    if first.isalpha() and first not in _PARAMS:  # the name of a field stays as it is
        line = line[:1].upper() + line[1:]
    return line if line.endswith((".", "?", "!")) else line + "."


def body_of(error: ApiError, path: str, request_id: str | None = None) -> dict[str, Any]:
    """The JSON body of an error for a client of the protocol that a path belongs to."""
    if path.startswith(ANTHROPIC_PATH):
        kind = _ANTHROPIC_KINDS.get(
            error.status, "invalid_request_error" if error.status < 500 else "api_error"
        )
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error.message}}
        return body | ({"request_id": request_id} if request_id else {})
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


# Settings that an engine's sentence may begin with, which are fields of requests by the same name.
_PARAMS = frozenset(
    {
        "bad_words", "beam_width", "best_of", "cache_salt", "frequency_penalty", "length_penalty",
        "logit_bias", "logprobs", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty",
        "priority", "prompt", "prompt_logprobs", "repetition_penalty", "seed", "stop",
        "stop_token_ids", "temperature", "top_k", "top_p", "typical_p",
    }
)  # fmt: skip


def _first_word_param(what: str) -> str | None:
    word = what.split(" ", 1)[0]
    return word if word in _PARAMS else None
