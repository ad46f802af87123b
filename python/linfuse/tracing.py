# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model's graphs as Dynamo hands them to the backend, and what linfuse would make of them.

The model runs once, in PyTorch, under no_grad; its buffers and the random numbers are put back afterwards, and what
torch.compile knows of the model stays as it is.
"""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from . import native, weights
from .backend import Options
from .capture import example, hints, module_path
from .cuda import in_use, on
from .fused import CompiledGraph, Part
from .native import Error, Status
from .partition import compile_module
from .rest import Told


@dataclass
class Subject:
    """A model and what it is to be called with."""

    model: Any  # a module or a function, not compiled
    inputs: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def title(self) -> str:
        return title(self.model)

    def tensors(self) -> list[torch.Tensor]:
        """Those in the arguments, whatever they are packed in."""
        return [one for one in pytree.tree_leaves((self.inputs, self.named)) if isinstance(one, torch.Tensor)]

    def mapped(self, function: Callable[[Any], Any]) -> Subject:
        """The same with every value in the arguments replaced."""
        return Subject(self.model, *pytree.tree_map(function, (self.inputs, self.named)))

    def wrapped(self) -> Callable[..., Any]:
        """A function of its own to compile, which takes what `arguments` has."""
        return wrapped(self.model, len(self.inputs), list(self.named))

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.model, *self.inputs, *self.named.values())


def subject(model: Any, inputs: Sequence[Any], named: Mapping[str, Any] | None = None) -> Subject:
    """What a user gave, understood. An ExportedProgram becomes a module, with its example inputs where none are given.
    One tuple or list is all arguments, as for torch.export, and one dict the arguments by name, where the model can be
    called so; otherwise it is an argument."""
    model, keywords = original(model), dict(named or {})
    if isinstance(model, ExportedProgram):
        if not pytree.tree_leaves((inputs, keywords)) and model.example_inputs is not None:
            inputs, keywords = model.example_inputs[0], dict(model.example_inputs[1])
        model = _module(model)
    if not callable(model):
        raise TypeError(f"a {type(model).__name__} is no torch.nn.Module, and no function of tensors")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) and _callable_with(model, inputs[0], keywords):
        inputs = inputs[0]
    elif len(inputs) == 1 and isinstance(inputs[0], Mapping) and not keywords:
        names = inputs[0]
        if all(isinstance(name, str) for name in names) and _callable_with(model, (), names):
            inputs, keywords = (), dict(names)
    return Subject(model, tuple(inputs), keywords)


def _callable_with(model: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> bool:
    try:
        signature = _signature(model)
    except (TypeError, ValueError):  # one of C, which does not say
        return True
    try:
        signature.bind(*inputs, **named)
    except TypeError:
        return False
    return True


def _module(program: ExportedProgram) -> nn.Module:
    """A module that computes what was exported, by the name of the one that was."""
    module = program.module()
    aten = torch.ops.aten
    for node in module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        module.graph.erase_node(node)  # what it says of dtypes is true of any inputs that the program takes
    for node in module.graph.find_nodes(op="call_function", target=aten.expand_as.default):
        if all(user.target is aten.div.Tensor and user.args[0] is node.args[1] for user in node.users):
            node.replace_all_uses_with(node.args[0])  # F.normalize's: div broadcasts by itself
            module.graph.erase_node(node)
    module.recompile()
    stacks = (node.meta.get("nn_module_stack") for node in program.graph.nodes)
    kind = next((list(stack.values())[0][1] for stack in stacks if stack), "ExportedProgram")
    type(module).__name__ = getattr(kind, "__name__", str(kind).rpartition(".")[2])  # fx makes a class for each module
    return module


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


def trace(of: Subject, options: Mapping[str, str], whole: bool = False) -> list[Graph]:
    """The graphs of one call. whole: for a file; a graph break is an error."""
    graphs: list[Graph] = []

    def record(module: GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        forward = GraphModule(module, module.graph.__deepcopy__()).forward  # as written, to be run
        compiled = compile_module(module, lambda _: dict(options), file=whole, rest=None if whole else Told())
        graph = Graph(module, compiled, ())
        graphs.append(graph)

        def run(*args: Any) -> Any:
            graph.args = args
            return forward(*args)

        return run

    with undisturbed(of.model), one_error(of, whole):
        torch.compile(of.wrapped(), backend=record, fullgraph=whole, dynamic=False)(*of.arguments)
    if not graphs:
        raise Error(f"PyTorch traced nothing of {of.title}: this call computes nothing with tensors, or all of it runs "
                    "in Python, as where it calls an LSTM (TORCH_LOGS=graph_breaks says where)", Status.MODEL)
    return graphs


@contextmanager
def one_error(of: Subject, whole: bool = False) -> Iterator[None]:
    """What fails while a model is traced and compiled, as one error that says where and what to do. It has PyTorch's as
    its context, which is not printed. Where the model fails in eager, too, that is the error.
    whole: for a file."""
    try:
        with _unlogged():
            yield
    except Exception as why:
        failure: BaseException = why
        while getattr(failure, "inner_exception", None) is not None:
            failure = failure.inner_exception  # type: ignore[attr-defined]
        if isinstance(failure, Error):
            raise failure from None
        try:
            of.wrapped()(*of.arguments)
        except Exception as own:
            raise own from None
        said = (str(failure).strip().splitlines() or [""])[0].rstrip(".")
        if not isinstance(failure, torch._dynamo.exc.TorchDynamoException):
            said = f"{of.title}: linfuse fails on it: {type(failure).__name__}: {said}. Please report this"
            raise Error(said, Status.UNSUPPORTED) from failure
        line = _line_of(why)
        problem, remedy = _SAVED if whole else _COMPILED
        said = f"{of.title}{problem}: {said}{line and f', at {line}'}. {remedy}."
        raise Error(said, Status.UNSUPPORTED) from None


@contextmanager
def _unlogged() -> Iterator[None]:
    """PyTorch logs the traceback of an op that fails at the trace before it raises the error, which is enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


# What PyTorch cannot do, and the remedy.
_SAVED = (
    " cannot be saved: PyTorch does not see it as one graph",
    "Save the part of the model without it, or write it with ops on tensors (torch.where for an if)",
)
_COMPILED = (
    ": PyTorch cannot compile it, whatever the backend",
    "@torch.compiler.disable on the function of that line leaves it to Python",
)
_OUR_PLACES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def _line_of(why: BaseException) -> str:
    """The user's line that Dynamo was at, as FILE:LINE; nothing where it does not say."""
    stack = getattr(why, "real_stack", None) or traceback.extract_tb(why.__traceback__)
    found = [f"{one.filename}:{one.lineno}" for one in stack if not one.filename.startswith((*_OUR_PLACES, "<"))]
    return found[-1] if found else ""


def title(model: Any) -> str:
    """What to call a model."""
    model = original(model)
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", type(model).__name__)


def _signature(model: Any) -> inspect.Signature:
    model = original(model)
    return inspect.signature(model.forward if isinstance(model, nn.Module) else model)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """What a model takes, where Python can tell."""
    try:
        return _signature(model).parameters
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
