# SPDX-License-Identifier: Apache-2.0
"""Every pointwise op's derivative in each argument (src/ir/derive.c, through tests/derive_tool.c) against PyTorch's
autograd in float64: random numbers and special ones, kinks among them. NaN and Inf must stand where PyTorch has them.
Then the digits: what f32 makes of the same trees."""

import itertools
import math
import subprocess

import numpy as np
import pytest
import torch
import torch.nn.functional as F

LANES = 64  # PyTorch's vectors, not the loop over what is left: NaN at a kink is not the same there
TOLERANCE = 1e-13
ROUNDS = {"hardsigmoid": 1e-7}  # PyTorch has 1 / 6 as a float, in float64 too

# op -> (PyTorch's, attributes to try)
OPS = {
    "relu": (F.relu, [()]),
    "leaky_relu": (F.leaky_relu, [(0.01,), (0.0,), (2.0,), (-0.5,)]),
    "gelu": (lambda x, a: F.gelu(x, approximate=("none", "tanh")[int(a)]), [(0,), (1,)]),
    "sigmoid": (torch.sigmoid, [()]),
    "tanh": (torch.tanh, [()]),
    "silu": (F.silu, [()]),
    "mish": (F.mish, [()]),
    "softplus": (F.softplus, [(1.0, 20.0), (2.0, 20.0), (0.5, 3.0), (-1.0, 20.0)]),
    "clamp": (torch.clamp, [(-1.0, 3.0), (-math.inf, 1.0), (-1.0, math.inf), (2.0, 1.0), (0.0, 0.0)]),
    "hardtanh": (F.hardtanh, [(-1.0, 1.0), (0.0, 6.0)]),
    "hardswish": (F.hardswish, [()]),
    "hardsigmoid": (F.hardsigmoid, [()]),
    "elu": (F.elu, [(1.0,), (0.3,), (-2.0,)]),
    "selu": (F.selu, [()]),
    "celu": (F.celu, [(1.0,), (0.5,), (-2.0,)]),  # 1 / alpha is a float in PyTorch, in float64 too
    "softsign": (F.softsign, [()]),
    "logsigmoid": (F.logsigmoid, [()]),
    "hardshrink": (F.hardshrink, [(0.5,), (2.0,), (0.0,)]),
    "softshrink": (F.softshrink, [(0.5,), (2.0,), (0.0,)]),
    "exp": (torch.exp, [()]),
    "log": (torch.log, [()]),
    "expm1": (torch.expm1, [()]),
    "log1p": (torch.log1p, [()]),
    "erf": (torch.erf, [()]),
    "to": (lambda x, a: x.to((torch.float32, torch.float16, torch.bfloat16)[int(a)]).double(), [(0,), (1,), (2,)]),
    "abs": (torch.abs, [()]),
    "neg": (torch.neg, [()]),
    "sqrt": (torch.sqrt, [()]),
    "rsqrt": (torch.rsqrt, [()]),
    "reciprocal": (torch.reciprocal, [()]),
    "pow": (torch.pow, [(a,) for a in (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, 1.5, -1.0, -2.0, 2.5, 0.25, 30.0)]),
    "add": (lambda x, y, a: torch.add(x, y, alpha=a), [(1.0,), (0.0,), (-2.5,)]),
    "sub": (lambda x, y, a: torch.sub(x, y, alpha=a), [(1.0,), (0.0,), (-2.5,)]),
    "mul": (torch.mul, [()]),
    "div": (torch.div, [()]),
    "gt": (lambda x, y: (x > y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "lt": (lambda x, y: (x < y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "ge": (lambda x, y: (x >= y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "le": (lambda x, y: (x <= y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "eq": (lambda x, y: (x == y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "ne": (lambda x, y: (x != y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "logical_and": (lambda x, y: torch.logical_and(x, y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "logical_or": (lambda x, y: torch.logical_or(x, y) + 0 * (x + y).nan_to_num(0, 0, 0), [()]),
    "logical_not": (lambda x: torch.logical_not(x) + 0 * x.nan_to_num(0, 0, 0), [()]),
    "where": (lambda x, y, z: torch.where(x != 0, y, z) + 0 * x.nan_to_num(0, 0, 0), [()]),
    "minimum": (torch.minimum, [()]),
    "maximum": (torch.maximum, [()]),
}
VALUES = dict.fromkeys("add sub mul div gt lt ge le eq ne logical_and logical_or minimum maximum".split(), 2)
VALUES["where"] = 3

SPECIAL = [
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1e-310, -1e-310, 2.3e-308, 1e-160, -1e-160),
    *(1e-45, -1e-45, 1e-8, -1e-8, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 10.0, 20.0, 20.5, -20.0, 40.0),
    *(-40.0, 104.0, -104.0, 709.0, 710.0, -745.0, -746.0, 1e5, -1e5, 1e20, -1e20, 1e100, -1e100, 2e154, 1e200, -1e200),
    *(1.7e308, -1.7e308),
]
KINKS = [math.nextafter(k, to) for k in (0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0, 10.0) for to in (math.inf, -math.inf)]


def derived(tool, requests):
    """requests: (op, argument, precision, array [n, 6] of x y z a b c). The tool's answers."""
    data = b"".join(
        f"{op} {argument} {precision} {len(v)}\n".encode() + np.ascontiguousarray(v, np.float64).tobytes()
        for op, argument, precision, v in requests)
    out = subprocess.run([tool, "eval"], input=data, stdout=subprocess.PIPE, check=True).stdout
    flat = np.frombuffer(out, np.float64)
    assert flat.size == sum(len(v) for *_, v in requests)
    return np.split(flat, np.cumsum([len(v) for *_, v in requests])[:-1])


def points(op):
    rng = np.random.default_rng(sum(op.encode()))
    spread = rng.standard_normal(800) * np.exp(rng.uniform(-8, 6, 800))
    numbers = np.array([*SPECIAL, *KINKS])
    if VALUES.get(op, 1) == 1:
        return [np.concatenate([numbers, spread])]
    pairs = np.array(list(itertools.product(numbers, numbers)))
    order = [0, 1, 0][: VALUES[op]]
    return [np.concatenate([pairs[:, i], spread if k == 0 else rng.permutation(spread)]) for k, i in enumerate(order)]


def variables(values, attributes):
    v = np.zeros((len(values[0]), 6))
    for i, value in enumerate(values):
        v[:, i] = value
    for i, a in enumerate(attributes):
        v[:, 3 + i] = a
    return v


def autograd(op, values, attributes):
    """PyTorch's derivatives, whole vectors of it."""
    short = -len(values[0]) % LANES
    leaves = [torch.from_numpy(np.concatenate([v, np.ones(short)])).requires_grad_() for v in values]
    OPS[op][0](*leaves, *attributes).backward(torch.ones(len(values[0]) + short, dtype=torch.float64))
    return [leaf.grad.numpy()[: len(values[0])] for leaf in leaves]


def test_every_op_is_here(eval_tool):
    table = subprocess.run([eval_tool, "ops"], capture_output=True, text=True, check=True).stdout
    assert {row.split("\t")[0] for row in table.splitlines() if row.split("\t")[1] == "pointwise"} == set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_derivative_is_autograd(derive_tool, op):
    values = points(op)
    x = np.minimum(np.abs(values[0]), 1e3)
    for attributes in OPS[op][1]:
        v = variables(values, attributes)
        ours = derived(derive_tool, [(op, i, 64, v) for i in range(len(values))])
        for i, (mine, theirs) in enumerate(zip(ours, autograd(op, values, attributes))):
            where = f"{op}{attributes} in argument {i}"
            with np.errstate(invalid="ignore"):
                same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
                # what PyTorch loses where it takes one from the other: 1 - sigmoid, times x
                allowed = ROUNDS.get(op, TOLERANCE) * np.abs(theirs) + 1e-15 * np.maximum(1, x)
                close = np.isfinite(mine) & np.isfinite(theirs) & (np.abs(mine - theirs) <= allowed)
            wrong = np.flatnonzero(~(same | close))
            assert wrong.size == 0, [(where, *(u[k] for u in values), mine[k], theirs[k]) for k in wrong[:5]]
            assert len(mine) > 800


# Where no sum of two terms passes 0, and exp is of x itself: digits are kept wherever a derivative is a normal number.
KEPT = {"sigmoid", "tanh", "softplus", "elu", "selu", "exp", "log", "sqrt", "rsqrt", "reciprocal", "hardsigmoid"}
UNIT = 2.0**-24


@pytest.mark.parametrize("op", [op for op in OPS if VALUES.get(op, 1) == 1])
def test_f32_keeps_its_digits(derive_tool, op):
    """One float in 65536, against the same tree in double precision. Within 5 units of 2^-24 of the larger of 1 and
    the derivative; of the derivative alone for KEPT. NaN for a number only where a square overflows in gelu's tanh
    form, as PyTorch has it."""
    x = np.arange(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x)].astype(np.float64)
    for attributes in OPS[op][1]:
        v = variables([x], [float(np.float32(a)) for a in attributes])
        exact, short = derived(derive_tool, [(op, 0, 64, v), (op, 0, 32, v)])
        ordinary = np.isfinite(exact) & (np.abs(exact) < 1e38)
        if op == "gelu" and attributes == (1,):
            ordinary &= np.abs(x) < 1.8e19
        size = np.abs(exact) if op in KEPT else np.maximum(1, np.abs(exact))
        error = np.abs(short[ordinary] - exact[ordinary]) / np.maximum(size, 2.0**-126)[ordinary]
        assert error.size > 10000
        worst = error.argmax()
        assert error[worst] <= 5 * UNIT, (op, attributes, x[ordinary][worst], error[worst] / UNIT)
