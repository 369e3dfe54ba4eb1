"""Who can reach a server: the keys that it was given, and its address.

Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from qeff.core.errors import OptionValueError

LEAST_LETTERS = 8


def read_keys(keys: Sequence[str], file: str | None) -> list[str]:
    """The keys that were given and those of a file, one a line; lines with # say nothing."""
    found = list(keys)
    if file is not None:
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionValueError(f"the key file {file} cannot be read: {error}") from error
        own = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not own:
            raise OptionValueError(
                f"the key file {file} holds no key", "write one key on each line"
            )
        found += own
    for key in found:
        if len(key) < LEAST_LETTERS or not key.isascii() or not key.isprintable() or " " in key:
            raise OptionValueError(
                "an API key is too short or holds other than printable letters",
                f"use at least {LEAST_LETTERS} letters and digits, such as those of"
                " python -c 'import secrets; print(secrets.token_urlsafe())'",
            )
    return found


def check_address(host: str, has_keys: bool, may_be_open: bool) -> None:
    """Refuse to be reached from other machines by anybody."""
    if has_keys or may_be_open or is_loopback(host):
        return
    raise OptionValueError(
        f"{host} can be reached from other machines, and there is no API key",
        "give --api-key or --api-key-file, or --allow-no-key if that is meant",
    )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean anything
