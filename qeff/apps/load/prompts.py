"""The prompts of a load: words drawn at random, of a length in tokens, or the lines of a file.

Where the server has ``/tokenize`` the lengths are exact; elsewhere a word counts as a token. Drawn
from a seed, so that two servers can be asked the same. Knows nothing of time.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qeff.apps.load.client import Address, fetch_json
from qeff.apps.load.lengths import Lengths
from qeff.core.errors import RequestError

ROUNDS = 12  # of counting and mending, before a length is taken as it is
AT_ONCE = 8
# Frequent words, which most vocabularies hold as one token with the space before it.
TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or"
    " had an they which one you were all her she there would their we him been has when who will"
    " no more if out so up said what its about than into them can only other time new some could"
    " these two may first then do any like my now over such our man me even most made after also"
    " did many before must through years where much your way well down should because each just"
    " those people how too little state good very make world still own see men work long here get"
    " both between life being under never day same another know while last might us great old year"
    " off come since against go came right used take three"
)
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt and the most tokens of its answer."""

    prompt: str | list[dict[str, Any]]  # text, or the messages of a chat
    max_tokens: int
    num_tokens: int | None = None  # of the prompt, where they were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What the prompts and answers of a load look like."""

    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    prefix_len: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Counter:
    """Asks a server how many tokens a text has."""

    address: Address
    model: str
    headers: dict[str, str] = field(default_factory=dict)

    async def count(self, text: str) -> int | None:
        """The tokens of a text; None where the server cannot tell."""
        status, body = await fetch_json(
            self.address,
            "POST",
            "/tokenize",
            body={"model": self.model, "prompt": text},
            headers=self.headers,
        )
        found = body.get("count") if status == 200 and isinstance(body, dict) else None
        return found if isinstance(found, int) else None


async def draw(mixture: Mixture, counter: Counter) -> list[Ask]:
    """Random prompts; a shared beginning first, where one was asked for."""
    generator = np.random.default_rng(mixture.seed)
    inputs = mixture.input_len.draw(generator, mixture.num_prompts)
    outputs = mixture.output_len.draw(generator, mixture.num_prompts)
    prefix = _words(generator, mixture.prefix_len)
    bodies = [_words(generator, length) for length in inputs]
    spares = [int(seed) for seed in generator.integers(0, 1 << 31, mixture.num_prompts)]
    can_count = await counter.count(TEXT) is not None
    door = asyncio.Semaphore(AT_ONCE)

    async def fit(body: list[str], length: int, spare: int) -> tuple[str, int | None]:
        words = prefix + body
        if not can_count:
            return " ".join(words), None
        async with door:
            return await _fit(words, length, np.random.default_rng(spare), counter)

    lengths = [mixture.prefix_len + length for length in inputs]
    texts = await asyncio.gather(*map(fit, bodies, lengths, spares))
    return [Ask(text, most, num) for (text, num), most in zip(texts, outputs, strict=True)]


async def _fit(
    words: list[str], length: int, generator: np.random.Generator, counter: Counter
) -> tuple[str, int | None]:
    """Add or take words at the end until the server counts ``length`` tokens, or nearly so."""
    best, best_count = " ".join(words), None
    for _ in range(ROUNDS):
        text = " ".join(words)
        found = await counter.count(text)
        if found is None:
            break
        if best_count is None or abs(found - length) < abs(best_count - length):
            best, best_count = text, found
        if found == length or (found > length and len(words) == 1):
            break
        # A word may be several tokens: as many words as those that are missing, at least one.
        change = round((length - found) * len(words) / found) or (1 if found < length else -1)
        words = words[: max(1, len(words) + change)] + _words(generator, max(0, change))
    return best, best_count


def _words(generator: np.random.Generator, length: int) -> list[str]:
    return [WORDS[n] for n in generator.integers(0, len(WORDS), length)]


def read(path: Path, mixture: Mixture) -> list[Ask]:
    """The prompts of a file, from its beginning again when it has fewer than are wanted.

    Lines of JSON have ``prompt`` (or ``messages``) and may have ``output_tokens``; in any other
    file each line that is not empty is a prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise RequestError(f"{path} holds no prompt")
    generator = np.random.default_rng(mixture.seed)
    outputs = mixture.output_len.draw(generator, mixture.num_prompts)
    is_json = path.suffix in (".jsonl", ".json", ".ndjson")
    asks = []
    for idx, most in enumerate(outputs):
        number, line = lines[idx % len(lines)]
        where = f"line {number} of {path}"
        asks.append(_parse(line, most, where) if is_json else Ask(line, most))
    return asks


def _parse(line: str, most: int, where: str) -> Ask:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    prompt = found.get("prompt", found.get("messages")) if isinstance(found, dict) else None
    if not isinstance(prompt, str | list):
        raise RequestError(f"{where} has neither a prompt nor messages")
    wanted = found.get("output_tokens", most)
    if not isinstance(wanted, int) or wanted < 1:
        raise RequestError(f"{where}: output_tokens is {wanted!r}, which is no number of tokens")
    return Ask(prompt, wanted)
