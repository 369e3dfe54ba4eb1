"""Logits to tokens: pure functions over rows, one row for each position that is due a token.

The order for a row is logit bias, bad words, forbidden tokens, the allowed mask, penalties
(repetition, then presence and frequency), temperature, top-k, typical, top-p, min-p, then one draw;
at temperature 0 the largest logit after the penalties. Log-probabilities are of the logits as the
model gave them. A choice depends on its logits and its row alone, whatever else is in the call.
Knows nothing of text, schedules or sessions.
"""

# Compared with others: transformers and vLLM also put the bias before the penalties, and the
# temperature before top-k before top-p. Masks give the same tokens wherever they stand before the
# temperature, since no step makes -inf finite. The two differ in min-p (first of the filters in
# vLLM, after top-p in transformers, which is followed here); typical, which vLLM lacks, is after
# min-p in transformers and between top-k and top-p in llama.cpp, which is followed here.

from __future__ import annotations

from qeff.generate.request import Choice
from qeff.generate.sampling.beams import Continuation, expand
from qeff.generate.sampling.draw import seed_of, uniform
from qeff.generate.sampling.history import History
from qeff.generate.sampling.logprobs import score
from qeff.generate.sampling.row import OutputView, Row
from qeff.generate.sampling.sample import SampleError, not_finite, sample

__all__ = [
    "Choice",
    "Continuation",
    "History",
    "OutputView",
    "Row",
    "SampleError",
    "expand",
    "not_finite",
    "sample",
    "score",
    "seed_of",
    "uniform",
]
