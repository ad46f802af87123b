# SPDX-License-Identifier: Apache-2.0
"""linfuse: a fusing compiler and runtime for models made of linear layers and what follows them.

    fast = torch.compile(model, backend="linfuse")

PyTorch is imported when something of it is asked for; at once only where the package is used without being installed,
since torch.compile then knows the name from here alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

from .native import Error, version

_LAZY = {
    "stats": "counters",
    "reset_stats": "counters",
    "Stats": "counters",
    "refresh": "weights",
    "compile_graph": "backend",
}
__all__ = ["Error", "version", *_LAZY]
__version__ = version()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    return value


def _known_to_torch() -> bool:
    return "linfuse" in importlib.metadata.entry_points(group="torch_dynamo_backends").names


if not _known_to_torch() and importlib.util.find_spec("torch") is not None:
    importlib.import_module(".backend", __name__).register()
