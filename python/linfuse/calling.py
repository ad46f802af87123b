# SPDX-License-Identifier: Apache-2.0
"""A call, step by step: the one way in which programs are run from Python.

  1. Inputs are looked at: dtype, place, gaps. What does not fit is copied, or refused.
  2. What follows from their extents (Sized) is found, or made at the first call with such.
  3. Where it runs is asked: how many threads, or which of a GPU's streams.
  4. A slot of the program is taken: whoever has it in hand may run it, and its parameters stay what they are so long.
  5. Outputs are made, workspace on a GPU, and the C library runs.
  6. The slot goes back.

Parts of graphs (fused.py) and loaded programs (program.py) take these steps; python/shortcut.c repeats them without
Python for a call like the last. What differs between NumPy's arrays, tensors on the CPU and tensors on a GPU is a Home.
This module knows no PyTorch; homes.py has what does.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from . import native
from .native import Dtype, Error, Place, Port, Status

Maker = tuple[Callable[..., Any], tuple[Any, ...]]  # what makes an array: a function and its arguments
MOST_SIZES = 256  # sets of extents that a part or a program remembers
_run_at = native.lib.lf_call_run_at


# ---- what a model takes and gives ----


class Spec(NamedTuple):
    """An input, a parameter or an output: its name, its extents, each a number or the name of one learnt at the call,
    and the type of its elements."""

    name: str
    extents: tuple[int | str, ...]
    dtype: Dtype = Dtype.f32

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.name}[{', '.join(map(str, self.extents))}]"


def specs(model: native.Model, port: Port) -> tuple[Spec, ...]:
    """All inputs, parameters or outputs of a model."""
    names = model.names(port)
    return tuple(Spec(name, model.extents(port, i), model.dtype(port, i)) for i, name in enumerate(names))


def learnt(inputs: Sequence[Spec], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The named extents as these shapes of inputs have them; shapes may be left out, from the end."""
    dims: dict[str, int] = {}
    for spec, shape in zip(inputs, shapes):
        before = [f"{name} is {dims[name]}" for name in spec.extents if isinstance(name, str) and name in dims]
        fits = len(shape) == len(spec.extents)
        for extent, size in zip(spec.extents, shape):
            fits = fits and (dims.setdefault(extent, size) if isinstance(extent, str) else extent) == size
        if not fits:
            known = f", where {' and '.join(before)}" if before else ""
            raise Error(f"input {spec} is given as {list(shape)}{known}", Status.DATA)
    return dims


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array without gaps whose axes lie in order."""
    return dense(shape, range(len(shape)))


def dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array without gaps whose axes lie in this order, the outermost first. An extent of 0 counts as
    1, as PyTorch has it."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


class Sized:
    """What follows from the extents of the inputs."""

    __slots__ = ("dims", "dims_at", "key", "makers", "relaid")

    def __init__(self, dims: Sequence[int], makers: list[Maker], relaid: dict[int, Maker] | None = None):
        self.key = tuple(dims)
        self.dims = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        self.dims_at = ctypes.addressof(self.dims)
        self.makers = makers  # of what the C library writes: row-major
        self.relaid = relaid or {}  # of copies of those that the caller has in another order


# ---- slots ----


class Slot:
    """One thread's use of a program: a call, and room for the addresses it is given."""

    __slots__ = ("call", "handle", "inputs", "inputs_at", "kept", "options", "options_at", "outputs", "outputs_at",
                 "room", "room_at", "room_size", "runs", "runs_not_counted", "stream")

    def __init__(self, call: native.Call, inputs: int, outputs: int, place: Place, stream: int):
        self.call = call
        self.handle = call.address or 0
        self.inputs = (ctypes.c_void_p * inputs)()
        self.outputs = (ctypes.c_void_p * outputs)()
        self.inputs_at, self.outputs_at = ctypes.addressof(self.inputs), ctypes.addressof(self.outputs)
        self.runs = self.runs_not_counted = 0  # of which stats() leaves some out
        self.stream = stream  # a GPU's, of all its runs
        self.options = native.RunOptions(memory=place, stream=stream)
        self.options_at = ctypes.addressof(self.options)
        self.room: Any = None  # workspace on a GPU, where it is small
        self.room_at = self.room_size = 0  # its address, and bytes of it
        self.kept = False  # for good: by a graph that runs it again


class Slots(native.OfThisProcess):
    """A program and its slots for arrays in one home. `idle` has those nobody uses; append and pop are atomic.
    ports: how many inputs and outputs it has."""

    def __init__(self, program: native.Compiled, ports: tuple[int, int], home: Home):
        self.program, self.handle, self.home, self._ports = program, program.address or 0, home, ports
        self.slots: list[Slot] = []
        self.idle: list[Slot] = []
        self.workspaces: dict[tuple[int, ...], int] = {}  # bytes by extents, on a GPU

    def take(self, stream: int) -> Slot | None:
        """A slot that is not in use, where there is one for this stream."""
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

    def new_slot(self, stream: int) -> Slot:
        """A slot more, in use."""
        slot = Slot(native.Call(self.program), *self._ports, self.home.place, stream)
        self.slots.append(slot)
        return slot

    def workspace(self, slot: Slot, sized: Sized) -> int:
        """Bytes a run at these extents needs."""
        found = self.workspaces.get(sized.key)
        if found is None:
            found = self.workspaces[sized.key] = slot.call.workspace(sized.dims_at)
        return found

    def run(self, slot: Slot, sized: Sized, inputs: Iterable[int], threads: int) -> list[Any]:
        """Steps 5 and 6. inputs: addresses. Returns the outputs, row-major."""
        home = self.home
        try:
            results = [make(*how) for make, how in sized.makers]
            at, given, address_of = 0, slot.inputs, home.address
            for address in inputs:
                given[at] = address
                at += 1
            at, given = 0, slot.outputs
            for result in results:
                given[at] = address_of(result)
                at += 1
            slot.options.threads = threads
            room = home.give_room(self, slot, sized) if home.needs_room else None
            status = _run_at(slot.handle, sized.dims_at, slot.inputs_at, slot.outputs_at, slot.options_at)
            del room  # its memory is the stream's next work's
            if status:
                raise Error(native.lib.lf_call_message(slot.handle).decode(), Status(status))
            slot.runs += 1
        finally:
            if not slot.kept:
                self.idle.append(slot)
        return results


# ---- homes ----


class Home:
    """Where the arrays of a call are, who makes them, and what runs there. This one: NumPy, in host memory."""

    place = Place.HOST

    @staticmethod
    def address(array: Any) -> int:
        """Where an array's values are."""
        return int(array.ctypes.data)

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype) -> Maker:
        """What makes an array of these extents, and of these strides where arrays may have others."""
        import numpy

        return numpy.empty, (shape, dtype.numpy)

    # Step 3. These two make 0 and False without a frame of Python's.
    threads: Callable[[], int] = staticmethod(int)  # how many may work; 0: as many as the program may use
    stream: Callable[[], int] = staticmethod(int)  # the one that work is put on now
    is_elsewhere: Callable[[], bool] = staticmethod(bool)  # whether another GPU than this is PyTorch's current one
    is_capturing: Callable[[], bool] = staticmethod(bool)  # whether the current stream's work goes into a graph

    def entered(self) -> AbstractContextManager[Any]:
        """With the device the current one."""
        return contextlib.nullcontext()

    needs_room = False  # whether calls need workspace

    def give_room(self, slots: Slots, slot: Slot, sized: Sized) -> Any:
        """Workspace for a call, whose options then say where it is. Returns what must live until it is launched."""


HOST = Home()
