"""What a module or function computes is found by its numbers; what fits nothing is left alone."""

from __future__ import annotations

import types

import pytest
import torch
from torch import Tensor, nn

from qeff.transform.experts import probe as probe_experts
from qeff.transform.norms import NormForm
from qeff.transform.norms import probe as probe_norm
from qeff.transform.ops import moe_form
from qeff.transform.rope import RopeForm, _roles, _Wrapper
from qeff.transform.trace import Trace


class Norm(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.eps = kind, 1e-3
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + 1 if "+1" in self.kind else self.weight
        if self.kind.startswith("layer"):
            return nn.functional.layer_norm(x, (16,), weight, None, self.eps)
        out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return torch.sin(out * weight) if "sin" in self.kind else out * weight


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("rms", NormForm("rms", 0.0, "weight", 1e-3)),
        ("rms+1", NormForm("rms", 1.0, "weight", 1e-3)),
        ("layer", NormForm("layer", 0.0, "weight", 1e-3)),
        ("layer+1", NormForm("layer", 1.0, "weight", 1e-3)),
        ("rms sin", None),
    ],
)
def test_norms(kind: str, form: NormForm | None) -> None:
    assert probe_norm(Norm(kind)) == form


def halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turn(x: Tensor) -> Tensor:
        width = cos.shape[-1]
        part, rest = x[..., :width], x[..., width:]
        a, b = part.chunk(2, -1)
        return torch.cat([part * cos + torch.cat([-b, a], -1) * sin, rest], -1)

    return turn(q), turn(k)


def complex_pairs(xq: Tensor, xk: Tensor, freqs_cis: Tensor):
    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * freqs_cis[:, :, None]).flatten(3)

    return turn(xq), turn(xk)


def squared(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor):
    return q * cos.unsqueeze(1) ** 2, k * sin.unsqueeze(1) ** 2


@pytest.mark.parametrize(
    ("function", "dim", "width", "layout", "form"),
    [
        (halves, 16, 16, "cat", RopeForm(False, False, False)),
        (halves, 16, 8, "cat", RopeForm(False, False, False)),
        (complex_pairs, 16, 8, "once", RopeForm(True, False, True)),
        (squared, 16, 16, "cat", None),
    ],
)
def test_rope(function, dim: int, width: int, layout: str, form: RopeForm | None) -> None:
    roles = _roles(function)
    assert roles is not None
    found = _Wrapper(function, roles, {width: layout}, Trace())._probe(dim, width, layout, {})
    assert found == form


def experts(**settings: object) -> types.SimpleNamespace:
    usual = {"has_gate": True, "is_transposed": False, "act_fn": nn.functional.silu}
    return types.SimpleNamespace(**{**usual, **settings})


def test_experts_with_halves() -> None:
    module = experts()
    module._apply_gate = lambda x: nn.functional.silu(x[..., :24]) * x[..., 24:]
    assert probe_experts(module) == moe_form("half", "silu", 0.0, 0.0, False)


def test_experts_with_clamped_pairs() -> None:
    module = experts(alpha=1.7, limit=7.0, is_transposed=True)

    def gate(x: Tensor) -> Tensor:
        g, u = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
        return (u + 1) * g * torch.sigmoid(g * 1.7)

    module._apply_gate = gate
    assert probe_experts(module) == moe_form("interleaved", "swiglu_clamped", 1.7, 7.0, True)


def test_experts_without_a_gate() -> None:
    module = experts(has_gate=False, act_fn=lambda x: torch.relu(x).square())
    assert probe_experts(module) == moe_form("none", "relu2", 0.0, 0.0, False)


def test_experts_of_unknown_form() -> None:
    module = experts()
    module._apply_gate = lambda x: torch.sin(x[..., :24])
    assert probe_experts(module) is None
