# SPDX-License-Identifier: Apache-2.0
"""Models drawn at random for the sweep through torch.compile: one to three linear layers, tails from the whole op table
in all sorts of spellings, residuals, several outputs. The same number gives the same model."""

import random

import torch
import torch.nn.functional as F
from torch import nn

# A step takes (h, x, self) and gives the next h. h is [B, n]; x is the model's input [B, k].
# What wants positive numbers, or not too large ones, makes them first.
POINTWISE = [
    lambda r, n: nn.ReLU(),
    lambda r, n: nn.GELU(),
    lambda r, n: nn.GELU(approximate="tanh"),
    lambda r, n: nn.SiLU(),
    lambda r, n: nn.Mish(),
    lambda r, n: nn.Tanh(),
    lambda r, n: nn.Sigmoid(),
    lambda r, n: nn.Softplus(r.choice([1, 2])),
    lambda r, n: nn.ELU(r.choice([1.0, 0.5])),
    lambda r, n: nn.SELU(),
    lambda r, n: nn.CELU(0.7),
    lambda r, n: nn.Hardtanh(-1.5, 2.0),
    lambda r, n: nn.Hardswish(),
    lambda r, n: nn.Hardsigmoid(),
    lambda r, n: nn.LeakyReLU(r.choice([0.01, 0.2])),
    lambda r, n: nn.Dropout(0.3),
    lambda r, n: nn.ReLU(inplace=True),
    lambda r, n: F.relu,
    lambda r, n: F.gelu,
    lambda r, n: F.silu,
    lambda r, n: F.mish,
    lambda r, n: torch.tanh,
    lambda r, n: torch.sigmoid,
    lambda r, n: F.softplus,
    lambda r, n: F.hardswish,
    lambda r, n: F.elu,
    lambda r, n: F.selu,
    lambda r, n: F.leaky_relu,
    lambda r, n: lambda h: torch.clamp(h, min=-0.5),
    lambda r, n: lambda h: h.clamp(-1, 1.5),
    lambda r, n: lambda h: F.hardtanh(h, -2, 2),
    lambda r, n: lambda h: h.abs() + 0.1,
    lambda r, n: lambda h: -h,
    lambda r, n: lambda h: torch.exp(torch.tanh(h)),
    lambda r, n: lambda h: (h.abs() + 0.5).log(),
    lambda r, n: lambda h: torch.sqrt(h * h + 1),
    lambda r, n: lambda h: torch.rsqrt(h.square() + 0.5),
    lambda r, n: lambda h: (1 + h.abs()).reciprocal(),
    lambda r, n: lambda h: h**2 * 0.5,
    lambda r, n: lambda h: torch.pow(h.abs() + 0.1, 1.5),
    lambda r, n: lambda h: h.clone().add_(0.25),
    lambda r, n: lambda h: F.celu(h, 1.3),
    lambda r, n: lambda h: F.hardsigmoid(h) + h,
    lambda r, n: lambda h: F.dropout(h, 0.4, training=False) * 1.1,
]
# What the table has learnt since: drawing from them would change the models that figures are recorded of.
LATER = {
    "expm1": lambda h: torch.expm1(h * 0.5),
    "log1p": lambda h: torch.log1p(h.abs()),
    "erf": torch.erf,
    "softsign": nn.Softsign(),
    "logsigmoid": nn.LogSigmoid(),
    "hardshrink": nn.Hardshrink(0.3),
    "softshrink": lambda h: F.softshrink(h, 0.3) + 0 * h,  # PyTorch 2.4's makes 0 of NaN
    "slice": lambda h: h * h[:, 1:2],
    "gt": lambda h: h * (h > 0),
    "lt": lambda h: h * (h < 0),
    "ge": lambda h: h * (h >= 0),
    "le": lambda h: h * (h <= 0),
    "eq": lambda h: h - (h == 0) * h,
    "ne": lambda h: h * (h != 0),
    "where": lambda h: torch.where(h > 0, h, -0.3 * h),
    "logical_and": lambda h: h * torch.logical_and(h > 0, h < 9),
    "logical_or": lambda h: h * torch.logical_or(h > 0, h < -9),
    "logical_not": lambda h: h * torch.logical_not(h > 0),
}
BINARY = [
    lambda r, n: lambda h: h * 2 + 0.5,
    lambda r, n: lambda h: 1 - h,
    lambda r, n: lambda h: h / 3,
    lambda r, n: lambda h: torch.add(h, h, alpha=0.3),
    lambda r, n: lambda h: torch.minimum(h, h * h),
    lambda r, n: lambda h: torch.maximum(h, -h * 0.3),
    lambda r, n: lambda h: h.mul(0.7).sub(0.1),
    lambda r, n: lambda h: 1 / (h.abs() + 1),
]


