"""An exported graph as a user keeps it: an ONNX file that runs, and what compile needs beside it.

``export_onnx`` writes such a folder, ``compile_onnx`` reads it. Weights that are packed in the
checkpoint are compiled from there, so that the folder says which checkpoint it was.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.build_version import build_version
from qeff.apps.pipeline import (
    Ref,
    cached_container,
    graph_of,
    has_container,
    located,
    opened,
    provenance_of,
)
from qeff.apps.staging import draft_folder, publish
from qeff.compile.artifacts import graph_folder
from qeff.container.writer import check_replaceable
from qeff.core.atomic_folder import place_of
from qeff.core.errors import SourceError, UsageError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.core.progress import Progress, log, silent
from qeff.sources import Location, locate, locate_dummy
from qeff.sources.location import RANDOM
from qeff.sources.speculator import with_heads

if TYPE_CHECKING:
    from qeff.export.artifact import Graph

RECORD = "source.json"
INFO_FILE = "graph.json"
_SUFFIXES = (".onnx", ".data", ".safetensors", ".gguf")  # the graph, its floats, linked weights
_HINT = "write it with qeff export"


def export_onnx(
    ref: Ref, options: ExportOptions, *, out: Path | None = None, progress: Progress = silent
) -> Path:
    """The ONNX file of a model, found or made; ``out`` keeps it outside the cache."""
    location = located(ref, progress)
    cached = graph_folder(location.name, location.content_hash(), options, build_version())
    folder = place_of(out) if out else cached.with_name(f"onnx-{cached.name.rsplit('-', 1)[1]}")
    record = _record(location, options)
    if _has_export(folder, record):
        log.info("the graph is there: %s", folder)
        return folder / str(record["file"])
    _check_replaceable(folder)
    source = opened(location)
    graph = graph_of(source, location, options, progress)
    with draft_folder(folder.parent) as draft:
        _write(graph, draft, record, progress)
        publish(draft, folder, lambda out: _has_export(out, record))
    return folder / str(record["file"])


def compile_onnx(
    path: Path,
    options: CompileOptions,
    *,
    location: Location | None = None,
    out: Path | None = None,
    progress: Progress = silent,
) -> Path:
    """The container of a graph that ``export_onnx`` wrote.

    ``location`` says where its checkpoint is, should it have been moved.
    """
    folder = path if path.is_dir() else path.parent
    record = _read_record(folder, path)
    export_options = ExportOptions(**record["export"])
    if options.is_continuous != export_options.continuous_batching:
        kind = "with" if export_options.continuous_batching else "without"
        raise UsageError(
            f"{path} was exported {kind} continuous batching",
            "give --full-batch-size to export and compile, or to neither",
        )
    location = _checkpoint_of(record, path, location)
    target = out.absolute() if out else cached_container(location, export_options, options)
    provenance = provenance_of(location, export_options)
    if has_container(target, options, provenance):
        return target
    check_replaceable(target)

    from qeff.apps.probe import make_probe
    from qeff.compile.compiler import compile_graph
    from qeff.export.artifact import Graph

    source = opened(location)
    graph, text_files = Graph.load(folder, source.tensors), source.text_files()
    return compile_graph(
        graph,
        options,
        text_files=text_files,
        provenance=provenance,
        out=target,
        progress=progress,
        probe=make_probe(text_files, graph.spec, options, location.kind != RANDOM),
    )


def _record(location: Location, options: ExportOptions) -> dict[str, Any]:
    """What is kept beside a graph: which checkpoint, where it is, and which file to run."""
    made_of = provenance_of(location, options)
    where = {"path": str(location.path.absolute()), "has_heads": location.has_heads}
    return {**made_of, **where, "file": f"{location.name}.onnx"}


def _write(graph: Graph, folder: Path, record: dict[str, Any], progress: Progress) -> None:
    from qeff.export.standalone import materialize

    graph.save(folder)
    written = materialize(graph, folder, progress=progress)
    written.rename(folder / record["file"])
    (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _has_export(folder: Path, record: dict[str, Any]) -> bool:
    try:
        is_same = json.loads((folder / RECORD).read_text()) == record
        return bool(is_same and (folder / str(record["file"])).is_file())
    except (OSError, ValueError):
        return False


def _check_replaceable(folder: Path) -> None:
    """What is there must be nothing or an export of ours: never somebody's other folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [folder.name] if folder.exists() else []  # or a folder above it is a file
    hint = "name another folder, or remove this one"
    if names and RECORD not in names:
        raise UsageError(f"{folder} exists and is not an exported graph", hint)
    for name in names:
        if name not in (RECORD, INFO_FILE) and Path(name).suffix not in _SUFFIXES:
            raise UsageError(f"{folder} holds {name}, which is no part of an exported graph", hint)


def _read_record(folder: Path, path: Path) -> dict[str, Any]:
    if not path.exists():
        raise SourceError(f"there is no graph at {path}", _HINT)
    try:
        record = json.loads((folder / RECORD).read_text())
        ExportOptions(**record["export"])
        texts = [record["path"], *(record["source"][name] for name in ("name", "kind", "sha256"))]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{RECORD} has an entry of another type")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SourceError(f"{path} is not a graph that qeff export wrote", _HINT) from error
    return dict(record)


def _checkpoint_of(record: dict[str, Any], path: Path, location: Location | None) -> Location:
    """The checkpoint that a graph was made of, which must be unchanged, under the same name."""
    source, trusted = record["source"], record["export"]["trust_remote_code"]
    found = location
    if found is None:
        find = locate_dummy if source["kind"] == RANDOM else locate
        found = find(Path(record["path"]), trust_remote_code=trusted)
    if record.get("has_heads"):
        found = with_heads(found)
    if found.content_hash() != source["sha256"]:
        raise SourceError(
            f"{found.path} is not the checkpoint that {path} was exported from", "export again"
        )
    return replace(found, name=source["name"])
