# SPDX-License-Identifier: Apache-2.0
"""Loss heads as people write them. In a graph of PyTorch's a linear layer, what picks or scales its logits, and a
cross-entropy of them become one call of the loss head, where nobody else reads the logits:

    F.cross_entropy(F.linear(h, W)[..., :-1, :].float().reshape(-1, N), labels[..., 1:].reshape(-1))
    F.nll_loss(F.log_softmax(h @ W.T / 0.7, dim=-1), target)
    F.log_softmax(F.linear(h, W), dim=-1).gather(-1, target.unsqueeze(-1))

What picks rows of the logits then picks them of h, and what scales them is the head's softcap and temperature.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.nn import Parameter

from . import loss, ops
from .amounts import bytes_of, flops_of
from .capture import example, hint, hints, is_named, line_of
from .inplace import is_autocast, writes
from .ops import Unsupported

OPTION = ("auto", True, False)  # option loss_head
# Bytes of logits from which on a head takes no longer than eager on a CPU: measured on one core of an AMD EPYC with
# AVX512-BF16, forward and backward, its time by eager's: in f32 6 at 3 kB, 1.2 at 128 kB, 1.05 at 512 kB, 0.57 at 1 MB.
# In half precision, which eager multiplies faster there, it is for memory: 2 to 2.8 from 0.5 to 2 MB.
_LEAST = {torch.float32: 256 << 10}
_LEAST_OTHERS = 16 << 20
_LEAST_SCALE = Fraction(1, 2**126)  # of logits; beyond, a factor or what it is divided by is no normal float
_NO_WORD = torch.iinfo(torch.int64).min  # where no target is to be ignored
_NAMED = ("none", "mean", "sum")  # a reduction by ATen's number


def head(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
         ignore_index: int, label_smoothing: float, reduction: str, softcap: float | None, temperature: float,
         operand: torch.dtype, want: Sequence[bool], dtype: torch.dtype) -> Tensor:
    """What a graph calls. x: [..., K]; target: words, as many as there are rows, in the shape of what "none" gives."""
    rows = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    given = loss.Given((rows, weight, bias, target.reshape(-1), class_weight), operand, None, 0)
    found = loss.of_rows(given, ignore_index, label_smoothing, reduction, softcap, temperature, 0.0, want)
    return (found.reshape(target.shape) if reduction == "none" else found).to(dtype)


def is_own(node: Node) -> bool:
    """Whether a node is a loss head, found or written as one, an item of what its op gives, or a view that only makes
    its targets."""
    of = node.args[0] if node.target is operator.getitem else None
    return _is_head(node) or (isinstance(of, Node) and _is_head(of) and isinstance(example(of), tuple)) or _aims(node)


def _is_head(node: Node) -> bool:
    overload = isinstance(node.target, torch._ops.OpOverload)
    packet = node.target.overloadpacket if overload else node.target  # type: ignore[union-attr]
    return packet in (head, torch.ops.linfuse.head_loss, torch.ops.linfuse.head_rows)


def _aims(node: Node) -> bool:
    found, value = ops.find(node), example(node)
    if found is None or found[0].row.kind != "view" or not isinstance(value, Tensor) or value.is_floating_point():
        return False
    return bool(node.users) and all(user.args[3] is node if _is_head(user) else _aims(user) for user in node.users)


@dataclass(frozen=True)
class LossHead:
    """One that was found: its node, what it stands for, in which line of the user's, and how large it is."""

    node: str
    covers: tuple[str, ...]
    line: str
    rows: int
    words: int
    features: int
    reduction: str

    @property
    def logits_bytes(self) -> int:
        return 4 * self.rows * self.words

    @property
    def flops(self) -> int:
        """Of one product."""
        return 2 * self.rows * self.words * self.features

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "logits_bytes": self.logits_bytes, "flops": self.flops}

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        several = len(self.covers) > 1
        what = f"{self.covers[0]} and {self.covers[-1]}{where} are one" if several else f"{self.node}{where} is a"
        if self.reduction == "none":
            more = "with gradients four, as backward makes the logits again"
        else:
            more = (f"with gradients three, made at once and held until backward in up to "
                    f"{bytes_of(4 * self.features * (self.rows + self.words))}")
        return (f"{what} loss head: its {self.rows} x {self.words} logits, {bytes_of(self.logits_bytes)}, are never "
                f"stored. The loss takes one product of {flops_of(self.flops)}, {more}.")


