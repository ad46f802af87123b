# SPDX-License-Identifier: Apache-2.0
"""Nodes of an FX graph -> a linfuse model.

A batch that is a number in the trace becomes a named extent wherever the model still infers, so that one program serves
every batch size, over PyTorch's own re-traces too. That the model means what was traced is checked node by node: the
extents linfuse infers must be the traced ones at the traced sizes.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch import fx
from torch.fx import Node

from . import native, ops, weights
from .homes import DTYPES, FLOATS, NATIVE
from .native import Dtype, Value
from .notices import NEEDS_GRADIENTS, not_supported
from .ops import Unsupported


class Naming(NamedTuple):
    """How a leaf's leading extent gets a name where PyTorch gives a number."""

    least_rank: int  # from which rank on
    ones: bool  # whether an extent of 1 does too
    several: bool  # whether there is more than one such name


# Tried in this order; the first under which most is supported is taken. The last names nothing.
NAMINGS = tuple(Naming(rank, ones, several) for rank in (2, 1) for several in (True, False) for ones in (True, False))
NAMINGS += (Naming(99, False, False),)


_MASKS = frozenset("gt lt ge le eq ne logical_and logical_or logical_not".split())  # ops that give what is a bool
DEVICES = ("cpu", "cuda")  # PyTorch's names of what linfuse runs on
_LEAVES = ("placeholder", "get_attr")
_NOT_NAMES = ("_modules", "_parameters", "_buffers", "__closure__", "cell_contents")


class Symbolic:
    """A number that PyTorch only knows at the call."""


# ---- what PyTorch says of a node ----


def example(node: Node) -> Any:
    """The node's value at the trace: a fake tensor, a number, a tuple; None where nothing is known."""
    return node.meta.get("example_value", node.meta.get("val"))


def hint(extent: Any) -> int:
    """An extent at the trace. A SymInt is asked without leaving a guard."""
    if isinstance(extent, torch.SymInt):
        known = extent.node.hint
        if known is None:
            raise Unsupported("an extent depends on data")
        return int(known)
    return int(extent)


def hints(tensor: torch.Tensor) -> tuple[int, ...]:
    """All extents at the trace."""
    return tuple(hint(extent) for extent in tensor.shape)


def is_named(extent: Any) -> bool:
    """Whether PyTorch itself knows the extent by a name only."""
    return isinstance(extent, torch.SymInt) and extent.node.maybe_as_int() is None


def elsewhere(device: torch.device, home: torch.device) -> str:
    """What is said of a tensor that is on another device than the part it would be of."""
    return f"device {device}, and not {home}" if device.type in DEVICES else f"device {device}"


def device_of(graph: fx.Graph) -> torch.device:
    """Where linfuse is to run: the one of its devices that most nodes' results are on."""
    found: Counter[torch.device] = Counter({torch.device("cpu"): 0})
    for node in graph.nodes:
        value = example(node)
        if isinstance(value, torch.Tensor) and value.device.type in DEVICES and node.op not in _LEAVES:
            found[value.device] += 1
    return found.most_common(1)[0][0]


