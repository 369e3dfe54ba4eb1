"""Give a container the session of its target: ``backends/<target>/session.py``, found by name.

Each such module has one function, ``open_session(container, threads)``.
"""

from __future__ import annotations

from importlib import import_module, util

from qeff.container.reader import Container
from qeff.core.errors import ResourceError
from qeff.runtime.session import Session


def open_session(container: Container, *, threads: int | None = None) -> Session:
    """A session on the device that the container was compiled for."""
    target = container.manifest.target
    package = f"qeff.backends.{target}"
    if util.find_spec(package) is None or util.find_spec(f"{package}.session") is None:
        raise ResourceError(
            f"this release cannot run containers of the target {target!r}",
            "compile for another target",
        )
    try:
        session: Session = import_module(f"{package}.session").open_session(container, threads)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        assert library not in ("", "qeff"), f"{package} is incomplete: {error}"
        raise ResourceError(
            f"the target {target!r} needs {library}, which is not installed",
            f"pip install {library}",
        ) from error
    return session
