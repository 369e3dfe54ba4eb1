"""The numpy session: a compiled container gives the model's numbers, however the tokens are cut."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compile"))
from dialect import Size, build_random, eager

from qeff.compile import compile_graph
from qeff.container import Container
from qeff.core.errors import CompileError, ContainerError, RequestError
from qeff.core.options import CompileOptions
from qeff.runtime import open_session
from qeff.runtime.session import Batch, Session, Span

SIZE = Size(continuous=True)
RNG = np.random.default_rng(9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, _ = build_random(SIZE)
    options = CompileOptions(target="reference", ctx_len=64, prefill_seq_len=8, full_batch_size=3)
    out = tmp_path_factory.mktemp("reference") / "container"
    return compile_graph(graph, options, text_files={}, provenance={}, out=out)


@pytest.fixture
def session(folder: Path) -> Session:
    opened = open_session(Container.open(folder))
    opened.reserve(12)
    return opened


def expected(tokens: list[int]) -> np.ndarray:
    return eager(SIZE, build_random(SIZE)[1], tokens)


def step(
    session: Session,
    parts: list[tuple[list[int], int, tuple[int, ...]]],
    rows: np.ndarray | None = None,
    parents: np.ndarray | None = None,
    positions: list[int] | None = None,
) -> np.ndarray:
    """Run (tokens, first position, blocks) of several sequences at once."""
    tokens = [token for part, _, _ in parts for token in part]
    places = [start + i for part, start, _ in parts for i in range(len(part))]
    spans, begin = [], 0
    for part, _, blocks in parts:
        spans.append(Span(begin, begin + len(part), blocks))
        begin += len(part)
    batch = Batch(
        np.array(tokens), np.array(positions or places), tuple(spans),
        np.arange(len(tokens)) if rows is None else rows, parents,
    )  # fmt: skip
    return session.step(batch).logits


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


def test_ragged_chunks_then_decode_with_blocks_in_any_order(session: Session) -> None:
    lengths, tables = (37, 20, 9), ((7, 3, 11), (2, 0), (5,))
    texts = [RNG.integers(0, SIZE.vocab, n).tolist() for n in lengths]
    done, got = [0, 0, 0], [[], [], []]
    for take in ((17, 3, 5), (1, 13, 0), (16, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)):
        chosen = [i for i in RNG.permutation(3) if take[i]]
        parts = [(texts[i][done[i] : done[i] + take[i]], done[i], tables[i]) for i in chosen]
        logits = np.split(step(session, parts), np.cumsum([take[i] for i in chosen])[:-1])
        for i, piece in zip(chosen, logits, strict=True):
            got[i].append(piece)
            done[i] += take[i]
    assert done == list(lengths)
    for i in range(3):
        close(np.concatenate(got[i]), expected(texts[i]))


def test_only_the_rows_asked_for_come_back_in_their_order(session: Session) -> None:
    text = RNG.integers(0, SIZE.vocab, 12).tolist()
    logits = step(session, [(text, 0, (1,))], rows=np.array([11, 3, 3]))
    close(logits, expected(text)[[11, 3, 3]])
    assert step(session, [(text, 0, (1,))], rows=np.zeros(0, np.int64)).shape == (0, SIZE.vocab)


def test_a_row_does_not_depend_on_its_company(session: Session) -> None:
    texts = [RNG.integers(0, SIZE.vocab, n).tolist() for n in (5, 9)]
    together = step(session, [(texts[0], 0, (4,)), (texts[1], 0, (9,))])
    alone = step(session, [(texts[1], 0, (9,))])
    close(together[5:], alone)


def test_copied_blocks_continue_as_the_original(session: Session) -> None:
    text = RNG.integers(0, SIZE.vocab, 21).tolist()
    step(session, [(text[:20], 0, (6, 1))])
    session.copy_blocks([(6, 10), (1, 4)])
    step(session, [(RNG.integers(0, SIZE.vocab, 20).tolist(), 0, (6, 1))])  # the original is lost
    close(step(session, [(text[20:], 20, (10, 4))]), expected(text)[20:])


def test_a_tree_gives_each_branch_its_own_numbers(session: Session) -> None:
    text = RNG.integers(0, SIZE.vocab, 10).tolist()
    step(session, [(text, 0, (8,))])
    tree, parents = RNG.integers(0, SIZE.vocab, 5).tolist(), [-1, 0, 0, 1, 2]
    assert session.caps.supports_trees
    logits = step(
        session, [(tree, 10, (8,))], parents=np.array(parents), positions=[10, 11, 11, 12, 12]
    )
    for leaf, path in ((3, [0, 1, 3]), (4, [0, 2, 4])):
        close(logits[leaf], expected(text + [tree[node] for node in path])[-1])


def test_a_token_outside_the_vocabulary_is_a_clear_error(session: Session) -> None:
    with pytest.raises(RequestError, match="outside the table"):
        step(session, [([SIZE.vocab], 0, (0,))])


def test_only_fp32_is_offered(tmp_path: Path) -> None:
    graph, _ = build_random(SIZE)
    options = CompileOptions(target="reference", precision="int4")
    with pytest.raises(CompileError, match="int4"):
        compile_graph(graph, options, text_files={}, provenance={}, out=tmp_path / "c")


def test_a_program_that_lies_about_a_weight_is_refused(folder: Path) -> None:
    class Lying:
        """A container whose program names a weight by another shape."""

        def __init__(self) -> None:
            self._true = Container.open(folder)
            self.manifest, self.weight, self.file = (
                self._true.manifest, self._true.weight, self._true.file
            )  # fmt: skip

        def read_bytes(self, name: str) -> bytes:
            data = json.loads(self._true.read_bytes(name))
            for value in data["values"]:
                if value[0] == "model.norm.weight":
                    value[3] = "bf16"
            return json.dumps(data).encode()

    from qeff.backends.reference.session import open_session as open_reference

    with pytest.raises(ContainerError, match=r"model\.norm\.weight"):
        open_reference(Lying(), None)  # type: ignore[arg-type]
