"""The float form of a container: the same weights, dequantised, and all arithmetic in float32.

It shows what the rounding of weights costs by itself, apart from the arithmetic of the target. A
container that holds a graph keeps it, with every half and every block product widened; one that
holds a program of ours becomes a container of the reference engine. Kept in the cache under the
digest of the container it was made of. Knows formats of programs, not targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qeff.apps.build_version import build_version
from qeff.compile.artifacts import content_key, folder_name
from qeff.compile.lowering import SectionWriter
from qeff.container import Container
from qeff.container.writer import ContainerWriter
from qeff.core.env import cache_root
from qeff.core.errors import CompileError, ContainerError
from qeff.core.progress import Event, Progress, log, silent

ORIGIN = "float_form_of"  # the digest of the original, in the provenance


def float_form(container: Container, *, progress: Progress = silent) -> Path | None:
    """The container of a container's weights in float; None when it computes in float32 already."""
    widen = _way(container)
    section = SectionWriter()
    target = widen(container, section)
    if target is None:
        return None
    out = _place(container)
    if _is_there(out):
        return out
    progress(Event("dequantise", unit="stage"))
    manifest = container.manifest
    with ContainerWriter(out) as writer:
        files = {**container.text_files(), **section.files}
        for name in sorted(files):
            writer.write_bytes(name, files[name])
        writer.write_weights(section.groups, progress)
        return writer.commit(
            replace(
                manifest,
                target=target,
                precision={**manifest.precision, "arithmetic": "fp32", "kv": "fp32"},
                options=replace(manifest.options, target=target, vendor={}),
                inputs=section.inputs,
                outputs=section.outputs,
                provenance={**manifest.provenance, ORIGIN: _digest(container)},
                files=writer.files,
            )
        )


def _way(container: Container) -> Callable[[Container, SectionWriter], str | None]:
    """What turns this kind of program into floats."""
    from qeff.apps.evaluate import wide_graph, wide_program

    for way in (wide_graph, wide_program):
        if way.PROGRAM in container.manifest.files:
            return way.widen
    raise CompileError(
        f"there is no float form of a container of the target {container.manifest.target!r}",
        "leave the phase out: --phases float,target",
    )


def _place(container: Container) -> Path:
    key = content_key({ORIGIN: _digest(container), "version": build_version()})
    return cache_root() / folder_name(container.manifest.model.name) / f"float-{key}"


def _digest(container: Container) -> str:
    return content_key(container.manifest.to_json())


def _is_there(out: Path) -> bool:
    if not out.is_dir():
        return False
    try:
        Container.open(out)
    except ContainerError as error:
        log.warning("the float form is made again: %s", error.what)
        return False
    return True
