# SPDX-License-Identifier: Apache-2.0
"""linfuse.save: a PyTorch model as files that the command, C and linfuse.load read. Train in Python, serve in C."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .native import Error, Status, version

if TYPE_CHECKING:
    import torch

    from .fused import Part
    from .tracing import Graph, Subject

__all__ = ["Saved", "save"]


class Saved(NamedTuple):
    """The files written."""

    model: pathlib.Path
    weights: pathlib.Path


def save(model: Any, inputs: Any, folder: str | os.PathLike[str], *, name: str = "model",
         kwargs: Mapping[str, Any] | None = None) -> Saved:
    """Writes FOLDER/model.lf and FOLDER/model.safetensors.

    model:   a torch.nn.Module or a function of tensors, compiled or not, or what torch.export.export made. What it does
             now is what is saved: call `.eval()` first where it has dropout or batch norm. A program must have been
             exported with dynamic_shapes for the leading extent.
    inputs:  a tensor, a tuple of its arguments, or a dict of them by name; of an exported program () will do. Their
             leading extent becomes B; the saved model serves any.
    name:    of the files.
    kwargs:  arguments by name.

    One input is called x, one output y; several keep the names that the module gives them. Parameters are called what
    `state_dict()` calls them, with a _ before a name that begins with a digit (`_0.weight` of a Sequential): in the
    model's text such would be a number.

    All of the model must be linfuse's; otherwise a linfuse.Error names the nodes that are not, and nothing is written.
    """
    from torch.export import ExportedProgram

    from . import tracing

    if not isinstance(folder, (str, os.PathLike)) or isinstance(inputs, (str, os.PathLike)):
        raise TypeError("linfuse.save takes the model, its inputs and a folder, in this order: here the inputs are a "
                        f"{type(inputs).__name__}, the folder a {type(folder).__name__}")
    subject = tracing.subject(model, (inputs,), kwargs)
    title = subject.title
    if isinstance(model, ExportedProgram) and "check_guards" not in inspect.signature(model.module).parameters:
        raise Error(
            f"saving an exported program needs a PyTorch newer than {_torch_version()}: save the module it was made of",
            Status.UNSUPPORTED,
        )
    given = [id(one) for one in subject.tensors()]
    if len(set(given)) < len(given):
        raise Error(f"{title} cannot be saved: the same tensor is given for two inputs; give each its own", Status.ARG)
    graph, part, text = _traced(subject)
    if not _serves_any(graph, part, text, subject):
        raise Error(f"{title} cannot be saved: {_ONE_SIZE[isinstance(model, ExportedProgram)]}", Status.UNSUPPORTED)
    tensors = {leaf.name: _values(graph.value(leaf.node)) for leaf in part.leaves if leaf.param}
    text = _with_ports_named(text)
    header = f"# {title}, saved by linfuse {version()} from PyTorch {_torch_version()}.\n"
    place = pathlib.Path(folder)
    saved = Saved(place / f"{name}.lf", place / f"{name}.safetensors")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _written(saved.weights) as file:
            write_safetensors(file, tensors)
        with _written(saved.model) as file:
            file.write((header + text).encode())
    except OSError as why:
        raise Error(f"{title} cannot be saved in {place}: {why.strerror or why}: save it elsewhere", Status.IO) from why
    return saved


def _torch_version() -> str:
    import torch

    return torch.__version__


_ONE_SIZE = {  # why, by whether it was exported
    False: "what it computes depends on the extents of its inputs, as by x.shape[0] used as a number or in an if",
    True: "it was exported for inputs of these extents alone; give torch.export.export dynamic_shapes for the leading "
          "one, as {0: torch.export.Dim.AUTO} for each input",
}


def _traced(subject: Subject) -> tuple[Graph, Part, str]:
    """The model's one graph at these inputs, its one part, and the text of it."""
    from . import tracing

    graph, *_ = graphs = tracing.trace(subject, {}, whole=True)
    part = _whole(graphs, subject.title)
    return graph, part, _in_order(part.model.text(), _input_names(graph, part, subject.tensors()))


def _serves_any(graph: Graph, part: Part, text: str, subject: Subject) -> bool:
    """Whether the model is the same with one more along every extent that it has a name for."""
    import torch

    extents = {id(graph.value(leaf.node)): leaf.extents for leaf in part.leaves}

    def longer(one: Any) -> Any:
        if id(one) not in extents:
            return one
        shape = [size + isinstance(extent, str) for size, extent in zip(one.shape, extents[id(one)])]
        return torch.zeros(shape, dtype=one.dtype, device=one.device)

    try:
        return _traced(subject.mapped(longer))[2] == text
    except Exception:  # the model's own, which does not take them
        return False


