# SPDX-License-Identifier: Apache-2.0
"""Which nodes linfuse runs, in which parts, and what is left to PyTorch, with the reason.

Execution alternates: PyTorch's nodes of stage 0, fused part 0, PyTorch's nodes of stage 1, fused part 1 and so on. A
node's stage is the first in which all it needs is there, so parts are as large as they can be and cannot depend on
each other in a circle. A node that writes memory others may see, or changes a state of PyTorch's, has everything
before it in earlier stages and everything after it in later ones; what linfuse does not know keeps its order (random
numbers).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from . import choice, loss_found, native, ops, running, weights
from .capture import NAMINGS, Capture, Naming, device_of, example, is_view_of_param, mark_statistics, target_name
from .fused import CompiledGraph, Layout, Part
from .inplace import drop_idle_autocast, is_random, make_functional, memory_roots, writes
from .ops import Unsupported
from .counters import Left
from .loss_found import LossHead
from .notices import ALONE, VIEW, not_supported, warn_once
from .rest import Eager, InductorFailed, Rest

_CALLS = ("call_function", "call_method", "call_module")


def is_scalar(node: Node) -> bool:
    """Whether a node is about numbers, extents say, and no tensor: fused nodes do without them."""
    return isinstance(example(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size))


@dataclass
class Split:
    """A graph being split."""

    graph: Graph
    context: weights.Context
    file: bool = False  # whether a file is to hold all of it
    naming: Naming = NAMINGS[0]
    reasons: dict[Node, str] = field(default_factory=dict)  # why a node is PyTorch's
    stages: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = [node for node in self.graph.nodes if node.op in _CALLS]
        self.roots = memory_roots(self.graph)

    # ---- what is supported ----

    def probe(self) -> None:
        """Finds under which naming of extents most is supported, and what is not and why."""
        best: dict[Node, str] | None = None
        for naming in NAMINGS:
            reasons = self._reasons(naming)
            if best is None or len(reasons) < len(best):
                best, self.naming = reasons, naming
            if not any(ops.find(node) for node in best):
                break
        self.reasons = dict(best or {})

    def _reasons(self, naming: Naming) -> dict[Node, str]:
        capture = Capture(self.context, naming)
        reasons: dict[Node, str] = {}
        for node in self.nodes:
            if is_scalar(node):
                continue
            try:
                if writes(node) and ops.find(node) is None:
                    raise Unsupported(not_supported(target_name(node)))
                capture.add(node)
            except Unsupported as why:
                reasons[node] = str(why)
        return reasons

    def fusable(self, node: Node) -> bool:
        """Whether linfuse may run the node."""
        return node.op in _CALLS and node not in self.reasons and not is_scalar(node)

    # ---- stages ----

    def schedule(self) -> None:
        """Gives every node its stage."""
        self.stages = {}
        epoch: dict[Node, int] = {}
        first = ordered = now = 0  # the least stage after the last write; after the last node that keeps its order
        for node in self.graph.nodes:
            if node.op not in _CALLS:
                self.stages[node], epoch[node] = 0, now
                continue
            stage = first
            for needed in self.needs(node):
                stage = max(stage, self.stages[needed] + (self.fusable(needed) and not self.fusable(node)))
            if writes(node):
                stage = max([stage] + [s + self.fusable(n) for n, s in self.stages.items() if n.op in _CALLS])
                first, now = stage, now + 1
            elif not self.fusable(node) and not is_scalar(node) and (ops.find(node) is None or is_random(node)):
                stage = ordered = max(stage, ordered)
            self.stages[node], epoch[node] = stage, now
        self._sink(epoch)

    def _sink(self, epoch: dict[Node, int]) -> None:
        """A node that only later parts use belongs there."""
        for node in reversed(self.nodes):
            users = [user for user in node.users if node in self.needs(user) or user.op not in _CALLS]
            near = all(self.fusable(user) and epoch[user] == epoch[node] for user in users)
            if self.fusable(node) and users and near:
                self.stages[node] = max(self.stages[node], min(self.stages[user] for user in users))

    def needs(self, node: Node) -> list[Node]:
        """The nodes that must have run. A fused node wants tensors alone: extents it takes from them."""
        if not self.fusable(node):
            return node.all_input_nodes
        return [needed for needed in node.all_input_nodes if not is_scalar(needed)]

    def parts(self) -> dict[int, list[Node]]:
        """The fusable nodes by stage."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            if self.fusable(node):
                found.setdefault(self.stages[node], []).append(node)
        return found

    def outputs(self, part: list[Node]) -> list[Node]:
        """The nodes of a part whose values are wanted outside it. Views of parameters are had without the part."""
        inside = set(part)
        found = []
        for node in part:
            anew = is_view_of_param(node)
            outside = [user for user in node.users if user not in inside and not (anew and self.fusable(user))]
            if any(self._reads(user, node) for user in outside):
                found.append(node)
        return found

    def _reads(self, user: Node, node: Node) -> bool:
        """Whether the user, where it runs, wants the node's value."""
        if is_scalar(user) and user.op in _CALLS:  # an extent: wanted if somebody in PyTorch asks for it
            return any(self._reads(further, user) for further in user.users)
        return user.op not in _CALLS or node in self.needs(user)

    def idle(self, node: Node) -> bool:
        """Whether PyTorch need not run a node of its own: a view of a parameter that fused parts see by themselves."""
        return not writes(node) and is_view_of_param(node) and all(self.fusable(user) for user in node.users)

    # ---- what does not pay, and what must not be copied ----

    def settle(self) -> dict[int, list[Node]]:
        """Parts that hold: leaves nodes to PyTorch until nothing speaks against any part."""
        while True:
            self.schedule()
            parts = self.parts()
            blocked: dict[Node, str] = {}
            for part in parts.values():
                blocked.update(self._objections(part))
            if not blocked:
                return parts
            self.reasons.update(blocked)

    def _objections(self, part: list[Node]) -> dict[Node, str]:
        outputs = self.outputs(part)
        inside = set(part)
        blocked: dict[Node, str] = {}
        escaped: dict[Node, Node] = {}  # memory -> the output that is in it
        for node in outputs:
            if isinstance(example(node), tuple):
                blocked[node] = VIEW if node not in self.roots[node] else "its result is several tensors"
                continue
            if is_mask(node):
                self._block_mask(node, blocked)
                continue
            if self._moves_for_nothing(node):
                blocked[node] = VIEW
            for root in self.roots[node]:
                if root not in inside or escaped.setdefault(root, node) is not node:
                    blocked[node] = VIEW
        if blocked:
            return blocked
        return {} if outputs and choice.pays(part) else dict.fromkeys(part, ALONE)

    def _moves_for_nothing(self, node: Node) -> bool:
        """Whether a part would write anew what PyTorch, which alone reads it, has as a view in another order of axes.
        Slices are not so: a part computes nothing but what they keep."""
        found = ops.find(node)
        if self.file or found is None or found[0].row.op == "slice" or node in self.roots[node]:
            return False
        turns = not _is_row_major(node) and all(map(_is_row_major, self.roots[node]))
        return turns and not any(map(self.fusable, node.users))

    def _block_mask(self, node: Node, blocked: dict[Node, str]) -> None:
        """Leaves a mask to PyTorch, with what reads it: parts take no tensors of type bool."""
        blocked[node] = "a mask that is wanted as a tensor of type bool"
        for user in node.users:
            if self.fusable(user) and is_mask(user):
                self._block_mask(user, blocked)
            elif self.fusable(user):
                blocked[user] = f"a mask that PyTorch computes, {node.name}"


