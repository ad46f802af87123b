# SPDX-License-Identifier: Apache-2.0
"""What bench/cuda.py measures: a model, its extents, and what is to be reached (ms by mode)."""

from dataclasses import dataclass, field

from spec import Spec


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    rows: int
    spec: Spec = field(repr=False)
    goal: dict  # mode -> ms


def _lse_chain():
    s = Spec()
    y = s.linear(s.input("x", "B", 8192), "linear", 8192, 8192)
    y = s.op("logsumexp", y, dim=1, keepdim=True)
    for _ in range(2):
        y = s.op("leaky_relu", y, negative_slope=0.01)
    s.op("gelu", s.op("gelu", y))
    return s


def _gelu_softmax():
    s = Spec()
    s.op("softmax", s.op("gelu", s.linear(s.input("x", "B", 8192), "linear", 8192, 8192)), dim=1)
    return s


def _mean_residual():
    s = Spec()
    x = s.input("x", "B", 8192)
    y = s.op("sub", s.linear(x, "linear", 8192, 8192), s.weight("subtract", 8192))
    y = s.op("logsumexp", s.op("mean", y, dim=1, keepdim=True), dim=1, keepdim=True)
    s.op("add", s.op("gelu", y), x)
    return s


def _group_hardtanh():
    s = Spec()
    y = s.linear(s.input("x", "B", 8192), "linear", 8192, 8192)
    s.op("hardtanh", s.op("group_norm", y, 512, *s.affine("norm", 8192)), min_val=-2.0, max_val=2.0)
    return s


def _silu_group():
    s = Spec()
    y = s.op("add", s.op("silu", s.linear(s.input("x", "B", 1024), "linear", 4096, 1024)), 1.0)
    s.op("group_norm", y, 64, *s.affine("norm", 4096))
    return s


def _silu_scale():
    s = Spec()
    s.op("mul", s.op("silu", s.linear(s.input("x", "B", 4096), "linear", 4096, 4096)), 2.0)
    return s


def _linear_then(op, n, k, **attrs):
    s = Spec()
    s.op(op, s.linear(s.input("x", "B", k), "linear", n, k), **attrs)
    return s


def _gated(k, n, norm=False):
    """x, or with norm x + what comes of rms_norm(x), through a gated MLP without biases."""
    s = Spec()
    x = s.input("x", "B", k)
    h = s.op("rms_norm", x, [k], s.param("norm.weight", (k,), 0.5, 1.5)) if norm else x
    gate = s.op("silu", s.op("linear", h, s.weight("gate.weight", n, k)))
    up = s.op("linear", h, s.weight("up.weight", n, k))
    y = s.op("linear", s.op("mul", gate, up), s.weight("down.weight", k, n))
    if norm:
        s.op("add", x, y)
    return s


ROWS = [
    Row("lse_chain", "lse_chain 1024x8192x8192", 1024, _lse_chain(),
        {"fp32": 0.55, "tf32": 0.34, "bf16": 0.20, "bf16_tensors": 0.180}),
    Row("gelu_softmax", "gelu_softmax 1024x8192x8192", 1024, _gelu_softmax(),
        {"fp32": 0.58, "tf32": 0.35, "bf16": 0.22, "bf16_tensors": 0.205}),
    Row("mean_residual", "mean_residual 2048x8192x8192", 2048, _mean_residual(),
        {"fp32": 0.040, "tf32": 0.040, "bf16": 0.040, "bf16_tensors": 0.022}),
    Row("group_hardtanh", "linear, group_norm (512), hardtanh 1024x8192x8192", 1024, _group_hardtanh(),
        {"fp32": 0.58, "tf32": 0.36, "bf16": 0.21, "bf16_tensors": 0.185}),
    Row("silu_group", "linear, silu, add 1, group_norm (64) 32768x4096x1024", 32768, _silu_group(),
        {"fp32": 1.30, "tf32": 0.90, "bf16": 0.60, "bf16_tensors": 0.45}),
    Row("silu_scale", "linear, silu, scale 16384x4096x4096", 16384, _silu_scale(),
        {"fp32": 2.45, "tf32": 1.45, "bf16": 0.80, "bf16_tensors": 0.73}),
    Row("gelu_wide", "linear, gelu 128x32768x32768", 128, _linear_then("gelu", 32768, 32768),
        {"fp32": 1.35, "tf32": 1.14, "bf16": 0.60, "bf16_tensors": 0.52}),
    Row("vocabulary", "linear, logsumexp 8192x128256x4096", 8192, _linear_then("logsumexp", 128256, 4096, dim=1),
        {"fp32": 35, "tf32": 25.4, "bf16": 12.3, "bf16_tensors": 11.6}),
    Row("lse_short", "linear, logsumexp 65536x8192x64", 65536, _linear_then("logsumexp", 8192, 64, dim=1),
        {"fp32": 0.55, "tf32": 0.45, "bf16": 0.40, "bf16_tensors": 0.33}),
    Row("gelu_softmax_1", "gelu_softmax 1x8192x8192", 1, _gelu_softmax(),
        {"fp32": 0.075, "tf32": 0.075, "bf16": 0.040, "bf16_tensors": 0.042}),
    Row("gelu_softmax_16", "gelu_softmax 16x8192x8192", 16, _gelu_softmax(),
        {"fp32": 0.080, "tf32": 0.078, "bf16": 0.042, "bf16_tensors": 0.043}),
    Row("gated_mlp", "gated MLP, 8192 rows, 4096 -> 14336 -> 4096", 8192, _gated(4096, 14336), {"bf16_tensors": 3.6}),
    Row("gated_mlp_2048", "gated MLP, 8192 rows, 2048 -> 8192 -> 2048", 8192, _gated(2048, 8192),
        {"bf16_tensors": 1.15}),
    Row("block", "x + gated MLP(rms_norm(x)), 8192 rows, 4096 -> 14336", 8192, _gated(4096, 14336, True),
        {"bf16_tensors": 3.65}),
]
