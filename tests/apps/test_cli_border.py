"""The border of the process: an exception becomes a message and an exit code."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from qeff.apps.terminal.border import guarded
from qeff.core.errors import ContainerError, OptionValueError


def raising(error: BaseException):
    def call() -> int:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            ContainerError("it is cut", "compile again"),
            1,
            "error: it is cut\n\nhint: compile again\n",
        ),
        (OptionValueError("no"), 2, "error: no\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (OSError(errno.ENOSPC, "No space", "/x"), 1, "the disk is full at /x"),
        (PermissionError(errno.EACCES, "Denied", "/x"), 1, "no permission to read or write at /x"),
        (MemoryError(), 1, "memory ran out"),
        (KeyError("oops"), 70, "internal error: KeyError: 'oops'\n\nhint: run again with -v"),
    ],
)
def test_errors(error: BaseException, code: int, text: str, capsys) -> None:
    assert guarded(raising(error), verbose=False) == code
    out, err = capsys.readouterr()
    assert out == "" and text in err and "Traceback" not in err


def test_our_mistakes_show_a_traceback_only_when_asked(capsys) -> None:
    assert guarded(raising(ValueError("x")), verbose=True) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(environment) -> None:
    script = f"{sys.executable} -m qeff infer --help | head -n 1"
    done = subprocess.run(
        script, shell=True, capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr == "" and done.stdout.startswith("usage: qeff infer")


def test_colour_only_on_a_terminal(capsys, monkeypatch) -> None:
    from qeff.apps.terminal import screen

    assert screen.paint("x", "red") == "x"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen.paint("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen.paint("x", "red") == "x"
