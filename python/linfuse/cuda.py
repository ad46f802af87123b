# SPDX-License-Identifier: Apache-2.0
"""Parts that run on a GPU, and programs with parameters there.

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
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from . import fused, native, shortcut
from .counters import registry
from .program import ALIGNED
from .weights import Prepared, Slot, stamp

_run_at = native.lib.lf_call_run_at
_stream_of: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # not there, and not wanted, without CUDA
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)
_new = fused.quick_empty("cuda")
_f32, _bytes = torch.float32, torch.uint8
_grad_enabled, _transforms = fused._grad_enabled, fused._transforms
_KEPT = 1 << 20  # bytes of workspace that a slot keeps from call to call: making a tensor takes 3 us

_captured: list[tuple[Prepared, Slot]] = []  # a graph may run at any time, so these never end
_no_use: dict[torch.device, str] = {}  # why a device cannot be used


class CudaPrepared(Prepared):
    """A program on a GPU."""

    def __init__(self, program: native.Program):
        super().__init__(program)
        self.workspaces: dict[tuple[int, ...], int] = {}  # bytes by extents
        self.device: torch.device = getattr(program.context, "device")

    def load(self, names: Sequence[str], params: Sequence[torch.Tensor]) -> None:
        """Gives and prepares the parameters as they are now. Waits for whoever still uses the old ones."""
        stamps = [stamp(param) for param in params]
        known = self.forget(len(params))  # an interrupt may come before all is done
        with torch.cuda.device(self.device):
            torch.cuda.synchronize(self.device)
            stream = _stream_of(self.device.index)
            for name, param in zip(names, params):
                values = param.detach().to(self.device).contiguous()
                self.program.set_param(name, values.shape, values.data_ptr(), memory=native.Place.DEVICE, stream=stream)
            self.program.prepare()
        self.workspaces.clear()
        known[:] = stamps
        registry.count("prepared")

    def current(self, params: Sequence[torch.Tensor]) -> bool:
        return self.stamped(params)

    def take(self, stream: int) -> Slot | None:
        idle = self.idle
        try:
            slot = idle.pop()
        except IndexError:
            return None
        if slot.stream == stream:
            return slot
        idle.append(slot)
        for slot in reversed(idle[:]):
            if slot.stream == stream:
                try:
                    idle.remove(slot)
                except ValueError:  # another thread was quicker
                    continue
                return slot
        return None

    def workspace(self, slot: Slot, sized: fused.Sized) -> int:
        """Bytes a run at these extents wants."""
        found = self.workspaces.get(sized.key)
        if found is None:
            found = self.workspaces[sized.key] = slot.call.workspace(sized.dims_at)
        return found


def _on_gpu(shape: tuple[int, ...], strides: tuple[int, ...]) -> fused.Maker:
    """fused.on_cpu for the current GPU."""
    return _new, (shape, strides, _f32)


class CudaPart(fused.Part):
    """A fused piece of a graph that runs on a GPU."""

    kept_as = CudaPrepared
    maker = staticmethod(_on_gpu)

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        if _grad_enabled() or _transforms() is not None or forward_ad._current_level >= 0:
            reason = self._why_differentiated(args)
            if reason:
                return self._in_pytorch(args, reason)
        try:
            results = self._run(args, self._pick_inputs(args))
        except (native.Error, RuntimeError) as why:
            results = str(why)
        return self._in_pytorch(args, results) if results.__class__ is str else results  # type: ignore[return-value]

    def _run(self, args: Sequence[Any], tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | str:
        """The results; or why there are none."""
        index = self.device.index
        for tensor in tensors:
            if tensor.dtype is not _f32 or tensor.get_device() != index or not tensor.is_contiguous():
                adapted = self._adapt(tensors)
                if isinstance(adapted, str):
                    return adapted
                tensors = adapted
                break
        sized = self._sized.get(self._key_of(tensors)) or self._size(tensors)
        if isinstance(sized, str):
            return sized
        if _current_gpu() != index:  # what is made is made there
            with torch.cuda.device(index):
                return self._run(args, tensors)
        stream = _stream_of(index)
        capturing = bool(stream) and _capturing()  # nobody can capture the default stream
        prepared, slot = self._slot_on(stream, capturing, self._pick_params(args), sized.key)
        try:
            results = [make(*how) for make, how in sized.makers]
            inputs, kept = slot.inputs, []
            at = 0
            for tensor in tensors:
                address = tensor.data_ptr()
                if address % ALIGNED:
                    kept.append(tensor.clone())
                    address = kept[-1].data_ptr()
                inputs[at] = address
                at += 1
            outputs, at = slot.outputs, 0
            for tensor in results:
                outputs[at] = tensor.data_ptr()
                at += 1
            size = prepared.workspaces.get(sized.key)
            if size is None:
                size = prepared.workspace(slot, sized)
            address = slot.room_at
            if slot.room_size < size:
                room = _new((size,), (1,), _bytes)
                address = room.data_ptr()
                if size <= _KEPT and not capturing:
                    slot.room, slot.room_at, slot.room_size = room, address, size
            slot.options.workspace, slot.options.workspace_bytes = address, size
            status = _run_at(slot.handle, sized.dims_at, slot.inputs_at, slot.outputs_at, slot.options_at)
            if status:
                return str(native.lib.lf_call_message(slot.handle).decode())
            slot.runs += 1
        finally:
            if not capturing:
                prepared.idle.append(slot)
        if not capturing and self._is_again(sized, prepared, slot, stream):
            self._set_up_on(tensors, sized, prepared, slot, size)
        return tuple(fused.laid_out(results, sized) if sized.relaid else results)

    def _set_up_on(self, tensors: tuple[torch.Tensor, ...], sized: fused.Sized, prepared: CudaPrepared, slot: Slot,
                   size: int) -> None:
        """The shortcut, on this slot's stream. Nobody looks at values."""
        index, stream = self.device.index, slot.stream
        questions = *shortcut.PLAIN, (_current_gpu, (), index), (_stream_of, (index,), stream)
        if stream:
            questions += ((_capturing, (), False),)
        room = (_new, ((size,), (1,), _bytes)) if size > slot.room_size else None
        self._set_up(tensors, sized, prepared, slot, questions, (None, "get_device", index), sized.makers, 0,
                     shortcut.Where(stream=stream, aligned=ALIGNED, room_bytes=size, room_maker=room))

    def _slot_on(self, stream: int, capturing: bool, params: tuple[torch.Tensor, ...],
                 extents: tuple[int, ...]) -> tuple[CudaPrepared, Slot]:
        """A slot of a program that has these parameters as they are now, for a run on this stream at these extents."""
        prepared: Any = self._current()
        if prepared is not None and not capturing:
            slot = prepared.take(stream)
            if slot is not None and prepared.holds(slot, params):  # as long as it is in hand, the stamps stay
                return prepared, slot
        for param in params:
            if param.dtype is not _f32 or param.layout is not torch.strided:
                raise native.Error(f"a parameter is {param.dtype}, {param.layout}")
            if param.device != self.device and (param.shape or not param.is_cpu):
                raise native.Error(f"a parameter is on {param.device}, and not {self.device}")
        if capturing:
            return self._slot_to_keep(stream, params)
        prepared, slot = self._acquire(stream, params, extents)
        self._current = weakref.ref(prepared)
        return prepared, slot

    def _acquire(self, stream: int, params: tuple[torch.Tensor, ...],
                 extents: tuple[int, ...]) -> tuple[CudaPrepared, Slot]:
        first = {f"first.{name}": str(extent) for name, extent in zip(self._dim_names, extents)}
        native.free_postponed()
        if self.device in _no_use:
            raise native.Error(_no_use[self.device])
        try:
            with on(self.device):
                return self.family.acquire(params, stream, first)  # type: ignore[return-value]
        except native.Error as why:
            if why.status is native.Status.DEVICE and not self.family.programs:
                _no_use.setdefault(self.device, str(why))
            raise

    def _slot_to_keep(self, stream: int, params: tuple[torch.Tensor, ...]) -> tuple[CudaPrepared, Slot]:
        """For a graph that is being captured: a slot that nobody else will have."""
        family = self.family
        with family.lock:
            prepared: Any = family.programs.get(tuple(map(id, params)))
            if prepared is None or not prepared.current(params):
                raise native.Error(
                    "a graph is being captured, and the weights are not prepared as they are now: call it once before"
                )
            prepared.fixed = True
            slot = family.new_slot(prepared, stream)
        _captured.append((prepared, slot))
        return prepared, slot


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
        beside = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia", "*", "lib")
        for name in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            for file in sorted(glob.glob(os.path.join(beside, name))):
                try:
                    ctypes.CDLL(file)  # loaded, it is found by its name
                except OSError:
                    continue


def _is_no_time_to_free() -> bool:
    """Freeing waits for the GPU, which no graph that is being captured survives; and what a forked child has inherited
    there is its parent's."""
    return torch.cuda._is_in_bad_fork() or (in_use() and bool(_capturing()))


native.must_wait = _is_no_time_to_free
