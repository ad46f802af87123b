# SPDX-License-Identifier: Apache-2.0
"""In-place ops: which of them nobody can tell from their functional form, and which have an effect outside.

A write is harmless where what is written was made in this graph by an op that makes fresh memory, and where nothing
else that may share the memory is read afterwards. Such a node is replaced by its functional form, and whoever read
the written tensor later reads the new value. All others stay as they are, and nothing is moved across them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from . import ops
from .capture import example


def make_functional(graph: Graph) -> None:
    """Replaces harmless in-place ops."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    roots = memory_roots(graph)
    for node in list(graph.nodes):
        found = ops.find(node)
        if found is None or not found[0].changes_first(found[1], found[2]):
            continue
        target = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(target, Node) or not _harmless(node, target, roots, order):
            continue
        with graph.inserting_before(node):
            made = _functional(graph, node)
        if made is None:
            continue
        made.meta = dict(node.meta)
        order[made], roots[made] = order[node], frozenset({made})
        node.replace_all_uses_with(made)
        for user in [user for user in target.users if order[user] > order[node] and user is not made]:
            user.replace_input_with(target, made)
        for other, found_roots in roots.items():  # what was the written memory is the new value's from here on
            if order[other] >= order[node] and roots[target] & found_roots:
                roots[other] = frozenset({made}) if found_roots == roots[target] else found_roots | {made}
        graph.erase_node(node)


def memory_roots(graph: Graph) -> dict[Node, frozenset[Node]]:
    """For each node, the nodes whose memory its value may be in."""
    roots: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        found = ops.find(node)
        if found is not None and _is_fresh(node, found[0]) and not found[0].changes_first(found[1], found[2]):
            roots[node] = frozenset({node})
            continue
        inputs = [roots[arg] for arg in node.all_input_nodes if isinstance(example(arg), (torch.Tensor, tuple, list))]
        if found is not None:  # a view, or written in place: the first argument's
            first = node.args[0] if node.args else node.kwargs.get("input")
            roots[node] = roots[first] if isinstance(first, Node) else frozenset({node})
        else:  # what is not known may return what it was given
            roots[node] = frozenset({node}).union(*inputs)
    return roots


def _is_fresh(node: Node, spelling: ops.Spelling) -> bool:
    """Whether a node's value is in memory of its own: of what is no view, and of a cast to another type."""
    if spelling.row.kind == "compute" or spelling.row.op != "to":
        return spelling.row.kind == "compute"
    first, value = node.args[0] if node.args else None, example(node)
    before = example(first) if isinstance(first, Node) else None
    tensors = isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor)
    return tensors and value.dtype is not before.dtype


def _harmless(node: Node, target: Node, roots: dict[Node, frozenset[Node]], order: dict[Node, int]) -> bool:
    if len(roots[target]) != 1:
        return False
    (root,) = roots[target]
    found = ops.find(root)
    if found is None or found[0].row.kind != "compute" or example(node) is None:
        return False
    if any(_promotes(example(arg), example(target)) for arg in node.all_input_nodes):
        return False
    for other, other_roots in roots.items():
        if root in other_roots and other is not target and order[other] < order[node]:
            if any(order[user] > order[node] for user in other.users):
                return False
    return True


def _promotes(other: Any, target: Any) -> bool:
    """Whether the functional form would have another dtype than what is written."""
    return isinstance(other, torch.Tensor) and torch.result_type(target, other) is not target.dtype


def _functional(graph: Graph, node: Node) -> Node | None:
    """The same op without the write, before the node; None where there is none."""
    args, kwargs = node.args, dict(node.kwargs)
    target: Any = node.target
    spelling = ops.find(node)[0]  # type: ignore[index]
    if not spelling.in_place:  # inplace=True, by name or by place
        bound = spelling.signature.bind(*args, **kwargs)
        bound.arguments["inplace"] = False
        return graph.create_node(node.op, target, bound.args, bound.kwargs)
    space, _, leaf = spelling.name.rpartition(".")
    if isinstance(target, torch._ops.OpOverload):
        packet = getattr(torch.ops.aten, leaf.removesuffix("_"), None)
        function = getattr(packet, target._overloadname, None)
        return graph.call_function(function, args, kwargs) if function is not None else None
    if node.op == "call_method":
        return graph.call_method(target.removesuffix("_"), args, kwargs)
    if space == "operator":
        return graph.call_function(getattr(operator, leaf[1:]), args, kwargs)
    holder = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor}.get(space)
    function = getattr(holder, leaf.removesuffix("_"), None)
    return graph.call_function(function, args, kwargs) if function is not None else None


_NAMES = "iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
_IN_PLACE_OPERATORS = {getattr(operator, name) for name in _NAMES}
_STATISTICS = ("batch_norm", "instance_norm")


_enter_autocast, _exit_autocast = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def drop_idle_autocast(graph: Graph) -> None:
    """Takes out statements that switch autocast off where it is off."""
    on: dict[str, bool] = {}  # by sort of device
    before: dict[Node, tuple[str, bool]] = {}
    for node in list(graph.nodes):
        if node.target is _enter_autocast:
            kind, _, enabled, *_ = node.args
            before[node] = kind, on.setdefault(kind, torch.is_autocast_enabled(kind))
            on[kind] = bool(enabled)
        elif node.target is _exit_autocast:
            entered: Any = node.args[0]
            kind, was_on = before[entered]
            if not was_on and not on[kind]:
                graph.erase_node(node)
                graph.erase_node(entered)
            on[kind] = was_on


def is_autocast(node: Node) -> bool:
    """Whether a node switches autocast."""
    return node.target in (_enter_autocast, _exit_autocast)


def writes(node: Node) -> bool:
    """Whether a node may change memory that others see, or a state of PyTorch's: nothing is moved across it."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    if is_autocast(node):  # what types come out between depends on it
        return True
    found = ops.find(node)
    if found is not None:
        spelling, args, kwargs = found
        if spelling.changes_first(args, kwargs) or kwargs.get("out") is not None:
            return True
        return spelling.row.op in _STATISTICS and _updates_statistics(spelling, args, kwargs)
    if node.op == "call_module" or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "delitem", "__setitem__", "setattr"):
        return True
    if node.target in _IN_PLACE_OPERATORS:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return bool(schema.is_mutable)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    return not _gives_something(node)


def _updates_statistics(spelling: ops.Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        given = spelling.bind(args, kwargs)
    except ops.Unsupported:
        return True
    return bool(given.get("training", given.get("use_input_stats"))) and given["running_mean"] is not None


def is_random(node: Node) -> bool:
    """Whether a node of the table draws random numbers where linfuse does not run it."""
    found = ops.find(node)
    return found is not None and found[0].row.op == "dropout"


def _gives_something(node: Node) -> bool:
    """What takes no tensor and gives none, like entering a mode, is there for its effect."""
    inputs: list[Node] = []
    map_arg((node.args, node.kwargs), inputs.append)
    return bool(inputs) or isinstance(example(node), (torch.Tensor, tuple, list, torch.SymInt, int, float))