def check_tensor(value: Any, device: torch.device, mask: bool = False) -> torch.Tensor:
    """The tensor, where linfuse computes with such on this device. mask: it may be one, which kernels have as
    numbers."""
    if not isinstance(value, torch.Tensor):
        raise Unsupported("its result is no tensor" if value is not None else "its result is not known")
    if not isinstance(value, FakeTensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported(f"a tensor of the class {type(value).__name__}")
    if value.dtype not in FLOATS and not (mask and value.dtype is torch.bool):
        raise Unsupported(f"dtype {str(value.dtype).removeprefix('torch.')}")
    if value.device != device:
        raise Unsupported(elsewhere(value.device, device))
    if value.layout is not torch.strided or value.is_neg():
        raise Unsupported(f"layout {str(value.layout).removeprefix('torch.')}")
    if torch.is_grad_enabled() and value.requires_grad:
        raise Unsupported(NEEDS_GRADIENTS)
    if len(value.shape) > native.MAX_RANK:
        raise Unsupported(f"rank {len(value.shape)}; at most {native.MAX_RANK} is supported")
    return value


def is_param(node: Node) -> bool:
    """Whether a leaf keeps its values from call to call: a parameter, a buffer, a tensor that a module holds."""
    if node.meta.get("linfuse_uncounted"):  # no version counter: read at every call
        return False
    if node.op == "get_attr":
        return True
    value = example(node)
    if node.op != "placeholder" or not isinstance(value, torch.Tensor) or any(map(is_named, value.shape)):
        return False
    if isinstance(value, torch.nn.Parameter) or (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"):
        return True
    if torch.__version__.startswith("2.4."):  # which does not say what is a module's: an attribute of something will be
        return getattr(_source(node), "member", "cell_contents") != "cell_contents"
    return "nn_module" in str(getattr(_source(node), "guard_source", "")).lower()


def is_buffer(node: Node) -> bool:
    """Whether a leaf is a module's buffer, which it keeps, unlike tensors it has as attributes. (2.4 does not tell.)"""
    return node.op == "get_attr" or "_buffers[" in _source_text(node)


def mark_statistics(graph: fx.Graph) -> None:
    """Running statistics on a GPU are read at every call: training writes them without counting, and unlike on the CPU
    nobody looks at the values."""
    for node in graph.nodes:
        found = ops.find(node)
        if found is not None and found[0].row.op in ("batch_norm", "instance_norm"):
            try:
                given = found[0].bind(found[1], found[2])
            except Unsupported:
                continue
            for leaf in (given["running_mean"], given["running_var"]):
                if isinstance(leaf, Node) and isinstance(example(leaf), torch.Tensor) and example(leaf).is_cuda:
                    leaf.meta["linfuse_uncounted"] = True


def _source(node: Node) -> Any:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return source if source is not None else getattr(node, "_dynamo_source", None)


def _source_text(node: Node) -> str:
    """How Python reads a leaf, L['self']._buffers['scale'] say; nothing where PyTorch does not tell."""
    source = getattr(_source(node), "name", None)
    text = source() if callable(source) else source
    return text if isinstance(text, str) else ""


def label(node: Node) -> str:
    """What the user calls a leaf: linear.weight, x. Other nodes have their own name."""
    text = _source_text(node)
    if not text:
        return str(node.target).removeprefix("L__self___") if node.op == "get_attr" else node.name
    words = re.findall(r"\['([^']*)'\]|\.(\w+)|\[(\d+)\]", text)
    path = [word for word in ("".join(found) for found in words) if word not in _NOT_NAMES]
    inside = len(path) > 1 and text.startswith("L[")
    return ".".join(path[1:] if inside else path) or node.name


def module_path(node: Node) -> str:
    """The module a node was written in, as PyTorch calls it (layers.0); nothing for the outermost."""
    found = list((node.meta.get("nn_module_stack") or {}).values())
    path = re.sub(r"^[LG]\['[^']*'\]", "", found[-1][0]) if found else ""
    return re.sub(r"[^A-Za-z0-9_]+", ".", path.replace("_modules", "")).strip(".")


def line_of(node: Node) -> str:
    """Where the user wrote a node, as FILE:LINE; nothing where PyTorch does not say."""
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or node.stack_trace or "")
    return ":".join(found[-1]) if found else ""


def value_name(node: Node) -> str:
    """What to call a node's value: its module, where that is one of PyTorch's own, which compute one thing each."""
    path = module_path(node)
    if not path:
        return node.name
    kind = list(node.meta["nn_module_stack"].values())[-1][1]
    own = str(getattr(kind, "__module__", kind)).startswith("torch.nn.modules")
    if path[0].isdigit():  # a Sequential's, which numbers them
        path = f"{getattr(kind, '__name__', str(kind).rpartition('.')[2]).lower()}_{path}"
    return path if own else f"{path}.{node.name}"


# ---- a model being captured ----


@dataclass
class Leaf:
    """What a model takes: an FX node and what it is in the model."""

    node: Node
    name: str
    label: str
    param: bool
    extents: tuple[int | str, ...]
    convert: bool  # a 0-dim tensor of a dtype that programs have not, taken as f32
    dtype: Dtype = Dtype.f32


@dataclass
class Capture:
    """A model being built from nodes, in the order of their execution. It is the Site of ops.py."""

    context: weights.Context
    naming: Naming
    part: frozenset[Node] | None = None  # nodes that may be built; None: any. Views of parameters always may
    model: native.Model = field(init=False)
    values: dict[Node, Any] = field(default_factory=dict)  # a Value; a list of them where a node gives several
    leaves: list[Leaf] = field(default_factory=list)
    dims: dict[Any, str] = field(default_factory=dict)  # an extent by PyTorch's word -> its name
    dim_hints: list[int] = field(default_factory=list)
    key: list[Any] = field(default_factory=list)  # what the model is, whatever things are called
    out: tuple[int, ...] = ()
    pieces: tuple[tuple[int, ...], ...] = ()
    out_dtype: torch.dtype = torch.float32
    out_named: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        self.model = native.Model(self.context)
        self._shapes: dict[Value, tuple[int, ...]] = {}
        self._cast: dict[tuple[Value, Dtype], Value] = {}
        self._turned: dict[Value, Value] = {}
        self._names: set[str] = set()
        self._wanted: str | None = None

    # ---- the Site ----

    def emit(self, op: str, *args: Any, **keywords: Any) -> Value:
        """Appends an op."""
        for arg in (*args, *keywords.values()):
            for one in arg if isinstance(arg, (list, tuple)) else (arg,):
                if isinstance(one, Symbolic):
                    raise Unsupported(f"{op}: a number that is only known at the call")
                if isinstance(one, bool) and op in ("add", "sub", "mul", "div"):
                    raise Unsupported(f"{op}: a side is {one}")
        name, self._wanted = self._wanted, None
        value = self.model.op(op, *args, name=name, **keywords)
        self.key.append((op, _frozen(args), _frozen(sorted(keywords.items()))))
        if op == "transpose" and len(self.shape(args[0])) == 2:
            self._turned[value] = args[0]
        return value

    def shape(self, value: Value) -> tuple[int, ...]:
        """A value's extents at the trace, as linfuse has them."""
        if value not in self._shapes:
            self._shapes[value] = self.model.value_shape(value, self.dim_hints)
        return self._shapes[value]

    def transposed(self, value: Value) -> Value | None:
        """The 2-D value this one is the transposition of."""
        return self._turned.get(value)

    # ---- nodes ----

    def add(self, node: Node) -> Any:
        """Builds a node. Unsupported says why not; the model is then as it was, save for leaves."""
        found = ops.find(node)
        if found is None:
            return self._item(node)
        spelling, args, kwargs = found
        if spelling.changes_first(args, kwargs):
            raise Unsupported("changes a tensor in place that others may see")
        result = example(node)
        several = spelling.row.kind == "views" and isinstance(result, (tuple, list)) and len(result) > 0
        if several:
            self.pieces = tuple(hints(check_tensor(one, self.context.device, mask=True)) for one in result)
            result = result[0]
        elif isinstance(result, tuple):
            result = self._values_only(node, result)
        mask = spelling.row.op in _MASKS or (spelling.row.kind != "compute" and spelling.row.op != "to")
        tensor = check_tensor(result, self.context.device, mask)
        given = spelling.bind(*_mapped((tuple(args), kwargs), self._operand))
        self.out, self.out_named = hints(tensor), tuple(map(is_named, tensor.shape))
        self.out_dtype = tensor.dtype
        if spelling.row.op in _MASKS and self.out_dtype is not torch.bool:
            raise Unsupported(f"{spelling.name} of integers")
        if spelling.row.kind == "compute" and self.out_dtype is not torch.bool:
            given = self._promoted(spelling.row.op, given)
        self._wanted = self._unique(value_name(node))
        try:
            build = spelling.row.build
            value = build(self, given) if build else ops.plain(self, spelling.row, given)
        except native.Error as why:
            raise Unsupported(str(why)) from None
        for one, shape in zip(value, self.pieces) if several else [(value, self.out)]:
            self._check(spelling.name, one, shape)
        self.values[node] = value
        return value

    def _check(self, name: str, value: Any, wanted: tuple[int, ...]) -> None:
        """That what was built is what PyTorch gives."""
        if not isinstance(value, Value) or self.shape(value) != wanted:
            shown = self.shape(value) if isinstance(value, Value) else value
            raise Unsupported(f"{name}: its extents would be {shown}, not {wanted}")
        if self.out_dtype is torch.bool:  # a mask is a number of any type, and stays within the part
            return
        dtype = self.model.value_dtype(value)
        if dtype is not NATIVE[self.out_dtype]:
            raise Unsupported(f"{name}: its type would be {dtype.name}, not {NATIVE[self.out_dtype].name}")

    def rounded(self, number: Any, like: Value) -> Any:
        """A number in the type of a value."""
        return torch.tensor(number, dtype=DTYPES[self.model.value_dtype(like)]).item() if _is_number(number) else number

    def cast(self, value: Value) -> Value:
        """A value in the type of the node's result."""
        dtype = NATIVE[self.out_dtype]
        if self.model.value_dtype(value) is dtype:
            return value
        if (value, dtype) not in self._cast:
            turned = self._turned.get(value)  # stays so: a product with it is one with the weight as it was
            self._cast[value, dtype] = (self.emit("to", value, dtype=dtype.name) if turned is None
                                        else self.emit("transpose", self.cast(turned), 0, 1))
        return self._cast[value, dtype]

    def _promoted(self, op: str, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments in the type that PyTorch computes in, where that is another than theirs promoted: autocast chooses
        one by op, and some ops have an argument that names it. It is the result's."""
        tensors = [value for value in given.values() if isinstance(value, Value)]
        if not tensors:
            return given
        product = ops.KINDS[op] == "product"
        counting = [one for one in tensors if self.shape(one)] or tensors
        types = {self.model.value_dtype(one) for one in (counting if ops.KINDS[op] == "pointwise" else tensors[:1])}
        promoted = types.pop() if len(types) == 1 else Dtype.f32
        if not product and promoted is NATIVE[self.out_dtype]:
            return given
        return {name: self.cast(value) if isinstance(value, Value) else value for name, value in given.items()}

    def _values_only(self, node: Node, result: tuple[Any, ...]) -> Any:
        """max and min over a dim give values and indices; the values alone can be had."""
        for user in node.users:
            if user.target is not operator.getitem or user.args[1] != 0:
                raise Unsupported("more than the values of its result is used")
        return result[0]

    def _item(self, node: Node) -> Value:
        """One of several results; the values among what max or min gave."""
        of, at = node.args if node.target is operator.getitem else (None, None)
        if isinstance(of, Node) and isinstance(example(of), (tuple, list)):
            found = self.values.get(of)
            if isinstance(at, int) and (isinstance(found, list) or (found is not None and at == 0)):
                self.values[node] = found[at] if isinstance(found, list) else found
                return self.values[node]
            raise Unsupported("an item of what PyTorch computes")
        raise Unsupported(node.meta.get("linfuse_left") or not_supported(target_name(node)))

    def _operand(self, arg: Any) -> Any:
        if not isinstance(arg, Node):
            return arg
        if arg in self.values:
            return self.values[arg]
        value = example(arg)
        if isinstance(value, torch.Tensor):
            if self.part is not None and arg.op not in _LEAVES and is_view_of_param(arg):
                return self.add(arg)
            return self.leaf(arg)
        if isinstance(value, (tuple, list)):  # a shape
            return tuple(map(_known, value))
        return Symbolic() if value is None else _known(value)

    def leaf(self, node: Node) -> Value:
        """Declares an input or a parameter."""
        tensor = example(node)
        param = is_param(node)
        known = tensor.dtype in FLOATS
        convert = not tensor.shape and tensor.dtype in _CONVERTED and not known
        checked = tensor.to(torch.float32) if convert else tensor
        if not tensor.shape and tensor.device.type == "cpu":  # goes with tensors of any device
            checked = checked.to(self.context.device)
        check_tensor(checked, self.context.device)
        dtype = NATIVE[checked.dtype]
        param = param and not convert
        extents = self._extents(tensor, param)
        name = self._unique(re.sub(r"[^A-Za-z0-9_.]", "_", label(node)) or "x")
        try:
            value = (self.model.param if param else self.model.input)(name, extents, dtype)
        except native.Error as why:
            raise Unsupported(str(why)) from None
        self.leaves.append(Leaf(node, name, label(node), param, tuple(extents), convert, dtype))
        self.key.append(("param" if param else "input", tuple(extents), dtype))
        self.values[node] = value
        return value

    def _extents(self, tensor: torch.Tensor, param: bool) -> list[int | str]:
        least_rank, ones, several = self.naming
        extents: list[int | str] = []
        for axis, extent in enumerate(tensor.shape):
            leading = axis == 0 and not param and len(tensor.shape) >= least_rank
            if isinstance(extent, torch.SymInt) and is_named(extent):
                extents.append(self._name(str(extent.node.expr), hint(extent)))
            elif leading and (hint(extent) != 1 or ones) and (several or not self.dims or hint(extent) in self.dims):
                extents.append(self._name(hint(extent), hint(extent)))
            else:
                extents.append(hint(extent))
        return extents

    def _name(self, word: Any, size: int) -> str:
        if word not in self.dims:
            self.dims[word] = f"B{len(self.dims)}" if self.dims else "B"
            self.dim_hints.append(size)
        return self.dims[word]

    def _unique(self, name: str) -> str:
        name = name if not name[:1].isdigit() else f"_{name}"
        while name in self._names or name in ("input", "param", "return"):
            name += "_"
        self._names.add(name)
        return name

    def finish(self, outputs: Iterable[Node]) -> None:
        """Says what the model returns."""
        returned = [self.values[node] for node in outputs]
        self.key.append(("return", tuple(map(int, returned))))
        self.model.returns(*returned)


_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_CONVERTED = _FLOATS | {torch.int64, torch.int32, torch.int16, torch.int8}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _known(value: Any) -> Any:
    """A number as it is, where PyTorch knows it before the call."""
    return Symbolic() if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Value):
        return ("value", int(value))
    if isinstance(value, float):  # 0.0 and -0.0 are equal, and not the same
        return ("float", value.hex())
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else (type(value).__name__, value)


def _mapped(value: Any, function: Any) -> Any:
    """function over every leaf of nested lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        mapped = [_mapped(one, function) for one in value]
        return tuple(mapped) if isinstance(value, tuple) else mapped
    if isinstance(value, dict):
        return {key: _mapped(one, function) for key, one in value.items()}
    return function(value)


def is_view_of_param(node: Node) -> bool:
    """Whether a node is a parameter seen otherwise: such may be built anew wherever it is used."""
    while True:
        found = ops.find(node)
        if found is None:
            return node.op in _LEAVES and is_param(node)
        spelling, args, kwargs = found
        if spelling.row.kind != "view" or spelling.in_place or not args or not isinstance(args[0], Node):
            return False
        node = args[0]


def target_name(node: Node) -> str:
    """A node's function, method or module, for people."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return f"torch.ops.{node.target._schema.name.replace('::', '.')}"
    module = getattr(node.target, "__module__", None) or ""
    name = getattr(node.target, "__name__", str(node.target))
    return f"{module}.{name}".removeprefix("_").removeprefix(".") if module else name
