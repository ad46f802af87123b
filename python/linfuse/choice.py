# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes faster than linfuse: products in bf16, where the CPU has instructions for them.

linfuse multiplies in f32, whatever the operands' type. PyTorch's oneDNN uses AVX512-BF16 or AMX, which do twice as much
at once or more, behind some 15 us that each of its products takes first. So it wins where a product is large. Measured
on one core of an AMD EPYC with AVX512-BF16, linear and GELU, eager's time in bf16 by linfuse's:

    multiply-adds   1 M: 1.07 to 1.63   4 M: 0.93   17 M: 0.58 to 0.75   67 M: 0.73   270 M: 0.47
    one row         1 M: 1.46           4 M: 0.96 (memory is what both wait for)

In f16 linfuse is faster at all sizes (4x to 70x from 16 rows on): oneDNN has no such instructions there to use.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping

import torch
from torch.fx import Node

from . import native, ops
from .capture import Capture, example, hints

MOST = 1 << 21  # multiply-adds of a product that linfuse runs
REASON = "a large product in bf16: PyTorch's is faster on this CPU"


@functools.cache
def has_bf16_products() -> bool:
    """Whether this CPU has instructions for them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.M)
    except OSError:
        return False
    return flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[1].split())


def _is_large(node: Node) -> bool:
    """Whether a node is a product in bf16 of so many multiply-adds, over more rows than one."""
    found, made = ops.find(node), example(node)
    if found is None or found[0].row.op not in ("linear", "matmul") or made.dtype is not torch.bfloat16:
        return False
    spelling, args, kwargs = found
    given = spelling.bind(args, kwargs)
    *rows, columns = hints(made)
    inputs = hints(example(given.get("mat1", given["input"])))[-1]
    return math.prod(rows) > 1 and math.prod(rows) * columns * inputs > MOST


def left_to_pytorch(nodes: Iterable[Node], capture: Capture, options: Mapping[str, str]) -> list[Node]:
    """The products of a part that PyTorch should run. A part that rewriting leaves little to multiply in is kept: a
    mean over a product's columns needs no product."""
    large = [node for node in nodes if _is_large(node)]
    if not large or options.get("device", "cpu") != "cpu" or not has_bf16_products():
        return []
    dims = [max(1, size) for size in capture.dim_hints]
    words = {f"dim.{name}": str(size) for name, size in zip(capture.model.dim_names(), dims)}
    account = json.loads(native.Compiled(capture.model, {**options, **words}).explain(dims, json=True))
    return large if account["fused"]["flops"] > 2 * MOST else []