def _is_row_major(node: Node) -> bool:
    value = example(node)
    return isinstance(value, torch.Tensor) and Layout(value).is_row_major


def is_mask(node: Node) -> bool:
    """Whether a node's value is a tensor of type bool."""
    value = example(node)
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


# ---- the graph around the parts ----


def compile_module(module: GraphModule, options: Callable[[torch.device], dict[str, str]], strict: bool = False,
                   file: bool = False, rest: Rest | None = None, loss_head: str | bool = "auto") -> CompiledGraph:
    """All passes over a graph, in order; the module's own graph is rewritten.

    options:  those of the C library, for the device that the graph is on.
    strict:   a call that cannot run fused is an error; what can is fused, whether or not PyTorch is faster.
    file:     for a file, which is to hold all of it, and has no running statistics of batch_norm that change.
    rest:     how what is not fused runs; in PyTorch, unless said.
    loss_head: which losses become loss heads: one of loss_found.OPTION.
    """
    drop_idle_autocast(module.graph)
    make_functional(module.graph)
    heads: list[LossHead] = []
    if not file:
        heads = loss_found.replace(module.graph, True if strict and loss_head == "auto" else loss_head)
        running.separate(module.graph)
        mark_statistics(module.graph)
    with weights.making:
        context = weights.context(device_of(module.graph), torch.get_num_threads())
        words, choose = options(context.device), not (strict or file)
        compiled = _split(module, context, words, strict, rest or Eager(), choose=choose, file=file)
    compiled.heads = heads
    return compiled


