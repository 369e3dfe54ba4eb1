"""Texts that may not be written: which tokens would complete one, whatever tokens it begins with.

They are looked for in the bytes of the text, so one is found across the borders of tokens, inside
of a word, and where the tokenizer itself would have cut it otherwise. Knows nothing of logits,
requests or tokenizers.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np

MAX_KEPT = 64  # sets of words whose tokens are kept


class TokenTexts:
    """The bytes that each token of a vocabulary adds to a text, in the order of their ids."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts
        self.longest = max(map(len, texts))
        order = sorted(range(len(texts)), key=texts.__getitem__)
        self._sorted = [texts[token] for token in order]
        self._order = np.array(order, np.int64)
        self._kept: dict[tuple[str, ...], BadWords] = {}

    def bad_words(self, words: tuple[str, ...]) -> BadWords:
        """What forbids these words; kept, for the next request often has the same."""
        found = self._kept.get(words)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[words] = BadWords(words, self)
        return found

    def holding(self, words: Sequence[bytes]) -> np.ndarray:
        """The tokens that one of the words is a part of."""
        pattern = re.compile(b"|".join(map(re.escape, words)))
        found = [token for token, text in enumerate(self.texts) if pattern.search(text)]
        return np.array(found, np.int64)

    def beginning(self, text: bytes) -> np.ndarray:
        """The tokens that begin with a text."""
        start = bisect_left(self._sorted, text)
        stop = bisect_right(self._sorted, text, start, key=lambda token: token[: len(text)])
        return self._order[start:stop]


class BadWords:
    """Some words, and the tokens that may not come because of them."""

    def __init__(self, words: Sequence[str], tokens: TokenTexts) -> None:
        # Half a character, which a str may hold, becomes bytes that no text has.
        encoded = [word.encode("utf-8", "surrogatepass") for word in words]
        self._texts = tokens.texts
        self._always = tokens.holding(encoded)
        self._after: dict[bytes, np.ndarray] = {}  # by what stands before
        for word in encoded:
            for cut in range(max(1, len(word) - tokens.longest), len(word)):
                ends = tokens.beginning(word[cut:])
                if len(ends):
                    known = self._after.get(word[:cut], ends[:0])
                    self._after[word[:cut]] = np.concatenate([known, ends])
        self._lengths = sorted({len(text) for text in self._after})

    def completing(self, tail: Callable[[int], Sequence[int]]) -> list[np.ndarray]:
        """The tokens that would complete a word; ``tail`` gives the last tokens, so many of them.

        They are told in several arrays, which may hold a token twice.
        """
        before = self._text_before(tail)
        found = [self._after.get(before[-length:]) for length in self._lengths]
        return [self._always, *(tokens for tokens in found if tokens is not None)]

    def _text_before(self, tail: Callable[[int], Sequence[int]]) -> bytes:
        """As much of the text's end as any word can begin with."""
        num_bytes = count = self._lengths[-1] if self._lengths else 0
        while True:
            tokens = tail(count)
            text = b"".join(self._texts[token] for token in tokens)
            if len(text) >= num_bytes or len(tokens) < count:  # some tokens have no text
                return text
            count *= 2
