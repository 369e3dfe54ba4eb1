"""Which container a path means: the folder, QEfficient's ``…/qpcs`` in it, or a documented name.

QEfficient's documents name a compiled program by its options, as in
``qeff_models/gpt2/qpc_16cores_1BS_32PL_128CL_1devices_mxfp6/qpcs``. Where no such folder exists,
the container of that model with those options is taken from the cache.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from qeff.container import Container
from qeff.container.format import MANIFEST
from qeff.core.errors import ContainerError
from qeff.core.options import CompileOptions, ExportOptions

if TYPE_CHECKING:
    from qeff.sources import Location

_INNER = ("qpcs", "qpc")
_NAME = re.compile(
    r"qpc(?:_qnn)?_(?P<cores>\d+)cores_(?P<batch>\d+)(?P<kind>BS|FBS)_(?P<prompt>\d+)PL_"
    r"(?P<ctx>\d+)CL_(?P<devices>\d+)devices(?P<mxfp6>_mxfp6)?(?P<mxint8>_mxint8)?",
    re.IGNORECASE,
)


def resolve(path: str | Path) -> Path | None:
    """The container's folder for a path that exists, None when there is none."""
    folder = Path(path).expanduser()
    around = [folder, *(folder / name for name in _INNER)]
    if folder.name in _INNER:
        around.append(folder.parent)
    return next((place for place in around if (place / MANIFEST).is_file()), None)


def documented_options(path: str | Path) -> CompileOptions | None:
    """The options that a documented folder name spells out, None when it is no such name."""
    from qeff.apps.vendor import for_target

    folder = Path(path)
    found = _NAME.fullmatch(folder.parent.name if folder.name in _INNER else folder.name)
    if found is None:
        return None
    is_full = found["kind"].upper() == "FBS"
    count = int(found["batch"])
    target = CompileOptions().target
    return CompileOptions(
        target=target,
        precision="mxfp6" if found["mxfp6"] else "auto",
        kv_precision="mxint8" if found["mxint8"] else "auto",
        prefill_seq_len=int(found["prompt"]),
        ctx_len=int(found["ctx"]),
        batch_size=1 if is_full else count,
        full_batch_size=count if is_full else None,
        num_devices=int(found["devices"]),
        vendor=for_target(target, {"num_cores": int(found["cores"])}),
    )


def open_cached(path: str | Path, location: Location, options: CompileOptions) -> Container:
    """The cache's container for a documented name."""
    from qeff.apps.pipeline import cached_container  # half of what compiles; few names need it

    export = ExportOptions(
        continuous_batching=options.is_continuous, trust_remote_code=location.trust_remote_code
    )
    folder = cached_container(location, export, options)
    if not folder.is_dir():
        raise ContainerError(
            f"there is no container at {path}, nor in the cache one of {location.name} like it",
            "run infer or compile with the same options first",
        )
    return Container.open(folder)