def replace(graph: Graph, asked: str | bool) -> list[LossHead]:
    """Replaces losses by heads in a graph without idle writes, and gives all heads, those that were written as such
    too. asked: of the option; "auto": those that pay."""
    found = []
    transformed = any(map(_transforms, graph.nodes))
    for node in list(graph.nodes):
        if _is_head(node):
            found.append(_as_written(node))
            continue
        written = _written(node)
        if written is None or asked is False or transformed:
            continue
        chain = _chain(written.logits)
        if chain is None:
            continue
        try:
            made = _Maker(graph, written, chain)
            made.check()
            if asked == "auto":
                _pays(made.size, example(chain[0]))
            made.replace()
        except Unsupported as why:
            node.meta["linfuse_left"] = f"no loss head: {why}"
            continue
        found.append(made.size)
    return found


def _transforms(node: Node) -> bool:
    """Whether a node belongs to vmap, grad or another transform of torch.func. Within one, what an example says of
    gradients is not what the caller gets."""
    return str(getattr(node.target, "__module__", "")).startswith(("torch._functorch", "torch._C._functorch"))


def _as_written(node: Node) -> LossHead:
    x, weight = (hints(example(arg)) for arg in node.args[:2])  # type: ignore[arg-type]
    reduction = next((arg for arg in node.args if arg in _NAMED), "none")
    return LossHead(node.name, (node.name,), line_of(node), *x[:1], *weight, reduction)  # type: ignore[arg-type]


def _pays(size: LossHead, logits: Tensor) -> None:
    if logits.device.type != "cpu":
        raise Unsupported("not yet tuned for a GPU; the option loss_head=True asks for it")
    if size.logits_bytes < _LEAST.get(logits.dtype, _LEAST_OTHERS):
        raise Unsupported(f"its logits take {bytes_of(size.logits_bytes)}, which PyTorch is faster with; the option "
                          "loss_head=True asks for it")


# ---- how losses are written ----


class _Written(NamedTuple):
    """A loss as a node has it."""

    node: Node
    logits: Node
    target: Node
    class_weight: Node | None
    reduction: str
    ignore_index: int
    label_smoothing: float
    log_softmax: bool  # whether its input must be one's
    gather: int | None  # the dim of a gather


_OF_LOSSES = {
    F.cross_entropy: inspect.signature(F.cross_entropy),
    F.nll_loss: inspect.signature(F.nll_loss),
    torch.ops.aten.cross_entropy_loss.default: inspect.signature(
        lambda input, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0: 0),
    torch.ops.aten.nll_loss_nd.default: inspect.signature(
        lambda input, target, weight=None, reduction=1, ignore_index=-100: 0),
}
_GATHERS = (torch.gather, torch.ops.aten.gather.default, "gather")
_GATHER = inspect.signature(lambda input, dim, index, *, sparse_grad=False: 0)


def _written(node: Node) -> _Written | None:
    if node.op not in ("call_function", "call_method"):
        return None
    gathers = node.target in _GATHERS
    try:
        signature = _GATHER if gathers else _OF_LOSSES.get(node.target)  # type: ignore[call-overload]
        if signature is None:
            return None
        named = {"input" if key == "self" else key: value for key, value in node.kwargs.items()}
        bound = signature.bind(*node.args, **named)
    except TypeError:
        return None
    bound.apply_defaults()
    given = dict(bound.arguments)
    logits, target = given["input"], given["index" if gathers else "target"]
    if not isinstance(logits, Node) or not isinstance(target, Node) or not isinstance(example(logits), Tensor):
        return None
    if gathers:  # a word that is out of range is an error of a gather's too
        return _Written(node, logits, target, None, "none", _NO_WORD, 0.0, True, given["dim"])
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return None
    reduction = given["reduction"]
    reduction = _NAMED[reduction] if isinstance(reduction, int) else reduction
    return _Written(node, logits, target, given["weight"], reduction, given["ignore_index"],
                    given.get("label_smoothing", 0.0), "label_smoothing" not in given, None)


