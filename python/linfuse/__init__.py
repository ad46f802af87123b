# SPDX-License-Identifier: Apache-2.0
"""linfuse: a fusing compiler and runtime for models made of linear layers and what follows them.

    fast = torch.compile(model, backend="linfuse")

Neither PyTorch nor NumPy is imported before something of them is asked for.
"""

from __future__ import annotations

from .native import Error, version

__all__ = ["Error", "version"]
__version__ = version()
