# SPDX-License-Identifier: Apache-2.0
"""What linfuse says without being asked: a warning where little of a model is fused, and of an option that cannot be
honoured; and the logger "linfuse", which at INFO tells of every graph what is fused and what is not."""

from __future__ import annotations

import linecache
import logging
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .amounts import counted, listed

if TYPE_CHECKING:
    from torch.fx import Graph

    from .counters import Left
    from .fused import CompiledGraph

log = logging.getLogger("linfuse")

NEEDS_GRADIENTS = "requires grad while grad mode is on"
NOT_SUPPORTED = "not supported yet"
VIEW = "a view, which costs nothing"
ALONE = "alone: nothing to fuse it with"
_CONVOLUTION = "convolutions are left to PyTorch"
_FUSED_LAYER = "it hides the linear layers in it; torch.backends.mha.set_fastpath_enabled(False) has PyTorch show them"
_LOSS = f"{NOT_SUPPORTED}; linfuse.linear_cross_entropy(x, weight, target) does it with the linear layer before it"
# Ops that are left to PyTorch with more to say of them than NOT_SUPPORTED.
_OPAQUE = {
    **{f"conv{kind}{n}d": _CONVOLUTION for kind in ("", "_transpose") for n in (1, 2, 3)},
    "convolution": _CONVOLUTION,
    "cross_entropy": _LOSS,
    "cross_entropy_loss": _LOSS,
    "_transformer_encoder_layer_fwd": _FUSED_LAYER,
    "_native_multi_head_attention": _FUSED_LAYER,
}

# What can be done about a reason, by how it begins.
_REMEDIES = {
    "dtype ": "Give it a model and inputs in float32.",
    "device ": "Move the model and its inputs to one device.",
}
_REMEDY = "linfuse.explain(model, ...) tells more."
_NOT_THE_USERS = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))
_warned: set[object] = set()
# Whose frames stand between a user's line and a notice; PyTorch 2.4 decorates by way of contextlib.
_ON_THE_WAY = ("linfuse", "torch", "contextlib")


def forget() -> None:
    """Everything may be said once more."""
    _warned.clear()


def warn_once(about: object, text: str) -> None:
    """A warning at the user's own line, the first time about a thing."""
    if about in _warned:
        return
    _warned.add(about)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _ON_THE_WAY:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"linfuse: {text}", stacklevel=level)


def short(op: str) -> str:
    """embedding, of torch.nn.functional.embedding."""
    return op.rpartition(".")[2]


def not_supported(op: str) -> str:
    """Why an op that no row has is PyTorch's."""
    return _OPAQUE.get(short(op), NOT_SUPPORTED)


def of_gradients() -> None:
    warn_once(
        NEEDS_GRADIENTS,
        "PyTorch runs what needs gradients; to run it fused, call it under torch.no_grad() or torch.inference_mode()",
    )


def of_graph(graph: Graph, compiled: CompiledGraph, computing: Sequence[Left]) -> None:
    """Of a graph that was compiled. computing: what is left to PyTorch, without views."""
    fused = compiled.ops
    ops = counted(fused + len(computing), "op")
    log.info("a graph of %s: %d fused, in %s", ops, fused, counted(len(compiled.parts), "part"))
    for part in compiled.parts:
        log.info("%s: %s", part.name, ", ".join(node.name for node in part.nodes))
    for head in compiled.heads:
        log.info("%s", head)
    reasons = Counter(left.reason for left in computing)
    for reason in reasons:
        log.info("in PyTorch: %s: %s", listed(short(left.op) for left in computing if left.reason == reason), reason)
    if fused < len(computing):
        (main, _), *_ = sorted(reasons.most_common(), key=lambda one: one[0] == ALONE)  # which the others bring about
        if main == NEEDS_GRADIENTS:  # who needs them was told, or cannot do without
            return
        names = listed((short(left.op) for left in computing if left.reason == main), 6)
        others = f" ({counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
        remedy = next((words for start, words in _REMEDIES.items() if main.startswith(start)), _REMEDY)
        where, said = _written(graph, names)
        warn_once(where, f"{fused or 'none'} of {ops}{said} fused; in PyTorch: {names}: {main}{others}. {remedy}")


def _written(graph: Graph, names: str) -> tuple[object, str]:
    """Which model a graph is of, as far as PyTorch tells: the function that a user wrote, or one of PyTorch's and what
    it runs; and how to say it."""
    for node in graph.nodes:
        trace = node.meta.get("stack_trace") or node.stack_trace or ""
        found = re.search(r'File "([^"]+)", line (\d+), in (\w+)', trace)
        if found:
            file, function = found[1], re.sub(r"^torch_dynamo_resume_in_(\w+)_at_\d+$", r"\1", found[3])
            if file.startswith(_NOT_THE_USERS):
                return (file, function, names), ""
            begins, whole = _definition(file, int(found[2]), function)
            return (file, begins, function), f" of {whole} ({os.path.basename(file)})"
    return names, ""


def _definition(file: str, line: int, function: str) -> tuple[int, str]:
    """Where the function begins that a line of source is in, and its name with its class's: one file may have several
    models with a `forward` each."""
    begins, depth = 0, 0
    for at in range(line, 0, -1):
        found = re.match(r"(\s*)(?:async )?(def|class) (\w+)", linecache.getline(file, at))
        if found is None:
            continue
        if begins == 0 and found.group(2, 3) == ("def", function):
            begins, depth = at, len(found[1])
        elif begins > 0 and len(found[1]) < depth:
            return begins, f"{found[3]}.{function}" if found[2] == "class" else function
    return begins, function
