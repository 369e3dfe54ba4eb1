"""Whether a request can be served, and the tasks that it becomes.

Everything that can be wrong with a request is said here, before anything runs. Knows nothing of
queues and steps.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from qeff.core.errors import OptionTypeError, RequestError
from qeff.generate.beam import BeamSearch
from qeff.generate.constraint import Constraint, Matcher
from qeff.generate.request import MAX_SEED, Request, SamplingParams
from qeff.generate.sampling import seed_of
from qeff.generate.task import Task
from qeff.runtime.session import Capabilities

if TYPE_CHECKING:
    from qeff.generate.bad_words import BadWords
    from qeff.generate.text import Text


def check_request(request: Request, caps: Capabilities, text: Text | None) -> None:
    """Raise when a session of these capabilities cannot serve the request."""
    params = request.params
    if len(request.prompt) >= caps.ctx_len:
        raise RequestError(
            f"prompt has {len(request.prompt)} tokens, context is {caps.ctx_len}",
            "shorten the prompt, or compile with a larger context (raise --ctx-len)",
        )
    if (token := max(request.prompt)) >= caps.vocab_size:
        raise _unknown_token(token, caps, "the tokenizer does not belong to this model")
    if (token := max(params.named_token_ids(), default=0)) >= caps.vocab_size:
        raise _unknown_token(token, caps, "a sampling setting names it")
    if not isinstance(request.constraint, Constraint | None):
        raise OptionTypeError(
            f"constraint must be a Constraint, not {request.constraint!r:.60}",
            'such as Constraint.regex("[0-9]+") or Constraint.json_schema(schema)',
        )
    if text is None:
        if params.stop:
            raise RequestError("stop strings need a tokenizer", "use stop_token_ids")
        if params.bad_words:
            raise RequestError("bad words need a tokenizer", "use bad_token_ids")
        if request.constraint is not None:
            raise RequestError("a constraint on the output needs a tokenizer")


def _unknown_token(token: int, caps: Capabilities, hint: str) -> RequestError:
    return RequestError(
        f"token id {token} is not in the model's vocabulary of {caps.vocab_size}", hint
    )


def make_search(
    request: Request, caps: Capabilities, text: Text | None, eos_ids: frozenset[int]
) -> BeamSearch:
    """The beam search that a request asks for."""
    return BeamSearch(
        request,
        eos_ids=eos_ids,
        ctx_len=caps.ctx_len,
        text=text,
        matcher=_matcher(request, caps, text, eos_ids),
        bad_words=_bad_words(request.params, caps, text),
    )


def make_tasks(
    request: Request, caps: Capabilities, text: Text | None, eos_ids: frozenset[int]
) -> list[Task]:
    """A task for each output that the request asks for; the first has the request's own seed."""
    params = request.params
    seed = secrets.randbelow(MAX_SEED) if params.seed is None else params.seed
    bad_words = _bad_words(params, caps, text)
    tasks = []
    for index in range(params.num_choices):
        matcher = _matcher(request, caps, text, eos_ids)
        detokenizer = None
        if text is not None:
            detokenizer = text.detokenizer(
                request.prompt, skip_special_tokens=params.skip_special_tokens
            )
        own_seed = seed_of(seed, index)
        task = Task(
            request, index, own_seed, eos_ids, caps.ctx_len, detokenizer, matcher, bad_words
        )
        tasks.append(task)
    return tasks


def _bad_words(params: SamplingParams, caps: Capabilities, text: Text | None) -> BadWords | None:
    if not params.bad_words:
        return None
    assert text is not None, "checked before"
    tokens = text.token_texts(caps.vocab_size, skip_special_tokens=params.skip_special_tokens)
    return tokens.bad_words(params.bad_words)


def _matcher(
    request: Request, caps: Capabilities, text: Text | None, eos_ids: frozenset[int]
) -> Matcher | None:
    if request.constraint is None:
        return None
    assert text is not None, "checked before"
    return text.matcher(request.constraint, caps.vocab_size, eos_ids)
