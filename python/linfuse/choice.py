# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes faster than linfuse: large products in bf16, products of many rows and few columns on a GPU,
and small parts without a product.

Products in bf16, where the CPU has instructions for them:

PyTorch's oneDNN uses AVX512-BF16 or AMX, which do twice as much at once or more, behind some 15 us that each of its
products takes first. So it wins where a product is large. Measured on one core of an AMD EPYC with AVX512-BF16 while
linfuse multiplied in f32 alone, linear and GELU, eager's time in bf16 by linfuse's:

    multiply-adds   1 M: 1.07 to 1.63   4 M: 0.93   17 M: 0.58 to 0.75   67 M: 0.73   270 M: 0.47
    one row         1 M: 1.46           4 M: 0.96 (memory is what both wait for)

Since linfuse uses AVX512-BF16 itself, the parts of BERT base and a Llama of 1024 features take eager's time (0.99 to
1.11), but for products of rows that their kernel makes first, which it still multiplies in f32: 0.62. With AMX eager
takes 1.18 to 4.76 times as long on 4 and 12 threads (bench/results/bf16-2026-11-19-emerald-rapids.md),
so there only products of such rows are PyTorch's.

In f16 linfuse is faster at all sizes (4x to 70x from 16 rows on): oneDNN has no such instructions there to use.

Products of few columns, on a GPU. Tensor cores have tiles of 128 columns or more, and x is brought into lines for them,
which takes two passes over it. A library reads x once: 65536 x 1024 by 10 columns is 75 us for cuBLAS and 280 us for
linfuse, as the cost model has it for an H200. So that is asked, where x is large enough for it to matter.

Parts without a product, where inductor compiles what is around them. Measured on one core of an AMD EPYC with AVX-512,
inductor's time by linfuse's, both as whole graphs:

                         layer_norm   rms_norm   silu, mul   mul, add   gelu, softmax   logsumexp
    f32, 128 x 768             0.88       0.67        0.86       0.62            1.52        1.07
    f32, 2048 x 4096           4.16       4.39        4.93       4.69            3.34        1.15
    bf16, 128 x 768            0.78       0.82        0.93       0.69            1.78        1.17
    bf16, 2048 x 4096          0.65       0.47        0.82       0.60            1.16        1.22

Large results in f32 are faster because their memory is used again (memory.py).
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from . import memory, native, ops
from .capture import Capture, example, hints

MOST = 1 << 21  # multiply-adds of a product that linfuse runs
REASON = "a large product in bf16: PyTorch's is faster on this CPU"
FEW_COLUMNS = 128  # fewer fill no tile of a GPU's tensor cores
LONG = 1 << 20  # elements of x from which on a pass over it takes longer than launches
SLOWER = 1.25  # how much slower linfuse must be predicted to be: predictions of GPUs' products are off by less
REASON_FEW = "a product of many rows and few columns: PyTorch's is predicted to be faster on this GPU"
_EXPS = ("softmax", "log_softmax", "logsumexp")
SMALL = "small, with no product beside it: inductor fuses it with what is around it"


def pays(part: Iterable[Node]) -> bool:
    """Whether a part is worth a call: several ops, or one that linfuse does better at alone: a product, and what
    PyTorch goes over memory for more than once."""
    rows = [found[0].row for found in map(ops.find, part) if found]
    working = [row.op for row in rows if row.kind == "compute"]
    return len(working) > 1 or any(op == "logsumexp" or ops.KINDS.get(op) in ("product", "normalize") for op in working)


