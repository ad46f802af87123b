# SPDX-License-Identifier: Apache-2.0
"""What is not fused, compiled by inductor: results, gradients, extents that change, other processes, what fails."""

import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import choice, rest
from torch_door import DEVICE, assert_close, compiled, fresh, no_compiler, reference

begin_and_end = fresh(11)
pytestmark = pytest.mark.usefixtures("own_inductor_cache")


@pytest.fixture(scope="module")
def own_inductor_cache(tmp_path_factory):
    """Nothing compiled by earlier runs is found; and no pool of compilers, each of which would import PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        with torch._inductor.config.patch(compile_threads=1):
            yield


class Block(nn.Module):
    """A transformer's: attention is PyTorch's, the rest linfuse's."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    """Tokens to logits."""

    def __init__(self, words=50, width=32):
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(batch=3, length=10):
    return torch.randint(0, 50, (batch, length), device=DEVICE)


def beside_eager(model, fast, *inputs):
    with torch.no_grad():
        got = fast(*inputs)
        assert_close(got, reference(model, *inputs), model(*inputs))
    return got


def test_parts_within_inductor():
    model, given = Language().eval(), tokens()
    fast = compiled(model, rest="inductor")
    beside_eager(model, fast, given)
    beside_eager(model, fast, given)
    stats = linfuse.stats()
    assert stats.graphs == 1 and stats.graphs_fused == 0 and stats.fused_parts == 3
    assert stats.fused_calls == 6 and not [one for one in stats.fallbacks if one.when == "call"], str(stats)


def asked(monkeypatch, *models, **options):
    """Whether inductor is asked to compile what is left of each model."""
    seen, said = [], []
    monkeypatch.setattr(torch._inductor, "compile", lambda module, *rest: seen.append(module) or module)
    for model, given in models:
        seen.clear()
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend="linfuse", options=options)(given)
        said.append(bool(seen))
    return said


def test_inductor_is_asked_where_it_pays(monkeypatch):
    """By itself where much is left between parts, or where there are none; always or never where so told."""
    linear = nn.Linear(8, 8).eval()
    few = lambda x: F.gelu(linear(x)).cumsum(0), torch.randn(4, 8, device=DEVICE)
    none = lambda x: x.cumsum(0), torch.randn(4, 8, device=DEVICE)
    views = lambda x: (F.gelu(linear(x)), x.view(2, 16)), torch.randn(4, 8, device=DEVICE)

    def sums(x):
        h = F.gelu(linear(x))
        for _ in range(9):
            h = h.cumsum(0)
        return F.gelu(linear(h))

    much = sums, torch.randn(4, 8, device=DEVICE)
    assert asked(monkeypatch, few, none, views, much) == [False, True, False, True]
    assert asked(monkeypatch, few, none, views, much, rest="inductor") == [True, True, False, True]
    assert asked(monkeypatch, few, none, views, much, rest="eager") == [False] * 4
    assert asked(monkeypatch, views, fallback="error") == [False]


def test_small_parts_without_a_product_are_inductors(monkeypatch):
    """Where it compiles what is around them; op by op around them, they are fused. explain tells."""
    monkeypatch.setattr(torch._inductor, "compile", lambda module, *rest: module)
    linear, x = nn.Linear(8, 8).eval(), torch.randn(4, 8, device=DEVICE)

    def model(x):
        h = F.gelu(linear(x))
        for _ in range(9):
            h = h.cumsum(0)
        h = (F.silu(h) * h + 1).cumsum(0)
        return torch.softmax(F.relu(h), 1)

    with torch.no_grad():
        for kind, parts in (("inductor", 2), ("auto", 2), ("eager", 3)):
            torch._dynamo.reset()
            linfuse.reset_stats()
            torch.testing.assert_close(compiled(model, rest=kind)(x), model(x))
            assert linfuse.stats().fused_parts == parts
            said = "; ".join(one.reason for one in linfuse.stats().fallbacks)
            assert (choice.SMALL in said) == (parts == 2), said
        told = linfuse.explain(model, x)
    assert len(told.parts) == 2 and [one.op for one in told.fallbacks if one.why == choice.SMALL]


