"""Every error a user can cause, in one tree.

    QeffError                    what went wrong, and a hint how to go on
    ├── UsageError               a word on the command line or a parameter (exit code 2)
    │   ├── OptionTypeError      also a TypeError: the combinations QEfficient documents as such
    │   ├── OptionValueError     also a ValueError
    │   └── OptionNotSupported   also a NotImplementedError
    ├── SourceError              a checkpoint that is missing, damaged or refused
    │   └── HubUnreachable       the model hub did not answer
    ├── UnsupportedModel         a model, layer or setting that cannot be exported
    ├── ParityError              an export whose numbers differ from the original's
    ├── CompileError             an op, precision or shape that the target cannot do
    ├── ContainerError           a container that is damaged, cut or not ours
    ├── RequestError             a prompt or sampling setting that cannot be served
    └── ResourceError            disk, memory or a library that is missing
        └── DeviceMissing        the target's own device is not in this machine

Our own mistakes are ``assert`` with a message; they are never part of this tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QeffError(Exception):
    """One sentence saying what is wrong, and an optional hint how to go on."""

    exit_code = 1

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n\nhint: {self.hint}" if self.hint else self.what


class UsageError(QeffError):
    """A word on the command line, or a parameter, that has no meaning."""

    exit_code = 2


class OptionTypeError(UsageError, TypeError):
    """A parameter of the wrong type, or a required one left out."""


class OptionValueError(UsageError, ValueError):
    """A parameter whose value does not fit with the others."""


class OptionNotSupported(UsageError, NotImplementedError):
    """A documented parameter combination that no target offers."""


class SourceError(QeffError):
    """A checkpoint that is missing, damaged or refused."""


class HubUnreachable(SourceError):
    """The model hub did not answer within seconds."""


class UnsupportedModel(QeffError):
    """A model, a layer of it or one of its settings cannot be exported."""


class ParityError(QeffError):
    """The exported graph does not give the original model's numbers."""


class CompileError(QeffError):
    """The target has no way to run an op, a precision or a shape."""


class ContainerError(QeffError):
    """A container is damaged, incomplete or was not written by this project."""


class RequestError(QeffError):
    """A prompt or a sampling setting that cannot be served."""


class ResourceError(QeffError):
    """Disk space, memory or an optional library is missing."""


class DeviceMissing(ResourceError):
    """The target runs on a device that this machine does not have."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one probably meant."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a list, with the nearest one as the hint."""
    names = sorted(known)
    close = nearest(name, names)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
    return UsageError(f"unknown {what} {name!r}", hint)