@functools.cache
def has_bf16_products() -> bool:
    """Whether this CPU has instructions for them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.M)
    except OSError:
        return False
    return flags is not None and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[1].split())


def _operand(node: Node) -> Node | None:
    """What a product multiplies by its weight; None for other nodes."""
    found = ops.find(node)
    if found is None or found[0].row.op not in ("linear", "matmul"):
        return None
    spelling, args, kwargs = found
    given = spelling.bind(args, kwargs)
    return given.get("mat1", given["input"])


def _extents(node: Node) -> tuple[int, int, int] | None:
    """Rows, columns and inputs of a product; None for other nodes."""
    operand = _operand(node)
    if operand is None:
        return None
    *rows, columns = hints(example(node))
    return math.prod(rows), columns, hints(example(operand))[-1]


def _is_made_by_its_kernel(operand: Node | None, part: Sequence[Node]) -> bool:
    """Whether what a product multiplies is computed, and not by the kernel of another product, which stores it."""
    made, left, seen = False, [operand], set()
    while left:
        node = left.pop()
        if node is None or node in seen or node not in part:
            continue
        seen.add(node)
        found = ops.find(node)
        kind = ops.KINDS.get(found[0].row.op) if found else None
        if kind == "product":
            return False
        made = made or kind != "view"
        left.extend(node.all_input_nodes)
    return made


def _is_large(node: Node) -> bool:
    """Whether a node is a product in bf16 of so many multiply-adds, over more rows than one."""
    extents = _extents(node)
    return (extents is not None and example(node).dtype is torch.bfloat16 and extents[0] > 1
            and math.prod(extents) > MOST)


def _has_few_columns(node: Node) -> bool:
    """Whether a node is a product of an x so large, and of few columns."""
    rows, columns, inputs = _extents(node) or (0, 0, 0)
    return columns < FEW_COLUMNS and rows * inputs >= LONG


def left_to_the_rest(parts: Iterable[Sequence[Node]]) -> dict[Node, str]:
    """What a compiler that fuses should have, and why: small parts of no product and no softmax. It goes over memory as
    often as linfuse would, in one loop with what is before and behind, and needs no call of a part."""
    return {node: SMALL for nodes in parts if not any(map(_gains, nodes)) for node in nodes}


def _gains(node: Node) -> bool:
    """Whether linfuse does better with the node than a compiler that fuses, too."""
    found, made = ops.find(node), example(node)
    if found is None or not isinstance(made, torch.Tensor):
        return False
    large = made.device.type == "cpu" and made.dtype is torch.float32 and math.prod(hints(made)) * 4 >= memory.LEAST
    return large or ops.KINDS.get(found[0].row.op) == "product" or found[0].row.op in _EXPS


def left_to_pytorch(nodes: Iterable[Node], capture: Capture, options: Mapping[str, str]) -> dict[Node, str]:
    """The products of a part that PyTorch should run, and why. A part that rewriting leaves little to multiply in is
    kept: a mean over a product's columns needs no product."""
    nodes = list(nodes)
    if options.get("device", example(nodes[0]).device.type) != "cpu":
        few = [node for node in nodes if _has_few_columns(node)]
        return dict.fromkeys(few, REASON_FEW) if few and _is_slower(_predicted(capture, options)) else {}
    large = [node for node in nodes if _is_large(node)]
    if large and native.machine_fact("isa") == "amx":
        large = [node for node in large if _is_made_by_its_kernel(_operand(node), nodes)]
    if not large or not has_bf16_products():
        return {}
    return dict.fromkeys(large, REASON) if _predicted(capture, options)["fused"]["flops"] > 2 * MOST else {}


def _predicted(capture: Capture, options: Mapping[str, str]) -> dict[str, Any]:
    """The account of a part at the extents that it is traced with."""
    dims = [max(1, size) for size in capture.dim_hints]
    words = {f"dim.{name}": str(size) for name, size in zip(capture.model.dim_names(), dims)}
    return json.loads(native.Compiled(capture.model, {**options, **words}).explain(dims, json=True))


def _is_slower(account: Mapping[str, Any]) -> bool:
    """Whether a part is predicted to take longer than its ops by a library, launches included."""
    plain = account["plain"]
    return account["fused"]["us"] > SLOWER * max(plain["us"], plain["host_us"])
