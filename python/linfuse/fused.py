# SPDX-License-Identifier: Apache-2.0
"""What runs: parts of a graph, fused, and the graph around them.

A call of a part makes its outputs, compares its parameters with what is prepared, and makes one call of the C library.
Whatever does not fit (a dtype, a device, gradients, an error) runs the same nodes in PyTorch, and is counted.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from . import memory, native, shortcut, weights
from .capture import Capture, Leaf, elsewhere, example, hint, hints, is_buffer, target_name
from .counters import Left, registry
from .notices import NEEDS_GRADIENTS

_MOST_SIZES = 256  # sets of extents a part remembers
_f32 = torch.float32
_grad_enabled, _threads = torch.is_grad_enabled, torch.get_num_threads
_transforms = torch._C._functorch.peek_interpreter_stack  # None outside vmap, jvp and the like
_run_at = native.lib.lf_call_run_at


def quick_empty(kind: str) -> Callable[..., torch.Tensor]:
    """What makes a tensor of some extents, strides and dtype on the CPU, or on the current GPU: PyTorch's compiled code
    calls it too, and it takes half of what torch.empty_strided does."""

    def plain(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=kind)

    return getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", plain)


_new = quick_empty("cpu")


Maker = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]  # what makes a tensor: a function and its arguments


def on_cpu(shape: tuple[int, ...], strides: tuple[int, ...]) -> Maker:
    """What makes an f32 tensor of these extents and strides, without gaps, on the CPU."""
    return (memory.empty, (shape, strides)) if memory.is_large(shape) else (_new, (shape, strides, _f32))


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps whose axes lie in this order, the outermost first. An extent of 0 counts as
    1, as PyTorch has it."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


class Layout:
    """How eager's result lies in memory, as far as the trace says: the order of its axes, and its strides at the
    extents of the trace. (Those of extents of 0 and 1 follow from nothing else.)"""

    def __init__(self, tensor: torch.Tensor):
        shape, strides = hints(tensor), tuple(map(hint, tensor.stride()))
        self._order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
        dense = _dense(shape, self._order)
        self._shape, self._strides = shape, strides if _same_memory(shape, strides, dense) else dense

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Those of a result of these extents."""
        return self._strides if shape == self._shape else _dense(shape, self._order)