def _whole(graphs: Sequence[Graph], title: str) -> Part:
    """The one part that is all of the model."""
    graph = graphs[0]
    left = [one for one in graph.compiled.left if one.computes]
    if left:
        listed = "; ".join(f"{_place(graph, one.node)} ({one.op}): {one.reason}" for one in left[:5])
        more = f"; and {len(left) - 5} more" if len(left) > 5 else ""
        raise Error(
            f"{title} cannot be saved, part of it is not linfuse's: {listed}{more}. Save the part of it without these",
            Status.UNSUPPORTED,
        )
    returned = next(iter(reversed(graph.module.graph.nodes))).args[0]
    wanted = [
        getattr(node, "name", str(node)) for node in (returned if isinstance(returned, (tuple, list)) else [returned])
    ]
    if len(graph.compiled.parts) != 1 or graph.compiled.parts[0].outputs != wanted:
        raise Error(
            f"{title} cannot be saved: it returns {', '.join(wanted)}, and not each of them is a result of its own",
            Status.UNSUPPORTED,
        )
    from .capture import example

    part = graph.compiled.parts[0]
    for leaf in part.leaves:
        if leaf.convert:
            dtype = example(leaf.node).dtype
            raise Error(f"{title} cannot be saved: input {leaf.label} is {dtype}", Status.UNSUPPORTED)
    return part


def _place(graph: Graph, name: str) -> str:
    where = graph.where(name)
    return f"{name} in {where}" if where else name


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _input_names(graph: Graph, part: Part, inputs: Sequence[Any]) -> list[str]:
    """The inputs in the order of the model's own arguments; the capture has them in the order of their use."""
    order = {id(one): at for at, one in reversed(list(enumerate(inputs)))}
    found: dict[int, str] = {}
    for leaf in part.leaves:
        if not leaf.param:
            at = order.get(id(graph.value(leaf.node)))
            if at is None:
                raise Error(
                    f"a tensor of extents {list(leaf.extents)} ({leaf.label}) is neither among the inputs "
                    "nor a module's: make it a parameter or a buffer",
                    Status.UNSUPPORTED,
                )
            found[at] = leaf.name
    return [found[at] for at in sorted(found)]


def _in_order(text: str, inputs: Sequence[str]) -> str:
    """The model's text with its inputs first, in this order, then its parameters, then what is done with them."""
    lines = text.splitlines()
    declared = {line.split()[1]: line for line in lines if line.startswith("input ")}
    params = [line for line in lines if line.startswith("param ")]
    rest = [line for line in lines if not line.startswith(("input ", "param "))]
    return "\n".join([*(declared[name] for name in inputs), *params, *rest, ""])


# ---- files ----


class _written:
    """A file that is there as a whole or not at all."""

    def __init__(self, path: pathlib.Path):
        self.path, self.draft = path, path.with_name(path.name + f".{os.getpid()}.part")

    def __enter__(self) -> Any:
        self.file = open(self.draft, "wb")
        return self.file

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.file.close()
        if kind is None:
            os.replace(self.draft, self.path)
        else:
            self.draft.unlink(missing_ok=True)


def write_safetensors(file: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Tensors in the safetensors format: the header's length, the header in JSON, the values. So small a format that
    its package is not asked for."""
    from .homes import NATIVE

    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.nbytes
        dtype = NATIVE[tensor.dtype].name.upper()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)  # the values begin aligned
    file.write(len(words).to_bytes(8, "little") + words)
    for tensor in tensors.values():
        if tensor.numel():
            file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _with_ports_named(text: str) -> str:
    """The model's text with its input called x where it has one, and its output y: names that callers can guess. A name
    that something else has stays what it is."""
    inputs = re.findall(r"^input (\S+)", text, re.M)
    outputs = re.findall(r"^return (.+)$", text, re.M)[0].split(", ")
    for ports, wanted in ((inputs, "x"), (outputs, "y")):
        taken = re.search(rf"(?<![\w.]){wanted}(?![\w.])", text)
        if len(ports) == 1 and not taken:  # no call, no attribute, no string
            text = re.sub(rf"(?<![\w.'\"]){re.escape(ports[0])}(?![\w.(='\"])", wanted, text)
    return text