class Later(nn.Module):
    """A layer, one of LATER, a norm and another layer."""

    def __init__(self, name):
        super().__init__()
        self.k, self.function = 24, LATER[name]
        self.first, self.norm, self.last = nn.Linear(24, 40), nn.LayerNorm(40), nn.Linear(40, 7)

    def forward(self, x):
        return self.last(self.norm(self.function(self.first(x))))


class Vector(nn.Module):
    """A parameter that is not inside a layer, added, taken away, multiplied or divided by."""

    def __init__(self, n, how):
        super().__init__()
        self.v, self.how = nn.Parameter(torch.rand(n) + 0.5), how

    def forward(self, h):
        if self.how == "add":
            return h + self.v
        if self.how == "sub":
            return torch.sub(h, self.v)
        return self.v * h if self.how == "mul" else h / self.v


class Between(nn.Module):
    """A layer over features with an axis put between and taken away: pools, InstanceNorm."""

    def __init__(self, layer, axes=1):
        super().__init__()
        self.layer, self.axes = layer, axes

    def forward(self, h):
        for _ in range(self.axes):
            h = h.unsqueeze(1)
        h = self.layer(h)
        for _ in range(self.axes):
            h = torch.squeeze(h, 1)
        return h


class Functional(nn.Module):
    """A norm written with torch.nn.functional and parameters of one's own."""

    def __init__(self, n, how):
        super().__init__()
        self.weight, self.bias, self.how, self.n = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), how, n
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("var", torch.ones(n))

    def forward(self, h):
        if self.how == "layer":
            return F.layer_norm(h, (self.n,), self.weight, self.bias)
        if self.how == "rms":
            return F.rms_norm(h, [self.n], self.weight) + self.bias
        if self.how == "group":
            return F.group_norm(h, 4, self.weight, self.bias, eps=1e-3)
        if self.how == "batch":
            return F.batch_norm(h, self.mean, self.var, self.weight, self.bias)
        return F.batch_norm(h, None, None, self.weight, self.bias, training=True)