def _same_memory(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether tensors of these strides lie alike: where an extent is 0 or 1, its stride does not matter."""
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, one, other))


def _shape_of_one(tensors: tuple[torch.Tensor, ...]) -> Any:
    return tensors[0].shape


def _shapes_of(tensors: tuple[torch.Tensor, ...]) -> Any:
    return tuple([tensor.shape for tensor in tensors])


class Sized:
    """What follows from the extents of the inputs."""

    __slots__ = ("dims", "dims_at", "key", "makers", "relaid")

    def __init__(self, dims: Sequence[int], shapes: list[tuple[int, ...]], layouts: Sequence[Layout],
                 maker: Callable[..., Maker]):
        self.key = tuple(dims)
        self.dims = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        self.dims_at = ctypes.addressof(self.dims)
        self.makers: list[Maker] = []  # of what the C library writes: row-major
        self.relaid: dict[int, Maker] = {}  # of copies of those that eager has otherwise
        for at, (shape, layout) in enumerate(zip(shapes, layouts)):
            strides, row_major = layout.strides(shape), _dense(shape, range(len(shape)))
            if not _same_memory(shape, strides, row_major):
                self.relaid[at], strides = maker(shape, strides), row_major
            self.makers.append(maker(shape, strides))


class Part(native.OfThisProcess):
    """A fused piece of a graph: called with tensors, gives a tuple of tensors. This one runs on the CPU."""

    kept_as = weights.Prepared
    maker: Callable[..., Maker] = staticmethod(on_cpu)

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
        self._sized: dict[Any, Sized] = {}
        self._key_of = _shape_of_one if len(self._inputs) == 1 else _shapes_of
        self._current: Callable[[], weights.Prepared | None]
        self._args = len(args)
        self._shortcut: Callable[[], Any] = lambda: None
        self._last: Any = None  # what the last call was like
        self._set_up_for: Any = None  # what calls that the shortcut is for are like
        self.device = capture.context.device
        self._serve(_threads())
        registry.parts.add(self)

    def _serve(self, threads: int) -> None:
        """Takes the family of programs that may use so many threads."""
        with weights.making:
            self.threads = threads
            model, context = self.model, weights.context(self.device, threads)
            if context is not model.context:
                model = model.copy(context)
            ports = len(self._inputs), len(self.outputs)
            key = self._key, tuple(sorted(self.options.items())), context.key, tuple(self._params.values())
            self.family = weights.family(key, model, self._params, ports, self.options, self.kept_as)
        self._current = lambda: None

    # ---- a call ----

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        tensors = self._pick_inputs(args)
        if _grad_enabled() or _transforms() is not None or forward_ad._current_level >= 0:
            reason = self._why_differentiated(args)
            if reason:
                return self._in_pytorch(args, reason)
        for tensor in tensors:
            if tensor.dtype is not _f32 or not tensor.is_cpu or not tensor.is_contiguous():
                adapted = self._adapt(tensors)
                if isinstance(adapted, str):
                    return self._in_pytorch(args, adapted)
                tensors = adapted
                break
        sized = self._sized.get(self._key_of(tensors)) or self._size(tensors)
        if isinstance(sized, str):
            return self._in_pytorch(args, sized)
        results = [make(*how) for make, how in sized.makers]
        threads = _threads()
        if threads > self.threads:
            self._serve(threads)
        try:
            prepared, slot = self._slot(self._pick_params(args))
        except (native.Error, RuntimeError) as why:
            return self._in_pytorch(args, str(why))
        try:
            at = 0
            for tensor in tensors:
                slot.inputs[at] = tensor.data_ptr()
                at += 1
            at = 0
            for tensor in results:
                slot.outputs[at] = tensor.data_ptr()
                at += 1
            slot.options.threads = threads
            status = _run_at(slot.handle, sized.dims_at, slot.inputs_at, slot.outputs_at, slot.options_at)
            slot.runs += not status
            message = native.lib.lf_call_message(slot.handle).decode() if status else None
        finally:
            prepared.idle.append(slot)
        if message is not None:
            return self._in_pytorch(args, message)
        self._remember(tensors, sized, prepared, slot, threads)
        return tuple(laid_out(results, sized) if sized.relaid else results)

    def entry(self) -> Callable[..., Any]:
        """What is called in place of the part: its shortcut, where there is one, which keeps the part alive."""
        made = shortcut.new(self.__call__, self._input_at, self.param_at, self._args, len(self.outputs))
        if made is None:
            return self.__call__
        self._shortcut = weakref.ref(made)
        return made  # type: ignore[no-any-return]

    def _remember(self, tensors: tuple[torch.Tensor, ...], sized: Sized, prepared: weights.Prepared,
                  slot: weights.Slot, threads: int) -> None:
        """The second of two calls that are alike has the shortcut set up for the third."""
        if self._is_again(sized, prepared, slot, threads) and not prepared.copied:
            questions = *shortcut.PLAIN, (_threads, (), threads)
            self._set_up(tensors, sized, prepared, slot, questions, ("is_cpu", None, True), sized.makers,
                         prepared.handle, shortcut.Where(threads=threads))

    def _is_again(self, sized: Sized, prepared: weights.Prepared, slot: weights.Slot, where: int) -> bool:
        """Whether a call is like the last, and the shortcut is not yet for such. where: threads, or a stream."""
        like = sized, prepared.stamps, id(slot), where
        if not _alike(self._last, like):
            self._last = like
            return False
        if _alike(self._set_up_for, like) or sized.relaid:
            return False
        self._set_up_for = like
        return True

    def _set_up(self, tensors: tuple[torch.Tensor, ...], sized: Sized, prepared: weights.Prepared, slot: weights.Slot,
                questions: tuple[Any, ...], place: tuple[Any, ...], makers: Sequence[Any], looked_at: int,
                where: shortcut.Where) -> None:
        """The shortcut, for calls like this one. looked_at: the program, if its parameters' values are."""
        function = self._shortcut()
        if function is not None:
            kept = weakref.ref(prepared), prepared.stamps, prepared.idle, slot
            features, shapes = (*shortcut.DENSE, place), tuple([tensor.shape for tensor in tensors])
            at = sized.dims_at, looked_at, slot.handle, slot.inputs_at, slot.outputs_at
            how = shortcut.How(*kept, questions, features, shapes, tuple(makers), at, where, sized)
            shortcut.set_up(function, how)

    @staticmethod
    def _why_differentiated(args: Sequence[Any]) -> str | None:
        """Why a call at which gradients or transforms are on is PyTorch's, where it is."""
        if _grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            return NEEDS_GRADIENTS
        if _transforms() is not None or forward_ad._current_level >= 0:
            return "under a transform of torch.func or forward-mode AD"
        return None

    def _slot(self, params: tuple[torch.Tensor, ...]) -> tuple[weights.Prepared, weights.Slot]:
        """A slot of a program that has these parameters as they are now."""
        prepared = self._current()
        if prepared is not None:
            slot = prepared.take(0)
            if slot is not None and prepared.holds(slot, params):  # as long as it is in hand, the stamps stay
                return prepared, slot
        for param in params:
            if param.dtype is not _f32 or not param.is_cpu or param.layout is not torch.strided:
                raise native.Error(f"a parameter is {param.dtype} on {param.device.type}")
        prepared, slot = self.family.acquire(params)
        self._current = weakref.ref(prepared)
        return prepared, slot

    def _adapt(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | str:
        """The inputs as linfuse wants them; or why that cannot be."""
        adapted = []
        for leaf, tensor in zip(self._inputs, tensors):
            if not tensor.shape and (leaf.convert or tensor.is_cpu):
                tensor = tensor.to(self.device, _f32 if leaf.convert else tensor.dtype, non_blocking=True)
            if tensor.dtype is not _f32:
                return f"input {leaf.label}: dtype {str(tensor.dtype).removeprefix('torch.')}"
            if tensor.device != self.device:
                return f"input {leaf.label}: {elsewhere(tensor.device, self.device)}"
            if tensor.layout is not torch.strided:
                return f"input {leaf.label}: layout {str(tensor.layout).removeprefix('torch.')}"
            adapted.append(tensor.contiguous())
        return tuple(adapted)

    def _size(self, tensors: tuple[torch.Tensor, ...]) -> Sized | str:
        """Learns the named extents from the inputs, all of which must agree with the model."""
        dims: dict[str, int] = {}
        for leaf, tensor in zip(self._inputs, tensors):
            if len(tensor.shape) != len(leaf.extents):
                return f"input {leaf.label}: rank {len(tensor.shape)}"
            for extent, size in zip(leaf.extents, tensor.shape):
                if size != (dims.setdefault(extent, size) if isinstance(extent, str) else extent):
                    return f"input {leaf.label}: extents {tuple(tensor.shape)}"
        values = [dims[name] for name in self._dim_names]
        with weights.making:
            shapes = [self.model.shape(native.Port.OUTPUT, i, values) for i in range(len(self.outputs))]
        if len(self._sized) >= _MOST_SIZES:
            self._sized.clear()
        sized = self._sized[self._key_of(tensors)] = Sized(values, shapes, self._layouts, self.maker)
        return sized

    def _in_pytorch(self, args: Sequence[Any], reason: str) -> tuple[torch.Tensor, ...]:
        if self.strict:
            raise native.Error(f"{self.name} would run in PyTorch: {reason}")
        registry.leave(Left(self.name, " ".join(map(target_name, self.nodes)), reason), "call")
        results: tuple[torch.Tensor, ...] = self.eager(*args)
        return results


def laid_out(results: list[torch.Tensor], sized: Sized) -> list[torch.Tensor]:
    """Results in the order of memory that eager's would have."""
    for at, (make, how) in sized.relaid.items():
        results[at] = make(*how).copy_(results[at])
    return results


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
    """A graph as compiled: its parts, what was left to PyTorch and why, and how it is called."""

    def __init__(self, parts: list[Part], left: list[Left], run: Callable[..., Any]):
        self.parts, self.left, self.run = parts, left, run
        registry.graphs.add(self)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)
