"""The border of the process: turns exceptions into one sentence, a hint and an exit code.

0 done, 1 the user's data or machine, 2 the user's words, 70 our own mistake, 130 interrupted, 141
reader gone. A traceback is shown only for our own mistakes, and only when asked for with ``-v``.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable

from qeff.apps.terminal.screen import paint
from qeff.core.errors import QeffError

USER, USAGE, OURS, INTERRUPTED, PIPE = 1, 2, 70, 130, 141


def guarded(call: Callable[[], int], *, verbose: bool) -> int:
    """Run ``call``; whatever it raises becomes a message on stderr and an exit code."""
    try:
        code = call()
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse has printed its help
        return int(end.code or 0)
    except QeffError as error:
        say(error.what, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # leave the line that the text or the bar is on
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return PIPE
    except MemoryError:
        say("memory ran out", "use a smaller --ctx-len, --batch-size or --precision")
        return USER
    except OSError as error:
        return _from_system(error, verbose)
    except Exception as error:  # the process border: nothing above can tell the user
        return _our_mistake(error, verbose)


def _from_system(error: OSError, verbose: bool) -> int:
    """What the operating system refused, in words where the user can mend it."""
    place = f" at {error.filename}" if error.filename else ""
    if error.errno == errno.ENOSPC:
        say(f"the disk is full{place}", "free some space, or set QEFF_HOME to a larger disk")
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        say(f"no permission to read or write{place}", "check the owner, or set QEFF_HOME elsewhere")
    elif error.errno == errno.ENOENT:
        say(f"no such file{place}")
    else:
        return _our_mistake(error, verbose)
    return USER


def _our_mistake(error: Exception, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    what = " ".join(str(error).split()) or "no message"
    short = what if len(what) <= 200 else what[:197] + "..."
    hint = None if verbose else "run again with -v for the traceback, and report it"
    say(f"internal error: {type(error).__name__}: {short}", hint)
    return OURS


def say(what: str, hint: str | None = None) -> None:
    """One sentence and a hint on stderr."""
    tail = f"\n\n{paint('hint', 'cyan')}: {hint}" if hint else ""
    print(f"{paint('error', 'red')}: {what}{tail}", file=sys.stderr)


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # stdout is no real file: nothing will be flushed into a pipe
