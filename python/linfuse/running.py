# SPDX-License-Identifier: Apache-2.0
"""batch_norm in training: the batch's statistics, fused, and the running ones, which PyTorch's ops write after it.

In training batch_norm never reads its running statistics. So it is the same without them, and they are updated at the
end of the graph by one more node, from the batch's mean and variance: further outputs of the part that has batch_norm.
The count of batches (`num_batches_tracked.add_(1)`), which nobody in the graph reads, goes to the graph's beginning.
Thus neither is in the way of what is fused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from . import ops
from .capture import example, hint, is_named

_STATISTICS = ("running_mean", "running_var")


def update_running_(mean: torch.Tensor, var: torch.Tensor, batch_mean: torch.Tensor, batch_var: torch.Tensor,
                    values: int, momentum: float) -> None:
    """What PyTorch's batch_norm does: the new running variance is the unbiased one, no version counter moves, and a
    batch of nothing changes nothing."""
    if values == 0:
        return
    unbiased = values / (values - 1) if values > 1 else math.nan
    mean.data.mul_(1 - momentum).add_(batch_mean, alpha=momentum)
    var.data.mul_(1 - momentum).add_(batch_var, alpha=momentum * unbiased)


def is_own(node: Node) -> bool:
    """Whether PyTorch runs the node for the sake of running statistics: no reason to call a graph less than fused."""
    return node.target is update_running_ or "linfuse_counts" in node.meta


def separate(graph: Graph) -> None:
    """Takes running statistics out of every batch_norm in training that has any, where nobody else sees them."""
    training = {node: given for node in graph.nodes if (given := _in_training(node)) is not None}
    if not training:
        return
    shared = _shared_memory(graph)
    todo = {node for node, given in training.items() if _is_fusable(given) and _rows(graph, given) is not None
            and all(_is_alone(given[name], shared) for name in _STATISTICS)}
    while True:  # those that share statistics go together, so that updates keep their order
        seen = {node for node in todo if not _users(training[node]) <= todo}
        if not seen:
            break
        todo -= seen
    for node, given in training.items():
        if node in todo:
            _separate(graph, node, given)
    _count_first(graph, shared)


def _memory(node: Node) -> Any:
    value = example(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _shared_memory(graph: Graph) -> set[Any]:
    """Memory that more than one input of the graph is in."""
    counts: dict[Any, int] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            counts[_memory(node)] = counts.get(_memory(node), 0) + 1
    return {memory for memory, count in counts.items() if count > 1}


def _is_alone(node: Node, shared: set[Any]) -> bool:
    """An input, whole, of which no other is a part: who sees its memory uses the node itself."""
    return node.op in ("placeholder", "get_attr") and _memory(node) not in shared


def _users(given: dict[str, Any]) -> set[Node]:
    return {user for name in _STATISTICS for user in given[name].users}


def _in_training(node: Node) -> dict[str, Any] | None:
    """The arguments of a batch_norm that updates running statistics."""
    found = ops.find(node)
    if found is None or found[0].row.op != "batch_norm":
        return None
    try:
        given = found[0].bind(found[1], found[2])
    except ops.Unsupported:
        return None
    whole = given["training"] is True and all(isinstance(given[name], Node) for name in _STATISTICS)
    return given if whole and isinstance(given["input"], Node) else None


def _is_fusable(given: dict[str, Any]) -> bool:
    """Whether it may well be: f32 on two axes, and nothing to be differentiated. PyTorch's own op is kept otherwise."""
    leaves = [given[name] for name in ("input", "weight", "bias", *_STATISTICS) if given[name] is not None]
    tensors: list[Any] = [example(leaf) if isinstance(leaf, Node) else None for leaf in leaves]
    if not all(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float32 for tensor in tensors):
        return False
    return tensors[0].dim() == 2 and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _rows(graph: Graph, given: dict[str, Any]) -> int | tuple[Node, int | None] | None:
    """How many values a column has: a number, or the input of the graph that is that number or has it as an extent."""
    extent: Any = example(given["input"]).shape[0]
    if not is_named(extent):
        return hint(extent)
    for leaf in graph.nodes:
        value: Any = example(leaf) if leaf.op == "placeholder" else None
        if isinstance(value, torch.SymInt) and value.node.expr == extent.node.expr:
            return leaf, None
        sizes: Any = value.shape if isinstance(value, torch.Tensor) else ()
        for axis, size in enumerate(sizes):
            if is_named(size) and size.node.expr == extent.node.expr:
                return leaf, axis
    return None


def _separate(graph: Graph, node: Node, given: dict[str, Any]) -> None:
    x = given["input"]

    def add(name: str, target: Any, *args: Any) -> Node:
        made = graph.create_node("call_function", target, args, {}, name=f"{node.name}_{name}")
        made.meta["example_value"] = target(*[example(arg) if isinstance(arg, Node) else arg for arg in args])
        return made

    with graph.inserting_before(node):
        mean = add("mean", torch.mean, x, 0)
        off = add("off", torch.sub, x, mean)
        var = add("var", torch.mean, add("square", torch.mul, off, off), 0)
    kept, momentum = tuple(given[name] for name in _STATISTICS), given["momentum"]
    values: Any = _rows(graph, given)
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        if isinstance(values, tuple):
            leaf, axis = values
            values = leaf
            if axis is not None:
                values = graph.call_method("size", (leaf, axis))
                values.meta["example_value"] = example(leaf).shape[axis]
        graph.call_function(update_running_, (*kept, mean, var, values, momentum))

    found = ops.find(node)
    assert found is not None
    left = found[0].bound(found[1], found[2])
    left.arguments.update(dict.fromkeys(_STATISTICS))
    if isinstance(momentum, Node):  # of the call: nobody but the update asks for it any more
        left.arguments["momentum"] = 0.1
    node.args, node.kwargs = left.args, left.kwargs


def _count_first(graph: Graph, shared: set[Any]) -> None:
    """Counters of batches that nobody else in the graph sees, before everything else."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "add_" or node.users or node.kwargs or len(node.args) != 2:
            continue
        count, step = node.args
        value = example(count) if isinstance(count, Node) else None
        if isinstance(value, torch.Tensor) and value.dtype is torch.int64 and not value.shape and step == 1:
            assert isinstance(count, Node)
            if count.op == "placeholder" and list(count.users) == [node] and _is_alone(count, shared):
                node.meta["linfuse_counts"] = True
                if node is not first:
                    first.prepend(node)
