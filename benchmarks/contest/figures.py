"""The figures that must hold: what ours is, the fastest peer at equal bits, the bar and the aim.

Takes rows of measurements as ``benchmarks/cpu.py`` writes them; a figure is the median of the
measurements that nobody disturbed, or of all where every one was disturbed. Knows no engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

FOUR_BIT = ("qeff int4 all", "qeff int4")  # the first that takes part is the one that counts
BIG, BIG_PEER = "qeff int4, large shape", "llama.cpp Q4_0, large shape"
KL_PAIRS = (("qeff int4 all", "llama.cpp Q4_0 pure"), ("qeff int4", "llama.cpp Q4_0"))
KL_AIM = "llama.cpp Q4_K_M"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, in words; ``state`` says what is reached."""

    figure: str
    ours: str
    peer: str
    ratio: str
    bar: str
    aim: str
    floor: str
    state: str


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure in tokens a second; bar and aim are ratios to the fastest peer of ``bits``."""

    figure: str
    ours: tuple[str, ...]
    key: str
    bits: int
    bar: float
    aim: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A figure that must stay below a number, in units of ``unit``."""

    figure: str
    key: str
    bar: float
    aim: float
    unit: float
    form: str


RATES = (
    Rate("decode, batch 1, 4-bit", FOUR_BIT, "decode_tok_s", 4, 1.25, 1.8),
    Rate("prefill, {long_prompt} tokens, 4-bit", FOUR_BIT, "prefill_tok_s", 4, 1.5, 2.2),
    Rate(
        "decode, {num_sequences} sequences together, 4-bit",
        FOUR_BIT,
        "batch_decode_tok_s",
        4,
        1.5,
        2.5,
    ),
    Rate("decode, int8", ("qeff int8",), "decode_tok_s", 8, 1.15, 1.35),
    Rate("decode, MXFP6 (peer: 8-bit)", ("qeff mxfp6",), "decode_tok_s", 8, 1.25, 1.6),
)
SHARE_BAR, SHARE_AIM = 0.65, 0.85
CEILINGS = (
    Ceiling("load to first token, 4-bit", "load_to_first_token_s", 0.4, 0.15, 1, "{:.2f} s"),
    Ceiling("peak RSS, 4-bit", "peak_rss_bytes", 200, 120, 1e6, "{:.0f} MB"),
)


class Measurements:
    """All rows of a run, and the medians over them."""

    def __init__(self, rows: Sequence[Row], max_others: float) -> None:
        self.run = next(row for row in rows if row["kind"] == "run")
        self.contestants: dict[str, Row] = {row["name"]: row for row in self.run["contestants"]}
        self.failures = [row for row in rows if row["kind"] == "failure"]
        self.max_others = max_others
        self._rows = rows

    def values(self, name: str, key: str) -> list[float]:
        """Measurements of one contestant, the calm ones if there are any."""
        mine = [row for row in self._rows if row.get("contestant") == name]
        whole = [row[key] for row in mine if key in row]
        runs = [run for row in mine for run in row.get("runs", ()) if key in run]
        calm = [run for run in runs if run["others"] <= self.max_others]
        return whole or [run[key] for run in calm or runs]

    def calm(self, name: str) -> tuple[int, int]:
        """How many timed runs nobody disturbed, and how many there were."""
        mine = [row for row in self._rows if row.get("contestant") == name]
        runs = [run for row in mine for run in row.get("runs", ())]
        return sum(run["others"] <= self.max_others for run in runs), len(runs)

    def median(self, name: str, key: str) -> float | None:
        """The median of a key, None when there is none."""
        found = self.values(name, key)
        return statistics.median(found) if found else None

    def limit(self, key: str) -> float:
        """A limit of the machine: the best of all rounds, since disturbance only lowers it."""
        return max(row[key] for row in self._rows if row["kind"] == "limits")

    def ours(self, names: Sequence[str], key: str) -> tuple[str, float] | None:
        """The first of these contestants that has the figure."""
        found = ((name, self.median(name, key)) for name in names)
        return next(((name, value) for name, value in found if value is not None), None)

    def peers(self, bits: int, key: str) -> list[tuple[float, str]]:
        """The peers of this many bits on the same model, by their figure, lowest first."""
        rivals = [
            name
            for name, row in self.contestants.items()
            if not row["is_ours"] and row["bits"] == bits and name != BIG_PEER
        ]
        found = [(self.median(name, key), name) for name in rivals]
        return sorted((value, name) for value, name in found if value is not None)

    def floor(self, name: str, key: str) -> float | None:
        """Tokens a second that the machine's limits allow for a figure."""
        row = self.contestants.get(name, {})
        if not row.get("bytes_per_token"):
            return None
        by_memory = self.limit("read_bytes_s") / row["bytes_per_token"]
        dot = self.limit("int8_mac_s")
        if key == "decode_tok_s":
            return by_memory
        if not dot:
            return None
        if key == "prefill_tok_s":
            return dot / row["macs_per_token"]
        by_dot = dot / (row["macs_per_token"] + row["macs_per_row"])
        return min(by_memory * self.run["num_sequences"], by_dot)

    def share(self, name: str) -> float | None:
        """The part of the measured read bandwidth that decoding uses."""
        row, speed = self.contestants.get(name), self.median(name, "decode_tok_s")
        if row is None or speed is None:
            return None
        size = row.get("bytes_per_token") or row["weights_bytes"]
        return speed * size / self.limit("read_bytes_s")


