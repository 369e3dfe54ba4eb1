"""embed, linear, matmul, norm, rope, gated and moe against torch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_check import T, run, token, weight

from qeff.core.errors import RequestError
from qeff.ops.base import RuleError

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def close(ours: np.ndarray, theirs: torch.Tensor, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("offset", [0, 2])
def test_embed(offset: int) -> None:
    table, ids = normal(13, 7), RNG.integers(0, 11, T)
    (y,) = run("embed", [weight(table), token(ids)], offset=offset)
    close(y, F.embedding(torch.from_numpy(ids + offset), torch.from_numpy(table)), 0)


def test_embed_widens_a_stored_half() -> None:
    table = normal(13, 7).astype(ml_dtypes.bfloat16)
    (y,) = run("embed", [weight(table), token(np.arange(T))])
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, table[:T].astype(np.float32))


@pytest.mark.parametrize("bad", [-1, 13])
def test_embed_refuses_an_index_outside_the_table(bad: int) -> None:
    with pytest.raises(RequestError, match="outside the table"):
        run("embed", [weight(normal(13, 7)), token(np.full(T, bad))])


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(lead: tuple[int, ...], transposed: bool, bias: bool) -> None:
    x, w, b = normal(T, *lead, 17), normal(9, 17), normal(9)
    inputs = [token(x), weight(w.T if transposed else w)] + ([weight(b)] if bias else [])
    (y,) = run("linear", inputs, transposed=transposed)
    theirs = F.linear(
        torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b) if bias else None
    )
    close(y, theirs)


def test_linear_refuses_a_weight_that_does_not_fit() -> None:
    with pytest.raises(RuleError, match="17"):
        run("linear", [token(normal(T, 17)), weight(normal(17, 9))])


@pytest.mark.parametrize("kind", ["token", "weight"])
def test_matmul(kind: str) -> None:
    a = normal(T, 3, 4, 5)
    b = normal(T, 1, 5, 6) if kind == "token" else normal(3, 5, 6)
    (y,) = run("matmul", [token(a), (kind, b)])
    close(y, torch.matmul(torch.from_numpy(a), torch.from_numpy(b)))


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_norm_layer(lead: tuple[int, ...], parts: int) -> None:
    x, scales = normal(T, *lead, 19) * 3, [normal(19), normal(19)][:parts]
    (y,) = run("norm", [token(x), *map(weight, scales)], function="layer", eps=1e-3)
    close(y, F.layer_norm(torch.from_numpy(x), (19,), *map(torch.from_numpy, scales), eps=1e-3))


@pytest.mark.parametrize("has_weight", [False, True])
def test_norm_rms(has_weight: bool) -> None:
    x, w = normal(T, 3, 19) * 3, normal(19)
    (y,) = run("norm", [token(x)] + ([weight(w)] if has_weight else []), function="rms", eps=1e-3)
    close(
        y, F.rms_norm(torch.from_numpy(x), (19,), torch.from_numpy(w) if has_weight else None, 1e-3)
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [4, 2])
def test_rope_turns_pairs_like_complex_numbers(interleaved: bool, half: int) -> None:
    x, angle = normal(T, 3, 8), normal(T, half)
    (y,) = run(
        "rope", [token(x), token(np.cos(angle)), token(np.sin(angle))], interleaved=interleaved
    )
    turn = torch.polar(torch.ones(T, 1, half), torch.from_numpy(angle)[:, None])
    part = torch.from_numpy(x[..., : 2 * half].copy())
    if interleaved:
        turned = torch.view_as_real(torch.view_as_complex(part.reshape(T, 3, half, 2)) * turn)
        expected = turned.reshape(T, 3, 2 * half)
    else:
        turned = torch.complex(part[..., :half], part[..., half:]) * turn
        expected = torch.cat([turned.real, turned.imag], -1)
    close(y, torch.cat([expected, torch.from_numpy(x[..., 2 * half :])], -1))


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_gated(name: str) -> None:
    gate, up = normal(T, 7) * 4, normal(T, 7)
    (y,) = run("gated", [token(gate), token(up)], activation=name)
    close(y, ACTIVATIONS[name](torch.from_numpy(gate)) * torch.from_numpy(up))


FORMS = [(gate, name) for gate in ("half", "interleaved", "none") for name in ("silu", "gelu_tanh")]
FORMS += [("half", "swiglu_clamped"), ("interleaved", "swiglu_clamped")]  # it always has a gate


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("gate", "activation"), FORMS)
def test_moe_is_the_weighted_sum_of_dense_experts(
    transposed: bool, gate: str, bias: bool, activation: str
) -> None:
    experts, width, inner, chosen = 5, 6, 7, 2
    outs = inner if gate == "none" else 2 * inner
    x, up, down = normal(T, width) * 3, normal(experts, outs, width), normal(experts, width, inner)
    up_bias, down_bias = normal(experts, outs), normal(experts, width)
    index = np.argsort(RNG.random((T, experts)), -1)[:, :chosen]
    share = RNG.random((T, chosen)).astype(np.float32)
    stacks = [np.ascontiguousarray(w.swapaxes(1, 2)) if transposed else w for w in (up, down)]
    biases = [weight(up_bias), weight(down_bias)] if bias else []
    (y,) = run(
        "moe",
        [token(x), token(index), token(share), *map(weight, stacks), *biases],
        transposed=transposed, gate=gate, activation=activation, alpha=1.5, limit=2.0,
    )  # fmt: skip

    def expert(row: torch.Tensor, e: int) -> torch.Tensor:
        h = F.linear(row, torch.from_numpy(up[e]), torch.from_numpy(up_bias[e]) if bias else None)
        if gate == "half":
            g, u = h.chunk(2)
        elif gate == "interleaved":
            g, u = h[0::2], h[1::2]
        else:
            g, u = h, torch.ones_like(h)
        if activation == "swiglu_clamped":
            g, u = g.clamp(max=2.0), u.clamp(-2.0, 2.0)
            hidden = (u + 1) * (g * torch.sigmoid(1.5 * g))
        else:
            hidden = ACTIVATIONS[activation](g) * u
        b = torch.from_numpy(down_bias[e]) if bias else None
        return F.linear(hidden, torch.from_numpy(down[e]), b)

    expected = torch.stack([
        sum(
            float(share[t, j]) * expert(torch.from_numpy(x[t]), int(index[t, j]))
            for j in range(chosen)
        )
        for t in range(T)
    ])  # fmt: skip
    close(y, expected, 1e-4)