def test_changed_parameters_count():
    model, given = Language().eval(), tokens()
    fast = compiled(model, rest="inductor")
    first = beside_eager(model, fast, given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(beside_eager(model, fast, given), first)


def test_extents_that_change():
    model = Language().eval()
    fast = compiled(model, rest="inductor")
    for batch, length in ((3, 10), (5, 10), (2, 7), (1, 9)):
        beside_eager(model, fast, tokens(batch, length))


def test_same_bits_as_with_eager_around():
    """The parts are the same; so is what runs between them here: views, an embedding and one library function."""
    model, given = Language().eval(), tokens()
    with torch.no_grad():
        one = compiled(model, rest="eager")(given)
        torch._dynamo.reset()
        other = compiled(model, rest="inductor")(given)
    assert torch.equal(one, other)


def test_training_is_inductors():
    """Nothing is fused where gradients are needed: inductor compiles all of it, forward and backward."""
    model, given = Language(), tokens()
    fast = compiled(model, rest="inductor")
    for run in (model, fast):
        model.zero_grad()
        run(given).square().mean().backward()
        grads = [parameter.grad.clone() for parameter in model.parameters()]
        if run is model:
            want = grads
    for got, wanted in zip(grads, want):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert linfuse.stats().fused_calls == 0


def test_nothing_of_ours():
    """A model in another dtype is inductor's as a whole."""
    model, given = Language().double().eval(), tokens()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, rest="inductor")(given), model(given))
    assert linfuse.stats().fused_parts == 0


def test_in_place_effects_stay():
    """What a model writes outside is written once, in order."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x, note):
            y = F.gelu(self.linear(x))
            self.seen += y.cumsum(0)[-1]
            note.add_(1)
            return y.cumsum(1) + F.relu(self.linear(y))

    model, x = Counting().eval(), torch.randn(4, 8, device=DEVICE)
    fast = compiled(model, rest="inductor")
    with torch.no_grad():
        note = torch.zeros(1, device=DEVICE)
        want = model(x, note)
        seen = model.seen.clone()
        model.seen.zero_()
        got = fast(x, note)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(model.seen, seen)
    assert note.item() == 2


def test_where_inductor_fails_pytorch_runs(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch._inductor, "compile", fail)
    model, given = Language().eval(), tokens()
    with pytest.warns(UserWarning, match=r"inductor failed \(no compiler here\), so"):
        beside_eager(model, compiled(model, rest="inductor"), given)
    assert linfuse.stats().fused_calls == 3


def test_without_a_compiler_pytorch_runs():
    """As on a machine that has none: PyTorch's own error is no reason to fail."""
    waves = lambda x: torch.erfinv(x * 0.25).cumsum(0)
    with no_compiler(), pytest.warns(UserWarning, match="inductor failed .*compiler"):
        beside_eager(waves, compiled(waves, rest="inductor"), torch.rand(4, 9, device=DEVICE))


def test_rest_is_one_of_three():
    with pytest.raises(Exception, match="rest is one of auto, inductor, eager, not triton"):
        compiled(nn.Linear(2, 2), rest="triton")(torch.zeros(1, 2, device=DEVICE))


def test_graphs_that_end_take_their_parts_along():
    model, given = Language().eval(), tokens()
    with torch.no_grad():
        compiled(model, rest="inductor")(given)
    assert len(rest._by_key) == 3
    torch._dynamo.reset()
    gc.collect()
    assert not rest._by_key


SECOND = """
import sys, torch, linfuse
sys.path.insert(0, {here!r})
from test_torch_rest import Language
torch.manual_seed(3)
model, given = Language().eval(), torch.randint(0, 50, (3, 10))
with torch.no_grad():
    got = torch.compile(model, backend="linfuse", options={{"rest": "inductor"}})(given)
    torch._dynamo.reset()
    plain = torch.compile(model)(given)
    torch.testing.assert_close(got, model(given))
    torch.testing.assert_close(plain, model(given))
print(linfuse.stats().fused_calls, torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"],
      torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"], got.double().sum().item())
"""


def test_other_processes_find_it_on_disk(tmp_path):
    """What a first process compiled serves a second one, and plain inductor has its own beside it."""
    text = textwrap.dedent(SECOND).format(here=os.path.dirname(__file__))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
           "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    said = [subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stdout
            for _ in range(2)]
    (calls, *_, first), (again, hits, whole, second) = (one.split() for one in said)
    assert calls == again == "3" and first == second
    assert int(hits) + int(whole) >= 2, said[1]


def test_a_part_that_ends_in_a_slice():
    """Its result has no gaps, and inductor is told so; where PyTorch computes it, too."""
    linear = nn.Linear(8, 6)

    def model(x):
        return F.gelu(linear(x))[..., :-1, :].cumsum(0)

    fast, x = compiled(model, rest="inductor"), torch.randn(3, 5, 8, device=DEVICE)
    linear.to(DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        torch.testing.assert_close(fast(x.t().contiguous().t() if x.dim() == 2 else x.mT.contiguous().mT), model(x))
