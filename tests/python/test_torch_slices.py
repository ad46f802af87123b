# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors through torch.compile: read where the whole is computed, or computed alone; what is a view in eager
and only returned stays one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from torch_door import assert_close, assert_fused, compiled, flat, fresh, reasons, reference

fresh_each_time = fresh(11)


class GatedByHalves(nn.Module):
    """Gate and up as one product, as Phi-3 and GLM have them."""

    def __init__(self, features, hidden):
        super().__init__()
        self.gate_up = nn.Linear(features, 2 * hidden)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class GatedByGLU(GatedByHalves):
    def forward(self, x):
        gates = self.gate_up(x)
        n = gates.shape[-1] // 2
        return self.down(torch.sigmoid(gates[..., n:]) * gates.narrow(-1, 0, n))


class Pooled(nn.Module):
    """BERT's pooler: of the last norm only the first token is wanted."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm, self.pool = nn.Linear(24, 40), nn.LayerNorm(40), nn.Linear(40, 7)

    def forward(self, x):
        return torch.tanh(self.pool(self.norm(self.dense(x))[:, 0]))


class Heads(nn.Module):
    """Every third column, cut columns, one column, and all of it, each used further on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 30)

    def forward(self, x):
        h = self.linear(x)
        a, b = h.split([13, 17], dim=-1)
        c, d, e = h.unflatten(-1, (5, 3, 2)).unbind(-2)
        return (a * a).sum(-1), torch.softmax(b, -1), h[..., ::3] - h[..., 1::3] * h[..., -1:], c + d - e, h.relu()


MODELS = {
    "halves": lambda: GatedByHalves(24, 33),
    "glu": lambda: GatedByGLU(24, 40),
    "glu of odd extents": lambda: GatedByGLU(24, 7),
    "pooled": Pooled,
    "heads": Heads,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
def test_parts_of_values(make, dynamic):
    module = make().eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (3, 1, 8) if dynamic else (3,):
            x = torch.randn(batch, 5, 24)
            if batch > 1 and dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            assert_close(fast(x), reference(module, x), module(x))
    assert_fused()


def test_halves_are_one_kernel():
    """The halves become products of their own, and nothing between is stored."""
    report = linfuse.explain(GatedByHalves(64, 96).eval(), torch.randn(32, 64)).json()
    assert [note["rule"] for note in report["rewrites"]].count("slice_of_linear") == 2
    assert len(report["kernels"]) <= 2 and report["fused"]["intermediate_bytes"] <= 32 * 96 * 4


def test_only_rows_that_are_read_are_computed():
    report = linfuse.explain(Pooled().eval(), torch.randn(4, 50, 24)).json()
    assert {"slice_of_rows"} == {note["rule"] for note in report["rewrites"] if "slice" in note["rule"]}
    assert report["fused"]["flops"] < report["plain"]["flops"] / 25


SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, 1e-45, 1.0])


@pytest.mark.parametrize("name", ["halves", "heads"])
def test_numbers_that_are_not_finite(name):
    """They stay in their rows, and in the columns that read them."""
    module = MODELS[name]().eval()
    x = torch.randn(len(SPECIAL), 5, 24)
    x[:, 2, 3] = SPECIAL
    with torch.no_grad():
        got, eager = flat(compiled(module)(x)), flat(module(x))
        for mine, theirs in zip(got, eager):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert_fused()


def test_what_is_a_view_in_eager_stays_one():
    """Q, K and V of one product are returned as eager returns them: in its memory, without a copy."""
    linear = nn.Linear(24, 36).eval()

    def heads(x):
        return [t.unflatten(-1, (3, 4)).transpose(1, 2) for t in linear(x).relu().split(12, -1)]

    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        got, eager = compiled(heads)(x), heads(x)
    for mine, theirs in zip(got, eager):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
    assert len({t.untyped_storage().data_ptr() for t in got}) == 1
    assert_fused()
    told = linfuse.explain(heads, x)
    assert not told.fallbacks and len(told.views) == 10 and told.json()["views"] == told.views
    assert "\n  views and slices, which cost nothing: split, t, t_1, " in str(told)


def test_transposes_at_the_end_are_views():
    """A permute that only PyTorch reads moves nothing: its results are views of what linfuse made, as eager's. One that
    linfuse reads, too, stays its own."""
    linear, turn = nn.Linear(24, 36).eval(), nn.Linear(5, 5).eval()

    def heads(x):
        return linear(x).relu().view(2, 5, 3, 3, 4).permute(2, 0, 3, 1, 4)

    def both(x):
        y = linear(x).transpose(1, 2)
        return turn(y), y

    x = torch.randn(2, 5, 24)
    several = ["permute", "unbind", "getitem", "getitem_1", "getitem_2"]
    with torch.no_grad():
        for f, views in ((heads, ["permute"]), (lambda x: heads(x).unbind(), several), (both, [])):
            got, eager = flat(compiled(f)(x)), flat(f(x))
            for mine, theirs in zip(got, eager, strict=True):
                torch.testing.assert_close(mine, theirs)
                assert mine.stride() == theirs.stride()
            assert_fused()
            assert len({t.untyped_storage().data_ptr() for t in got}) == (2 if f is both else 1)
            told = linfuse.explain(f, x)
            assert told.views == views and len(told.kernels) == (2 if f is both else 1)


REFUSED = {
    "negative step": (lambda x: (x * 2).flip(-1) + 1, "flip"),
    "by a tensor": (lambda x: (x * 2)[:, torch.tensor([0, 3])] + 1, "getitem"),
    "of the batch": (lambda x: (x * 2)[1:] + 1, "extent 0"),
}


@pytest.mark.parametrize("f, why", REFUSED.values(), ids=REFUSED)
def test_what_is_left_to_pytorch(f, why):
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    torch.testing.assert_close(compiled(f)(x), f(x))
    assert why in reasons()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_halves_of_short_types(dtype):
    module = GatedByHalves(24, 33).to(dtype).eval()
    x = torch.randn(6, 24).to(dtype)
    with torch.no_grad():
        got, eager, want = compiled(module)(x), module(x), reference(module, x)[0]
    assert got.dtype is dtype
    assert (got.double() - want).abs().max() <= 1.05 * (eager.double() - want).abs().max()
