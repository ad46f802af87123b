# SPDX-License-Identifier: Apache-2.0
"""Memory of large outputs, used again.

PyTorch's CPU allocator gives a large block back to the system when its tensor dies, and the next call takes a fresh
one, whose every page the system fills with zeros while the kernel waits: behind little work, most of a call. So the
storages of large outputs are remembered, and one that nobody else refers to any more serves the next output of its
size. They are PyTorch's own: an output can be resized, its storage emptied, shared and so on. What was so changed is
forgotten.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable
from typing import Any

import torch

LEAST = 8 << 20  # bytes; smaller ones the C library's own allocator keeps
MOST_KEPT = 256 << 20  # bytes of blocks nobody uses
MOST_WATCHED = 64  # blocks; of more, the oldest are left to PyTorch


def _plain(flat: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(flat.untyped_storage(), 0, shape, strides)


# A tensor of its own, no view, on another's storage. PyTorch's compiled code makes them so, in one step.
shaped: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", _plain)
# How many refer to a storage in C++. PyTorch 2.4 without CUDA does not tell, and a Python without the GIL might tell
# too late: there, every output is a fresh one.
_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
CAN_KEEP = _use_count is not None and getattr(sys, "_is_gil_enabled", lambda: True)()
_ask = functools.partial.__call__


class _Block:
    """A storage, and who refers to it."""

    __slots__ = ("_alone", "_questions", "address", "flat", "size", "storage")

    def __init__(self, size: int, dtype: torch.dtype):
        self.flat = torch.empty(size // dtype.itemsize, dtype=dtype, device="cpu")
        self.size, self.address = size, self.flat.data_ptr()
        self.storage = self.flat.untyped_storage()
        _want_large_pages(self.address, size)
        # Python's references to a storage and those of C++ are counted apart.
        self._questions = (
            functools.partial(_use_count, self.storage._cdata),
            functools.partial(sys.getrefcount, self.storage),
        )
        self._alone = self._counts()

    def _counts(self) -> list[int]:
        """Both counts at one moment: no other thread's Python code runs inside map()."""
        return list(map(_ask, self._questions))

    def is_idle(self) -> bool:
        """Whether nobody else refers to it, which then stays so."""
        return self._counts() == self._alone

    def is_whole(self) -> bool:
        """Whether it is still what it was made as; NumPy, for one, makes a storage stay as large as it is. To be asked
        of an idle one."""
        same = self.storage.nbytes() == self.size and self.flat.data_ptr() == self.address
        return same and self.storage.resizable()


# No lock: an interrupt or a collection of garbage may come at any moment, in a thread that would hold it. Each step
# below is one of the interpreter's. The last used come last.
_blocks: list[_Block] = []


@functools.cache
def _advise() -> Any:
    """The system's madvise."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _want_large_pages(address: int, size: int) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        _advise()(first, (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


def _take(size: int, dtype: torch.dtype) -> _Block:
    """A block that nobody uses, and that no other thread finds."""
    for block in reversed(_blocks[:]):
        if block.size == size and block.flat.dtype is dtype and block.is_idle() and _forget(block):
            if block.is_idle() and block.is_whole():  # another thread may have been quicker, and be done
                return block
    return _Block(size, dtype)


def _forget(block: _Block) -> bool:
    """Whether it was there still."""
    try:
        _blocks.remove(block)
    except ValueError:  # another thread was quicker
        return False
    return True


def _trim(most: int) -> None:
    """Forgets the longest unused blocks beyond so many bytes, and the oldest in use beyond MOST_WATCHED."""
    kept = 0
    for at, block in enumerate(reversed(_blocks[:])):
        idle = block.is_idle()
        kept += block.size if idle else 0
        if (idle and kept > most) or at >= MOST_WATCHED:
            _forget(block)


def kept_bytes() -> int:
    """Bytes of blocks that no tensor uses now."""
    return sum(block.size for block in _blocks[:] if block.is_idle())


def empty_cache() -> None:
    """Gives the memory of outputs that no tensor uses back to the system."""
    _trim(0)


def is_large(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a tensor of these extents is worth a block of its own."""
    return CAN_KEEP and dtype.itemsize * math.prod(shape) >= LEAST


def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A large tensor of undefined content, on a block that is used again after it."""
    block = _take(dtype.itemsize * math.prod(shape), dtype)
    made = shaped(block.flat, shape, strides)
    _blocks.append(block)
    _trim(MOST_KEPT)
    return made
