"""What is shown while work is done: nothing off a terminal, stage, amount and rate on one."""

from __future__ import annotations

import sys
import time

import pytest

from qeff.apps.terminal import screen
from qeff.apps.terminal.screen import Screen, amount, hanging, line
from qeff.core.progress import Event, log


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 bytes"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (7.1e12, "7.1 TB")],
)
def test_amounts(count: float, text: str) -> None:
    assert amount(count) == text


def test_line_has_stage_share_amount_and_rate() -> None:
    text = line(Event("pack", 50_000_000, 100_000_000), seconds=2.0)
    assert text.startswith("pack") and "50%" in text and "50.0 MB of 100.0 MB" in text
    assert "25.0 MB/s" in text and len(text) < 80
    assert line(Event("trace", unit="stage"), 3.0).split() == ["trace", "3", "s"]
    assert line(Event("trace", 1, 3, "steps"), 3.0).endswith("33%  1 of 3 steps  3 s")
    assert line(Event("download", 5_000_000), 3.0).split() == ["download", "5.0", "MB", "3", "s"]


def test_silent_off_a_terminal(capsys) -> None:
    with Screen().progress() as progress:
        progress(Event("pack", 1, 2))
    assert capsys.readouterr().err == ""


def test_bar_on_a_terminal_takes_its_line_away(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(screen, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(screen, "_TICK_S", 0.01)
    with Screen().progress() as progress:
        progress(Event("pack", 1, 2))
        time.sleep(0.2)
    err = capsys.readouterr().err
    assert "pack" in err and "50%" in err
    assert err.endswith(" \r")


def test_quick_work_shows_no_bar(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Screen().progress() as progress:
        progress(Event("pack", 1, 2))
    assert capsys.readouterr().err == ""


def test_quiet_says_nothing(capsys) -> None:
    quiet = Screen(is_quiet=True)
    quiet.note("hello")
    assert capsys.readouterr().err == ""
    Screen().note("hello")
    assert capsys.readouterr().err == "hello\n"


def test_warnings_of_the_library_are_shown_once(capsys) -> None:
    shown = Screen()
    with shown.logging(30):
        log.warning("careful")
        log.info("detail")
    log.warning("outside")
    assert capsys.readouterr().err.splitlines()[0] == "warning: careful"


def test_lines_hang_on_a_terminal_and_are_whole_in_a_pipe(monkeypatch) -> None:
    text = "libraries   numpy 2.4.6, tokenizers 0.23.3, onnxruntime 1.31.1, a-very-long-word-indeed"
    assert hanging(text, 12) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    shown = hanging(text, 12).splitlines()
    assert " ".join(each.strip() for each in shown) == text
    assert all(each.startswith(" " * 12) for each in shown[1:])
    assert max(map(len, shown)) <= 40
