# SPDX-License-Identifier: Apache-2.0
"""linfuse.explain: the account of a PyTorch model, of a model file or of a loaded program."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import native
from .account import Account, Fallback, Part
from .calling import learnt
from .native import Error, Status
from .program import Program, saved_files
from .progress import said_if_long

if TYPE_CHECKING:
    from torch import nn

    from .tracing import Subject

__all__ = ["explain"]

_OPTIONS = ("device", "precision", "rules", "assume_finite", "fuse")


def explain(
    model: nn.Module | Program | str | os.PathLike[str] | Any,
    *inputs: Any,
    dims: Mapping[str, int] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    measure: bool = False,
    **options: Any,
) -> Account:
    """What linfuse makes of a model: costs as written, rewrites, fusions, refusals, costs now, what is PyTorch's.

    model:    a torch.nn.Module or a function of tensors, compiled or not; what torch.export.export made; a loaded
              program; a `.lf` file, or a folder with one.
    inputs:   what it would be called with; a tuple of it alone, as for torch.export, and a dict of arguments by name
              will do, too. An exported program has its own. A program or a file does without: dims={"B": 1024} gives
              its extents.
    kwargs:   a PyTorch model's arguments by name; those that are no option's name may be given as they are, x=x.
    options:  as those of compiling: device (where the inputs are; "h200" and "a100" are costed without being there),
              precision, rules, assume_finite; fuse=False tells what each op costs by itself.
    measure:  True runs a PyTorch model too, eager and fused in turns; without it times are predicted, and nothing is
              run fused.

    The model stays as it is.
    """
    of_torch = not isinstance(model, (str, os.PathLike, Program))
    if kwargs and not of_torch:
        raise Error("kwargs are a PyTorch model's; a program or a file takes its inputs in order", Status.ARG)
    by_name = {key: options.pop(key) for key in list(options) if of_torch and key not in _OPTIONS}
    if measure and (not of_torch or not {"device", "fuse"}.isdisjoint(options)):
        raise Error(
            "measure=True runs a PyTorch model where its inputs are; `linfuse bench` measures files", Status.ARG
        )
    words = {key: _word(value) for key, value in options.items()}
    with said_if_long("explaining; the first time on a machine this measures the CPU"):
        account, subject = _predicted(model, inputs, dims, kwargs, by_name, words)
    if measure and subject is not None:
        from .timing import measured

        result = measured(subject, options=options, inductor=False, seconds=1.0)
        account = dataclasses.replace(account, measured=result)
    return account


def _predicted(
    model: Any,
    inputs: tuple[Any, ...],
    dims: Mapping[str, int] | None,
    kwargs: Mapping[str, Any] | None,
    by_name: Mapping[str, Any],
    words: Mapping[str, str],
) -> tuple[Account, Subject | None]:
    """The account without what is measured; and a PyTorch model's subject, which may be."""
    if isinstance(model, (str, os.PathLike)):
        file, _ = saved_files(model)
        read = native.Model.read_file(native.Context(), file)
        return _of_program(native.Compiled(read, words), read.dim_names(), dims or {}, os.fspath(file)), None
    if isinstance(model, Program):
        if words:
            raise Error(f"a loaded program has its options already: {', '.join(words)} cannot be given", Status.ARG)
        known = {**learnt(model.inputs, [tuple(one.shape) for one in inputs]), **(dims or {})}
        return _of_program(model._program, model.dim_names, known, model.name), None
    if dims:
        raise Error(
            "dims are those of a file or a loaded program; a PyTorch model takes its extents from its inputs",
            Status.ARG,
        )
    from . import tracing

    subject = tracing.subject(model, inputs, {**(kwargs or {}), **by_name})
    for key in by_name:
        if not tracing.takes(subject.model, key):
            known = ("measure", *_OPTIONS, "kwargs")
            near = native.suggestion(key, known)
            taken = ", ".join(known)
            raise Error(f"{subject.title} takes no {key}, and linfuse's options are {taken}{near}", Status.ARG)
    return _of_torch(subject, words), subject


def _word(value: Any) -> str:
    """An option as the C library spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_torch(subject: Subject, options: Mapping[str, str]) -> Account:
    from . import tracing

    parts: list[Part] = []
    fallbacks: list[Fallback] = []
    views: list[str] = []
    graphs = tracing.trace(subject, options)
    for graph in graphs:
        views += [left.node for left in graph.compiled.left if not left.computes]
        for left in filter(lambda left: left.computes, graph.compiled.left):
            before = len(parts) + graph.parts_before(left.node) + 1
            fallbacks.append(Fallback(left.node, left.op, graph.where(left.node), left.reason, before))
        for part in graph.compiled.parts:
            parts.append(part_of(tracing.program_of(part, options), tracing.extents(part)))
    notes = [f"PyTorch broke the model into {len(graphs)} graphs."] if len(graphs) > 1 else []
    heads = [head for graph in graphs for head in graph.compiled.heads]
    notes += map(str, heads)
    compiled = [part for graph in graphs for part in graph.compiled.parts]
    narrow = {tracing.words_of(part, options).get("precision", "fp32") for part in compiled} - {"fp32"}
    if narrow:
        notes.append(f"Products round what they multiply to {', '.join(narrow)}.")
    return Account(parts, fallbacks, title=subject.title, notes=notes, views=views, heads=heads)


def _of_program(program: native.Compiled, names: Sequence[str], dims: Mapping[str, int], title: str) -> Account:
    unknown = [name for name in dims if name not in names]
    if unknown:
        known = ", ".join(names) or "none"
        near = native.suggestion(unknown[0], names)
        raise Error(f"{title} has no extent {unknown[0]}; it has {known}{near}", Status.ARG)
    extents = [dims.get(name, 1024) for name in names]  # the library's own default
    return Account([part_of(program, extents)], title=title)


def part_of(program: native.Compiled, extents: Sequence[int]) -> Part:
    """One program's account at these values of its named extents."""
    return Part(program.explain(extents), json.loads(program.explain(extents, json=True)))
