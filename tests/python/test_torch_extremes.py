# SPDX-License-Identifier: Apache-2.0
"""What follows a linear layer, on tiny, large and huge rows, through torch.compile: right against float64, or what
eager makes of it where float32 cannot be."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_door import assert_fused, compiled, denormals, fresh, not_on_gpu

fresh_each_time = fresh(3)
pytestmark = pytest.mark.usefixtures("denormals")
FEATURES, OUTPUTS = 64, 300
SCALES = (1, 1e3, 1e6, 1e10, 1e18, 1e25, 1e30, 1e37, -1e10, -1e30, 1e-30, 1e-38, 1e-42)
TAILS = {
    "logsumexp": lambda a: torch.logsumexp(a, 1),
    "softmax": lambda a: torch.softmax(a, 1),
    "log_softmax": lambda a: torch.log_softmax(a, 1),
    "layer_norm": lambda a: F.layer_norm(a, (OUTPUTS,)),
    "group_norm": lambda a: F.group_norm(a, 10),
    "mean": lambda a: a.mean(1),
    "amax": lambda a: a.amax(1),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "elu": F.elu,
    "gelu_logsumexp": lambda a: torch.logsumexp(F.gelu(a), 1),
    "gelu_softmax": lambda a: torch.softmax(F.gelu(a), 1),
}


class Layer(nn.Module):
    def __init__(self, tail):
        super().__init__()
        self.linear, self.tail = nn.Linear(FEATURES, OUTPUTS), TAILS[tail]

    def forward(self, x):
        return self.tail(self.linear(x))


def off(y, want):
    """How far each element is off, against the larger of it and its row's rms."""
    rms = want.nan_to_num(0, 0, 0).square().mean(-1, keepdim=want.dim() > 1).sqrt()
    return ((y.double() - want).abs() / torch.maximum(want.abs(), rms)).where(y.double() != want, 0)


@pytest.mark.parametrize("tail", TAILS)
def test_extremes(tail):
    module = Layer(tail).eval()
    exact = copy.deepcopy(module).double()
    fast = compiled(module)
    with torch.no_grad():
        for rows, scale in itertools.product((5, 200), SCALES):  # few rows have kernels of their own on a GPU
            x = torch.rand(rows, FEATURES) * scale
            eager, got = module(x), fast(x)
            want = exact(x.double()).float().double()  # what f32 cannot hold is infinite
            most = max(4 * off(eager, want).nan_to_num(0, 0, 0).max().item(), 3e-6)
            right = (off(got, want) <= most) | (got == eager) | (got.isnan() & eager.isnan())
            assert right.all(), f"{scale:g}: {got[~right][:4]}, not {want[~right][:4]}; eager {eager[~right][:4]}"
    assert_fused()


MAGNITUDES = (1, 1e18, 2e19, 1e25, 1e30, 3.4e38, 1e-12, 1e-19, 1e-25, 1e-37)
STATISTICS = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer_norm without eps": lambda x: F.layer_norm(x, x.shape[-1:], eps=0.0),
    "group_norm": lambda x: F.group_norm(x, 4),
    "group_norm without eps": lambda x: F.group_norm(x, 4, eps=0.0),
    "instance_norm": lambda x: F.instance_norm(x.view(len(x), 4, -1)),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
    "rms_norm without eps": lambda x: F.rms_norm(x, x.shape[-1:], eps=0.0),
    "batch_norm": lambda x: F.batch_norm(x.T, None, None, training=True).T,
    "mean": lambda x: (-x).mean(-1, keepdim=True),
    "sum": lambda x: (-x).sum(-1, keepdim=True),
}


@not_on_gpu  # whose statistics are of f32 alone: docs/gpu.md
@pytest.mark.parametrize("features", [16, 300, 1200])
@pytest.mark.parametrize("name", STATISTICS)
def test_any_magnitude(name, features):
    """Rows whose sums or squares float32 cannot hold, beside ordinary ones: right against float64, whatever eager makes
    of them. A row is the same bits alone, and NaN and infinities leave the others as they are."""
    function = STATISTICS[name]
    fast = compiled(lambda x: 2 * function(x))
    unit = torch.rand(3, features) * 2 - 1
    unit[1] = unit[1].sign()
    unit[2] = torch.rand(features) / 2 - 1
    unit[2, features // 2] = 1  # one that is far from the others
    x = torch.cat([unit * scale for scale in MAGNITUDES])
    got, want = fast(x), 2 * function(x.double())
    size = want.square().mean(-1, keepdim=True).sqrt()
    if name in ("mean", "sum"):
        size = 2 * x.double().abs().mean(-1, keepdim=True) * (features if name == "sum" else 1)
    want = want.float().double()  # what f32 cannot hold is infinite
    right = (got == want) | ((got - want).abs() <= 2e-6 * torch.maximum(size, want.abs()) + 1e-44)
    assert right.all(), f"{got[~right][:4]}, not {want[~right][:4]}"
    for row in () if name == "batch_norm" else range(0, len(x), 7):
        assert torch.equal(fast(x[row : row + 1]), got[row : row + 1])
    for special in (torch.nan, torch.inf, -torch.inf):
        y = x.clone()
        y[4, 3] = special
        again, eager = fast(y), function(y)
        assert torch.equal(again[4].isnan(), eager[4].isnan()) and torch.equal(again[5:], got[5:])
    assert_fused()
