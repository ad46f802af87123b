# SPDX-License-Identifier: Apache-2.0
"""lf_loss_step, in C, against PyTorch in double precision: losses and gradients for options and pairs of them, odd
extents, each type; and no further from it than PyTorch in that type is."""

import ctypes
import itertools

import pytest
import torch
import torch.nn.functional as F

from linfuse import native

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
SHAPES = [(1, 1, 1), (7, 5, 3), (200, 1000, 64), (193, 257, 300)]
PLAIN = dict(smoothing=0.0, softcap=0.0, temperature=0.0, z_loss=0.0, weighted=False, reduction="mean")
CHANGES = [
    {"smoothing": 0.1},
    {"softcap": 4.0},
    {"temperature": 0.7},
    {"z_loss": 0.01},
    {"weighted": True},
    {"reduction": "sum"},
]
ONE = [PLAIN] + [PLAIN | a for a in CHANGES]
PAIRS = [PLAIN | a | b for a, b in itertools.combinations(CHANGES, 2)]


def described(t):
    extents = (ctypes.c_int64 * t.dim())(*t.shape)
    return native._Tensor(t.data_ptr(), TYPES[t.dtype], t.dim(), extents, None, 0)


@pytest.fixture(scope="module")
def step(library):
    lib = ctypes.CDLL(str(library))
    lib.lf_context_message.restype = ctypes.c_char_p
    context = ctypes.c_void_p()
    assert lib.lf_context_new(ctypes.byref(context)) == 0

    def call(x, weight, bias, target, class_weight, o):
        options = native.LossOptions(
            reduction=("mean", "sum").index(o["reduction"]),
            ignore_index=-100,
            label_smoothing=o["smoothing"],
            softcap=o["softcap"],
            temperature=o["temperature"],
            z_loss=o["z_loss"],
            class_weight=class_weight.data_ptr() if o["weighted"] else None,
        )
        grads = [torch.full_like(t, float("nan")) for t in (x, weight, bias)]
        loss = native._Loss(described(x), described(weight), described(bias), target.data_ptr(), options)
        value = ctypes.c_double()
        status = lib.lf_loss_step(
            context,
            ctypes.byref(loss),
            ctypes.c_double(1.0),
            ctypes.byref(value),
            ctypes.byref(native._LossGradient(*map(described, grads))),
        )
        assert status == 0, lib.lf_context_message(context)
        return value.value, grads

    yield call
    lib.lf_context_free(context)


def in_torch(tensors, target, class_weight, o, dtype):
    x, weight, bias = (t.to(dtype, copy=True).requires_grad_() for t in tensors)
    logits = F.linear(x, weight, bias)
    if o["softcap"]:
        logits = o["softcap"] * torch.tanh(logits / o["softcap"])
    logits = logits / (o["temperature"] or 1)
    loss = F.cross_entropy(
        logits,
        target,
        class_weight.to(dtype) if o["weighted"] else None,
        label_smoothing=o["smoothing"],
        reduction=o["reduction"],
    )
    squares = logits[target != -100].logsumexp(-1).square()
    loss = loss + o["z_loss"] * (squares.mean() if o["reduction"] == "mean" else squares.sum())
    loss.backward()
    return loss.item(), [t.grad for t in (x, weight, bias)]


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-6)).item()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_as_torch(step, shape, dtype):
    tokens, words, depth = shape
    torch.manual_seed(tokens)
    tensors = [torch.randn(tokens, depth), torch.randn(words, depth) / depth**0.5, torch.randn(words)]
    tensors = [t.to(dtype) for t in tensors]
    target = torch.randint(0, words, (tokens,))
    target[tokens // 2 :] = words // 2  # most tokens have one word
    target[3::7] = -100
    class_weight = torch.rand(words) + 0.1
    for o in ONE + (PAIRS if dtype == torch.float32 else []):
        value, grads = step(*tensors, target, class_weight, o)
        want, want_grads = in_torch(tensors, target, class_weight, o, torch.float64)
        _, eager_grads = in_torch(tensors, target, class_weight, o, dtype)
        assert value == pytest.approx(want, rel=2e-6, abs=1e-6), o
        unit = torch.finfo(dtype).eps
        for name, got, wanted, eager in zip(("x", "weight", "bias"), grads, want_grads, eager_grads, strict=True):
            assert error(got, wanted) <= max(1.2 * error(eager, wanted), 4 * unit), (name, o)
