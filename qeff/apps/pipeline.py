"""The whole build, stage by stage, each skipped when its result is in the cache.

    locate → (container in the cache? done) → graph in the cache, or open + prepare + export →
    compile

A container that is there is returned without torch, transformers or a look into the checkpoint.
Every result appears whole or not at all, and several processes may build the same thing at once.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.build_version import build_version
from qeff.apps.staging import draft_folder, publish
from qeff.compile.artifacts import container_folder, graph_folder
from qeff.core.errors import ContainerError, QeffError, ResourceError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.core.progress import Event, Progress, log, silent
from qeff.sources import Location, locate

if TYPE_CHECKING:
    from qeff.export.artifact import Graph
    from qeff.sources import Source

Ref = str | Path | Location | None


def build(
    ref: Ref,
    export_options: ExportOptions,
    options: CompileOptions,
    *,
    out: Path | None = None,
    progress: Progress = silent,
) -> Path:
    """The container of a model, found or made; ``out`` keeps it outside the cache."""
    location = located(ref, progress)
    folder = out.absolute() if out else cached_container(location, export_options, options)
    provenance = provenance_of(location, export_options)
    if has_container(folder, options, provenance):
        log.info("the container is there: %s", folder)
        return folder

    from qeff.apps.probe import make_probe
    from qeff.compile.compiler import compile_graph
    from qeff.container.writer import check_replaceable
    from qeff.sources.location import RANDOM

    check_replaceable(folder)  # before the long work, not after it

    source = opened(location)
    graph = graph_of(source, location, export_options, progress)
    text_files = source.text_files()
    return compile_graph(
        graph,
        options,
        text_files=text_files,
        provenance=provenance,
        out=folder,
        progress=progress,
        probe=make_probe(text_files, graph.spec, options, location.kind != RANDOM),
    )


def graph_of(
    source: Source, location: Location, options: ExportOptions, progress: Progress = silent
) -> Graph:
    """The graph of an opened checkpoint, from the cache when it is there."""
    from qeff.export.artifact import Graph

    folder = graph_folder(location.name, location.content_hash(), options, build_version())
    if folder.is_dir():
        try:
            return Graph.load(folder, source.tensors)
        except QeffError as error:
            log.warning("the graph in the cache is damaged and made again: %s", error.what)
    from qeff.export import export
    from qeff.transform import prepare

    progress(Event("trace", unit="stage"))
    graph = export(prepare(source, options), progress=progress)
    with draft_folder(folder.parent) as draft:
        graph.save(draft)
        publish(draft, folder, lambda out: _is_graph(out, source))
    return graph


def cached_container(
    location: Location, export_options: ExportOptions, options: CompileOptions
) -> Path:
    """Where the cache keeps the container of a model with these options."""
    return container_folder(
        location.name, location.content_hash(), export_options, options, build_version()
    )


def located(ref: Ref, progress: Progress) -> Location:
    """The checkpoint on this machine, its content hash known."""
    location = ref if isinstance(ref, Location) else locate(ref, progress=progress)
    progress(Event("hash", unit="files"))
    location.content_hash()
    return location


def opened(location: Location) -> Source:
    """The checkpoint, or what to install when this machine can only run containers."""
    from qeff.sources import open_source

    try:
        import onnx_ir  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            f"{error.name} is not installed, and is needed to make a container",
            "pip install 'qeff[build]'",
        ) from error
    return open_source(location)


def provenance_of(location: Location, options: ExportOptions) -> dict[str, Any]:
    """Where a container comes from: no path and no time, so that equal inputs give equal bytes."""
    return {
        "source": {
            "name": location.name,
            "kind": location.kind,
            "sha256": location.content_hash(),
        },
        "export": asdict(options),
        "qeff": build_version(),
    }


def has_container(folder: Path, options: CompileOptions, provenance: dict[str, Any]) -> bool:
    """Whether the folder holds a sound container that was made of just this."""
    from qeff.container import Container
    from qeff.container.format import MANIFEST

    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = Container.open(folder).manifest
    except ContainerError as error:
        log.warning("the container is made again: %s", error.what)
        return False
    return bool(manifest.options == options and manifest.provenance == provenance)


def _is_graph(folder: Path, source: Source) -> bool:
    from qeff.export.artifact import Graph

    try:
        Graph.load(folder, source.tensors)
    except QeffError:
        return False
    return True
