# SPDX-License-Identifier: Apache-2.0
"""Calls and programs on a GPU.

A call launches on PyTorch's current stream of the device and waits for nothing. Outputs and workspace are PyTorch's
tensors, made on that stream and used on no other, so that its allocator may give their memory to the stream's next
work as soon as they are gone. What a C call keeps on the device between its runs wants these in order: a slot stays
with its stream.

A captured graph runs again without us, so what it uses is its own for good: a slot made for the capture, and a program
whose parameters no longer change. Later changes of the weights make another program; the graph computes with those
it was captured with.

Parameters are known by their stamps (weights.py). Their values are not looked at: that would mean waiting for the GPU.
So writes that PyTorch does not count (through `.data`, by a replayed graph) want linfuse.refresh(); batch_norm's
running statistics, which training writes so, are read at every call.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from . import homes, native
from .calling import Maker, Sized, Slot, Slots
from .native import Dtype, Place

ALIGNED = 16  # bytes, of an address: what wide loads want
_KEPT = 1 << 20  # bytes of workspace that a slot keeps from call to call: making a tensor takes 3 us

_stream_of: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # not there, and not wanted, without CUDA
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)
_new = homes.quick_empty("cuda")
_no_use: dict[torch.device, str] = {}  # why a device cannot be used


class Gpu(homes.TensorHome):
    """Tensors on a GPU."""

    place, aligned, needs_room, compiles = Place.DEVICE, ALIGNED, True, True

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.index = device.index
        self.feature = None, "get_device", self.index

    def fits(self, tensor: torch.Tensor) -> bool:
        return tensor.get_device() == self.index and tensor.is_contiguous() and not tensor.data_ptr() % ALIGNED

    def fitting(self, tensor: torch.Tensor) -> torch.Tensor:
        dense = tensor.contiguous()
        return dense.clone() if dense.data_ptr() % ALIGNED else dense

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype) -> Maker:
        return _new, (shape, strides, homes.DTYPES[dtype])

    def is_elsewhere(self) -> bool:
        return bool(_current_gpu() != self.index)

    def entered(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device)

    def stream(self) -> int:
        return int(_stream_of(self.index))

    def is_capturing(self) -> bool:
        return bool(_capturing())

    @contextmanager
    def making(self, first: bool) -> Iterator[None]:
        native.free_postponed()
        if self.device in _no_use:
            raise native.Error(_no_use[self.device])
        try:
            with on(self.device):
                yield
        except native.Error as why:
            if why.status is native.Status.DEVICE and first:
                _no_use.setdefault(self.device, str(why))
            raise

    def why_no_param(self, param: torch.Tensor) -> str | None:
        """Why a tensor cannot be a parameter here; a number on the CPU can."""
        return None if not param.shape and param.is_cpu else super().why_no_param(param)

    def given(self, params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        torch.cuda.synchronize(self.device)
        return [param.detach().to(self.device).contiguous() for param in params]

    def give_room(self, slots: Slots, slot: Slot, sized: Sized) -> Any:
        size = slots.workspace(slot, sized)
        room, address = None, slot.room_at
        if slot.room_size < size:
            room = _new(*_bytes(size))
            address = room.data_ptr()
            if size <= _KEPT and not slot.kept:
                slot.room, slot.room_at, slot.room_size = room, address, size
        slot.options.workspace, slot.options.workspace_bytes = address, size
        return room

    def questions(self, threads: int, stream: int) -> tuple[Any, ...]:
        asked = (_current_gpu, (), self.index), (_stream_of, (self.index,), stream)
        return (*asked, (_capturing, (), False)) if stream else asked  # nobody can capture the default stream

    def room(self, slots: Slots, slot: Slot, sized: Sized) -> tuple[int, Maker | None]:
        size = slots.workspace(slot, sized)
        return size, (_new, _bytes(size)) if size > slot.room_size else None


def _bytes(size: int) -> tuple[Any, ...]:
    return (size,), (1,), torch.uint8


@functools.cache
def home_of(device: torch.device) -> homes.TensorHome:
    """The home of a device's tensors."""
    return Gpu(device) if device.type == "cuda" else homes.Cpu(device)


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """With a device's context the current one: it is what a program is made for."""
    if device.type != "cuda":
        yield
        return
    _find_compiler()
    with torch.cuda.device(device):
        yield


def in_use() -> bool:
    """Whether PyTorch has begun to use GPUs."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@functools.cache
def _find_compiler() -> None:
    """Lets the C library find the run-time compiler that PyTorch brings along, where there is no toolkit; and the
    compiler what it opens itself by name."""
    if "LINFUSE_NVRTC" not in os.environ:
        for name in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            for file in sorted(glob.glob(os.path.join(native.beside_torch(torch.__file__), name))):
                try:
                    ctypes.CDLL(file)  # loaded, it is found by its name
                except OSError:
                    continue


def _is_no_time_to_free() -> bool:
    """Freeing waits for the GPU, which no graph that is being captured survives; and what a forked child has inherited
    there is its parent's."""
    return torch.cuda._is_in_bad_fork() or (in_use() and bool(_capturing()))


native.must_wait = _is_no_time_to_free
