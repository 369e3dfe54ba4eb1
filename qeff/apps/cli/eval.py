"""``qeff eval``: perplexity of a text, and KL divergence from the float model, in three phases.

The table, or one JSON object, goes to stdout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.terminal.containers import refuse_compile_options
from qeff.apps.terminal.flags import (
    add_compile_flags,
    add_model_flags,
    compile_options,
    export_options,
    find_model,
)
from qeff.apps.terminal.parser import Parser, positive
from qeff.apps.terminal.running import add_threads_flag
from qeff.core.errors import OptionValueError

if TYPE_CHECKING:
    from qeff.apps.evaluate.measure import Finding, Passage
    from qeff.apps.evaluate.phases import Subject
    from qeff.core.progress import Progress

HELP = "perplexity of a text (eval perplexity), or KL divergence from the float model (eval kl)"

MEASURES = ("perplexity", "kl")
WINDOW = 512  # the window that published figures of llama.cpp have
_MANY = "the text is cut into windows of --ctx-len tokens, each run from an empty cache"


def add_arguments(parser: Parser) -> None:
    """What to measure, on which text, and of which model."""
    parser.usage = f"{parser.prog} perplexity|kl [options]"
    parser.add_argument(
        "measure", choices=MEASURES, metavar="|".join(MEASURES), help="what to measure"
    )
    group = parser.add_argument_group("evaluation", _MANY)
    group.add_argument("--text", metavar="FILE", help="the text; any UTF-8 file")
    group.add_argument("--dataset", metavar="NAME", help="a data set of the datasets library")
    group.add_argument("--dataset-config", metavar="NAME", help="which part of the data set")
    group.add_argument("--dataset-split", default="test", metavar="NAME", help="default: test")
    group.add_argument(
        "--stride",
        type=positive,
        metavar="N",
        help="a window every N tokens scores what no earlier one has, as Hugging Face does it; "
        "default: windows side by side, the second half of each scored, as llama.cpp does it",
    )
    group.add_argument("--max-windows", type=positive, metavar="N", help="stop after N windows")
    group.add_argument(
        "--phases",
        default="float,quantised,target",
        metavar="A,B",
        help="of float (the model in fp32), quantised (the container's weights, in float "
        "arithmetic) and target (the container); default: all",
    )
    group.add_argument(
        "--float-target", metavar="TARGET", help="where the float model runs; default: ort"
    )
    group.add_argument(
        "--qpc-path", metavar="DIR", help="evaluate this container instead of building one"
    )
    add_threads_flag(group)
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--plot", metavar="PNG", help="draw a picture (needs matplotlib)")
    add_model_flags(parser)
    add_compile_flags(parser, ctx_len=f"{WINDOW}, or what the container of --qpc-path holds")


def run(args: argparse.Namespace) -> int:
    """Build what is missing, run the phases, print what was found."""
    from qeff.apps.evaluate import plot
    from qeff.apps.evaluate.measure import evaluate
    from qeff.apps.evaluate.phases import FLOAT, make_phases, parse_phases

    names = parse_phases(args.phases)
    if args.measure == "kl" and (FLOAT not in names or len(names) < 2):
        raise OptionValueError(
            "KL divergence needs the phase float and one to compare with it", "leave --phases out"
        )
    if args.plot:
        plot.check()
    words = read_words(args)
    with args.screen.progress() as progress:
        subject = find_subject(args, needs_model=FLOAT in names, progress=progress)
        passage = cut_passage(args, subject, words)
        phases = make_phases(subject, names, float_target=args.float_target, progress=progress)
        findings = evaluate(
            phases,
            passage,
            has_reference=FLOAT in names,
            threads=args.threads,
            progress=progress,
        )
    print(json.dumps(report(args, subject, passage, findings)) if args.json else table(findings))
    if args.plot:
        plot.draw(findings, Path(args.plot), title=subject.container.manifest.model.name)
        args.screen.note(f"picture: {args.plot}")
    return 0


def read_words(args: argparse.Namespace) -> str:
    """The text that was asked for, read before anything is built."""
    from qeff.apps.evaluate.corpus import read_dataset, read_file

    if (args.text is None) == (args.dataset is None):
        raise OptionValueError(
            "there is no text" if args.text is None else "--text and --dataset exclude each other",
            "give --text FILE, or --dataset NAME",
        )
    if args.text is not None:
        return read_file(Path(args.text))
    return read_dataset(args.dataset, args.dataset_config, args.dataset_split)


def find_subject(args: argparse.Namespace, *, needs_model: bool, progress: Progress) -> Subject:
    """The container to evaluate, and its checkpoint where a phase needs it."""
    from qeff.apps.cli.execute import open_container
    from qeff.apps.evaluate.phases import Subject
    from qeff.apps.pipeline import build
    from qeff.container import Container

    if not args.qpc_path:
        args.ctx_len = args.ctx_len or WINDOW
        model, export = find_model(args, progress), export_options(args)
        path = build(model, export, compile_options(args), progress=progress)
        return Subject(Container.open(path), model, export)
    container = open_container(args)
    refuse_compile_options(args, args.qpc_path, but=("ctx_len", "full_batch_size", "load_format"))
    location = find_model(args, progress) if needs_model else None
    made_of = container.manifest.provenance.get("source", {}).get("sha256")
    if location is not None and location.content_hash() != made_of:
        raise OptionValueError(
            f"{args.qpc_path} was not made of {location.name}",
            "name its checkpoint with --model-name, or use --phases quantised,target",
        )
    return Subject(container, location, export_options(args))


def cut_passage(args: argparse.Namespace, subject: Subject, words: str) -> Passage:
    """The text as token ids and windows."""
    from qeff.apps.evaluate.corpus import encode
    from qeff.apps.evaluate.measure import Passage
    from qeff.apps.evaluate.windows import cut
    from qeff.generate import Text

    ids, bos = encode(Text.from_container(subject.container), words)
    ctx_len = args.ctx_len or subject.container.manifest.options.ctx_len
    windows = cut(len(ids), ctx_len, args.stride)[: args.max_windows]
    # Where every window is a text of its own, each begins as the tokenizer begins a text.
    return Passage(ids=ids, windows=windows, bos=bos if args.stride is None else None)


def report(
    args: argparse.Namespace, subject: Subject, passage: Passage, findings: Sequence[Finding]
) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "measure": args.measure,
        "model": subject.container.manifest.model.name,
        "container": str(subject.container.path),
        "text": args.text or args.dataset,
        "text_tokens": len(passage.ids),
        "windows": len(passage.windows),
        "ctx_len": passage.longest,
        "stride": args.stride,
        "phases": [finding.to_json() for finding in findings],
    }


def table(findings: Sequence[Finding]) -> str:
    """The phases for reading, one in a line."""
    from qeff.apps.evaluate.table import lines

    return "\n".join(lines([finding.to_json() for finding in findings]))
