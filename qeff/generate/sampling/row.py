"""What the choice of one token depends on besides its logits.

Knows nothing of how a token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from qeff.generate.bad_words import BadWords
from qeff.generate.params import SamplingParams
from qeff.generate.sampling.history import History


class OutputView(Sequence[int]):
    """The tokens of a list from ``start`` on, and then ``drafted`` ones, without copying the list.

    It reads the list as it is when it is asked, so it is for use before the next token is added.
    """

    __slots__ = ("_drafted", "_num_known", "_start", "_tokens")

    def __init__(self, tokens: list[int], start: int, drafted: Sequence[int] = ()) -> None:
        self._tokens = tokens
        self._start = start
        self._drafted = drafted
        self._num_known = len(tokens) - start

    def __len__(self) -> int:
        return self._num_known + len(self._drafted)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        return self._at(place)

    def _at(self, place: int) -> int:
        known = self._num_known
        return self._tokens[self._start + place] if place < known else self._drafted[place - known]


@dataclass(frozen=True, slots=True)
class Row:
    """One position that is due a token.

    Args:
        params: The request's settings.
        seed: The request's seed, or :func:`seed_of` it for the others of n.
        prompt: The prompt's tokens.
        output: The tokens that stand between the prompt and this position: those made, and with
            speculation the guessed ones on the way here. Its length is the index of the token.
        forbidden: Tokens that may not come yet.
        allowed: Which tokens may come, a bit for each in little-endian int32 words, as grammar
            engines give it; tokens beyond its end may not. None allows all.
        history: What the request's rows share, over the prompt and the first
            ``history.num_output`` tokens of ``output``. Without it the same is computed from the
            prompt and the output, each time.
        bad_words: Texts that may not be written.
    """

    params: SamplingParams
    seed: int
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    forbidden: Sequence[int] = ()
    allowed: np.ndarray | None = None
    history: History | None = None
    bad_words: BadWords | None = None

    @property
    def is_adjusted(self) -> bool:
        """Whether logits change before the likeliest is looked for."""
        return bool(self.forbidden) or self.allowed is not None or self.params.has_adjustments

    def tail(self, count: int) -> tuple[int, ...]:
        """The last ``count`` tokens of prompt and output, or all when there are fewer."""
        if count == 0:
            return ()
        output = tuple(self.output[-count:])
        missing = count - len(output)
        return (*self.prompt[-missing:], *output) if missing else output
