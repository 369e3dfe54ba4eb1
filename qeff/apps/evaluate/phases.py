"""The three phases of an evaluation, and the container that each of them runs.

``float`` is the model in fp32, ``quantised`` the weights of the container in float arithmetic,
``target`` the container itself. Builds what is missing; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qeff.apps.evaluate.float_form import float_form
from qeff.apps.evaluate.lane import Phase
from qeff.apps.pipeline import build
from qeff.compile.targets import available_targets
from qeff.container import Container
from qeff.core.errors import OptionValueError, ResourceError, unknown_name
from qeff.core.options import CompileOptions, ExportOptions
from qeff.core.progress import Progress, silent
from qeff.sources import Location

FLOAT, QUANTISED, TARGET = PHASES = ("float", "quantised", "target")
# Where the float model runs: the engine that every export was checked with, then our own.
FLOAT_TARGETS = ("ort", "cpu", "reference")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: a container, and the checkpoint it was made of, where that is at hand."""

    container: Container
    location: Location | None
    export_options: ExportOptions


def parse_phases(text: str) -> tuple[str, ...]:
    """Phases by name with commas between them, in their order."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PHASES:
            raise unknown_name("phase", name, PHASES)
    return tuple(name for name in PHASES if name in names)


def make_phases(
    subject: Subject,
    names: Sequence[str],
    *,
    float_target: str | None = None,
    progress: Progress = silent,
) -> list[Phase]:
    """The containers of the phases, each built or found; equal ones are run once."""
    made: list[Phase] = []
    for name in names:
        if name == FLOAT:
            phase = Phase(name, _float_container(subject, float_target, progress))
        elif name == QUANTISED:
            phase = _quantised(subject, made, progress)
        else:
            phase = Phase(name, subject.container)
        twin = next((p for p in made if p.container.path == phase.container.path), None)
        made.append(phase if twin is None else replace(phase, same_as=twin.same_as or twin.name))
    return made


def _float_container(subject: Subject, target: str | None, progress: Progress) -> Container:
    if subject.location is None:
        raise OptionValueError(
            "the phase float needs the checkpoint",
            "name it with --model-name, or leave the phase out: --phases quantised,target",
        )
    options = float_options(subject.container.manifest.options, target or _float_target())
    return Container.open(
        build(subject.location, subject.export_options, options, progress=progress)
    )


def _float_target() -> str:
    there = available_targets()
    chosen = next((name for name in FLOAT_TARGETS if name in there), None)
    if chosen is None:
        raise ResourceError(
            "no target of this release runs a model in fp32", "leave the phase float out"
        )
    return chosen


def float_options(options: CompileOptions, target: str) -> CompileOptions:
    """The same shapes with every matrix in fp32."""
    return replace(
        options,
        target=target,
        precision="fp32",
        precision_overrides=(),
        calibration="auto",
        calibration_file=None,
        kv_precision="fp32",
        num_devices=1,
        vendor={},
    )


def _quantised(subject: Subject, made: Sequence[Phase], progress: Progress) -> Phase:
    """The float form; a container without narrow weights is its own, or the float phase's."""
    path = float_form(subject.container, progress=progress)
    if path is not None:
        return Phase(QUANTISED, Container.open(path))
    if made and made[0].name == FLOAT:
        return Phase(QUANTISED, made[0].container)
    return Phase(QUANTISED, subject.container)
