# SPDX-License-Identifier: Apache-2.0
"""linfuse: a fusing compiler and runtime for models made of linear layers and what follows them.

    fast = torch.compile(model, backend="linfuse")                        # fused; what it does not know runs in PyTorch
    print(linfuse.explain(model, x))                                      # what was done, and what it is worth
    print(linfuse.bench(model, x))                                        # eager, inductor and linfuse, measured
    loss = linfuse.linear_cross_entropy(hidden, weight, labels)           # no logits are stored; differentiable
    linfuse.save(model, (x,), "dir")                                      # for `linfuse run`, C, and
    program = linfuse.load("dir/model.lf", "dir/model.safetensors")       # a function of NumPy arrays or torch tensors

PyTorch is imported when something of it is asked for; at once only where the package is used without being installed,
since torch.compile then knows the name from here alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Any

from .account import Account
from .explanation import explain
from .native import Error, version
from .program import Program, load
from .saving import save

if TYPE_CHECKING:
    from .backend import compile_graph
    from .counters import Stats, reset_stats, stats
    from .loss import LinearCrossEntropy, LinearLogprobs, linear_cross_entropy, linear_logprobs
    from .memory import empty_cache
    from .timing import Bench, bench
    from .weights import refresh

__all__ = [
    "Account",
    "Bench",
    "Error",
    "LinearCrossEntropy",
    "LinearLogprobs",
    "Program",
    "Stats",
    "bench",
    "compile_graph",
    "empty_cache",
    "explain",
    "linear_cross_entropy",
    "linear_logprobs",
    "load",
    "refresh",
    "reset_stats",
    "save",
    "stats",
    "version",
]
_LAZY = {
    "stats": "counters",
    "reset_stats": "counters",
    "Stats": "counters",
    "refresh": "weights",
    "empty_cache": "memory",
    "compile_graph": "backend",
    "bench": "timing",
    "Bench": "timing",
    "linear_cross_entropy": "loss",
    "linear_logprobs": "loss",
    "LinearCrossEntropy": "loss",
    "LinearLogprobs": "loss",
}
__version__ = version()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    except ModuleNotFoundError as why:
        if why.name != "torch":
            raise
        raise Error(f"linfuse.{name} needs PyTorch, which is not installed") from None
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _known_to_torch() -> bool:
    return "linfuse" in importlib.metadata.entry_points(group="torch_dynamo_backends").names


if not _known_to_torch() and importlib.util.find_spec("torch") is not None:
    importlib.import_module(".backend", __name__).register()
