"""Answers: text in the order of the prompts as it is made, and timings in QEfficient's terms."""

from __future__ import annotations

import pytest

from qeff.apps.answers import Answers
from qeff.apps.streaming import InOrder
from qeff.apps.terminal.answering import summary
from qeff.generate.request import FinishReason, Result, Timings


def result(num_tokens: int, prefill_s: float, decode_s: float, queue_s: float = 0.0) -> Result:
    timings = Timings(queue_s, prefill_s, decode_s)
    return Result("id", (1,), tuple(range(num_tokens)), "text", FinishReason.LENGTH, timings)


def test_one_prompt_streams(capsys) -> None:
    listen = InOrder(["a"])
    listen(0, "one ", False)
    assert capsys.readouterr().out == "one "
    listen(0, "two", True)
    assert capsys.readouterr().out == "two\n"


def test_later_prompts_wait_for_their_turn(capsys) -> None:
    listen = InOrder(["a", "b"])
    assert capsys.readouterr().out == "> a\n"
    listen(1, "B", True)
    assert capsys.readouterr().out == ""
    listen(0, "A1", False)
    assert capsys.readouterr().out == "A1"
    listen(0, "A2", True)
    assert capsys.readouterr().out == "A2\n\n> b\nB\n\n"


def test_metrics_are_per_sequence() -> None:
    answers = Answers((result(11, 0.5, 1.0), result(6, 0.7, 0.5)), total_s=2.0, batch_size=2)
    metrics = answers.metrics()
    assert metrics.prefill_time == pytest.approx(0.6)
    assert metrics.decode_perf == pytest.approx(10.0)  # 10 / 1.0 and 5 / 0.5
    assert metrics.total_perf == pytest.approx(17 / 2 / 2.0)
    assert metrics.total_time == 2.0


def test_fewer_prompts_than_the_batch() -> None:
    answers = Answers((result(4, 0.5, 1.0),), total_s=2.0, batch_size=8)
    assert answers.metrics().total_perf == pytest.approx(2.0)


def test_summary_is_one_line() -> None:
    one = summary(Answers((result(1, 0.5, 0.0),), total_s=0.5, batch_size=1))
    assert one == "time to first token 0.50 s, 1 token in 0.50 s"
    many = summary(Answers((result(11, 0.5, 1.0),) * 2, total_s=3.0, batch_size=1))
    assert many == (
        "time to first token 0.50 s (mean), 10.0 tokens/s per sequence, 22 tokens in 3.00 s"
    )
