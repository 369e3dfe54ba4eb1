"""One file per engine, found by name; each has a class ``Engine`` and a function ``versions``.

    Engine(model, threads, ctx_len, num_sequences)
    start(prompts, num_new)  clears the cache, runs equally long prompts, gives their next tokens
    advance(tokens)          runs one token of each sequence, gives the next ones
    logits(tokens)           float32 [tokens, vocabulary] of one text, where the engine can
    serve(requests, note)    runs (prompt, number of new tokens) pairs together, as the engine
                             schedules them; note(i) is called for each token of the i-th

Tokens are chosen greedily and generation never stops early. ``num_new`` says how many tokens will
be asked for, for engines that must know.
"""

from __future__ import annotations