VECTORS = [lambda r, n, how=how: Vector(n, how) for how in ("add", "sub", "mul", "div")]
NORMS = [
    lambda r, n: nn.LayerNorm(n),
    lambda r, n: nn.RMSNorm(n, eps=1e-5),
    lambda r, n: nn.GroupNorm(r.choice([2, 4, 6]), n),
    lambda r, n: nn.BatchNorm1d(n),
    lambda r, n: nn.BatchNorm1d(n, track_running_stats=False),
    lambda r, n: Between(nn.InstanceNorm1d(1, affine=True)),
    lambda r, n: Between(nn.InstanceNorm2d(1, affine=True), 2),
    *[lambda r, n, how=how: Functional(n, how) for how in ("layer", "rms", "group", "batch", "own")],
    lambda r, n: nn.Softmax(dim=1),
    lambda r, n: lambda h: F.softmax(h, dim=-1),
    lambda r, n: lambda h: torch.log_softmax(h, 1),
    lambda r, n: lambda h: h.softmax(1),
]
POOLS = [
    (lambda r, n: Between(nn.AvgPool1d(2)), 2),
    (lambda r, n: Between(nn.MaxPool1d(2)), 2),
    (lambda r, n: Between(nn.AvgPool1d(4)), 4),
    (lambda r, n: lambda h: F.max_pool1d(h.unsqueeze(1), 4).squeeze(1), 4),
    (lambda r, n: lambda h: F.avg_pool1d(h.unsqueeze(0), 2).squeeze(0), 2),
    (lambda r, n: lambda h: F.max_pool1d(h, 2), 2),
]
REDUCTIONS = [
    lambda r, n: lambda h: torch.sum(h, dim=1, keepdim=True),
    lambda r, n: lambda h: h.mean(1, keepdim=True),
    lambda r, n: lambda h: torch.max(h, dim=1, keepdim=True)[0],
    lambda r, n: lambda h: torch.min(h, dim=1, keepdim=True).values,
    lambda r, n: lambda h: torch.logsumexp(h, dim=1, keepdim=True),
    lambda r, n: lambda h: h.amax(dim=1, keepdim=True),
    lambda r, n: lambda h: torch.logsumexp(h, 1).unsqueeze(1),
    lambda r, n: lambda h: h.sum(1).unsqueeze(-1),
]
SHAPES = [
    lambda r, n: lambda h: torch.softmax(h.view(h.size(0), 4, -1), dim=2).flatten(1),
    lambda r, n: lambda h: h.reshape(h.shape[0], -1) * 1.5,
    lambda r, n: lambda h: h.unsqueeze(2).transpose(1, 2).squeeze(1) + 0.5,
]


class Drawn(nn.Module):
    """Model number `number`; the same, so many times as wide, for bench/."""

    def __init__(self, number, scale=1):
        super().__init__()
        r = random.Random(number)
        self.number, self.k = number, scale * r.choice([16, 40, 64])
        self.layers, self.steps = nn.ModuleList(), []
        self.side = r.random() < 0.3  # a second output from the middle
        self.spelled = [r.choice(["module", "functional", "operator", "addmm"]) for _ in range(3)]
        n = self.k
        for linear in range(r.randint(1, 3)):
            self._linear(
                n, wide := self.k if r.random() < 0.4 else scale * r.choice([24, 48, 96]), self.spelled[linear]
            )
            n = self._tail(r, wide)
        self.residual = n == self.k and r.random() < 0.7
        self.reduced = n == 1

    def _keep(self, step):
        if isinstance(step, nn.Module):
            self.layers.append(step)
        self.steps.append(step)

    def _linear(self, k, n, spelled):
        layer = nn.Linear(k, n, bias=spelled != "operator")
        self.layers.append(layer)
        self.steps.append(
            {
                "module": layer,
                "functional": lambda h: F.linear(h, layer.weight, layer.bias),
                "operator": lambda h: h @ layer.weight.T,
                "addmm": lambda h: torch.addmm(layer.bias, h, layer.weight.t()),
            }[spelled]
        )

    def _tail(self, r, n):
        for _ in range(r.randint(1, 4)):
            kind = r.choices(
                ["pointwise", "binary", "vector", "norm", "pool", "reduce", "shape"], [6, 2, 2, 3, 1, 1, 0.7]
            )[0]
            if n == 1 and kind not in ("pointwise", "binary", "vector"):
                kind = "pointwise"
            if kind == "pool":
                make, width = r.choice(POOLS)
                n //= width
            elif kind == "reduce":
                make, n = r.choice(REDUCTIONS), 1
            else:
                make = r.choice(
                    {"pointwise": POINTWISE, "binary": BINARY, "vector": VECTORS, "norm": NORMS, "shape": SHAPES}[kind]
                )
            self._keep(make(r, 1 if n == 1 and kind == "reduce" else n))
        return n

    def forward(self, x):
        h = x
        middle = None
        for i, step in enumerate(self.steps):
            h = step(h)
            if i == len(self.steps) // 2:
                middle = h
        if self.residual:
            h = h + x
        if self.reduced:
            h = torch.add(h, x)
        return (h, torch.tanh(middle) * 0.5) if self.side else h
