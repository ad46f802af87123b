# SPDX-License-Identifier: Apache-2.0
"""Programs and the parameters prepared in them: once, and again when they change.

A parameter is known by its identity, its version counter, the address of its values and its strides; all are compared
at every call. So optimizer steps, load_state_dict, edits under no_grad, replaced Parameters and moved ones all count
from the next call on. Not every write moves the counter: fused optimizers and batch_norm's running statistics do not,
nor do writes through `.data` or NumPy. PyTorch's optimizers are therefore listened to, and the C library looks at the
values themselves: at all of a parameter of up to 16384 elements, at a sample of a larger one, which any step over the
whole tensor changes. What may go unseen is a write, without PyTorch's knowledge, to a small piece of a large
parameter: call linfuse.refresh() after it. Parameters that are inference tensors have no counter at all; capture
takes them as inputs, read anew at every call.

Programs are shared: all traces that come to the same model with the same parameters use one. A program goes when the
first of its parameters does, or the last trace that knows it.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import native
from .ahead import Ahead
from .calling import Slot, Slots
from .counters import registry
from .homes import NATIVE, TensorHome

# Making handles in one context is one thread's business at a time.
making = threading.RLock()
_contexts: dict[tuple[torch.device, int], Context] = {}
_LOOK_AT_ALL = 16384  # elements, as the C library does
_MOST_PASSING = 8  # programs of a family: a tensor that is another at every call would have one each
_LONGEST_WAIT = 0.2  # s, for calls under way
Stamp = tuple[int, int, int, tuple[int, ...]]  # of a parameter: identity, version, address, strides
captured: list[tuple[Prepared, Slot]] = []  # a graph may run at any time, so these never end
_families: weakref.WeakValueDictionary[Any, Family] = weakref.WeakValueDictionary()


class Context(native.Context):
    """The context of the programs of one device. On a CPU they run on PyTorch's own threads where those are OpenMP's:
    its threads spin after each op, and others beside them would fight with them for the cores."""

    def __init__(self, key: tuple[torch.device, int], threads: int):
        super().__init__(threads)
        self.key, self.device = key, key[0]
        if self.device.type == "cpu" and os.environ.get("LINFUSE_THREADS") != "own" and _has_openmp():
            self.use_openmp()


def context(device: torch.device, threads: int) -> Context:
    """The context of calls on a device that may use so many threads. Needs `making`. The threads of a GPU's programs
    only prepare parameters, so there is one context for all."""
    key = device, threads if device.type == "cpu" else 0
    if key not in _contexts:
        _contexts[key] = Context(key, threads)
    return _contexts[key]


@functools.cache
def _has_openmp() -> bool:
    return "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()


class Prepared(Slots):
    """A program with one set of parameters. Whoever holds one of its slots may run it; whoever changes its parameters
    holds all of them."""

    home: TensorHome
    fixed = False  # whether its parameters stay what they are, and others want another program

    def __init__(self, program: native.Compiled, ports: tuple[int, int], home: TensorHome):
        super().__init__(program, ports, home)
        self.stamps: list[Stamp] = []
        # Not by __del__, during which weak references still lead here, and other threads by them to calls that end.
        weakref.finalize(self, _end, program, self.slots, self.idle).atexit = False
        self.watch: list[Any] = []  # weak references to the parameters
        self._held: list[torch.Tensor] = []  # what the program borrows; not the parameters themselves, which may go
        self.copied: list[int] = []  # which of them are copies, of parameters that are not contiguous
        registry.programs.add(self)

    def load(self, names: Sequence[str], params: Sequence[torch.Tensor]) -> None:
        """Gives and prepares the parameters as they are now. Needs every slot, or no call under way; on a GPU it waits
        for runs under way."""
        home = self.home
        stamps = [stamp(param) for param in params]
        known = self.forget(len(params))  # an interrupt may come before all is done
        with home.entered():
            held = home.given(params)
            self._held = [*self._held, *held]
            for name, values in zip(names, held):
                self.program.set_param(name, values.shape, values.data_ptr(), dtype=NATIVE[values.dtype],
                                       borrow=home.looks, memory=home.place, stream=home.stream())
            self.program.prepare()
        if home.looks:
            self.copied = [at for at, param in enumerate(params) if held[at].data_ptr() != param.data_ptr()]
        self._held = held if home.looks else []
        self.workspaces.clear()
        known[:] = stamps
        registry.count("prepared")

    def stamped(self, params: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters have the stamps of what is prepared."""
        for param, (identity, version, address, strides) in zip(params, self.stamps):
            if id(param) != identity or param._version != version or param.data_ptr() != address:
                return False
            if param.stride() != strides:
                return False
        return True

    def current(self, params: Sequence[torch.Tensor]) -> bool:
        """Whether what is prepared is what the parameters are now."""
        return self.stamped(params) and (not self.home.looks or self._values_hold(params))

    def holds(self, slot: Slot, params: Sequence[torch.Tensor]) -> bool:
        """Whether a slot in hand runs with these parameters as they are now; where not, it is put back."""
        is_so = False
        try:
            is_so = self.current(params)
        finally:
            if not is_so:
                self.idle.append(slot)
        return is_so

    def _values_hold(self, params: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters' values look as they did when they were prepared. The C library sees copies where
        parameters had to be copied."""
        return native.lib.lf_program_params_hold(self.handle) and (
            not self.copied or all(torch.equal(_sample(params[at]), _sample(self._held[at])) for at in self.copied))

    def forget(self, count: int | None = None) -> list[Stamp]:
        """The next call prepares all parameters anew. Returns the stamps as they are now: whoever prepares fills these
        in the end, which are no longer the program's where somebody said so again meanwhile."""
        known = self.stamps = [(0, -1, 0, ())] * (len(self.stamps) if count is None else count)
        return known


def _end(program: native.Compiled, slots: list[Slot], idle: list[Slot]) -> None:
    """A program that nobody finds any more goes with its calls, though somebody may remember a slot. One that is in use
    all the same (a collection of garbage may leave weak references as they are for a while) ends with its last user."""
    registry.end(slots)
    while idle:
        try:
            idle.pop().call.close()
        except IndexError:  # another thread was quicker
            break
    program.close()


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of all values, or of a large tensor of some along each axis. (As bits: a NaN is the same as itself.)"""
    bits = tensor.detach().view({2: torch.int16, 4: torch.int32}[tensor.itemsize])
    if bits.numel() > _LOOK_AT_ALL:
        bits = bits[tuple(slice(None, None, max(1, size // 32)) for size in bits.shape)]
    return bits


def stamp(param: torch.Tensor) -> Stamp:
    """What changes when a parameter does."""
    return id(param), param._version, param.data_ptr(), param.stride()


class Family(native.OfThisProcess):
    """One model at one set of options: a program for each set of parameters it is called with."""

    def __init__(self, model: native.Model, params: Mapping[str, bool], ports: tuple[int, int],
                 options: dict[str, str], home: TensorHome):
        self.model, self.ports, self.options, self.home = model, ports, options, home
        self.params = dict(params)  # names, and which are buffers
        # A collection of garbage may come in between, and what it ends may call the same model.
        self.lock = threading.RLock()
        self.programs: dict[tuple[int, ...], Prepared] = {}
        self._ahead: Ahead | None = None

    def acquire(self, params: Sequence[torch.Tensor], stream: int, extents: Sequence[int]) -> tuple[Prepared, Slot]:
        """A program with these parameters as they are now, and a slot of it, which the caller puts back into `idle`.
        extents: the named ones, of this call."""
        with self.home.making(not self.programs), self.lock:
            identity = tuple(map(id, params))
            prepared = self.programs.get(identity)
            if prepared is None:
                prepared = self._make(params, identity, extents)
            elif not prepared.current(params):
                held = [] if prepared.fixed else self._all_slots(prepared)
                try:
                    if len(held) == len(prepared.slots) and not prepared.fixed:
                        prepared.load(list(self.params), params)
                    else:  # a call takes long, or was interrupted and its slot is lost: who runs keeps the old program
                        prepared = self._make(params, identity, extents)
                finally:
                    prepared.idle.extend(slot for slot in held if slot.call.program is prepared.program)
            return prepared, prepared.take(stream) or prepared.new_slot(stream)

    def slot_to_keep(self, params: Sequence[torch.Tensor], stream: int) -> tuple[Prepared, Slot]:
        """For a graph that is being captured: a slot that nobody else will have."""
        with self.lock:
            prepared = self.programs.get(tuple(map(id, params)))
            if prepared is None or not prepared.current(params):
                raise native.Error(
                    "a graph is being captured, and the weights are not prepared as they are now: call it once before"
                )
            prepared.fixed = True
            slot = prepared.new_slot(stream)
        slot.kept = True
        captured.append((prepared, slot))
        return prepared, slot

    def _make(self, params: Sequence[torch.Tensor], identity: tuple[int, ...], extents: Sequence[int]) -> Prepared:
        prepared = Prepared(self._program(extents), self.ports, self.home)
        gone = functools.partial(_drop, weakref.ref(self), identity)
        prepared.watch = [weakref.ref(param, gone) for param in params]
        prepared.load(list(self.params), params)
        if not all(map(self._stays, self.params.values(), params)):
            for oldest in list(self.programs)[: 1 - _MOST_PASSING]:
                self.programs.pop(oldest, None)  # calls under way keep it
        self.programs[identity] = prepared
        registry.count("programs_made")
        return prepared

    def begin(self, extents: Sequence[int]) -> None:
        """Has a program compiled for calls at such extents, where that takes long, while the host goes on."""
        if not self.home.compiles:
            return
        try:
            with self.home.making(not self.programs), self.lock:
                if not self.programs and self._ahead is None:
                    self._ahead = Ahead(self._planned(), extents)
        except (native.Error, RuntimeError):  # for the first call to tell
            pass

    def _program(self, extents: Sequence[int]) -> native.Compiled:
        """One for calls at these extents: the one begun with, where nobody has it yet."""
        begun, self._ahead = self._ahead, None
        program = begun.program() if begun else self._planned()
        if self.home.compiles:
            program.compile(extents)
        return program

    def _planned(self) -> native.Compiled:
        """A program whose kernels, where it has such, are still to be compiled: that need not be one at a time."""
        with making:
            return native.Compiled(self.model, {**self.options, **({"lazy": "true"} if self.home.compiles else {})})

    @staticmethod
    def _stays(buffer: bool, param: torch.Tensor) -> bool:
        """Whether a module keeps a tensor as its own: then its programs are as many as there are such modules."""
        return buffer or isinstance(param, torch.nn.Parameter)

    @staticmethod
    def _all_slots(prepared: Prepared) -> list[Slot]:
        """Waits a while until no call is under way; fewer than all where one still is. New ones cannot begin: they want
        a slot, and new slots want the lock."""
        held: list[Slot] = []
        end = time.monotonic() + _LONGEST_WAIT
        while len(held) < len(prepared.slots) and time.monotonic() < end:
            try:
                held.append(prepared.idle.pop())
            except IndexError:
                time.sleep(20e-6)
        return held


def _drop(family: weakref.ref[Family], identity: tuple[int, ...], _gone: Any) -> None:
    """A parameter is gone: so is its program. Comes at any time, so it waits for nothing."""
    alive = family()
    if alive is not None:
        alive.programs.pop(identity, None)


def family(key: Any, model: native.Model, params: Mapping[str, bool], ports: tuple[int, int], options: dict[str, str],
           home: TensorHome) -> Family:
    """The family of this model: an older trace's where there is one. Needs `making`."""
    found = _families.get(key)
    if found is None:
        found = _families[key] = Family(model, params, ports, options, home)
    return found


def refresh() -> None:
    """Has every parameter prepared anew at its next call: after writes that PyTorch does not count (`.data`, NumPy)."""
    for prepared in registry.alive():
        prepared.forget()


def _stepped(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """A fused step writes without a new version."""
    fused = {id(param) for group in optimizer.param_groups if group.get("fused") for param in group["params"]}
    for prepared in registry.alive() if fused else ():
        if any(id(param()) in fused for param in prepared.watch):
            prepared.forget()


register_optimizer_step_post_hook(_stepped)


def _after_fork() -> None:
    """In the child: locks that other threads held are never released. Calls they had under way never end: who wants
    their slots waits in vain, once, and makes another program."""
    global making
    making = threading.RLock()
    for one in list(_families.values()):
        one.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
