# SPDX-License-Identifier: Apache-2.0
"""linfuse.explain: the account of a PyTorch model, of a model file or of a loaded program."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import native
from .account import Account, Part
from .native import Error, Status
from .program import Program, extents_of

if TYPE_CHECKING:
    from torch import nn

__all__ = ["explain"]


def explain(
    model: nn.Module | Program | str | os.PathLike[str] | Any,
    *inputs: Any,
    dims: Mapping[str, int] | None = None,
    **options: str,
) -> Account:
    """What linfuse makes of a model: costs as written, rewrites, fusions, refusals, costs now, and what is left to PyTorch.

    model:    a torch.nn.Module or a function of tensors, compiled (`torch.compile`) or not; a loaded program; a `.lf` file.
    inputs:   what it would be called with. A program or a file does without: dims={"B": 1024} gives its extents.
    options:  as those of compiling: device ("cpu"; "h200" and "a100" are costed without being there), precision, rules,
              assume_finite.

    Nothing is run fused, and the model stays as it is.
    """
    if isinstance(model, (str, os.PathLike)):
        context = native.Context()
        read = native.Model.read_file(context, model)
        return _of_program(native.Program(read, options), read.dim_names(), _given(read, dims), os.fspath(model))
    if isinstance(model, Program):
        if options:
            raise Error(f"a loaded program has its options already: {', '.join(options)} cannot be given", Status.ARG)
        learnt = {**extents_of(model.inputs, inputs), **(dims or {})}
        return _of_program(model._program, model.dim_names, learnt, model.name)
    raise TypeError("explain takes a torch.nn.Module")


def _given(model: native.Model, dims: Mapping[str, int] | None) -> Mapping[str, int]:
    return dims or {}


def _of_program(program: native.Program, names: Sequence[str], dims: Mapping[str, int], title: str) -> Account:
    unknown = [name for name in dims if name not in names]
    if unknown:
        known = ", ".join(names) or "none"
        raise Error(f"{title} has no extent {unknown[0]}; it has {known}", Status.ARG)
    extents = [dims.get(name, 1024) for name in names]  # the library's own default
    return Account([part_of(program, extents)], title=title)


def part_of(program: native.Program, extents: Sequence[int]) -> Part:
    """One program's account at these values of its named extents."""
    return Part(program.explain(extents), json.loads(program.explain(extents, json=True)))
