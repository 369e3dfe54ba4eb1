"""Opens containers of this target; torch and Triton are imported when the first one is opened."""

from __future__ import annotations

from importlib import import_module, util
from typing import TYPE_CHECKING

from qeff.core.errors import DeviceMissing

if TYPE_CHECKING:
    from qeff.container.reader import Container
    from qeff.runtime.session import Session

__all__ = ["open_session"]

TAKES = ("vram_budget", "deterministic")


def open_session(
    container: Container,
    threads: int | None,
    *,
    vram_budget: int | None = None,
    deterministic: bool = False,
    device: str | None = None,
) -> Session:
    """The session for a container of this target, on the first GPU; threads are not its matter.

    ``vram_budget`` is a ceiling in bytes. ``device`` is for tests: on ``cpu`` kernels run in
    Triton's interpreter. Without a GPU, or the libraries that drive one, it is DeviceMissing.
    """
    for library in ("torch", "triton"):
        if util.find_spec(library) is None:
            raise DeviceMissing(
                f"the target 'cuda' needs {library}, which is not installed",
                "pip install 'qeff[cuda]'",
            )
    opening = import_module(f"{__name__}.opening")
    session: Session = opening.open_on_device(container, device, vram_budget, deterministic)
    return session
