"""Compilers of constraints for small tokenizers, and what their matchers allow, as plain sets."""

from __future__ import annotations

import re

import numpy as np
from tiny_tokenizers import KINDS

from qeff.generate.constraint import Constraint, ConstraintCompiler, Matcher

TOKENIZERS = {kind: make() for kind, make in KINDS.items()}
CHOICES = ["yes", "no", "yes, the", "", 'a"b\\', "naïve 🙂\n\t\x01", "日本"]
EXTRA = 7  # logits that stand for no token, as in padded models
ENDS = {
    kind: [tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|im_end|>")]
    for kind, tokenizer in TOKENIZERS.items()
}
SIZES = {kind: tokenizer.get_vocab_size() + EXTRA for kind, tokenizer in TOKENIZERS.items()}
COMPILERS = {
    kind: ConstraintCompiler(tokenizer, SIZES[kind], ENDS[kind])
    for kind, tokenizer in TOKENIZERS.items()
}


def gpt2_bytes() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(shifted)}


def token_bytes(kind: str) -> list[bytes | None]:
    """What each token writes; None for special tokens and for ids that are no token."""
    tokenizer, found = TOKENIZERS[kind], []
    special = tokenizer.get_added_tokens_decoder()
    for index in range(SIZES[kind]):
        name = tokenizer.id_to_token(index)
        if name is None or index in special:
            found.append(None)
        elif kind == "byte_level":
            found.append(bytes(gpt2_bytes()[c] for c in name))
        elif re.fullmatch("<0x..>", name):
            found.append(bytes([int(name[3:5], 16)]))
        else:
            found.append(name.replace("▁", " ").encode())
    return found


BYTES = {kind: token_bytes(kind) for kind in KINDS}


def allowed(matcher: Matcher, kind: str) -> set[int]:
    mask = matcher.mask()
    assert mask.dtype == np.int32
    assert mask.shape == ((SIZES[kind] + 31) // 32,)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[SIZES[kind] :].any()
    return set(np.flatnonzero(bits).tolist())


def generate(constraint: Constraint, kind: str, rng: np.random.Generator, limit=2000) -> str:
    """What a model of random logits writes; it wants to end ever more."""
    matcher, written = COMPILERS[kind].start(constraint), b""
    closing = [i for i, text in enumerate(BYTES[kind]) if text in (b'"', b"}", b"]")]
    for step in range(limit):
        logits = rng.normal(size=SIZES[kind])
        logits[[*closing, *ENDS[kind]]] += step / 20
        may_come = allowed(matcher, kind)
        refused = [token for token in range(SIZES[kind]) if token not in may_come]
        logits[refused] = -np.inf
        token = int(logits.argmax())
        assert matcher.allows([token]) == 1
        matcher.accept(token)
        if token in ENDS[kind]:
            assert matcher.is_finished
            return written.decode()
        written += BYTES[kind][token]
    raise AssertionError(f"no end after {written!r}")


def walk(kind: str, constraint: Constraint, text: str) -> Matcher:
    matcher = COMPILERS[kind].start(constraint)
    for token in TOKENIZERS[kind].encode(text, add_special_tokens=False).ids:
        matcher.accept(token)
    return matcher
