# SPDX-License-Identifier: Apache-2.0
"""Comparisons and what chooses by them, through torch.compile: masks are numbers within a kernel, and nowhere else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from torch_door import assert_close, assert_fused, compiled, flat, fresh, reasons, reference

fresh_each_time = fresh(13)


class Chosen(nn.Module):
    """A product, chosen from element by element, by rows and by columns."""

    def __init__(self):
        super().__init__()
        self.linear, self.limit = nn.Linear(16, 21), nn.Parameter(torch.rand(21) - 0.5)

    def forward(self, x, y):
        h = self.linear(x)
        inside = (h > self.limit) & ~(h >= y)
        row = x[:, :1] < 0
        far = h.masked_fill(inside | row, 0.0)
        return torch.where(row, h.abs(), far), far.softmax(-1), h * inside, inside.float().mean(-1)


def inputs(batch=6):
    return torch.randn(batch, 16), torch.randn(batch, 21)


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
def test_masks(dynamic):
    module = Chosen().eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (6, 1, 9) if dynamic else (6,):
            given = inputs(batch)
            for x in given if dynamic and batch > 1 else ():
                torch._dynamo.mark_dynamic(x, 0)
            assert_close(fast(*given), reference(module, *given), module(*given))
    assert_fused(parts=2 if dynamic else 1)  # a batch of 1 is a graph of its own


SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3e38, -1.0, 1.0])
CHOICES = {
    "greater": lambda x, y: torch.where(x > y, x, y) * 1,
    "not less": lambda x, y: torch.where(~(x < y), x, 5.0) + 0,
    "equal": lambda x, y: (x == y) * x + (x != y) * 2.0,
    "is a number": lambda x, y: torch.where(x == x, x, y).exp(),
    "no number": lambda x, y: (x != x).float() + y.clamp(-1, 1),
    "between": lambda x, y: x.masked_fill((x >= -1) & (x <= y), float("-inf")).abs(),
    "of a held value": lambda x, y: (x.clamp(2, 2) > 1).float() + (y.clamp(2, 2) != y.clamp(2, 2)).float(),
    "largest of masks": lambda x, y: (x > 0).float().amax(-1, keepdim=True) + torch.relu(y),
    "nested": lambda x, y: torch.where(x > 0, torch.where(y > 0, x, y), torch.where(y > 0, y, 1.0)) * 3,
}


@pytest.mark.parametrize("f", CHOICES.values(), ids=CHOICES)
def test_as_pytorch_has_it(f):
    """NaN is no greater, no less, not equal and unequal."""
    x, y = (t.clone().contiguous() for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    torch.testing.assert_close(compiled(f)(x, y), f(x, y), rtol=1e-6, atol=0, equal_nan=True)
    assert_fused()


def test_numbers_are_of_the_tensors_type():
    """0.1 rounded to bf16 is more than 0.1, and x > 0.1 compares with what it is rounded to."""
    x = torch.tensor([0.1, 0.2, 0.0999], dtype=torch.bfloat16)
    assert not (x > 0.1)[0]
    torch.testing.assert_close(compiled(lambda x: torch.where(x > 0.1, x, -x) * 2)(x), torch.where(x > 0.1, x, -x) * 2)
    assert_fused()


def test_masks_that_leave():
    """A mask that something else reads as a tensor is PyTorch's, with what chooses by it; the rest is fused."""

    def f(x, y):
        h = torch.relu(x) * 2
        mask = h > y
        return mask, torch.where(mask, h, y), F.softmax(h, -1)

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    for mine, theirs in zip(compiled(f)(x, y), f(x, y)):
        torch.testing.assert_close(mine, theirs)
    stats = linfuse.stats()
    assert stats.fused_parts == 1 and "a mask that is wanted" in reasons()


def test_masks_from_outside():
    def f(x, mask):
        return torch.relu(x.masked_fill(mask, 0.0)).exp() + x * 2

    x, mask = torch.randn(4, 8), torch.rand(4, 8) > 0.5
    torch.testing.assert_close(compiled(f)(x, mask), f(x, mask))
    assert "dtype bool" in reasons()


def test_dropout_by_a_mask_of_numbers():
    """As training graphs have it where the mask is saved: one kernel with the product before and the sum after."""
    linear = nn.Linear(16, 24).eval()

    def f(x, mask, residual):
        return F.gelu(linear(x)) * mask * (1 / 0.9) + residual

    given = torch.randn(5, 16), (torch.rand(5, 24) > 0.1).float(), torch.randn(5, 24)
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(*given), f(*given))
        report = linfuse.explain(f, *given).json()
    assert len(report["kernels"]) == 1 and report["fused"]["intermediate_bytes"] == 0
    assert_fused()
