# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch's tensors are: what differs between CPU and GPU (cuda.py) in a call (calling.py), and in how a program
has its parameters (weights.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import memory
from .calling import Home, Maker, Sized, Slot, Slots
from .native import Dtype

DTYPES = {
    Dtype.f32: torch.float32, Dtype.f16: torch.float16, Dtype.bf16: torch.bfloat16, Dtype.i64: torch.int64,
}
NATIVE = {theirs: ours for ours, theirs in DTYPES.items()}
FLOATS = tuple(dtype for dtype in NATIVE if dtype.is_floating_point)  # what is calculated with


def quick_empty(kind: str) -> Callable[..., torch.Tensor]:
    """What makes a tensor of some extents, strides and dtype on the CPU, or on the current GPU: PyTorch's compiled code
    calls it too, and it takes half of what torch.empty_strided does."""

    def plain(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=kind)

    return getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", plain)


_new = quick_empty("cpu")


class TensorHome(Home):
    """Where PyTorch's tensors are."""

    address = staticmethod(torch.Tensor.data_ptr)
    aligned = 1  # what addresses are multiples of
    compiles = False  # whether programs have kernels to compile, which takes seconds
    looks = False  # whether the C library looks if parameters, which it borrows, are what they were
    feature: tuple[Any, Any, Any]  # how the shortcut asks whether a tensor is here (shortcut.py)

    def __init__(self, device: torch.device):
        self.device = device

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is here, as the C library reads it."""
        raise NotImplementedError

    def fitting(self, tensor: torch.Tensor) -> torch.Tensor:
        """One that is here, without gaps."""
        return tensor.contiguous()

    def making(self, first: bool) -> AbstractContextManager[Any]:
        """What programs are made and prepared under. first: whether there is none yet."""
        return contextlib.nullcontext()

    def why_no_param(self, param: torch.Tensor) -> str | None:
        """Why a tensor cannot be a parameter here, by where it is."""
        return None if param.device == self.device else f"is on {param.device}, and not {self.device}"

    def given(self, params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters, as the C library reads them; nobody runs with the old ones any more."""
        return [param.detach().contiguous() for param in params]

    def questions(self, threads: int, stream: int) -> tuple[Any, ...]:
        """Whether a call runs where one before did, as shortcut.PLAIN has it."""
        raise NotImplementedError

    def room(self, slots: Slots, slot: Slot, sized: Sized) -> tuple[int, Maker | None]:
        """Bytes of workspace of a call, and what makes them where the slot has none."""
        return 0, None


class Cpu(TensorHome):
    """Tensors on the CPU."""

    looks = True
    threads = staticmethod(torch.get_num_threads)
    feature = "is_cpu", None, True

    def fits(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu and tensor.is_contiguous()

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype) -> Maker:
        wanted = shape, strides, DTYPES[dtype]
        return (memory.empty if memory.is_large(shape, wanted[-1]) else _new), wanted

    def questions(self, threads: int, stream: int) -> tuple[Any, ...]:
        return ((self.threads, (), threads),)
