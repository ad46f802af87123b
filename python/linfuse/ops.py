# SPDX-License-Identifier: Apache-2.0
"""PyTorch's spellings and what they are in linfuse: one table, one row an op.

A row names the linfuse op, the ways PyTorch spells it by signature, and, where the arguments do not simply carry over
by name, the function that builds it. A spelling is `torch.name`, `F.name` (torch.nn.functional), `Tensor.name` (a
method), `operator.name` or `.name` (an attribute); `@name` stands for torch.name, Tensor.name and their in-place forms.
A name that this PyTorch does not have is left out. An ATen overload (torch.export's graphs are made of them) is found
by its op's name: what the table says of torch.mean holds for aten.mean.dim, whose schema names its arguments.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from . import native
from .native import Value


class Unsupported(Exception):
    """Why linfuse leaves a node to PyTorch."""


class Site(Protocol):
    """Where an op is being built: what a row's function may ask and do (capture.py)."""

    out: tuple[int, ...]  # the result's extents at the trace
    pieces: tuple[tuple[int, ...], ...]  # those of each result, where there are several
    out_named: tuple[bool, ...]  # which of them depend on a named extent, by PyTorch's word
    out_dtype: torch.dtype  # the result's, which its arguments are brought to where PyTorch does that

    def emit(self, op: str, *args: Any, **keywords: Any) -> Value: ...
    def shape(self, value: Value) -> tuple[int, ...]: ...
    def transposed(self, value: Value) -> Value | None: ...
    def rounded(self, number: Any, like: Value) -> Any: ...
    def cast(self, value: Value) -> Value: ...


Build = Callable[[Site, dict[str, Any]], Any]


@dataclass(frozen=True)
class Row:
    """One op. kind: compute; view (the result may share memory with the first argument); or views (several may)."""

    op: str
    kind: str
    build: Build | None
    fixed: Mapping[str, Any]


