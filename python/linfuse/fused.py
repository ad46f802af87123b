# SPDX-License-Identifier: Apache-2.0
"""What runs: parts of a graph, fused, and the graph around them.

A call of a part takes the steps of calling.py. Whatever does not fit (a dtype, a device, gradients, an error) runs the
same nodes in PyTorch, and is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from . import calling, native, shortcut, weights
from .calling import MOST_SIZES, Sized, dense, row_major
from .capture import Capture, Leaf, elsewhere, example, hint, hints, is_buffer, target_name
from .counters import Left, registry
from .cuda import home_of
from .homes import DTYPES
from .loss_found import LossHead
from .native import Port
from .notices import NEEDS_GRADIENTS

_grad_enabled = torch.is_grad_enabled
_transforms = torch._C._functorch.peek_interpreter_stack  # None outside vmap, jvp and the like


class Layout:
    """How eager's result lies in memory, as far as the trace says: the order of its axes, and its strides at the
    extents of the trace. (Those of extents of 0 and 1 follow from nothing else.)"""

    def __init__(self, tensor: torch.Tensor):
        shape, strides = hints(tensor), tuple(map(hint, tensor.stride()))
        self._order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
        plain = dense(shape, self._order)
        self._shape, self._strides = shape, strides if _same_memory(shape, strides, plain) else plain

    @property
    def at_trace(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides."""
        return self._shape, self._strides

    @property
    def is_row_major(self) -> bool:
        """Whether its axes lie in order."""
        return _same_memory(self._shape, self._strides, row_major(self._shape))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Those of a result of these extents."""
        return self._strides if shape == self._shape else dense(shape, self._order)


def _same_memory(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether tensors of these strides lie alike: where an extent is 0 or 1, its stride does not matter."""
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, one, other))


def laid_out(result: torch.Tensor) -> torch.Tensor:
    """What eager gives, in memory as a part would give it: a slice without the gaps that it has as a view."""
    dense_strides = torch.empty_like(result, device="meta").stride()
    return result if result.stride() == dense_strides else result.clone()


def _shape_of_one(tensors: tuple[torch.Tensor, ...]) -> Any:
    return tensors[0].shape


def _shapes_of(tensors: tuple[torch.Tensor, ...]) -> Any:
    return tuple([tensor.shape for tensor in tensors])