def lines(found: Measurements) -> list[Line]:
    """Every figure, in the order of the table."""
    return [
        *(_rate_line(found, rate) for rate in RATES),
        _share_line(found),
        *(_ceiling_line(found, ceiling) for ceiling in CEILINGS),
        *(_divergence_line(found, *pair) for pair in KL_PAIRS),
    ]


def _rate_line(found: Measurements, rate: Rate) -> Line:
    ours = found.ours(rate.ours, rate.key)
    peers = found.peers(rate.bits, rate.key)
    floor = found.floor(ours[0], rate.key) if ours else None
    ratio = ours[1] / peers[-1][0] if ours and peers else None
    return Line(
        rate.figure.format(**found.run),
        f"{ours[1]:.1f} tok/s ({_short(ours[0])})" if ours else "-",
        f"{peers[-1][0]:.1f} tok/s ({peers[-1][1]})" if peers else "-",
        f"{ratio:.2f} ×" if ratio else "-",
        f"{rate.bar:g} ×",
        f"{rate.aim:g} ×",
        f"{floor:.0f} tok/s" if floor else "-",
        _state(ratio, rate.bar, rate.aim),
    )


def _share_line(found: Measurements) -> Line:
    ours = found.share(BIG)
    rivals = [name for value, name in found.peers(4, "decode_tok_s") if "llama.cpp" in name]
    peer = BIG_PEER if found.share(BIG_PEER) else rivals[-1] if rivals else ""
    theirs = found.share(peer)
    return Line(
        "share of read bandwidth in decode, large shape, 4-bit",
        f"{ours:.0%}" if ours else "-",
        f"{theirs:.0%} ({peer})" if theirs else "-",
        f"{ours / theirs:.2f} ×" if ours and theirs else "-",
        f"{SHARE_BAR:.0%}",
        f"{SHARE_AIM:.0%}",
        "100%",
        _state(ours, SHARE_BAR, SHARE_AIM),
    )


def _ceiling_line(found: Measurements, ceiling: Ceiling) -> Line:
    ours = found.ours(FOUR_BIT, ceiling.key)
    peers = found.peers(4, ceiling.key)
    value = ours[1] / ceiling.unit if ours else None
    return Line(
        ceiling.figure,
        f"{ceiling.form.format(value)} ({_short(ours[0])})" if ours else "-",
        f"{ceiling.form.format(peers[0][0] / ceiling.unit)} ({peers[0][1]})" if peers else "-",
        f"{ours[1] / peers[0][0]:.2f} ×" if ours and peers else "-",
        ceiling.form.format(ceiling.bar),
        ceiling.form.format(ceiling.aim),
        "-",
        _state(-value if value else None, -ceiling.bar, -ceiling.aim),
    )


def _divergence_line(found: Measurements, name: str, peer: str) -> Line:
    ours, theirs = found.median(name, "kl"), found.median(peer, "kl")
    aim = found.median(KL_AIM, "kl")
    ratio = ours / theirs if ours and theirs else None
    state = "-"
    if ours and theirs and aim:
        state = _state(-ours, -theirs, -aim)
    return Line(
        f"logit KL against fp32, {_short(name)}",
        f"{ours:.4f}" if ours else "-",
        f"{theirs:.4f} ({peer})" if theirs else "-",
        f"{ratio:.2f} ×" if ratio else "-",
        "not above the peer's",
        f"below {aim:.4f} ({KL_AIM})" if aim else f"below {KL_AIM}'s",
        "0",
        state,
    )


def _short(name: str) -> str:
    return name.removeprefix("qeff ")


def _state(value: float | None, bar: float, aim: float) -> str:
    """What a value reaches, larger being better; an aim below the bar is reached with the bar."""
    if value is None:
        return "-"
    if value < bar:
        return "missed"
    return "aim" if value >= aim else "bar"
