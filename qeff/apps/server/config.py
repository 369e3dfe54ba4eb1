"""The options of a server: the one list of them, their defaults and what they mean.

Knows nothing of where a value comes from; ``layers`` finds that out.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

LOG_FORMATS = ("plain", "json", "none")
CTX_LEN = 4096  # or the model's own, where that is less
FULL_BATCH_SIZE = 32
_UNITS = "kmgt"  # of thousands, or of 1,024 as KiB and the like


def option(default: Any, help: str, *, metavar: str | None = None, **more: Any) -> Any:
    """A field that is an option too; ``more`` goes to the parser."""
    return field(default=default, metadata={"help": help, "metavar": metavar, **more})


def size(text: str) -> int:
    """A number of bytes, also as 512M, 4G or 4GiB."""
    word = text.strip().lower().removesuffix("b")
    base = 1024 if word.endswith("i") else 1000
    word = word.removesuffix("i")
    power = _UNITS.find(word[-1:]) + 1 if word else 0
    try:
        value = int(float(word[:-1] if power else word) * base**power)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a size such as 512M or 4G") from None
    if value < 1:
        raise ArgumentTypeError(f"{text!r} is not a size of at least one byte")
    return value


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def port(text: str) -> int:
    """A port number; 0 takes any that is free."""
    if not text.isdigit() or int(text) > 65535:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def number(least: int) -> Callable[[str], int]:
    """A whole number of at least ``least``."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise ArgumentTypeError(f"{value} is not at least {least}")
        return value

    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a server listens, whom it lets in and how much it takes."""

    host: str = option("127.0.0.1", "address to listen on", metavar="ADDRESS")
    port: int = option(8000, "port to listen on; 0 takes any free one", metavar="N", type=port)
    served_model_name: str | None = option(
        None, "what clients call the model; default: its own name", metavar="NAME"
    )
    api_key: tuple[str, ...] = option(
        (), "a key that clients must send; may be repeated", metavar="KEY", action="append"
    )
    api_key_file: str | None = option(None, "a file with a key on each line", metavar="FILE")
    allow_no_key: bool = option(
        False, "let everybody in who reaches the address", action="store_true"
    )
    allowed_host: tuple[str, ...] = option(
        (),
        "a name that requests may use for a server without keys on this machine; may be repeated",
        metavar="NAME",
        action="append",
    )
    max_waiting: int = option(
        256, "outputs that may wait for their turn; more are refused", metavar="N", type=number(0)
    )
    max_body_bytes: int = option(
        16 * 2**20, "largest request, such as 4MiB", metavar="SIZE", type=size
    )
    max_tokens: int | None = option(
        None, "most tokens of one output; default: the context", metavar="N", type=number(1)
    )
    max_outputs: int = option(
        128, "most outputs of one request: prompts times n", metavar="N", type=number(1)
    )
    request_timeout_s: float = option(
        600.0, "most seconds that a request may take", metavar="S", type=seconds
    )
    drain_seconds: float = option(
        30.0, "how long running requests may go on after SIGTERM", metavar="S", type=seconds
    )
    keep_alive: float = option(
        30.0, "seconds that a connection stays open after an answer", metavar="S", type=seconds
    )
    memory_limit: int | None = option(
        None,
        "memory of all opened models; idle ones are closed for others",
        metavar="SIZE",
        type=size,
    )
    cache_tokens: int | None = option(
        None,
        "tokens that the cache holds of all sequences together; default: what fits into memory",
        metavar="N",
        type=number(1),
    )
    replicas: int = option(
        1, "processes that serve one address and share the weights", metavar="N", type=number(1)
    )
    ray: bool = option(
        False,
        "run the replicas on Ray Serve: on the cluster that RAY_ADDRESS names, or on this machine",
        action="store_true",
    )
    no_prepare: bool = option(
        False,
        "answer at once: on a GPU, kernels are compiled when a size of a step is first met",
        action="store_true",
    )
    log_format: str = option("plain", "how requests are logged", choices=LOG_FORMATS)
    log_prompts: bool = option(False, "log what is asked and answered too", action="store_true")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> ServerConfig:
        """The config of parsed options; others are left alone."""
        values: dict[str, Any] = {}
        for one in fields(cls):
            value = options.get(one.name, one.default)
            values[one.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)