class Part(native.OfThisProcess):
    """A fused piece of a graph: called with tensors, gives a tuple of tensors."""

    def __init__(self, name: str, capture: Capture, args: Sequence[Node], outputs: Sequence[Node], eager: GraphModule,
                 options: dict[str, str], strict: bool):
        self.name, self.eager, self.strict, self.options = name, eager, strict, options
        self.leaves, self.model = capture.leaves, capture.model
        taken = {leaf.node for leaf in capture.leaves}
        self.nodes = [node for node in capture.values if node not in taken]
        self.outputs = [node.name for node in outputs]
        place = {node: at for at, node in enumerate(args)}
        self._inputs: list[Leaf] = [leaf for leaf in capture.leaves if not leaf.param]
        params = [leaf for leaf in capture.leaves if leaf.param]
        self._input_at, self._pick_inputs = _picker([place[leaf.node] for leaf in self._inputs])
        self.param_at, self._pick_params = _picker([place[leaf.node] for leaf in params])
        self._layouts = [Layout(example(node)) for node in outputs]
        self._key, self._params = tuple(capture.key), {leaf.name: is_buffer(leaf.node) for leaf in params}
        self._dim_names = self.model.dim_names()
        self._specs, self._outputs = (calling.specs(self.model, port) for port in (Port.INPUT, Port.OUTPUT))
        self._dtypes = [DTYPES[leaf.dtype] for leaf in self._inputs]
        self._param_dtypes = [DTYPES[leaf.dtype] for leaf in params]
        self._sized: dict[Any, Sized] = {}
        self._key_of = _shape_of_one if len(self._inputs) == 1 else _shapes_of
        self._current: Callable[[], weights.Prepared | None]
        self._args = len(args)
        self.takes_numbers = [not isinstance(example(node), torch.Tensor) for node in args]
        self._shortcut: Callable[[], Any] = lambda: None
        self._last: Any = None  # what the last call was like
        self._set_up_for: Any = None  # what calls that the shortcut is for are like
        self._traced = tuple(capture.dim_hints)
        self.device = capture.context.device
        self.home = home_of(self.device)
        self._serve(torch.get_num_threads())
        registry.parts.add(self)

    def identity(self) -> Any:
        """All that tells what the part does, and how it is called: equal for parts that can stand for each other."""
        layouts = [layout.at_trace for layout in self._layouts]
        places = self._input_at, self.param_at, self.takes_numbers, tuple(self._params.values())
        return self._key, sorted(self.options.items()), self.device, self.strict, places, layouts, self.eager.code

    def _serve(self, threads: int) -> None:
        """Takes the family of programs that may use so many threads."""
        with weights.making:
            self.threads = threads
            model, context = self.model, weights.context(self.device, threads)
            if context is not model.context:
                model = model.copy(context)
            ports = len(self._inputs), len(self.outputs)
            key = self._key, tuple(sorted(self.options.items())), context.key, tuple(self._params.values())
            self.family = weights.family(key, model, self._params, ports, self.options, self.home)
        self._current = lambda: None

    def begin(self) -> None:
        """Has what calls like the trace need compiled, where that takes long, while the host goes on."""
        self.family.begin(self._traced)

    # ---- a call ----

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        if _grad_enabled() or _transforms() is not None or forward_ad._current_level >= 0:
            reason = _why_differentiated(args)
            if reason:
                return self._in_pytorch(args, reason)
        home, tensors = self.home, self._pick_inputs(args)
        try:
            for tensor, dtype in zip(tensors, self._dtypes):
                if tensor.dtype is not dtype or not home.fits(tensor):
                    tensors = self._fitting(tensors)
                    break
            sized = self._sized.get(self._key_of(tensors)) or self._size(tensors)
            if home.is_elsewhere():  # what is made is made there
                with home.entered():
                    return self(*args)
            threads = home.threads()
            if threads > self.threads:
                self._serve(threads)
            prepared, slot = self._slot(self._pick_params(args), sized)
            results = prepared.run(slot, sized, map(home.address, tensors), threads)
        except RuntimeError as why:  # the library's, and PyTorch's where it refuses something
            return self._in_pytorch(args, str(why))
        if not slot.kept and not prepared.copied and self._is_again(sized, prepared, slot, threads):
            self._set_up(tensors, sized, prepared, slot, threads)
        for at, (make, how) in sized.relaid.items():
            results[at] = make(*how).copy_(results[at])
        return tuple(results)

    def _slot(self, params: tuple[torch.Tensor, ...], sized: Sized) -> tuple[weights.Prepared, calling.Slot]:
        """Step 4, of a program that has these parameters as they are now."""
        stream = self.home.stream()
        keep = bool(stream) and self.home.is_capturing()  # nobody can capture the default stream
        prepared = None if keep else self._current()
        if prepared is not None:
            slot = prepared.take(stream)
            if slot is not None and prepared.holds(slot, params):  # as long as it is in hand, the stamps stay
                return prepared, slot
        for param, dtype in zip(params, self._param_dtypes):
            if param.dtype is not dtype or param.layout is not torch.strided:
                raise native.Error(f"a parameter is {param.dtype}, {param.layout}")
            why = self.home.why_no_param(param)
            if why:
                raise native.Error(f"a parameter {why}")
        if keep:
            return self.family.slot_to_keep(params, stream)
        prepared, slot = self.family.acquire(params, stream, sized.key)
        self._current = weakref.ref(prepared)
        return prepared, slot

    def _fitting(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs as the library reads them."""
        found = []
        for leaf, tensor, dtype in zip(self._inputs, tensors, self._dtypes):
            if not tensor.shape and (leaf.convert or tensor.is_cpu):
                tensor = tensor.to(self.device, dtype if leaf.convert else tensor.dtype, non_blocking=True)
            if tensor.dtype is not dtype:
                raise native.Error(f"input {leaf.label}: dtype {str(tensor.dtype).removeprefix('torch.')}")
            if tensor.device != self.device:
                raise native.Error(f"input {leaf.label}: {elsewhere(tensor.device, self.device)}")
            if tensor.layout is not torch.strided:
                raise native.Error(f"input {leaf.label}: layout {str(tensor.layout).removeprefix('torch.')}")
            found.append(self.home.fitting(tensor))
        return tuple(found)

    def _size(self, tensors: tuple[torch.Tensor, ...]) -> Sized:
        """Step 2, for extents that are new."""
        dims = calling.learnt(self._specs, [tensor.shape for tensor in tensors])
        values = [dims[name] for name in self._dim_names]
        makers: list[calling.Maker] = []
        relaid: dict[int, calling.Maker] = {}
        for at, (layout, spec) in enumerate(zip(self._layouts, self._outputs)):
            with weights.making:
                shape = self.model.shape(Port.OUTPUT, at, values)
            strides, plain = layout.strides(shape), row_major(shape)
            if not _same_memory(shape, strides, plain):
                relaid[at], strides = self.home.maker(shape, strides, spec.dtype), plain
            makers.append(self.home.maker(shape, strides, spec.dtype))
        if len(self._sized) >= MOST_SIZES:
            self._sized.clear()
        sized = self._sized[self._key_of(tensors)] = Sized(values, makers, relaid)
        return sized

    def _in_pytorch(self, args: Sequence[Any], reason: str) -> tuple[torch.Tensor, ...]:
        if self.strict:
            raise native.Error(f"{self.name} would run in PyTorch: {reason}")
        registry.leave(Left(self.name, " ".join(map(target_name, self.nodes)), reason), "call")
        return tuple(map(laid_out, self.eager(*args)))

    # ---- calls without Python ----

    def entry(self) -> Callable[..., Any]:
        """What is called in place of the part: its shortcut, where there is one, which keeps the part alive."""
        made = shortcut.new(self.__call__, self._input_at, self.param_at, self._args, len(self.outputs))
        if made is None:
            return self.__call__
        self._shortcut = weakref.ref(made)
        return made  # type: ignore[no-any-return]

    def _is_again(self, sized: Sized, prepared: weights.Prepared, slot: calling.Slot, threads: int) -> bool:
        """Whether a call is like the last, and the shortcut is not yet for such: the second of two calls that are alike
        has it set up for the third. (A slot has its stream.)"""
        like = sized, prepared.stamps, id(slot), threads
        if not _alike(self._last, like):
            self._last = like
            return False
        if _alike(self._set_up_for, like) or sized.relaid:
            return False
        self._set_up_for = like
        return True

    def _set_up(self, tensors: tuple[torch.Tensor, ...], sized: Sized, prepared: weights.Prepared, slot: calling.Slot,
                threads: int) -> None:
        """The shortcut, for calls like this one."""
        function, home = self._shortcut(), self.home
        if function is None:
            return
        questions = *shortcut.PLAIN, *home.questions(threads, slot.stream)
        features = tuple((*shortcut.DENSE, home.feature, ("dtype", None, tensor.dtype), ("shape", None, tensor.shape))
                         for tensor in tensors)
        at = sized.dims_at, prepared.handle if home.looks else 0, slot.handle, slot.inputs_at, slot.outputs_at
        where = shortcut.Where(home.place, threads, slot.stream, home.aligned, *home.room(prepared, slot, sized))
        shortcut.set_up(function, shortcut.How(
            weakref.ref(prepared), prepared.stamps, prepared.idle, slot, questions, features, tuple(sized.makers), at,
            where, sized,
        ))


def _why_differentiated(args: Sequence[Any]) -> str | None:
    """Why a call at which gradients or transforms are on is PyTorch's, where it is."""
    if _grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        return NEEDS_GRADIENTS
    if _transforms() is not None or forward_ad._current_level >= 0:
        return "under a transform of torch.func or forward-mode AD"
    return None


def _alike(one: Any, other: Any) -> bool:
    """Whether two calls are: stamps prepared anew are others, though they may be equal."""
    return one is not None and one[0] is other[0] and one[1] is other[1] and one[2:] == other[2:]


def _picker(places: list[int]) -> tuple[list[int], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    if len(places) > 1:
        return places, itemgetter(*places)
    if places:
        (only,) = places
        return places, lambda args: (args[only],)
    return places, lambda args: ()


class Fused(torch.nn.Module):
    """A part, as a module of the graph around it."""

    def __init__(self, part: Part):
        super().__init__()
        self.run = part.entry()

    def forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        return self.run(*args)  # type: ignore[no-any-return]


class CompiledGraph(native.OfThisProcess):
    """A graph as compiled: its parts and loss heads, what was left to PyTorch and why, and how it is called."""

    def __init__(self, parts: list[Part], left: list[Left], run: Callable[..., Any]):
        self.parts, self.left, self.run = parts, left, run
        self.heads: list[LossHead] = []  # those that were found
        registry.graphs.add(self)

    @property
    def ops(self) -> int:
        """How many of the graph's ops are fused."""
        return sum(len(part.nodes) for part in self.parts) + sum(len(head.covers) for head in self.heads)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)
