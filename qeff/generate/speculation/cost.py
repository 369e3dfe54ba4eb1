"""How long a step takes, learnt from the steps that were run.

A line, ``base + per_token · T``, is fitted through the mean times of all sizes that were seen, and
corrected by the size's own mean where there is one: kernels work in tiles, so the truth has steps.
A time can be too long by accident and never too short: a mean follows short times faster than long
ones, and no size takes longer than a larger one. Pure numbers: knows nothing of clocks or drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

EXACT_SIZES = 64  # larger steps are put together by their leading four bits
MEMORY = 10  # a mean is of about this many values
MAX_JUMP = 1.25  # a value counts as at most this many times the mean
MIN_PLAIN = 3  # plain steps of a size that are measured before anything is compared with them,
MAX_PLAIN = 4  # unless so many were asked for, and other things ran in them too
TRUST = 2  # a size's own mean counts as much as the line after this many values
PRIOR_BASE_TOKENS = 8  # a step costs this many tokens before its first one, until it is measured


@dataclass(slots=True)
class Mean:
    """A mean that forgets."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take a value in."""
        self.count += 1
        self.value += (value - self.value) / min(self.count, MEMORY)


@dataclass(slots=True)
class TimeMean(Mean):
    """A mean of times, which one that is far too long moves little."""

    def add(self, value: float) -> None:
        """Take a time in."""
        if self.count and value < self.value / 2:  # what came before was an accident
            self.value = value
        most = MAX_JUMP * self.value if self.count else value
        Mean.add(self, min(value, most))


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a step of T tokens: ``base + per_token · T``."""

    base: float
    per_token: float

    def seconds(self, num_tokens: float) -> float:
        return self.base + self.per_token * num_tokens


class StepCost:
    """Predicts the time of a step from its number of tokens."""

    def __init__(self) -> None:
        self._means: dict[int, TimeMean] = {}  # by size
        self._seconds: dict[int, float] = {}  # the means, none above that of a larger size
        self._line: Line | None = None  # None: to be fitted
        self._predicted: dict[int, float] = {}
        self._num_asked: dict[int, int] = {}  # plain steps, by size

    @property
    def is_known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._means)

    @property
    def line(self) -> Line:
        """The fit through all sizes; there must have been a step."""
        if self._line is None:
            least = float("inf")
            for size in sorted(self._means, reverse=True):
                least = self._seconds[size] = min(least, self._means[size].value)
            self._line = _fit(self._means, self._seconds)
        return self._line

    def note(self, num_tokens: int, seconds: float) -> None:
        """Take in a step that was run."""
        assert num_tokens > 0, "a step without tokens"
        self._means.setdefault(_size(num_tokens), TimeMean()).add(max(seconds, 1e-9))
        self._line = None
        self._predicted.clear()

    def wants_plain(self, num_tokens: int, *, is_same_step: bool = False) -> bool:
        """Whether a step without drafts should be run to measure it; it may be asked for often."""
        if self._num_seen(num_tokens) >= MIN_PLAIN:
            return False
        num_asked = self._num_asked.get(num_tokens, 0)
        self._num_asked[num_tokens] = num_asked + (not is_same_step)
        return num_asked < MAX_PLAIN or not self.is_known

    def plain(self, num_tokens: int) -> float:
        """Seconds of a step without drafts: as measured, for larger steps say little of it."""
        if self._num_seen(num_tokens) < MIN_PLAIN:
            return self.seconds(num_tokens)
        assert self.line, "the means are put in order with the line"
        return self._seconds[_size(num_tokens)]

    def seconds(self, num_tokens: int) -> float:
        """How long a step of this many tokens probably takes."""
        known = self._predicted.get(num_tokens)
        if known is None:
            known = self._predicted[num_tokens] = self._predict(num_tokens)
        return known

    def _num_seen(self, num_tokens: int) -> int:
        mean = self._means.get(_size(num_tokens))
        return mean.count if mean else 0

    def _predict(self, num_tokens: int) -> float:
        seconds, size = self.line.seconds(num_tokens), _size(num_tokens)
        if size in self._means:
            mean = self._means[size]
            ratio = self._seconds[size] / max(self.line.seconds(size), 1e-12)
            trust = min(mean.count, MEMORY) / (min(mean.count, MEMORY) + TRUST)
            seconds *= 1 + (ratio - 1) * trust
        return seconds


def _size(num_tokens: int) -> int:
    if num_tokens <= EXACT_SIZES:
        return num_tokens
    shift = num_tokens.bit_length() - 4
    return num_tokens >> shift << shift


def _fit(means: dict[int, TimeMean], seconds: dict[int, float]) -> Line:
    """Least squares of relative errors, so that a long prompt does not outweigh short steps."""
    total = x = y = xx = xy = 0.0
    for size, mean in means.items():
        value = seconds[size]
        weight = min(mean.count, MEMORY) / value**2
        total += weight
        x += weight * size
        y += weight * value
        xx += weight * size * size
        xy += weight * size * value
    x, y, xx, xy = x / total, y / total, xx / total, xy / total
    spread = xx - x * x
    if len(means) == 1 or spread <= 1e-9 * xx:
        per_token = y / (PRIOR_BASE_TOKENS + x)
        return Line(y - per_token * x, per_token)
    per_token = max(0.0, (xy - x * y) / spread)
    base = y - per_token * x
    return Line(base, per_token) if base > 0 else Line(0.0, y / x)
