"""X-MOD: the adapters of one language, the config's default.

The model picks the rows of each language by a mask, so that sizes depend on values. A graph has no
input for a language, and every row takes the adapter that the model takes when none is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace

ADAPT = "lang_adapter"


@contextmanager
def hooks(model: Any, trace: Trace) -> Iterator[None]:
    """Every layer goes through the default language's adapter."""
    language = model.config.default_language
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, ADAPT) and language in module.adapter_modules:
                stack.enter_context(patched_attr(module, ADAPT, _adapt(module, language)))
        yield


def _adapt(module: Any, language: str) -> Callable[[Tensor, Tensor], Tensor]:
    adapter: nn.Module = module.adapter_modules[language]

    def adapt(lang_ids: Tensor, states: Tensor) -> Tensor:
        normed = states
        if module.adapter_layer_norm is not None:
            normed = module.adapter_layer_norm(states)
        elif module.adapter_reuse_layer_norm:
            normed = module.LayerNorm(states)
        return adapter(normed) + (normed if module.ln_before_adapter else states)

    return adapt
