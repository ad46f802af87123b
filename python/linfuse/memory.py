# SPDX-License-Identifier: Apache-2.0
"""Memory of large outputs, used again.

PyTorch's CPU allocator gives a large block back to the system when its tensor dies, and the next call takes a fresh
one, whose every page the system fills with zeros while the kernel waits: behind little work, most of a call. So large
outputs come from blocks that are kept when the last tensor on them is gone. Such a tensor is like any other, but that
its storage cannot be resized in place.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Callable
from typing import Any

import torch

LEAST = 8 << 20  # bytes; smaller ones the C library's own allocator keeps
MOST_KEPT = 256 << 20  # bytes of blocks nobody uses


def _plain(flat: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(flat.untyped_storage(), 0, shape, strides)


# A tensor of its own, no view, on another's storage. PyTorch's compiled code makes them so, in one step.
shaped: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", _plain)
# No lock: an owner may be collected at any moment, in a thread that would hold it. Each step below is one of the
# interpreter's, and a block is only ever here or with one owner.
_free: list[mmap.mmap] = []  # the longest unused first


class _Owner:
    """Of a block: what a tensor's storage keeps alive. When it goes, the block is free."""

    block: mmap.mmap | None = None

    def __del__(self) -> None:
        # an interrupt may have come before it had one; when the interpreter ends, the list goes first
        if self.block is not None and _free is not None:
            _free.append(self.block)


@functools.lru_cache(64)
def _owner_of(size: int) -> Any:
    return type("Owner", (_Owner, ctypes.c_char * size), {})


def _block(size: int) -> mmap.mmap:
    for kept in reversed(_free[:]):
        if len(kept) == size:
            try:
                _free.remove(kept)
            except ValueError:  # another thread was quicker
                continue
            return kept
    fresh = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked child has its own
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            fresh.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them
    return fresh


def _trim(most: int) -> None:
    while kept_bytes() > most:
        try:
            _free.pop(0)
        except IndexError:
            return


def kept_bytes() -> int:
    """Bytes of blocks that no tensor uses now."""
    return sum(map(len, _free[:]))


def empty_cache() -> None:
    """Gives the memory of outputs that no tensor uses back to the system."""
    _trim(0)


def is_large(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of these extents is worth a block of its own."""
    return 4 * math.prod(shape) >= LEAST


def empty(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A large f32 tensor of undefined content, on a block that is used again after it."""
    size = 4 * math.prod(shape)
    block = _block(size)
    owner = _owner_of(size).from_buffer(block)
    owner.block = block
    _trim(MOST_KEPT)
    return shaped(torch.frombuffer(owner, dtype=torch.float32), shape, strides)
