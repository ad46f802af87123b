# SPDX-License-Identifier: Apache-2.0
"""The loss head's ops with the rest of PyTorch: compilers, export, checkpoints, autocast, tied weights, training."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import linfuse
from torch_door import both_ways, fresh, loss_ways, not_on_gpu

begin_and_end = fresh(29)
way = loss_ways()
WORDS, FEATURES = 50, 16


class Model(nn.Module):
    """Its head's weight is its embedding's. what: loss or logprobs."""

    def __init__(self, what="loss"):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(WORDS, FEATURES), nn.Linear(FEATURES, FEATURES)
        head = {"loss": linfuse.LinearCrossEntropy, "logprobs": linfuse.LinearLogprobs}[what]
        self.head = head(FEATURES, WORDS)
        self.head.weight = self.embedding.weight
        self.what = what

    def hidden(self, words):
        return torch.tanh(self.linear(self.embedding(words)))

    def forward(self, words, target):
        found = self.head(self.hidden(words), target)
        return found if self.what == "loss" else (found[0] + found[1] + found[2]).mean()


def batch():
    words, target = torch.randint(WORDS, (2, 3, 7))
    target[0, :3] = -100
    return words, target


def step(model, function, *inputs):
    model.zero_grad()
    loss = function(*inputs)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def close(got, want):
    for ours, right in zip(got, want, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["loss", "logprobs"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor", "linfuse"])
@pytest.mark.filterwarnings("ignore:linfuse:UserWarning")  # that PyTorch runs what needs gradients
def test_compiled(what, backend):
    model, inputs = Model(what), batch()
    want = step(model, model, *inputs)
    fast = torch.compile(model, backend=backend, fullgraph=True)
    close(step(model, fast, *inputs), want)
    with torch.no_grad():
        close([fast(*inputs)], want[:1])


def test_compiled_for_any_number_of_rows():
    model = Model()
    fast = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        words, target = torch.randint(WORDS, (2, rows, 7))
        close(step(model, fast, words, target), step(model, model, words, target))


@pytest.mark.parametrize("what", ["loss", "logprobs"])
def test_exported(what):
    model, inputs = Model(what), batch()
    program = torch.export.export(model, inputs)
    close([program.module()(*inputs).detach()], [model(*inputs).detach()])
    assert any("linfuse.head_" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("what", ["loss", "logprobs"])
def test_checkpoint(what, reentrant):
    model, (words, target) = Model(what), batch()
    want = step(model, model, words, target)

    def kept_little(words, target):
        def rest(hidden):
            found = model.head(hidden, target)
            return found if what == "loss" else (found[0] + found[1] + found[2]).mean()

        return checkpoint(rest, model.hidden(words), use_reentrant=reentrant)

    close(step(model, kept_little, words, target), want)


@pytest.mark.parametrize("what", ["loss", "logprobs"])
def test_autocast(what):
    """Products of rounded operands, as F.linear's; sums in float32, and gradients in the parameters' type."""
    model, (words, target) = Model(what), batch()
    with torch.autocast(words.device.type, dtype=torch.bfloat16):
        got = step(model, model, words, target)
        hidden = model.hidden(words)
    assert hidden.dtype is torch.bfloat16 and {one.dtype for one in got} == {torch.float32}
    if what == "loss":
        logits = F.linear(hidden.double(), model.head.weight.bfloat16().double())
        want = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        assert abs(got[0] - want.item()) < 1e-6


def test_accumulation():
    """Two halves by sums are the whole; the tied weight gets both its gradients."""
    model, (words, target) = Model(), batch()
    model.head.options["reduction"] = "sum"
    whole = step(model, model, words, target)
    model.zero_grad()
    for at in (slice(0, 1), slice(1, 3)):
        model(words[at], target[at]).backward()
    close([one.grad for one in model.parameters()], whole[1:])
    model.zero_grad()
    logits = F.linear(model.hidden(words), model.embedding.weight).flatten(0, 1)
    F.cross_entropy(logits, target.flatten(), reduction="sum").backward()
    close([one.grad for one in model.parameters()], whole[1:])


def test_backward_twice():
    model, inputs = Model(), batch()
    loss = model(*inputs)
    loss.backward(retain_graph=True)
    once = [one.grad.clone() for one in model.parameters()]
    loss.backward()
    close([one.grad for one in model.parameters()], [2 * one for one in once])


@not_on_gpu
@both_ways
@pytest.mark.parametrize("name", ["head_loss", "head_rows"])
def test_opcheck(name):
    """Schema, shapes for tracing and gradients, by PyTorch's own checks."""
    x, weight, bias = torch.randn(9, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True), torch.randn(7)
    common = (x, weight, bias, torch.randint(7, (9,)), torch.rand(7), -100, 0.1, 2.0, 0.5, torch.float32)
    rest = {"head_loss": ("mean", 0.1, [True, True, False]), "head_rows": ("smooth", False, None, 0)}[name]
    torch.library.opcheck(getattr(torch.ops.linfuse, name).default, common + rest)


def test_modules_load_the_state_of_a_linear_layer():
    linear = nn.Linear(FEATURES, WORDS)
    head = linfuse.LinearCrossEntropy(FEATURES, WORDS, bias=True, label_smoothing=0.1)
    head.load_state_dict(linear.state_dict())
    x, target = torch.randn(5, FEATURES), torch.randint(WORDS, (5,))
    close([head(x, target).detach()], [F.cross_entropy(linear(x), target, label_smoothing=0.1).detach()])


def train(dtype, loss, steps=200):
    """Losses of a tiny language model: two words in, the next one out, which is the one after the last."""
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(97, 32), nn.Flatten(), nn.Linear(64, 48), nn.Tanh()).to(dtype)
    weight = nn.Parameter((torch.randn(97, 48) / 7).to(dtype))
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=1.0)
    losses = []
    for _ in range(steps):
        words = torch.randint(97, (64, 2), generator=generator)
        target = (words[:, 1] + 1) % 97
        target[torch.rand(64, generator=generator) < 0.1] = -100
        result = loss(model(words), weight, target)
        optimizer.zero_grad()
        result.backward()
        optimizer.step()
        losses.append(result.item())
    return torch.tensor(losses)


@not_on_gpu
@both_ways
def test_training():
    """200 steps: in float32 the curve is eager's; in bfloat16 it is nearer to float32's than eager's is."""

    def eager(x, weight, target):
        return F.cross_entropy(F.linear(x, weight), target)

    right = train(torch.float32, eager)
    assert right[-20:].mean() < 0.8 * right[:20].mean()
    assert (train(torch.float32, linfuse.linear_cross_entropy) - right).abs().max() < 1e-4
    ours = (train(torch.bfloat16, linfuse.linear_cross_entropy) - right).abs()
    theirs = (train(torch.bfloat16, eager) - right).abs()
    assert ours.mean() < theirs.mean()
