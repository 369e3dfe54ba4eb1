"""Lookahead decoding: the model guesses for itself, several places ahead, beside each step.

A window of ``ngram − 1`` levels and ``window`` columns holds the last guesses; slot (0, 0) is the
sequence's last token, slot (0, j) follows (0, j − 1) and slot (i, j) follows (i − 1, j). What a
column spelt is kept in a pool by its first token, and pool entries that begin with the sequence's
last token run as candidates. All of it is one tree. Knows nothing of sessions or of other texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from qeff.core.errors import OptionValueError
from qeff.generate.speculation.draft import NO_PARENT, Ask, Draft


def num_window_tokens(ngram: int, window: int) -> int:
    """Tokens of a whole window; slot (0, 0) runs anyway and does not count."""
    return window * (ngram - 1) - 1


def num_tree_tokens(ngram: int, window: int, gcap: int) -> int:
    """Tokens of a whole window and all candidates."""
    return num_window_tokens(ngram, window) + gcap * (ngram - 1)


class LookaheadProposer:
    """Trees of a window and of candidates from a pool, both of one sequence.

    Args:
        ngram: Tokens of a pool entry with its first one: the longest that a step can add.
        window: Columns, which are places ahead that are guessed at once.
        gcap: Most entries that begin with the same token, and so most candidates of a step.
    """

    makes_trees = True

    def __init__(self, *, ngram: int = 4, window: int = 4, gcap: int = 4) -> None:
        for name, value, least in (("ngram", ngram, 3), ("window", window, 1), ("gcap", gcap, 1)):
            if value < least:
                raise OptionValueError(f"{name} must be at least {least}, not {value}")
        self.ngram = ngram
        self.window = window
        self.gcap = gcap
        self._states: dict[str, _State] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """The window and the candidates of each sequence, as far as its limit lets them."""
        return [self._draft(ask) for ask in asks]

    def learn(self, sequence_id: str, draft: Draft, likeliest: dict[int, int]) -> None:
        """Put what the columns spelt into the pool, and move them on by one guess."""
        state = self._states.get(sequence_id)
        if state is None or state.draft.cut(len(draft)) != draft:  # it may have been cut
            return
        for column, node in zip(state.window, state.last_nodes, strict=False):
            if node in likeliest:
                state.pool.add(column[0], (*column[1:], likeliest[node]))
                column[:] = [*column[1:], likeliest[node]]
        state.draft = Draft()

    def forget(self, sequence_id: str) -> None:
        """Drop window and pool of a sequence."""
        self._states.pop(sequence_id, None)

    def close(self) -> None:
        """Drop all windows and pools."""
        self._states.clear()

    def _draft(self, ask: Ask) -> Draft:
        state = self._states.get(ask.sequence_id)
        if state is None or state.num_read > len(ask.tokens):
            state = self._states[ask.sequence_id] = self._start(ask.tokens)
        state.read(ask.tokens, self.ngram)
        state.window[0][0] = ask.tokens[-1]
        tree = _Tree()
        # Candidates and window share a smaller limit as they share the whole; what the candidates
        # leave goes to the window.
        whole = num_tree_tokens(self.ngram, self.window, self.gcap)
        limit = min(ask.limit, whole)
        share = limit * num_window_tokens(self.ngram, self.window) // whole
        for candidate in state.pool.newest(ask.tokens[-1]):
            tree.add_path(NO_PARENT, candidate, limit - share)
        state.last_nodes = self._add_window(tree, state.window, limit)
        state.draft = Draft(tuple(tree.tokens), tuple(tree.parents), frozenset(state.last_nodes))
        return state.draft

    def _start(self, tokens: Sequence[int]) -> _State:
        """Fill the window with the last tokens of the prompt; any would do."""
        levels = self.ngram - 1
        window = [
            [tokens[-1 - (level * self.window + column) % len(tokens)] for level in range(levels)]
            for column in range(self.window)
        ]
        return _State(window, _Pool(self.gcap))

    def _add_window(self, tree: _Tree, window: list[list[int]], limit: int) -> list[int]:
        """Add the columns that fit whole; the last node of each."""
        last_nodes: list[int] = []
        root = NO_PARENT  # slot (0, j)
        for index, column in enumerate(window):
            if len(tree) + len(column) - (index == 0) > limit:
                break
            if index > 0:
                root = tree.add_path(root, column[:1], limit)
            last_nodes.append(tree.add_path(root, column[1:], limit))
        return last_nodes


class _Tree:
    """Tokens under parents; equal tokens under one parent are one node."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add_path(self, parent: int, tokens: Sequence[int], most: int) -> int:
        """Add tokens one under the other while the tree has fewer than ``most``; the last node."""
        for token in tokens:
            node = self._children.get((parent, token))
            if node is None:
                if len(self.tokens) >= most:
                    break
                node = self._children[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
            parent = node
        return parent


class _Pool:
    """For each token the tokens that came after it, at most ``gcap`` entries, the oldest first."""

    def __init__(self, gcap: int) -> None:
        self._gcap = gcap
        self._entries: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, key: int, entry: tuple[int, ...]) -> None:
        """Add an entry, or make it the newest; the oldest gives way."""
        entries = self._entries.setdefault(key, {})
        entries.pop(entry, None)
        entries[entry] = None
        if len(entries) > self._gcap:
            del entries[next(iter(entries))]

    def newest(self, key: int) -> list[tuple[int, ...]]:
        """The entries of a token, the newest first."""
        return list(reversed(self._entries.get(key, {})))


class _State:
    """What is kept for a sequence between its steps."""

    def __init__(self, window: list[list[int]], pool: _Pool) -> None:
        self.window = window  # by column; each holds its levels
        self.pool = pool
        self.num_read = 0
        self.draft = Draft()  # the one that waits for ``learn``
        self.last_nodes: list[int] = []  # of its columns

    def read(self, tokens: Sequence[int], ngram: int) -> None:
        """Put the n-grams of prompt and output into the pool."""
        for start in range(max(0, self.num_read - ngram + 1), len(tokens) - ngram + 1):
            self.pool.add(tokens[start], tuple(tokens[start + 1 : start + ngram]))
        self.num_read = len(tokens)