def _split(module: GraphModule, context: weights.Context, options: dict[str, str], strict: bool, rest: Rest,
           choose: bool, file: bool) -> CompiledGraph:
    """Parts fused, the rest as it is. choose: what PyTorch is faster at stays there. file: as of compile_module."""
    work = Split(module.graph, context, file)
    work.probe()
    parts, captures = _settled(work, options, choose)
    left = _left(work)
    whole = _as_a_whole(module, work, parts, captures, options, strict) if not left else None
    if whole is not None:
        return CompiledGraph([whole], [], whole.entry())
    # Updates of running statistics write without PyTorch's knowledge, and inductor has to know.
    if not rest.takes(left, bool(parts)) or any(map(running.is_own, module.graph.nodes)):
        rest = Eager()
    elif choose and rest.fuses:
        while slower := choice.left_to_the_rest(parts.values()):  # what stays may be cut anew
            work.reasons.update(slower)
            parts, captures = _settled(work, options, choose)
        left = _left(work)
    try:
        return _around(module, work, parts, captures, options, strict, left, rest)
    except InductorFailed as why:
        warn_once("inductor", f"inductor failed ({why}), so what linfuse does not fuse runs in PyTorch op by op")
        return _around(module, work, parts, captures, options, strict, left, Eager())


def _settled(work: Split, options: dict[str, str], choose: bool) -> tuple[dict[int, list[Node]], dict[int, Capture]]:
    """Parts that can be captured, by stage, and as models."""
    while True:
        parts = work.settle()
        captures: dict[int, Capture] = {}
        for stage, nodes in parts.items():
            made = _captured(work, nodes)
            if isinstance(made, str):
                work.reasons.update(dict.fromkeys(nodes, made))
            elif choose and (slower := choice.left_to_pytorch(nodes, made, options)):
                work.reasons.update(slower)
            else:
                captures[stage] = made
        if len(captures) == len(parts):
            return parts, captures


def _left(work: Split) -> list[Left]:
    return [Left(node.name, target_name(node), work.reasons[node]) for node in work.nodes if node in work.reasons
            and not (work.idle(node) or running.is_own(node) or loss_found.is_own(node))]


def _captured(work: Split, nodes: list[Node]) -> Capture | str:
    """The part as a model, under the naming of the whole graph or the next that fits; or why not."""
    why = ""
    start = NAMINGS.index(work.naming)
    for naming in NAMINGS[start:] + NAMINGS[:start]:
        capture = Capture(work.context, naming, frozenset(nodes))
        try:
            for node in nodes:
                capture.add(node)
            capture.finish(work.outputs(nodes))
        except (Unsupported, native.Error) as failure:
            why = why or str(failure)
            continue
        if any(not leaf.param for leaf in capture.leaves):
            return capture
        why = "only parameters: nothing to run at a call"
        break
    return why