@dataclass(frozen=True)
class Spelling:
    """One way to write a row."""

    row: Row
    name: str
    signature: inspect.Signature
    in_place: bool

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Arguments as they go to the op, defaults filled in. NumPy's names for dim and keepdim are PyTorch's too."""
        named = {_ALIASES.get(key, key): value for key, value in kwargs.items()}
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as why:
            raise Unsupported(f"{self.name}: {why}") from None
        bound.apply_defaults()
        return bound

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same by name."""
        return dict(self.bound(args, kwargs).arguments)

    def changes_first(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether this use writes into its first argument."""
        if self.in_place or "inplace" not in self.signature.parameters:
            return self.in_place
        try:
            return bool(self.bind(args, kwargs)["inplace"])
        except Unsupported:
            return True


@dataclass(frozen=True)
class Overload(Spelling):
    """An overload of an ATen op: the signature is its own, what the arguments mean is said by the spelling it is of."""

    of: Spelling

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """By the names the row knows. What only ATen has a name for is left out where it is the default."""
        own, known = self.signature.parameters, self.of.signature.parameters
        bound = self.bound(args, kwargs).arguments.items()
        given = {name: value for name, value in bound if name in known or value != own[name].default}
        missing = {name: one.default for name, one in known.items() if one.default is not one.empty}
        return {**given, **{name: value for name, value in missing.items() if name not in given}}


_ALIASES = {
    "train": "training",
    "axis": "dim",
    "keepdims": "keepdim",
    "self": "input",
    "axis0": "dim0",
    "axis1": "dim1",
    "ord": "p",
    "tensor": "input",
}
# Arguments that choose no other result, whatever they are.
_NO_MATTER = {"inplace", "_stacklevel", "memory_format", "cudnn_enable", "cudnn_enabled"}
KINDS = {row.name: row.kind for row in native.ops()}  # of linfuse's ops: product, pointwise ...
_LF_PARAMS = {row.name: [re.split("[=:]", p)[0].split()[1] for p in row.signature.split(", ") if p]
              for row in native.ops()}


def plain(site: Site, row: Row, given: dict[str, Any]) -> Value:
    """Arguments carried over by name. What linfuse has no name for must not have been asked for."""
    for name, value in given.items():
        idle = value is None or name in _NO_MATTER or (name == "dtype" and value is site.out_dtype)
        if name not in _LF_PARAMS[row.op] and not idle:
            raise Unsupported(f"{row.op} has no {name}")
    keep = {name: value for name, value in given.items() if name in _LF_PARAMS[row.op]}
    first = next(iter(keep))
    return site.emit(row.op, keep.pop(first), **keep, **row.fixed)


# ---- products ----


def _linear(site: Site, given: dict[str, Any]) -> Value:
    return _of_rows(site, given["input"], lambda x: site.emit("linear", x, given["weight"], given["bias"]))


def _of_rows(site: Site, x: Value, product: Callable[[Value], Value]) -> Value:
    """A product of a vector is one of a single row."""
    if len(site.shape(x)) != 1:
        return product(x)
    return site.emit("squeeze", product(site.emit("unsqueeze", x, 0)), [0])


def _matmul(site: Site, given: dict[str, Any]) -> Value:
    x, y = given["input"], given["other"]
    if not (isinstance(x, Value) and isinstance(y, Value)):
        raise Unsupported("matmul: a side is a number")
    if len(site.shape(y)) == 1:
        one_row = site.emit("unsqueeze", y, 0)
        return _of_rows(site, x, lambda row: site.emit("squeeze", site.emit("linear", row, one_row), [-1]))
    weight = site.transposed(y)
    if weight is not None:
        return _of_rows(site, x, lambda row: site.emit("linear", row, weight))
    return _of_rows(site, x, lambda row: site.emit("matmul", row, y))


def _mm(site: Site, given: dict[str, Any]) -> Value:
    x, other = given.values()
    return _matmul(site, {"input": x, "other": other})


def _addmm(site: Site, given: dict[str, Any]) -> Value:
    bias, beta, alpha = given["input"], given["beta"], given["alpha"]
    weight = site.transposed(given["mat2"])
    if weight is not None and beta == alpha == 1 and site.shape(bias) == site.shape(weight)[:1]:
        return site.emit("linear", given["mat1"], weight, bias)
    product = _matmul(site, {"input": given["mat1"], "other": given["mat2"]})
    if alpha != 1:
        product = site.emit("mul", product, alpha)
    return product if beta == 0 else site.emit("add", product, bias, alpha=beta)  # beta 0: bias is not even read


# ---- one value ----


def _clamp(site: Site, given: dict[str, Any]) -> Value:
    x, low, high = given["input"], given.get("min"), given.get("max")
    if not isinstance(low, Value) and not isinstance(high, Value):
        return site.emit("clamp", x, low, high)
    x = x if low is None else site.emit("maximum", x, low)
    return x if high is None else site.emit("minimum", x, high)


def _pow(site: Site, given: dict[str, Any]) -> Value:
    if not isinstance(given["input"], Value) or isinstance(given["exponent"], Value):
        raise Unsupported("pow: only a number is taken as exponent")
    return site.emit("pow", given["input"], given["exponent"])


def _dropout(site: Site, given: dict[str, Any]) -> Value:
    if given["training"] and given["p"] != 0:
        raise Unsupported("dropout in training is random; model.eval() switches it off")
    return _itself(site, given)


def _itself(site: Site, given: dict[str, Any]) -> Value:
    value: Value = given["input"]
    return value


def _to(site: Site, given: dict[str, Any]) -> Value:
    return site.cast(given["input"])


def _compared(op: str) -> Build:
    """A number is first rounded to the type of the tensor that it is compared with."""

    def build(site: Site, given: dict[str, Any]) -> Value:
        x, y = given["input"], given["other"]
        if isinstance(x, Value) == isinstance(y, Value):
            return site.emit(op, x, y)
        return site.emit(op, x, site.rounded(y, x)) if isinstance(x, Value) else site.emit(op, site.rounded(x, y), y)

    return build


def _where(site: Site, given: dict[str, Any]) -> Value:
    if given["input"] is None or given["other"] is None:
        raise Unsupported("where: gives positions")
    return site.emit("where", given["condition"], given["input"], given["other"])


def _masked_fill(site: Site, given: dict[str, Any]) -> Value:
    return site.emit("where", given["mask"], given["value"], given["input"])


def _rsub(site: Site, given: dict[str, Any]) -> Value:
    return site.emit("sub", given["other"], given["input"], alpha=given["alpha"])


# ---- reductions and normalisations ----


def _amax(op: str) -> Build:
    def build(site: Site, given: dict[str, Any]) -> Value:
        dim = given["dim"]
        return site.emit(op, given["input"], None if dim == () or dim == [] else dim, given["keepdim"])

    return build


def _max(op: str, of_two: str) -> Build:
    """max(x), max(x, dim, keepdim), whose values alone are had, and max(x, y)."""

    def build(site: Site, given: dict[str, Any]) -> Value:
        if isinstance(given["dim"], Value) or isinstance(given["other"], Value):
            other = given["other"] if isinstance(given["other"], Value) else given["dim"]
            return site.emit(of_two, given["input"], other)
        return site.emit(op, given["input"], given["dim"], given["keepdim"])

    return build


def _softmax(op: str) -> Build:
    def build(site: Site, given: dict[str, Any]) -> Value:
        if given["dtype"] not in (None, site.out_dtype):
            raise Unsupported(f"{op}: dtype {given['dtype']}")
        dim = given["dim"]
        if dim is None:  # PyTorch's old guess
            dim = 0 if len(site.shape(given["input"])) in (0, 1, 3) else 1
        return site.emit(op, given["input"], dim)

    return build


def _core_softmax(op: str) -> Build:
    def build(site: Site, given: dict[str, Any]) -> Value:
        if given["half_to_float"]:
            raise Unsupported(f"{op} of half precision")
        return site.emit(op, given["input"], given["dim"])

    return build


def _own_statistics(row_name: str, flag: str) -> Build:
    """batch_norm and instance_norm: running statistics are read or not there; PyTorch writes them in training."""

    def build(site: Site, given: dict[str, Any]) -> Value:
        if given[flag] and (given["running_mean"] is not None or given["running_var"] is not None):
            raise Unsupported(f"{row_name} updates its running statistics")
        return plain(site, BY_OP[row_name], given)

    return build


def _normed(site: Site, x: Value, p: Any, dim: Any, keepdim: bool) -> Value:
    """The p-norm of x over dim, which is None for all of it."""
    if p in (2, "fro"):
        return site.emit("sqrt", site.emit("sum", site.emit("pow", x, 2), dim, keepdim))
    if p not in (1, math.inf):
        raise Unsupported(f"norm: p is {p}; 1, 2 and inf are supported")
    return site.emit("sum" if p == 1 else "max", site.emit("abs", x), dim, keepdim)


def _norm(site: Site, given: dict[str, Any]) -> Value:
    if given["out"] is not None or given["dtype"] not in (None, site.out_dtype):
        raise Unsupported("norm: its result is wanted in a tensor or dtype of its own")
    dim = None if given["dim"] in ((), []) else given["dim"]
    return _normed(site, given["input"], given["p"], dim, given["keepdim"])


def _normalize(site: Site, given: dict[str, Any]) -> Value:
    if given["out"] is not None:
        raise Unsupported("normalize: its result is wanted in a tensor of its own")
    norm = _normed(site, given["input"], given["p"], given["dim"], True)
    return site.emit("div", given["input"], site.emit("clamp", norm, given["eps"], None))


def _native_group_norm(site: Site, given: dict[str, Any]) -> Value:
    return site.emit("group_norm", given["input"], given["group"], given["weight"], given["bias"], given["eps"])


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def _pool(op: str) -> Build:
    def build(site: Site, given: dict[str, Any]) -> Value:
        if given.pop("return_indices", False):
            raise Unsupported(f"{op}: the indices are wanted")
        single = {name: _only(value) for name, value in given.items()}
        if single["stride"] in ((), []):
            single["stride"] = None
        return site.emit(op, single.pop("input"), **single)

    return build


# ---- shape ----


def reshaped(site: Site, x: Value) -> Value:
    """x in the result's extents. One extent may depend on a name and is left open; where PyTorch names none, the first
    is tried open, so that a batch that is a number in this trace may become a name."""
    named = [axis for axis, is_named in enumerate(site.out_named) if is_named]
    if len(named) > 1:
        raise Unsupported("reshape to several extents that are not numbers")
    plain_shape = list(site.out)
    tries = [_opened(plain_shape, named[0] if named else 0)] if plain_shape else []
    if not named:
        tries.append(plain_shape)
    failure: native.Error | None = None
    for shape in tries:
        try:
            return site.emit("reshape", x, shape)
        except native.Error as why:
            failure = why
    raise Unsupported(str(failure))


def _opened(shape: list[int], axis: int) -> list[int]:
    return [-1 if i == axis else extent for i, extent in enumerate(shape)]


def _reshape(site: Site, given: dict[str, Any]) -> Value:
    return reshaped(site, given["input"])


def _squeeze(site: Site, given: dict[str, Any]) -> Value:
    shape, dim = site.shape(given["input"]), given["dim"]
    if isinstance(dim, tuple) and len(dim) == 1 and isinstance(dim[0], (tuple, list)):
        dim = dim[0]
    asked = range(len(shape)) if dim in (None, ()) else dim if isinstance(dim, (tuple, list)) else [dim]
    gone = sorted({axis % max(len(shape), 1) for axis in asked if shape and shape[axis] == 1})
    return site.emit("squeeze", given["input"], gone) if gone else given["input"]


def _transpose(site: Site, given: dict[str, Any]) -> Value:
    return site.emit("transpose", given["input"], given["dim0"], given["dim1"])


def _permute(site: Site, given: dict[str, Any]) -> Value:
    dims = given["dims"]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    return _permuted(site, given["input"], [d % len(dims) for d in dims])


def _permuted(site: Site, x: Value, order: list[int]) -> Value:
    """As transpositions, each of which puts one axis where it belongs."""
    now = list(range(len(order)))
    for place, axis in enumerate(order):
        at = now.index(axis)
        if at != place:
            x = site.emit("transpose", x, place, at)
            now[place], now[at] = now[at], now[place]
    return x


def _turned(site: Site, given: dict[str, Any]) -> Value:
    """.T and .t(): all axes the other way round."""
    return _permuted(site, given["input"], list(reversed(range(len(site.shape(given["input"]))))))


def _last_two(site: Site, given: dict[str, Any]) -> Value:
    return site.emit("transpose", given["input"], -2, -1)


def _cut(site: Site, x: Value, axis: int, start: Any, end: Any, step: int = 1) -> Value:
    """x from start to end along an axis."""
    if not all(one is None or isinstance(one, int) for one in (start, end, step)):
        raise Unsupported("a slice whose ends are only known at the call")
    end = None if end is not None and end >= sys.maxsize else end  # how PyTorch writes an open end
    return x if (start or 0) == 0 and end is None and step == 1 else site.emit("slice", x, axis, start, end, step)


def _one(site: Site, x: Value, axis: int, at: Any) -> Value:
    """One element of an axis, which goes away."""
    if not isinstance(at, int) or isinstance(at, bool):
        raise Unsupported("an index that is only known at the call")
    return site.emit("squeeze", _cut(site, x, axis, at, at + 1 if at != -1 else None), [axis])


def _slice(site: Site, given: dict[str, Any]) -> Value:
    return _cut(site, given["input"], given["dim"], given["start"], given["end"], given["step"])


def _narrow(site: Site, given: dict[str, Any]) -> Value:
    start, length = given["start"], given["length"]
    if not isinstance(start, int) or not isinstance(length, int):
        raise Unsupported("narrow to what is only known at the call")
    return _cut(site, given["input"], given["dim"], start, start + length or None)


def _select(site: Site, given: dict[str, Any]) -> Value:
    return _one(site, given["input"], given["dim"] % len(site.shape(given["input"])), given["index"])


def _index(site: Site, given: dict[str, Any]) -> Value:
    """x[a, b:c, ..., None]"""
    x, index = given["input"], given["index"]
    words = list(index) if isinstance(index, tuple) else [index]
    if not all(one is None or one is Ellipsis or isinstance(one, (int, slice)) for one in words):
        raise Unsupported("an index that is a list or a tensor, or only known at the call")
    taken = sum(one is not None and one is not Ellipsis for one in words)
    if Ellipsis in words:
        at = words.index(Ellipsis)
        words[at : at + 1] = [slice(None)] * (len(site.shape(x)) - taken)
    axis = 0
    for one in words:
        if one is None:
            x = site.emit("unsqueeze", x, axis)
        elif isinstance(one, slice):
            x = _cut(site, x, axis, one.start, one.stop, 1 if one.step is None else one.step)
        else:
            x = _one(site, x, axis, one)
            axis -= 1
        axis += 1
    return x


def _pieces(site: Site, given: dict[str, Any]) -> list[Value]:
    """split and chunk: neighbouring slices, as long as PyTorch says."""
    x, dim = next(iter(given.values())), given["dim"]
    ends = list(itertools.accumulate(shape[dim] for shape in site.pieces))
    return [_cut(site, x, dim, end - shape[dim], end) for end, shape in zip(ends, site.pieces)]


def _unbind(site: Site, given: dict[str, Any]) -> list[Value]:
    x = given["input"]
    return [_one(site, x, given["dim"] % len(site.shape(x)), at) for at in range(len(site.pieces))]


# ---- the table ----

BY_OP: dict[str, Row] = {}
ROWS: list[tuple[Row, Mapping[str, str]]] = []


def _row(
    op: str, spellings: Mapping[str, str], build: Build | None = None, kind: str = "compute", **fixed: Any
) -> None:
    row = Row(op, kind, build, fixed)
    BY_OP.setdefault(op, row)
    ROWS.append((row, spellings))


_SOFTMAX = "input, dim=None, _stacklevel=3, dtype=None"
_REDUCE = "input, dim=None, keepdim=False, *, dtype=None"
_INPLACE = "input, inplace=False"

_row("linear", {"input, weight, bias=None": "F.linear"}, _linear)
_row("matmul", {"input, other": "torch.matmul Tensor.matmul operator.matmul"}, _matmul)
_row("matmul", {"input, mat2": "torch.mm Tensor.mm", "input, vec": "torch.mv Tensor.mv"}, _mm)
_row("matmul", {"input, mat1, mat2, *, beta=1, alpha=1": "@addmm"}, _addmm)

_row("relu", {_INPLACE: "F.relu", "input": "@relu F.relu_"})
_row("leaky_relu", {"input, negative_slope=0.01, inplace=False": "F.leaky_relu",
                    "input, negative_slope=0.01": "F.leaky_relu_"})
_row("gelu", {"input, *, approximate='none'": "F.gelu"})
_row("sigmoid", {"input": "@sigmoid F.sigmoid torch.special.expit"})
_row("tanh", {"input": "@tanh F.tanh"})
_row("silu", {_INPLACE: "F.silu"})
_row("mish", {_INPLACE: "F.mish"})
_row("softplus", {"input, beta=1, threshold=20": "F.softplus"})
_row("clamp", {"input, min=None, max=None": "@clamp @clip", "input, min": "@clamp_min", "input, max": "@clamp_max"},
     _clamp)
_row("hardtanh", {"input, min_val=-1.0, max_val=1.0, inplace=False": "F.hardtanh",
                  "input, min_val=-1.0, max_val=1.0": "F.hardtanh_"})
_row("hardtanh", {_INPLACE: "F.relu6"}, min_val=0.0, max_val=6.0)
_row("hardswish", {_INPLACE: "F.hardswish"})
_row("hardsigmoid", {_INPLACE: "F.hardsigmoid"})
_row("elu", {"input, alpha=1.0, inplace=False": "F.elu", "input, alpha=1.0": "F.elu_"})
_row("selu", {_INPLACE: "F.selu", "input": "torch.selu torch.selu_"})
_row("celu", {"input, alpha=1.0, inplace=False": "F.celu", "input, alpha=1.0": "torch.celu torch.celu_"})
_row("softsign", {"input": "F.softsign"})
_row("logsigmoid", {"input": "F.logsigmoid torch.ops.aten.log_sigmoid"})
_row("hardshrink", {"input, lambd=0.5": "@hardshrink F.hardshrink"})
_row("softshrink", {"input, lambd=0.5": "F.softshrink"})
_row("exp", {"input": "@exp"})
_row("log", {"input": "@log"})
_row("expm1", {"input": "@expm1 torch.special.expm1"})
_row("log1p", {"input": "@log1p torch.special.log1p"})
_row("erf", {"input": "@erf torch.special.erf"})
_row("abs", {"input": "@abs @absolute operator.abs builtins.abs Tensor.__abs__"})
_row("neg", {"input": "@neg @negative operator.neg"})
_row("sqrt", {"input": "@sqrt"})
_row("rsqrt", {"input": "@rsqrt"})
_row("reciprocal", {"input": "@reciprocal"})
_row("pow", {"input, exponent": "torch.pow Tensor.pow Tensor.pow_ operator.pow operator.ipow"}, _pow)
_row("pow", {"input": "@square"}, exponent=2)
_row("clone", {"input, *, memory_format=None": "torch.clone Tensor.clone"})
_row("dropout", {"input, p=0.5, training=True, inplace=False":
                     "F.dropout F.alpha_dropout F.feature_alpha_dropout F.dropout1d",
                 "input, p, training": "torch.dropout torch.alpha_dropout torch.feature_dropout torch.dropout_"},
     _dropout, kind="view")
_row("to", {"input, *args, **kwargs":
                "Tensor.to Tensor.type Tensor.type_as Tensor.float Tensor.half Tensor.bfloat16 "
                "torch.ops.aten._to_copy"}, _to, kind="view")
# Nothing at all, like dropout in eval, where extents and dtype come out as they went in.
_row("dropout", {"input, *args, **kwargs": "Tensor.contiguous Tensor.detach torch.detach",
                 "input": "torch.positive Tensor.positive operator.pos torch.ops.aten.alias"}, _itself, kind="view")

_row("add", {"input, other, *, alpha=1": "@add", "input, other": "operator.add operator.iadd"})
_row("sub", {"input, other, *, alpha=1": "@sub @subtract", "input, other": "operator.sub operator.isub"})
_row("sub", {"input, other, *, alpha=1": "torch.rsub"}, _rsub)
_row("mul", {"input, other": "@mul @multiply operator.mul operator.imul"})
_row("div", {"input, other, *, rounding_mode=None": "@div @divide",
             "input, other": "@true_divide operator.truediv operator.itruediv"})
for _op, _words in {"gt": "greater", "lt": "less", "ge": "greater_equal", "le": "less_equal", "eq": "",
                    "ne": "not_equal"}.items():
    _names = [name for name in (_op, _words) if name]
    _row(_op, {"input, other": " ".join([f"torch.{n} Tensor.{n}" for n in _names] + [f"operator.{_op}"])},
         _compared(_op))
# Of type bool all of these, as capture.py sees to; & and | of integers are other ops.
_row("logical_and", {"input, other": "torch.logical_and Tensor.logical_and torch.bitwise_and Tensor.bitwise_and "
                                     "operator.and_ Tensor.__and__"})
_row("logical_or", {"input, other": "torch.logical_or Tensor.logical_or torch.bitwise_or Tensor.bitwise_or "
                                    "operator.or_ Tensor.__or__"})
_row("logical_not", {"input": "torch.logical_not Tensor.logical_not torch.bitwise_not Tensor.bitwise_not "
                              "operator.invert Tensor.__invert__"})
_row("where", {"condition, input=None, other=None": "torch.where", "input, condition, other": "Tensor.where"}, _where)
_row("where", {"input, mask, value": "torch.masked_fill Tensor.masked_fill"}, _masked_fill)
_row("minimum", {"input, other": "torch.minimum Tensor.minimum"})
_row("maximum", {"input, other": "torch.maximum Tensor.maximum"})

_row("sum", {_REDUCE: "torch.sum Tensor.sum"})
_row("mean", {_REDUCE: "torch.mean Tensor.mean"})
_row("max", {"input, dim=None, keepdim=False, *, other=None": "torch.max Tensor.max"}, _max("max", "maximum"))
_row("min", {"input, dim=None, keepdim=False, *, other=None": "torch.min Tensor.min"}, _max("min", "minimum"))
_row("max", {"input, dim=(), keepdim=False": "torch.amax Tensor.amax"}, _amax("max"))
_row("min", {"input, dim=(), keepdim=False": "torch.amin Tensor.amin"}, _amax("min"))
_row("logsumexp", {"input, dim, keepdim=False": "torch.logsumexp Tensor.logsumexp torch.special.logsumexp"})
_row("sum", {"input, p='fro', dim=None, keepdim=False, out=None, dtype=None": "torch.norm Tensor.norm",
             "input, p=2, dim=None, keepdim=False, *, dtype=None, out=None": "torch.linalg.vector_norm"}, _norm)

for _op in ("softmax", "log_softmax"):
    _row(_op, {_SOFTMAX: f"F.{_op}", "input, dim, dtype=None": f"torch.{_op} Tensor.{_op} torch.special.{_op}"},
         _softmax(_op))
    _row(_op, {"input, dim, half_to_float": f"torch._{_op}"}, _core_softmax(_op))
_AFFINE = "weight=None, bias=None, eps=1e-05"
_row("layer_norm", {f"input, normalized_shape, {_AFFINE}": "F.layer_norm",
                    f"input, normalized_shape, {_AFFINE}, cudnn_enable=True": "torch.layer_norm"})
_row("group_norm", {f"input, num_groups, {_AFFINE}": "F.group_norm",
                    f"input, num_groups, {_AFFINE}, cudnn_enabled=True": "torch.group_norm"})
_row("rms_norm", {"input, normalized_shape, weight=None, eps=None": "F.rms_norm torch.rms_norm"})
_row("layer_norm", {"input, normalized_shape, weight, bias, eps": "torch.native_layer_norm"})
_row("group_norm", {"input, weight, bias, N, C, HxW, group, eps": "torch.native_group_norm"}, _native_group_norm)
_LAST = "momentum=0.1, eps=1e-05"
_FIRST = "input, weight, bias, running_mean, running_var"  # the order of torch.batch_norm
_row("rms_norm", {"input, p=2.0, dim=1, eps=1e-12, out=None": "F.normalize"}, _normalize)
_row("instance_norm",
     {f"input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, {_LAST}":
          "F.instance_norm",
      f"{_FIRST}, use_input_stats, momentum, eps, cudnn_enabled": "torch.instance_norm"},
     _own_statistics("instance_norm", "use_input_stats"))
_row("batch_norm",
     {f"input, running_mean, running_var, weight=None, bias=None, training=False, {_LAST}": "F.batch_norm",
      f"{_FIRST}, training, momentum, eps, cudnn_enabled": "torch.batch_norm"},
     _own_statistics("batch_norm", "training"))
_row("batch_norm",
     {f"{_FIRST}, momentum, eps, *, training=False": "torch._native_batch_norm_legit_no_training"},
     _own_statistics("batch_norm", "training"))

_row("avg_pool1d",
     {"input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True":
          "F.avg_pool1d torch.avg_pool1d"},
     _pool("avg_pool1d"))
_row("max_pool1d",
     {"input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False": "F.max_pool1d",
      "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False": "torch.max_pool1d"},
     _pool("max_pool1d"))

# Not in place: a trace has the extents of after the write in the node of before it.
_row("reshape", {"input, *shape": "Tensor.reshape Tensor.view Tensor.unflatten Tensor.view_as Tensor.reshape_as",
                 "input, shape": "torch.reshape", "input, dim, sizes": "torch.unflatten",
                 "input, start_dim=0, end_dim=-1": "torch.ravel Tensor.ravel"}, _reshape, kind="view")
_row("flatten", {"input, start_dim=0, end_dim=-1": "torch.flatten Tensor.flatten"}, kind="view")
_row("unsqueeze", {"input, dim": "torch.unsqueeze Tensor.unsqueeze"}, kind="view")
_row("squeeze", {"input, dim=None": "torch.squeeze", "input, *dim": "Tensor.squeeze"}, _squeeze, kind="view")
_row("transpose", {"input, dim0, dim1": "torch.transpose Tensor.transpose torch.swapaxes Tensor.swapaxes "
                                        "torch.swapdims Tensor.swapdims"}, _transpose, kind="view")
_row("transpose", {"input, *dims": "Tensor.permute", "input, dims": "torch.permute"}, _permute, kind="view")
# PyTorch 2.15 traces .T and .mT as functions.
_row("transpose", {"input": "torch.t Tensor.t .T torch.ops.aten.numpy_T"}, _turned, kind="view")
_row("transpose", {"input": ".mT torch.ops.aten.mT"}, _last_two, kind="view")
_row("slice", {"input, dim=0, start=None, end=None, step=1": "torch.ops.aten.slice"}, _slice, kind="view")
_row("slice", {"input, dim, start, length": "torch.narrow Tensor.narrow"}, _narrow, kind="view")
_row("slice", {"input, dim, index": "torch.select Tensor.select"}, _select, kind="view")
_row("slice", {"input, index": "operator.getitem"}, _index, kind="view")
_row("slice", {"input, split_size_or_sections, dim=0": "torch.split", "input, split_size, dim=0": "Tensor.split",
               "input, split_sizes, dim=0": "torch.split_with_sizes Tensor.split_with_sizes",
               "input, chunks, dim=0": "torch.chunk Tensor.chunk"}, _pieces, kind="views")
_row("slice", {"input, dim=0": "torch.unbind Tensor.unbind"}, _unbind, kind="views")


# ---- finding ----

_SPACES: dict[str, Any] = {"torch": torch, "F": F, "Tensor": torch.Tensor, "operator": operator, "builtins": builtins}
_FUNCTIONS: dict[Any, Spelling] = {}
_METHODS: dict[str, Spelling] = {}
_ATTRIBUTES: dict[str, Spelling] = {}
_NAMES: dict[str, Spelling] = {}  # by the last word of the name; torch.name goes before F.name and Tensor.name


def _spelled(text: str) -> list[str]:
    names: list[str] = []
    for word in text.split():
        if word.startswith("@"):
            names += [f"{space}.{word[1:]}{tail}" for tail in ("", "_") for space in ("torch", "Tensor")]
        else:
            names.append(word)
    return names


def _enter(row: Row, signature: inspect.Signature, name: str) -> None:
    space, _, leaf = name.rpartition(".")
    in_place = leaf.endswith("_") and not leaf.endswith("__") and space != "operator"  # operator.and_ is &
    in_place = in_place or (space == "operator" and leaf.startswith("i") and hasattr(operator, leaf[1:]))
    spelling = Spelling(row, name, signature, in_place)
    if not space:
        _ATTRIBUTES[leaf] = spelling
        return
    holder = _SPACES[space.split(".")[0]]
    for part in space.split(".")[1:]:
        holder = getattr(holder, part, None)
    found = getattr(holder, leaf, None)
    if found is None:
        return
    if space == "torch" or leaf not in _NAMES:
        _NAMES[leaf] = spelling
    if space == "Tensor":
        _METHODS[leaf] = spelling
    try:
        _FUNCTIONS.setdefault(found, spelling)
    except TypeError:
        pass


for _entry, _spellings in ROWS:
    for _parameters, _words in _spellings.items():
        _signature = inspect.signature(eval(f"lambda {_parameters}: 0"))  # our own table, above
        for _name in _spelled(_words):
            _enter(_entry, _signature, _name)


@functools.cache
def _overload(target: torch._ops.OpOverload) -> Overload | None:
    namespace, _, name = target._schema.name.partition("::")
    spelling = _NAMES.get(name.removeprefix("special_").removeprefix("linalg_"))
    if namespace != "aten" or spelling is None or target._schema.is_mutable != spelling.in_place:
        return None
    empty, parameters = inspect.Parameter.empty, []
    for one in target._schema.arguments:
        kind = inspect.Parameter.KEYWORD_ONLY if one.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = one.default_value if one.has_default_value() else empty
        parameters.append(inspect.Parameter(_ALIASES.get(one.name, one.name), kind, default=default))
    return Overload(spelling.row, f"aten.{name}", inspect.Signature(parameters), spelling.in_place, spelling)


def _of_tensor(node: torch.fx.Node) -> bool:
    first = node.args[0] if node.args else None
    meta = first.meta if isinstance(first, torch.fx.Node) else {}
    return isinstance(meta.get("example_value", meta.get("val")), torch.Tensor)


def find(node: torch.fx.Node) -> tuple[Spelling, tuple[Any, ...], dict[str, Any]] | None:
    """The spelling a node uses, with its arguments; None where the table has none. An item of several results is no
    slice."""
    if node.target is operator.getitem and not _of_tensor(node):
        return None
    if node.op == "call_method":
        spelling = _METHODS.get(node.target)  # type: ignore[arg-type]
    elif node.op == "call_function" and node.target is builtins.getattr and len(node.args) == 2:
        spelling = _ATTRIBUTES.get(str(node.args[1]))
        return (spelling, node.args[:1], {}) if spelling else None
    elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        spelling = _overload(node.target)
    elif node.op == "call_function":
        try:
            spelling = _FUNCTIONS.get(node.target)
        except TypeError:
            spelling = None
    else:
        return None
    return (spelling, node.args, dict(node.kwargs)) if spelling else None


def spellings() -> list[Spelling]:
    """Every spelling this PyTorch has, for tests."""
    found = [*_FUNCTIONS.values(), *_METHODS.values(), *_ATTRIBUTES.values()]
    return sorted({spelling.name: spelling for spelling in found}.values(), key=lambda s: s.name)
