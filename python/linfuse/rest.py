# SPDX-License-Identifier: Apache-2.0
"""What a graph has beside its fused parts: run by PyTorch node by node, or compiled by inductor.

For inductor a part is one op of PyTorch's, torch.ops.linfuse.part, of the part's tensors, the numbers among its
arguments, and a key. The key says all that the part does; parts of one key are one. So what inductor keeps on disk
serves another process too: there the graph is split again before inductor is asked, and its parts have the same keys.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import Graph, GraphModule, Node

from . import native
from .counters import Left
from .fused import Fused, Part, laid_out

_FEW = 8  # ops


class Rest(Protocol):
    """How the graph around the parts runs."""

    fuses: bool  # whether it has ops that follow each other in one loop, too

    def takes(self, left: Sequence[Left], around_parts: bool) -> bool:
        """Whether it is for a graph of which this is left."""
        ...

    def known(self, part: Part) -> Part:
        """The part to use for this one: itself, or an equal one that is there already."""
        ...

    def call(self, graph: Graph, root: torch.nn.Module, part: Part, args: Sequence[Node]) -> Node:
        """Appends a call of a known part to a graph whose modules are root's."""
        ...

    def compiled(self, module: GraphModule) -> Callable[..., Any]:
        """What runs the graph, and keeps the parts it calls."""
        ...


class Eager:
    """Node by node, in PyTorch."""

    fuses = False

    def takes(self, left: Sequence[Left], around_parts: bool) -> bool:
        return True

    def known(self, part: Part) -> Part:
        return part

    def call(self, graph: Graph, root: torch.nn.Module, part: Part, args: Sequence[Node]) -> Node:
        setattr(root, part.name, Fused(part))
        return graph.call_module(part.name, tuple(args))

    def compiled(self, module: GraphModule) -> Callable[..., Any]:
        return module.forward


class Told(Eager):
    """The same for an account of a graph that inductor is to compile: it is left what inductor would be."""

    fuses = True

    def takes(self, left: Sequence[Left], around_parts: bool) -> bool:
        return _pays(left, around_parts)


def _pays(left: Sequence[Left], around_parts: bool) -> bool:
    """Whether inductor's seconds are worth what is left."""
    return sum(one.computes for one in left) > (_FEW if around_parts else 0)


class InductorFailed(Exception):
    """Why inductor did not compile a graph."""


class Inductor:
    """Compiled by inductor, for inputs like these, in a mode of torch.compile. always: not only where that pays: it
    takes seconds, which a few ops between parts are not worth."""

    fuses = True

    def __init__(self, inputs: Sequence[Any], mode: str, always: bool):
        self._inputs, self._mode, self._always = list(inputs), mode, always
        self._entries: dict[Part, _Entry] = {}

    def takes(self, left: Sequence[Left], around_parts: bool) -> bool:
        return _pays(left, around_parts and not self._always)

    def known(self, part: Part) -> Part:
        key = hashlib.sha256(repr((native.version(), part.identity())).encode()).hexdigest()
        entry = _by_key.get(key)
        if entry is None:
            entry = _by_key[key] = _Entry(key, part)
        self._entries[entry.part] = entry
        return entry.part

    def call(self, graph: Graph, root: torch.nn.Module, part: Part, args: Sequence[Node]) -> Node:
        numbers = [arg for arg, is_number in zip(args, part.takes_numbers) if is_number]
        tensors = [arg for arg, is_number in zip(args, part.takes_numbers) if not is_number]
        return graph.call_function(_op(), (tensors, numbers, self._entries[part].key))

    def compiled(self, module: GraphModule) -> Callable[..., Any]:
        from torch import _inductor  # takes a second, which those who never need it save

        for entry in self._entries.values():
            entry.part.begin()
        options = _inductor.list_mode_options(self._mode)
        if self._entries:  # a CUDA graph repeats kernels alone, and a part also looks whether its parameters changed
            options = {name: value for name, value in options.items() if name != "triton.cudagraphs"}
        try:
            function = _inductor.compile(module, self._inputs, options)
        except torch._dynamo.exc.RestartAnalysis:  # PyTorch wants the graph traced anew
            raise
        except Exception as why:
            raise InductorFailed(str(why).strip().partition("\n")[0] or type(why).__name__) from why
        return _Holding(function, list(self._entries.values()))


class _Entry:
    """A part as the op has it."""

    def __init__(self, key: str, part: Part):
        self.key, self.part, self.run = key, part, part.entry()

    def args(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[Any]:
        of_tensors, of_numbers = iter(tensors), iter(numbers)
        return [next(of_numbers if is_number else of_tensors) for is_number in self.part.takes_numbers]


_by_key: weakref.WeakValueDictionary[str, _Entry] = weakref.WeakValueDictionary()


class _Holding:
    """A function whose code knows parts by their keys, and those parts."""

    def __init__(self, function: Callable[..., Any], entries: list[_Entry]):
        self._function, self._entries = function, entries

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def _run(tensors: Sequence[torch.Tensor], numbers: Sequence[int], key: str) -> list[torch.Tensor]:
    entry = _by_key[key]
    return list(entry.run(*entry.args(tensors, numbers)))


def _fake(tensors: Sequence[torch.Tensor], numbers: Sequence[int], key: str) -> list[torch.Tensor]:
    entry = _by_key[key]
    return list(map(laid_out, entry.part.eager(*entry.args(tensors, numbers))))


@functools.cache
def _op() -> Any:
    """torch.ops.linfuse.part. By Library, calls of which cost a quarter of a custom_op's."""
    library = torch.library.Library("linfuse", "DEF")
    library.define("part(Tensor[] tensors, SymInt[] numbers, str key) -> Tensor[]")
    library.impl("part", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("linfuse::part", _fake, lib=library)
    _libraries.append(library)  # the op goes when it does
    return torch.ops.linfuse.part.default


_libraries: list[torch.library.Library] = []
