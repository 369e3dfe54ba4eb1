"""Give a container the session of its target: ``backends/<target>/session.py``, found by name.

Each such module has one function, ``open_session(container, threads)``. ``TAKES`` names settings
that it takes besides, ``ALWAYS`` those that hold whether or not they are asked for.
"""

from __future__ import annotations

from importlib import import_module, util
from types import ModuleType
from typing import Any

from qeff.container.reader import Container
from qeff.core.errors import OptionValueError, ResourceError
from qeff.runtime.session import Session


def open_session(
    container: Container,
    *,
    threads: int | None = None,
    vram_budget: int | None = None,
    deterministic: bool = False,
) -> Session:
    """A session on the device that the container was compiled for.

    ``vram_budget`` is the most bytes of GPU memory that it may take. ``deterministic`` wants the
    same results for a sequence whatever else is in a step.
    """
    target = container.manifest.target
    asked = {"vram_budget": vram_budget, "deterministic": deterministic or None}
    package = f"qeff.backends.{target}"
    if util.find_spec(package) is None or util.find_spec(f"{package}.session") is None:
        raise ResourceError(
            f"this release cannot run containers of the target {target!r}",
            "compile for another target",
        )
    try:
        module = import_module(f"{package}.session")
        settings = _settings(module, target, asked)
        session: Session = module.open_session(container, threads, **settings)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        assert library not in ("", "qeff"), f"{package} is incomplete: {error}"
        raise ResourceError(
            f"the target {target!r} needs {library}, which is not installed",
            f"pip install {library}",
        ) from error
    return session


def _settings(module: ModuleType, target: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for that the target's session takes; refuses what it cannot do."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in (*getattr(module, "TAKES", ()), *getattr(module, "ALWAYS", ())):
            word = "--" + name.replace("_", "-")
            raise OptionValueError(f"the target {target} has no {word}", f"leave {word} out")
    return {name: value for name, value in given.items() if name in getattr(module, "TAKES", ())}
