# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model's graphs as Dynamo hands them to the backend, and what linfuse would make of them.

The model runs once, in PyTorch, under no_grad; its buffers and the random numbers are put back afterwards, and what
torch.compile knows of the model stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from . import native, weights
from .backend import Options
from .capture import example, hints, module_path
from .cuda import in_use, on
from .fused import CompiledGraph, Part
from .native import Error, Status
from .partition import compile_module


@dataclass
class Graph:
    """One graph: its nodes, what linfuse makes of them, and what it was called with."""

    module: GraphModule
    compiled: CompiledGraph
    args: Sequence[Any]

    def node(self, name: str) -> Node | None:
        return next((node for node in self.module.graph.nodes if node.name == name), None)

    def where(self, name: str) -> str:
        """The module a node was written in, as PyTorch calls it."""
        node = self.node(name)
        return module_path(node) if node is not None else ""

    def parts_before(self, name: str) -> int:
        """How many parts run before a node that PyTorch runs: up to the first that wants its value."""
        node = self.node(name)
        for at, part in enumerate(self.compiled.parts):
            needed, pending = set[Node](), list(part.nodes)
            while pending:
                one = pending.pop()
                if one not in needed:
                    needed.add(one)
                    pending += one.all_input_nodes
            if node in needed:
                return at
        return len(self.compiled.parts)

    def value(self, node: Node) -> Any:
        """What a leaf was at the call."""
        if node.op == "get_attr":
            held: Any = self.module
            for word in str(node.target).split("."):
                held = getattr(held, word)
            return held
        places = [one for one in self.module.graph.nodes if one.op == "placeholder"]
        return self.args[places.index(node)]


def original(model: Any) -> Any:
    """What torch.compile was given; other things are what they are."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None)
        if inner is None:
            return model
        model = inner


def trace(model: Any, inputs: Sequence[Any], options: Mapping[str, str], whole: bool = False,
          keywords: Mapping[str, Any] | None = None) -> list[Graph]:
    """The graphs of one call. whole: for a file; a graph break is an error."""
    model = original(model)
    if not callable(model):
        raise TypeError(f"a {type(model).__name__} is no torch.nn.Module, and no function of tensors")
    graphs: list[Graph] = []

    def record(module: GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        forward = GraphModule(module, module.graph.__deepcopy__()).forward  # as written, to be run
        compiled = compile_module(module, lambda _: dict(options), statistics=not whole)
        graph = Graph(module, compiled, ())
        graphs.append(graph)

        def run(*args: Any) -> Any:
            graph.args = args
            return forward(*args)

        return run

    with undisturbed(model):
        call = wrapped(model, len(inputs), list(keywords or ()))
        torch.compile(call, backend=record, fullgraph=whole, dynamic=False)(model, *inputs, *(keywords or {}).values())
    if not graphs:
        raise Error(f"{title(model)} computes nothing with tensors at this call", Status.MODEL)
    return graphs


def title(model: Any) -> str:
    """What to call a model."""
    model = original(model)
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """What a model takes, where Python can tell."""
    model = original(model)
    try:
        return inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    except (TypeError, ValueError):
        return {}


def takes(model: Any, name: str) -> bool:
    """Whether a model has an argument of this name."""
    parameters = _parameters(model)
    return name in parameters or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def wrapped(model: Any, count: int, keywords: Sequence[str] = ()) -> Callable[..., Any]:
    """A function of its own that calls the model, its first argument. Dynamo keeps compilations with the code it
    entered, so they go with this one; and its other arguments are called what the model's are."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in _parameters(model).values() if one.kind in plain][:count]
    names += [f"input{i}" for i in range(len(names), count)]
    twice = set(names) & set(keywords)
    if twice:
        raise TypeError(f"{title(model)}: {', '.join(sorted(twice))} is given twice")
    scope: dict[str, Any] = {}
    passed = ", ".join([*names, *(f"{name}={name}" for name in keywords)])
    text = f"def call(linfuse_model, {', '.join([*names, *keywords])}):\n    return linfuse_model({passed})"
    exec(compile(text, __file__, "exec"), scope)  # of a file: Dynamo does not look into functions of no file
    return scope["call"]  # type: ignore[no-any-return]


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """No gradients; and random numbers and buffers, which training changes (running statistics), are put back."""
    model = original(model)
    changing = isinstance(model, nn.Module) and any(one.training for one in model.modules())
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()] if changing else []
    gpus = range(torch.cuda.device_count()) if in_use() else []
    with torch.no_grad(), torch.random.fork_rng(devices=gpus):
        try:
            yield
        finally:
            for buffer, before in kept:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def extents(part: Part) -> list[int]:
    """The named extents of a part's model, as they were at the call."""
    learnt: dict[str, int] = {}
    for leaf in part.leaves:
        for extent, size in zip(leaf.extents, hints(example(leaf.node))):
            if isinstance(extent, str):
                learnt[extent] = size
    return [learnt[name] for name in part.model.dim_names()]


def words_of(part: Part, options: Mapping[str, str]) -> dict[str, str]:
    """The options a part is compiled with: for the device it is on, where these name no other, and then at the
    precision PyTorch's own products would have. The CPU's is fp32, whatever is asked for."""
    device = options.get("device", part.device.type)
    own = Options({"precision": options["precision"]} if "precision" in options else {})
    words = {**(own.words(part.device) if device == part.device.type else {}), **options}
    return {name: word for name, word in words.items() if (device, name) != ("cpu", "precision")}


def program_of(part: Part, options: Mapping[str, str]) -> native.Compiled:
    """The part compiled, without weights, weighed at the extents of the call."""
    dims = {f"dim.{name}": str(max(1, size)) for name, size in zip(part.model.dim_names(), extents(part))}
    with weights.making, on(part.device):
        return native.Compiled(part.model, {**words_of(part, options), **dims})