def _eager(module: GraphModule, nodes: list[Node], args: list[Node], outputs: list[Node]) -> GraphModule:
    """The nodes of a part as a graph of their own, to be run in PyTorch."""
    graph, known = Graph(), dict[Node, Node]()
    for node in args:
        known[node] = graph.placeholder(node.name)
    wanted = set(nodes)
    for node in module.graph.nodes:
        if node in wanted:
            known[node] = graph.node_copy(node, lambda n: known[n])
    graph.output(tuple(known[node] for node in outputs))
    return GraphModule(module, graph)


def _needed(work: Split, capture: Capture, nodes: list[Node]) -> tuple[list[Node], list[Node]]:
    """All nodes a part computes, in order, with views of parameters and extents it sees anew; and what it takes."""
    leaves = [leaf.node for leaf in capture.leaves]
    computed = set(nodes) | {node for node in capture.values if node not in set(leaves)}
    pending = list(computed)
    args = list(leaves)
    while pending:
        for needed in pending.pop().all_input_nodes:
            if needed in computed or needed in args:
                continue
            if is_scalar(needed) and needed.op in _CALLS:
                computed.add(needed)
                pending.append(needed)
            else:
                args.append(needed)
    return [node for node in work.graph.nodes if node in computed], args


def _as_a_whole(module: GraphModule, work: Split, parts: dict[int, list[Node]], captures: dict[int, Capture],
                options: dict[str, str], strict: bool) -> Part | None:
    """The graph as one part that takes and gives exactly what the graph does; None where it is not so simple."""
    if len(parts) != 1 or any(node.op == "get_attr" for node in work.graph.nodes):
        return None
    ((stage, nodes),) = parts.items()
    returned = next(iter(reversed(work.graph.nodes))).args[0]
    if not isinstance(returned, (tuple, list)) or list(returned) != work.outputs(nodes):
        return None
    places = [node for node in work.graph.nodes if node.op == "placeholder"]
    computed, args = _needed(work, captures[stage], nodes)
    if not set(args) <= set(places):
        return None
    outputs = work.outputs(nodes)
    eager = _eager(module, computed, places, outputs)
    return Part("graph", captures[stage], places, outputs, eager, options, strict)


def _around(module: GraphModule, work: Split, parts: dict[int, list[Node]], captures: dict[int, Capture],
            options: dict[str, str], strict: bool, left: list[Left], rest: Rest) -> CompiledGraph:
    """The graph with each part in one node."""
    graph, known = Graph(), dict[Node, Node]()
    root = torch.nn.Module()
    made: list[Part] = []

    def copy(node: Node) -> Node:
        if node not in known:  # extents and views of parameters that only this one wants
            for needed in node.all_input_nodes:
                copy(needed)
            known[node] = graph.node_copy(node, lambda n: known[n])
        return known[node]

    for node in work.graph.nodes:
        if node.op == "placeholder":
            copy(node)
    for stage in sorted(set(work.stages.values())):
        for node in work.nodes:
            if work.stages[node] == stage and not work.fusable(node) and not is_scalar(node) and not work.idle(node):
                copy(node)
        if stage not in parts:
            continue
        outputs = work.outputs(parts[stage])
        computed, args = _needed(work, captures[stage], parts[stage])
        for node in args:
            copy(node)
        eager = _eager(module, computed, args, outputs)
        part = rest.known(Part(f"part{len(made)}", captures[stage], args, outputs, eager, options, strict))
        made.append(part)
        called = rest.call(graph, root, part, [known[node] for node in args])
        for at, node in enumerate(outputs):
            known[node] = graph.call_function(operator.getitem, (called, at))
    returned = next(iter(reversed(work.graph.nodes)))
    graph.output(map_arg(returned.args[0], copy))
    for node in work.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            _share(module, root, str(node.target))
    return CompiledGraph(made, left, rest.compiled(GraphModule(root, graph)))


def _share(module: GraphModule, root: torch.nn.Module, path: str) -> None:
    """Makes what the graph reads by path readable in another module, without a copy."""
    head = path.split(".")[0]
    if not hasattr(root, head):
        held: Any = getattr(module, head)
        setattr(root, head, held)
