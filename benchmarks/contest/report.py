"""Prints a run as Markdown: machine, versions, the table of figures, and every contestant.

Takes measurements, gives text. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from contest.figures import Measurements, lines

GIGA = 1e9


def render(found: Measurements) -> str:
    """The whole report."""
    parts = [_heading(found), _figures(found), _contestants(found), _notes(found)]
    return "\n\n".join(part for part in parts if part)


def _heading(found: Measurements) -> str:
    run, machine = found.run, found.run["machine"]
    features = " ".join(machine["features"])
    versions = ", ".join(
        f"{name} {text}" for name, text in sorted(run["versions"].items()) if name != "llama.cpp"
    )
    return "\n".join(
        (
            f"{run['model']} on {machine['cores']} × {machine['name']} ({features}),"
            f" {machine['memory_bytes'] / GIGA:.0f} GB, {machine['system']};"
            f" {run['threads']} threads; {run['date']}.",
            f"Versions: {versions}; {run['compiler']}.",
            f"llama.cpp was built for: {run['versions'].get('llama.cpp', '-')}.",
            f"Limits with {run['threads']} threads: reads"
            f" {found.limit('read_bytes_s') / GIGA:.1f} GB/s,"
            f" {found.limit('int8_mac_s') / GIGA:.0f} G int8 MAC/s ({run['int8_instruction']}).",
        )
    )


def _figures(found: Measurements) -> str:
    head = ("figure", "qeff", "fastest peer", "ratio", "bar", "aim", "machine's limit", "reached")
    body = [
        (x.figure, x.ours, x.peer, x.ratio, x.bar, x.aim, x.floor, x.state) for x in lines(found)
    ]
    return _table((head, *body))


def _contestants(found: Measurements) -> str:
    head = (
        "contestant", "weights MB", "read per token MB", "decode tok/s", "prefill tok/s",
        f"{found.run['num_sequences']} together tok/s", "load s", "to first token s", "RSS MB",
        "KL", "top-1", "calm runs",
    )  # fmt: skip
    body = []
    for name, row in found.contestants.items():
        calm, all_runs = found.calm(name)
        read = row.get("bytes_per_token")
        kl, error = found.median(name, "kl"), found.median(name, "kl_error")
        body.append(
            (
                name,
                f"{row['weights_bytes'] / 1e6:.1f}",
                f"{read / 1e6:.1f}" if read else "-",
                _spread(found.values(name, "decode_tok_s")),
                _spread(found.values(name, "prefill_tok_s")),
                _spread(found.values(name, "batch_decode_tok_s")),
                _number(found.median(name, "load_s"), "{:.2f}"),
                _number(found.median(name, "load_to_first_token_s"), "{:.2f}"),
                _number(found.median(name, "peak_rss_bytes"), "{:.0f}", 1e-6),
                f"{kl:.4f} ± {error:.4f}" if kl is not None else "-",
                _number(found.median(name, "top1"), "{:.1%}"),
                f"{calm}/{all_runs}" if all_runs else "-",
            )
        )
    return _table((head, *body))


def _notes(found: Measurements) -> str:
    notes = [
        f"Medians of {found.run['rounds']} interleaved rounds, a process for each measurement;"
        " ± is half the range, of KL (in nats) the standard error. Only runs count during which"
        " other processes took at most"
        f" {found.max_others:.0%} of the cores, where there are any such. Weights: the bytes of the"
        " files that hold them, tables of tokens included.",
    ]
    noisy = [name for name in found.contestants if found.calm(name)[0] == 0 < found.calm(name)[1]]
    if noisy:
        notes.append(f"DISTURBED, of no value for a comparison: {', '.join(noisy)}.")
    notes += [f"No {x['task']} of {x['contestant']}: {x['why']}" for x in found.failures]
    return "\n".join(notes)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    middle = (ordered[len(ordered) // 2] + ordered[~(len(ordered) // 2)]) / 2
    return f"{middle:.1f} ± {(ordered[-1] - ordered[0]) / 2:.1f}"


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else form.format(value * unit)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((head, "|" + "---|" * len(rows[0]), *body))