def _chain(last: Node) -> list[Node] | None:
    """The nodes from a product's to the loss's input, each of which takes the one before; None where there is none."""
    chain = [last]
    while True:
        found = ops.find(chain[-1])
        if found is None:
            return None
        spelling, args, kwargs = found
        if spelling.row.op in ("linear", "matmul"):
            return chain[::-1]
        if spelling.row.op not in _STEPS:
            return None
        tensors = [one for one in (*args, *kwargs.values())
                   if isinstance(one, Node) and isinstance(example(one), Tensor)]
        if len(tensors) != 1:
            return None
        chain.append(tensors[0])


# ---- from the product to the loss ----


class _Maker:
    """One head being made: what the steps between product and loss come to."""

    def __init__(self, graph: Graph, written: _Written, chain: list[Node]):
        self._graph, self._written, self._chain = graph, written, chain
        self._product, *self._steps = chain
        self._x, self._weight, self._bias, self._turned = self._operands()
        logits = example(self._product)
        self.axis = len(logits.shape) - 1  # the words'
        self._words = hint(logits.shape[-1])
        self._factor, self._cap = Fraction(1), None  # logits so far: the product, capped, times factor
        self._log_softmax = False
        self._picks: list[Node] = []  # what picks rows, and reshapes before it
        rows = math.prod(hints(example(written.logits))) // max(self._words, 1)
        covers = tuple(one.name for one in (*chain, written.node))
        self.size = LossHead(written.node.name, covers, line_of(written.node), rows, self._words,
                             hint(example(self._x).shape[-1]), written.reduction)

    def _operands(self) -> tuple[Node, Node, Node | None, bool]:
        """x, the weight, the bias; and whether the weight is to be transposed first."""
        found = ops.find(self._product)
        assert found is not None
        spelling, args, kwargs = found
        x, other, *rest = spelling.bind(args, kwargs).values()
        both = [example(one) if isinstance(one, Node) else None for one in (x, other)]
        if not all(isinstance(one, Tensor) for one in both) or both[1].dim() != 2 or len(rest) > 1:
            raise Unsupported("its product is no linear layer's")
        if spelling.row.op == "linear":
            return x, other, rest[0], False
        turned = ops.find(other)
        if turned is not None and turned[0].row.op == "transpose" and _order(other) == [1, 0]:
            return x, other.all_input_nodes[0], None, False
        return x, other, None, True

    def check(self) -> None:
        """That the whole means what a head computes; Unsupported says why not."""
        self._check_operands()
        self._check_readers()
        of = self._written
        for node in self._steps:
            found = ops.find(node)
            assert found is not None
            spelling, args, kwargs = found
            if _kind(node) != _kind(self._product):
                raise Unsupported(f"{node.name} takes its logits out of the gradient, to another device or to float64")
            _STEPS[spelling.row.op](self, node, spelling, spelling.bind(args, kwargs))
        rank, target = len(example(of.logits).shape), example(of.target)
        axis = min(1, rank - 1) if of.gather is None else of.gather % rank
        if self._words < 2 or self.axis != axis:
            raise Unsupported("its words are along another dim than the loss's")
        if not all(_LEAST_SCALE < abs(scale) < 1 / _LEAST_SCALE for scale in (self._factor, self._cap or 1)):
            raise Unsupported("its logits are scaled beyond what float32 holds")
        if not isinstance(target, Tensor) or target.dtype is not torch.int64:
            raise Unsupported("its targets are not words of type int64")
        if of.gather is not None and (self.axis != rank - 1 or hints(target) != (*hints(example(of.logits))[:-1], 1)):
            raise Unsupported("it gathers other than one word a row")
        if of.log_softmax and not self._log_softmax:
            raise Unsupported("its input is no log_softmax")
        if of.reduction not in _NAMED or not 0 <= of.label_smoothing <= 1:
            raise Unsupported("PyTorch refuses its reduction or label_smoothing")
        if of.class_weight is not None and example(of.class_weight).requires_grad:
            raise Unsupported("its class weights require grad")
        while self._picks and not _selects(self._picks[-1]):  # how rows are arranged behind the last pick is the same
            self._picks.pop()
        wide = self._picks and is_named(example(self._x).shape[-1])
        if wide or any(_arranged(node).count(-1) > 1 for node in self._picks if not _selects(node)):
            raise Unsupported("its rows are picked from extents that are not numbers")

    def _check_operands(self) -> None:
        of = self._written
        if not all(isinstance(one, (int, float)) for one in (of.ignore_index, of.label_smoothing, of.gather or 0)):
            raise Unsupported("its ignore_index, label_smoothing or dim is only known at the call")
        for node in (self._x, self._weight, self._bias, of.target, of.class_weight):
            value = None if node is None else example(node)
            if node is not None and not isinstance(value, FakeTensor) and type(value) not in (Tensor, Parameter):
                raise Unsupported(f"{node.name} is of the class {type(value).__name__}, and no plain tensor")
        if self._bias is not None and hints(example(self._bias)) != (self._words,):
            raise Unsupported(f"{self._bias.name} is not one number a word")

    def _check_readers(self) -> None:
        """That nobody else reads the logits, and nothing they are made of is written before the loss."""
        for node, reader in zip(self._chain, [*self._steps, self._written.node]):
            others = [user for user in node.users if user is not reader]
            if others:
                names = ", ".join("the caller" if user.op == "output" else user.name for user in others)
                raise Unsupported(f"its logits ({node.name}) are also read by {names}")
        between = False
        for node in self._graph.nodes:
            between = between or node is self._product
            if node is self._written.node:
                break
            if between and writes(node) and not is_autocast(node):
                raise Unsupported(f"{node.name} may change something between its logits and the loss")

    # ---- steps ----

    def _itself(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        if "training" in given and given["training"] and given["p"] != 0:
            raise Unsupported("dropout of its logits is random")

    def _scaled(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        one, by, *rest = given.values()
        divides = spelling.row.op == "div"
        if isinstance(by, Node) and not divides:
            one, by = by, one
        if self._log_softmax or any(rest) or not isinstance(by, (int, float)) or not math.isfinite(by) or by == 0:
            raise Unsupported(f"{node.name} does not scale its logits by a number")
        self._factor *= 1 / Fraction(by) if divides else Fraction(by)

    def _tanh(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        if self._log_softmax or self._cap is not None or self._factor <= 0:
            raise Unsupported(f"{node.name} does not cap its logits")
        self._cap = 1 / self._factor  # tanh(z / cap) is cap * tanh(z / cap) times the factor that there is

    def _softmax(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        if given.get("dim") is None or given["dim"] % len(example(node).shape) != self.axis or self._log_softmax:
            raise Unsupported(f"{node.name} is not over words")
        self._log_softmax = True

    def _reshape(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        before, after = example(node.all_input_nodes[0]), example(node)
        if before.dtype is not after.dtype or self.axis != len(before.shape) - 1 or not after.shape \
                or hint(after.shape[-1]) != self._words:
            raise Unsupported(f"{node.name} does not keep rows of logits whole")
        self.axis = len(after.shape) - 1
        self._picks.append(node)

    def _transpose(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        order = _order(node)
        rows = [axis for axis in order if axis != self.axis]
        if rows != sorted(rows):
            raise Unsupported(f"{node.name} changes the order of its rows")
        self.axis = order.index(self.axis)

    def _slice(self, node: Node, spelling: ops.Spelling, given: dict[str, Any]) -> None:
        before = hints(example(node.all_input_nodes[0]))
        features = hint(example(self._x).shape[-1])
        if self.axis != len(before) - 1 or not (_keeps_rows(node, before) and
                                                _keeps_rows(node, (*before[:-1], features))):
            raise Unsupported(f"{node.name} does not keep rows of its logits whole")
        self.axis = len(example(node).shape) - 1
        self._picks.append(node)

    # ---- making ----

    def replace(self) -> None:
        of, product = self._written, self._product
        grads = example(of.node).requires_grad
        leaves = self._x, self._weight, self._bias
        want = [grads and one is not None and example(one).requires_grad for one in leaves]
        with self._graph.inserting_before(of.node):
            x = self._picked()
            weight = self._call("t", self._weight) if self._turned else self._weight
            cap, temperature = self._cap, 1 / self._factor
            made = self._graph.call_function(head, (
                x, weight, self._bias, of.target, of.class_weight, of.ignore_index, float(of.label_smoothing),
                of.reduction, None if cap is None else float(cap), float(temperature), example(product).dtype, want,
                example(of.node).dtype))
            made.meta = dict(of.node.meta)
            if of.gather is not None:
                made = self._graph.call_function(torch.neg, (made,))
                made.meta = dict(of.node.meta)
        of.node.replace_all_uses_with(made)
        unused = [of.node, *reversed(self._chain), *(node for node in product.all_input_nodes if ops.find(node))]
        for node in unused:
            if not node.users:
                self._graph.erase_node(node)

    def _picked(self) -> Node:
        """x with the rows that were picked of the logits."""
        x = self._x
        for node in self._picks:
            if _selects(node):
                made = self._graph.node_copy(node, lambda _: x)
                made.meta = {"example_value": _applied(node, example(x))}
                x = made
            else:
                x = self._call("reshape", x, *_arranged(node), int(example(x).shape[-1]))
        return x

    def _call(self, method: str, x: Node, *args: int) -> Node:
        made = self._graph.call_method(method, (x, *args))
        made.meta = {"example_value": getattr(example(x), method)(*args)}
        return made


def _arranged(node: Node) -> list[int]:
    """Extents of a reshape's result but for the last; one of them may be open."""
    return [-1 if is_named(extent) else int(extent) for extent in example(node).shape[:-1]]


def _kind(node: Node) -> tuple[Any, ...]:
    """What must stay as it is from the product to the loss: where logits are, whether they are double, whether a
    gradient goes through them."""
    value = example(node)
    return value.device, value.dtype is torch.float64, value.requires_grad, value.is_floating_point()


def _selects(node: Node) -> bool:
    found = ops.find(node)
    return found is not None and found[0].row.op == "slice"


def _keeps_rows(node: Node, extents: Sequence[int]) -> bool:
    """Whether a slice of a tensor of these extents takes rows of it as they are."""
    whole = torch.empty(tuple(extents), device="meta")
    try:
        seen = _applied(node, whole)
    except RuntimeError:  # PyTorch refuses it
        return False
    is_view = seen.untyped_storage()._cdata == whole.untyped_storage()._cdata
    return bool(is_view and seen.shape[-1:] == whole.shape[-1:] and seen.stride(-1) == 1
                and seen.storage_offset() % max(whole.shape[-1], 1) == 0)


def _order(node: Node) -> list[int]:
    """The axes of a transposition's argument in the order of its result."""
    rank = len(example(node).shape)
    return [extent - 1 for extent in _applied(node, torch.empty(tuple(range(1, rank + 1)), device="meta")).shape]


def _applied(node: Node, to: Any) -> Any:
    """What a view makes of another tensor."""
    if len(node.all_input_nodes) != 1:
        raise Unsupported(f"{node.name} has numbers that are only known at the call")
    (taken,) = node.all_input_nodes
    args, kwargs = map_arg((node.args, node.kwargs), lambda arg: to if arg is taken else arg)
    target: Any = getattr(Tensor, str(node.target)) if node.op == "call_method" else node.target
    return target(*args, **kwargs)


_STEPS: dict[str, Callable[[_Maker, Node, ops.Spelling, dict[str, Any]], None]] = {
    "to": _Maker._itself, "clone": _Maker._itself, "dropout": _Maker._itself,
    "mul": _Maker._scaled, "div": _Maker._scaled, "tanh": _Maker._tanh, "log_softmax": _Maker._softmax,
    "reshape": _Maker._reshape, "flatten": _Maker._reshape, "squeeze": _Maker._reshape, "unsqueeze": _Maker._reshape,
    "transpose": _Maker._transpose, "slice": _Maker._slice,
}
