"""Compile: the whole story in one function.

Lower the graph for the target, write everything into a container, weights streamed, and put it in
place at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.compile.lowering import SectionWriter, find_lowering
from qeff.compile.positions import warn_of_missing_positions
from qeff.compile.quality import Probe, measure
from qeff.compile.specialize import specialise, vendor_files
from qeff.container.format import CERTIFICATE, encode_json
from qeff.container.manifest import Manifest
from qeff.container.writer import ContainerWriter
from qeff.core.errors import DeviceMissing
from qeff.core.options import CompileOptions
from qeff.core.progress import Event, Progress, log, silent

if TYPE_CHECKING:
    from qeff.export.artifact import Graph


def compile_graph(
    graph: Graph,
    options: CompileOptions,
    *,
    text_files: Mapping[str, bytes],
    provenance: Mapping[str, Any],
    out: Path,
    progress: Progress = silent,
    probe: Probe | None = None,
) -> Path:
    """Write the container for a graph at ``out`` and return its path.

    With a ``probe`` coarse matrices are rounded for the activations of its calibration text, and
    the certificate says how far the container's logits are from the graph's.
    """
    warn_of_missing_positions(graph, options)
    # 1. What the target makes of the graph: files, and promises of weights.
    progress(Event("lower", unit="stage"))
    section = SectionWriter(None if probe is None else probe.calibration)
    find_lowering(options.target)(graph, options, section)

    with ContainerWriter(out) as writer:
        # 2. The program, the weights, the text files and the vendor compilers' inputs.
        files = {**text_files, **section.files, **vendor_files(graph.spec, options)}
        for name in sorted(files):
            writer.write_bytes(name, files[name])
        if section.groups:
            writer.write_weights(section.groups, progress)

        # 3. The certificate, which holds the error of the quantisation, then the manifest.
        manifest = Manifest(
            model=graph.spec,
            target=options.target,
            precision={"asked": options.precision, **section.precision},
            options=options,
            specialisations=specialise(options),
            inputs=section.inputs,
            outputs=section.outputs,
            provenance=provenance,
            files=writer.files,
        )
        certificate = {"export": dict(graph.certificate), **section.reports()}
        is_exact = set(section.precision.values()) == {"fp32"}
        if probe is not None and not is_exact and section.has_all_weights:
            progress(Event("check", unit="stage"))
            with writer.preview(manifest) as draft:
                certificate |= _quality(graph, draft, probe)
        writer.write_bytes(CERTIFICATE, encode_json(certificate))
        return writer.commit(replace(manifest, files=writer.files))


def _quality(graph: Graph, draft: Path, probe: Probe) -> dict[str, Any]:
    """The certificate's entry, or why there is none: the target's device is in another machine."""
    try:
        return {"quality": measure(graph, draft, probe)}
    except DeviceMissing as error:
        log.warning("the container's quality is not measured: %s", error.what)
        return {"unmeasured": error.what}
