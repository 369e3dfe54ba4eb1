"""What a command says on stderr: notes, warnings of the library, and a bar for long work.

The bar shows stage, amount and rate; it appears after a second, on a terminal only, and takes its
line away when the work is done. Results never go through here: they belong on stdout.
"""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from qeff.core.env import wants_color
from qeff.core.progress import Event, Progress, log, silent

_COLORS = {"red": "31", "yellow": "33", "cyan": "36", "dim": "2"}
_NOISY = ("transformers", "huggingface_hub", "torch", "onnxscript", "httpx")
_PATIENCE_S = 1.0  # work that is shorter than this shows no bar
_TICK_S = 0.1
_MOST_COLUMNS = 100


def paint(text: str, color: str) -> str:
    """``text`` in a colour, when stderr is a terminal and NO_COLOR is not set."""
    if not (wants_color() and sys.stderr.isatty()):
        return text
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


def dim_on_stdout(text: str) -> str:
    """``text`` in a fainter colour, when stdout is a terminal and NO_COLOR is not set."""
    if not (wants_color() and sys.stdout.isatty()):
        return text
    return f"\x1b[{_COLORS['dim']}m{text}\x1b[0m"


def columns() -> int:
    """How wide a page of text is: as the terminal, but not too wide to read."""
    return min(_MOST_COLUMNS, shutil.get_terminal_size((_MOST_COLUMNS, 24)).columns)


def hanging(text: str, indent: int) -> str:
    """A line for stdout: on a terminal, what does not fit goes on below, ``indent`` to the right.

    Whatever reads a pipe gets it whole.
    """
    if not sys.stdout.isatty():
        return text
    below = " " * indent
    return textwrap.fill(
        text,
        columns(),
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def amount(count: float, unit: str = "bytes") -> str:
    """A count for reading: ``1.5 GB`` for bytes, else the number and its unit."""
    if unit != "bytes":
        return f"{int(count):,} {unit}".rstrip()
    for name in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {name}" if name == "bytes" else f"{count:.1f} {name}"
        count /= 1000
    return f"{count:.1f} TB"


class Screen:
    """Stderr as one command sees it."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.is_quiet = is_quiet
        self.shows_bars = not is_quiet and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """One line for the person watching; nothing when quiet."""
        if not self.is_quiet:
            print(paint(text, "dim"), file=sys.stderr)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A listener for the library's progress events, drawn as a bar where bars are shown."""
        if not self.shows_bars:
            yield silent
            return
        bar = Bar()
        try:
            yield bar.listen
        finally:
            bar.close()

    @contextmanager
    def logging(self, level: int) -> Iterator[None]:
        """Show the library's log from ``level`` on, and other libraries' only when debugging."""
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(_Lines())
        before = log.level
        log.addHandler(stream)
        log.setLevel(level)
        noise = {name: logging.getLogger(name) for name in _NOISY}
        levels = {name: logger.level for name, logger in noise.items()}
        with warnings.catch_warnings():
            if level > logging.DEBUG:
                warnings.simplefilter("ignore")
                for logger in noise.values():
                    logger.setLevel(logging.ERROR)
            try:
                yield
            finally:
                log.removeHandler(stream)
                log.setLevel(before)
                for name, logger in noise.items():
                    logger.setLevel(levels[name])


class _Lines(logging.Formatter):
    """``warning: text``, coloured; plain text below that level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno < logging.WARNING:
            return paint(text, "dim")
        return f"{paint(record.levelname.lower(), 'yellow')}: {text}"


class Bar:
    """One line that is drawn again ten times a second, also while a stage reports nothing."""

    def __init__(self) -> None:
        self._event: Event | None = None
        self._began = self._stage_began = time.monotonic()
        self._width = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def listen(self, event: Event) -> None:
        """Take one progress event."""
        if self._event is None or event.stage != self._event.stage:
            self._stage_began = time.monotonic()
        self._event = event

    def close(self) -> None:
        """Stop drawing and take the line away."""
        self._done.set()
        self._thread.join()
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def _tick(self) -> None:
        while not self._done.wait(_TICK_S):
            event = self._event
            if event is not None and time.monotonic() - self._began > _PATIENCE_S:
                self._draw(line(event, time.monotonic() - self._stage_began))

    def _draw(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


def line(event: Event, seconds: float) -> str:
    """The bar's text for an event, ``seconds`` after its stage began; at most 79 columns."""
    head = f"{event.stage:<12.12}"
    if event.total is None or event.total <= 1:
        some = f"{amount(event.done, event.unit)}  " if event.done > 1 else ""
        return f"{head}{some}{seconds:.0f} s"[:79]
    share = min(event.done / event.total, 1.0)
    filled = round(share * 24)
    bar = f"{head}[{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}"
    if event.unit != "bytes":
        return f"{bar}  {event.done} of {event.total} {event.unit}  {seconds:.0f} s"[:79]
    rate = f"  {amount(event.done / seconds)}/s" if seconds > 0.2 else ""
    return f"{bar}  {amount(event.done)} of {amount(event.total)}{rate}"[:79]
