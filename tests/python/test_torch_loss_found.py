# SPDX-License-Identifier: Apache-2.0
"""Losses as people write them, through torch.compile: which become loss heads, with which results, and which do not."""

import re
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import linfuse
import whole_models
from test_torch_loss import Counted
from torch_door import compiled, errors, fresh, not_on_gpu, reasons, without_guards

begin_and_end = fresh(31)
pytestmark = pytest.mark.filterwarnings("ignore:linfuse:UserWarning")  # that PyTorch runs what needs gradients
WORDS, FEATURES = 23, 8
SMOOTHED = nn.CrossEntropyLoss(label_smoothing=0.1)
IGNORED = -100


class Model(nn.Module):
    """Tokens, a hidden state of them, and a loss of it and the head's weight, as its writer has it."""

    def __init__(self, loss, bias=False):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(WORDS, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, WORDS, bias=bias)
        self.loss = loss

    def forward(self, tokens, labels):
        return self.loss(torch.tanh(self.hidden(self.embedding(tokens))), self.head.weight, self.head.bias, labels)


def batch(ignored=True):
    tokens, labels = torch.randint(WORDS, (2, 3, 7))
    if ignored:
        labels[0, :3] = IGNORED
    return tokens, labels


def huggingface(h, w, b, labels):
    """transformers.loss.loss_utils.ForCausalLMLoss."""
    logits = F.linear(h, w).float()
    labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    loss = F.cross_entropy(logits.view(-1, WORDS), labels.view(-1).to(logits.device), ignore_index=IGNORED,
                           reduction="sum")
    return loss / 17


def shifted(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w)[..., :-1, :].reshape(-1, WORDS), labels[..., 1:].reshape(-1))


def contiguous(h, w, b, labels):
    logits = F.linear(h, w).float()[:, :-1].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels[:, 1:].contiguous().view(-1))


def moved(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w, b).transpose(1, 2), labels)


def permuted(h, w, b, labels):
    return SMOOTHED(F.linear(h, w, b).permute(0, 2, 1), labels)


def times(h, w, b, labels):
    return F.cross_entropy((h @ w.T).flatten(0, 1) / 0.7, labels.flatten(), reduction="sum")


def the_other_way(h, w, b, labels):
    """A product with a weight that is [K, N]."""
    return F.cross_entropy(torch.matmul(h, (2 * w).t().contiguous()).flatten(0, -2), labels.view(-1))


def capped(h, w, b, labels):
    """As Gemma has it."""
    logits = 3.0 * torch.tanh(F.linear(h, w) / 3.0)
    return F.cross_entropy(logits.float().view(-1, WORDS), labels.view(-1))


def capped_and_scaled(h, w, b, labels):
    logits = F.linear(h, w).div_(5.0).tanh() * 4.0 * 0.5
    of_class = torch.linspace(0.5, 2.0, WORDS, dtype=h.dtype)
    return F.cross_entropy(logits.view(-1, WORDS), labels.view(-1), weight=of_class)


def per_token(h, w, b, labels):
    words = labels.view(-1).clamp(min=4)
    each = F.cross_entropy(F.linear(h, w, b).view(-1, WORDS), words, reduction="none", ignore_index=4)
    return (each * each).view(labels.shape).sum(dim=1)


def in_two(h, w, b, labels):
    return F.nll_loss(F.log_softmax(F.linear(h, w, b), dim=-1).view(-1, WORDS), labels.view(-1))


def twice_softmax(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w, b).flatten(0, 1).log_softmax(1), labels.flatten(), label_smoothing=0.2)


def gathered(h, w, b, labels):
    chosen = labels.clamp(min=0)
    logp = F.log_softmax(F.linear(h, w, b)[:, :-1], dim=-1).gather(-1, chosen[:, 1:].unsqueeze(-1)).squeeze(-1)
    return (logp * (labels[:, 1:] != IGNORED)).sum(dim=1)


def gathered_by_torch(h, w, b, labels):
    logp = torch.log_softmax((h @ w.T).float() / 2, -1)
    return torch.gather(logp, 2, labels.clamp(min=0)[..., None])[..., 0]


def one_row(h, w, b, labels):
    return F.cross_entropy(F.linear(h[1, 2], w), labels[1, 2])


def last_rows(h, w, b, labels):
    logits = F.linear(h, w).view(3, 1, 7, WORDS).squeeze(1)[1:, -1]
    return F.cross_entropy(logits.narrow(0, 0, 1), labels[1:2, -1])


FOUND = [huggingface, shifted, contiguous, moved, permuted, times, the_other_way, capped, capped_and_scaled, per_token,
         in_two, twice_softmax, gathered, gathered_by_torch, one_row, last_rows]


def step(model, function, *inputs):
    model.zero_grad()
    result = function(*inputs)
    result.sum().backward()
    return [result.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]


def no_worse(got, eager, want):
    assert [one.dtype for one in got] == [one.dtype for one in eager]
    assert errors(got, want) <= max(2 * errors(eager, want), 2e-6)


@pytest.mark.parametrize("written", FOUND, ids=lambda one: one.__name__)
def test_found(written):
    """In training and without gradients; results are eager's, and no op of the graph has the logits."""
    bias = written in (moved, permuted, per_token, in_two, twice_softmax, gathered)
    model, inputs = Model(written, bias), batch()
    fast = compiled(model, loss_head=True)
    wide = Model(written, bias).double()
    wide.load_state_dict(model.state_dict())
    want = step(wide, wide, *inputs)
    no_worse(step(model, fast, *inputs), step(model, model, *inputs), want)
    assert linfuse.stats().loss_heads == 1, reasons()
    with torch.no_grad():
        no_worse([fast(*inputs)], [model(*inputs)], want[:1])
    assert linfuse.stats().loss_heads == 2, reasons()
    left = [op for one in linfuse.stats().fallbacks for op in one.ops]
    assert not {"cross_entropy", "nll_loss", "gather", "log_softmax"} & set(left)


def test_compiled_by_inductor():
    model, inputs = Model(shifted), batch()
    fast = compiled(model, loss_head=True, rest="inductor")
    for ours, theirs in zip(step(model, fast, *inputs), step(model, model, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs))
    assert linfuse.stats().loss_heads == 2


@pytest.mark.parametrize("written", [contiguous, moved, gathered, last_rows], ids=lambda one: one.__name__)
def test_extents_that_change(written):
    model = Model(written, written in (moved, gathered))
    fast = compiled(model, loss_head=True)
    for length in (7, 9, 12):
        tokens, labels = torch.randint(WORDS, (2, 3, length))
        if written is last_rows:
            tokens, labels = tokens[:, :7], labels[:, :7]
        for ours, theirs in zip(step(model, fast, tokens, labels), step(model, model, tokens, labels), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert linfuse.stats().loss_heads == linfuse.stats().graphs > 0


@pytest.mark.parametrize("written, dtype", [(shifted, torch.bfloat16), (huggingface, torch.bfloat16),
                                            (per_token, torch.float16), (gathered, torch.bfloat16)])
def test_types(written, dtype):
    """Results have the types that they have without, and are no further from what they should be."""
    model, inputs = Model(written, True).to(dtype), batch()
    wide = Model(written, True).double()
    wide.load_state_dict(model.state_dict())
    got = step(model, compiled(model, loss_head=True), *inputs)
    eager, want = step(model, model, *inputs), step(wide, wide, *inputs)
    assert linfuse.stats().loss_heads == 1, reasons()
    assert [one.dtype for one in got] == [one.dtype for one in eager]
    for ours, theirs, right in zip(got, eager, want, strict=True):
        assert errors([ours], [right]) <= max(2 * errors([theirs], [right]), torch.finfo(dtype).eps / 4)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside):
    def under(h, w, b, labels):
        with torch.autocast(h.device.type, dtype=torch.bfloat16):
            logits = F.linear(h, w).view(-1, WORDS)
            if inside:
                return F.cross_entropy(logits, labels.view(-1))
        return F.cross_entropy(logits.float(), labels.view(-1))

    model, inputs = Model(under), batch()
    got, eager = step(model, compiled(model, loss_head=True), *inputs), step(model, model, *inputs)
    assert linfuse.stats().loss_heads == 1, reasons()
    for ours, theirs in zip(got, eager, strict=True):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3)


# ---- what is left as it is ----


def returned(h, w, b, labels):
    logits = F.linear(h, w).view(-1, WORDS)
    return F.cross_entropy(logits, labels.view(-1)), logits


def also_read(h, w, b, labels):
    logits = F.linear(h, w).view(-1, WORDS)
    return F.cross_entropy(logits, labels.view(-1)) + 1e-4 * logits.logsumexp(-1).square().mean()


def words_picked(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w)[..., 1:].reshape(-1, WORDS - 1), labels.view(-1).clamp(max=WORDS - 2))


def words_reversed(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w)[..., list(range(WORDS))[::-1]].view(-1, WORDS), labels.view(-1))


def other_dim(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w)[:, :, :7], labels[:, :7].clamp(0, 6))


def rows_turned(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).transpose(0, 1).reshape(-1, WORDS), labels.t().reshape(-1))


def in_double(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).double().view(-1, WORDS), labels.view(-1))


def detached(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).detach().view(-1, WORDS), labels.view(-1)) + h.sum()


def likely(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).view(-1, WORDS), F.one_hot(labels.view(-1), WORDS).float())


def by_a_tensor(h, w, b, labels):
    return F.cross_entropy((F.linear(h, w) * h.mean()).view(-1, WORDS), labels.view(-1))


def capped_too_late(h, w, b, labels):
    return F.nll_loss(torch.tanh(F.log_softmax(F.linear(h, w).view(-1, WORDS), -1)), labels.view(-1))


def over_rows(h, w, b, labels):
    return F.nll_loss(F.log_softmax(F.linear(h, w).view(-1, WORDS), 0), labels.view(-1))


def no_softmax(h, w, b, labels):
    return F.nll_loss(F.linear(h, w).view(-1, WORDS), labels.view(-1))


def several_gathered(h, w, b, labels):
    return F.log_softmax(F.linear(h, w), -1).gather(-1, labels[..., None].expand(-1, -1, 2).contiguous())


def written_between(h, w, b, labels):
    logits = F.linear(h, w).view(-1, WORDS)
    b.data.add_(1)
    return F.cross_entropy(logits, labels.view(-1))


def dropped(h, w, b, labels):
    return F.cross_entropy(F.dropout(F.linear(h, w), 0.5).view(-1, WORDS), labels.view(-1))


def narrowed(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).narrow(-1, 0, WORDS).view(-1, WORDS), labels.view(-1))


def vanishing(h, w, b, labels):
    return F.cross_entropy(F.linear(h, w).view(-1, WORDS) * 1e-200 * 1e-200, labels.view(-1))


LEFT = {
    narrowed: "does not keep rows of its logits whole",
    vanishing: "scaled beyond what float32 holds",
    returned: "are also read by the caller",
    also_read: "are also read by logsumexp",
    words_picked: "does not keep rows of its logits whole",
    words_reversed: "does not keep rows of its logits whole",
    other_dim: "does not keep rows of its logits whole",
    rows_turned: "changes the order of its rows",
    detached: "takes its logits out of the gradient",
    likely: "its targets are not words of type int64",
    capped_too_late: "does not cap its logits",
    over_rows: "is not over words",
    no_softmax: "its input is no log_softmax",
    several_gathered: "it gathers other than one word a row",
    dropped: "dropout of its logits is random",
}


@pytest.mark.parametrize("written", LEFT, ids=lambda one: one.__name__)
def test_left(written):
    """With the same results as before, and with the reason."""
    model, inputs = Model(written, True), batch(ignored=False)
    fast = compiled(model, loss_head=True)

    def run(function):
        torch.manual_seed(1)
        found = function(*inputs)
        return found if isinstance(found, torch.Tensor) else found[0]

    torch.testing.assert_close(run(fast), run(model), rtol=1e-5, atol=1e-6)
    assert linfuse.stats().loss_heads == 0
    assert re.search(f"no loss head: .*{re.escape(LEFT[written])}", reasons()), reasons()


@pytest.mark.parametrize("picked", [lambda logits: logits[..., :WORDS], lambda logits: logits[:, :-1, -WORDS:],
                                    lambda logits: logits.narrow(2, 0, WORDS)], ids=["to", "from", "narrow"])
def test_words_picked_from_fewer_than_features(picked):
    """What keeps all words would not keep all features."""
    h, w = torch.randn(2, 7, WORDS + 9, requires_grad=True), torch.randn(WORDS, WORDS + 9, requires_grad=True)
    labels = torch.randint(WORDS, picked(F.linear(h, w)).shape[:-1])

    def loss(h, w):
        return F.cross_entropy(picked(F.linear(h, w)).reshape(-1, WORDS), labels.reshape(-1))

    fast = compiled(loss, loss_head=True)
    for got, want in zip(torch.autograd.grad(fast(h, w), (h, w)), torch.autograd.grad(loss(h, w), (h, w)), strict=True):
        torch.testing.assert_close(got, want)


def test_within_transforms():
    """Nothing is replaced within vmap and grad of torch.func, whose examples do not say what needs gradients."""
    h, w = torch.randn(3, 7, FEATURES, requires_grad=True), torch.randn(WORDS, FEATURES, requires_grad=True)
    labels = torch.randint(WORDS, (3, 7))

    def mapped(h, w):
        return torch.vmap(lambda rows, words: F.cross_entropy(F.linear(rows, w), words))(h, labels).sum()

    def gradient(h, w):
        return torch.func.grad(lambda one: F.cross_entropy(F.linear(h[0], one), labels[0]))(w)

    fast = compiled(mapped, loss_head=True)
    for got, want in zip(torch.autograd.grad(fast(h, w), (h, w)), torch.autograd.grad(mapped(h, w), (h, w)),
                         strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(compiled(gradient, loss_head=True)(h, w), gradient(h, w))
    assert linfuse.stats().loss_heads == 0


@pytest.mark.parametrize("written", [by_a_tensor, in_double, written_between], ids=lambda one: one.__name__)
def test_left_with_the_same_results(written):
    model, inputs = Model(written, True), batch()
    torch.testing.assert_close(compiled(model, loss_head=True)(*inputs), model(*inputs), rtol=1e-5, atol=1e-6)


def test_strange_values():
    """NaN and infinity among the logits, rows that are all ignored, a word that is none."""
    head = nn.Linear(4, 6)
    fast = compiled(lambda x, labels: F.cross_entropy(head(x), labels, reduction="none"), loss_head=True)
    labels = torch.tensor([0, 5, IGNORED, 2])
    for value in (float("nan"), float("inf"), float("-inf")):
        x = torch.randn(4, 4)
        x[1, 2] = value
        want = F.cross_entropy(head(x), labels, reduction="none")
        torch.testing.assert_close(fast(x, labels), want, equal_nan=True)
    mean = compiled(lambda x, labels: F.cross_entropy(head(x), labels), loss_head=True)
    assert mean(x, torch.full((4,), IGNORED)).isnan()
    if x.device.type == "cpu":
        for function in (fast, mean):
            with pytest.raises(IndexError, match="Target 6 is out of bounds"):
                function(x, torch.tensor([0, 6, 1, 2]))
    assert linfuse.stats().loss_heads == 2


# ---- which pay, and what is said ----


@not_on_gpu
@pytest.mark.parametrize("dtype, words, found", [(torch.float32, 1000, True), (torch.float32, 500, False),
                                                 (torch.bfloat16, 1000, False), (torch.bfloat16, 33_000, True)])
def test_heads_that_pay(dtype, words, found):
    """From 256 KiB of logits on, and from 16 MiB in half precision; whatever they take, where asked, or where all must
    be fused; none where not."""
    x, w, labels = torch.randn(128, 4, dtype=dtype), torch.randn(words, 4, dtype=dtype), torch.randint(words, (128,))

    def heads(**options):
        torch._dynamo.reset()
        linfuse.reset_stats()
        with torch.no_grad():
            compiled(lambda x, w, labels: F.cross_entropy(F.linear(x, w), labels), **options)(x, w, labels)
        return linfuse.stats()

    assert heads().loss_heads == found
    said = "no loss head: its logits take .*, which PyTorch is faster with; the option loss_head=True asks for it"
    assert bool(re.search(said, reasons())) != found
    assert heads(loss_head=True).loss_heads == heads(fallback="error").loss_heads == 1
    assert heads(loss_head=True).graphs_fused == 1
    assert heads(loss_head=False).loss_heads == 0
    with pytest.raises(Exception, match="loss_head is one of auto, True, False, not maybe"):
        heads(loss_head="maybe")


@not_on_gpu
def test_explain():
    head = nn.Linear(64, 1000, bias=False)

    def loss(x, labels):
        return F.cross_entropy(head(x).flatten(0, 1), labels.flatten())

    def each(x, labels):
        return F.cross_entropy(head(x).flatten(0, 1), labels.flatten(), reduction="none")

    def both(x, labels):
        logits = head(x).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten()), logits

    x, labels = torch.randn(4, 32, 64), torch.randint(1000, (4, 32))
    account = linfuse.explain(loss, x, labels)
    said = " ".join(str(account).split())
    (found,) = account.json()["loss_heads"]
    assert (found["rows"], found["words"], found["features"], found["logits_bytes"]) == (128, 1000, 64, 512_000)
    assert "Nothing of it runs" not in said and "cross_entropy" in said
    assert "one loss head: its 128 x 1000 logits, 512 kB, are never stored" in said
    assert "one product of 16.4 MFLOP" in said and "with gradients three" in said and "289 kB" in said
    assert "test_torch_loss_found.py:" in said
    assert "with gradients four" in linfuse.explain(each, x, labels).notes[0]
    refused = " ".join(str(linfuse.explain(both, x, labels)).split())
    assert re.search(r"no loss head: its logits \(\w+\) are also read by the caller", refused)


def test_a_head_as_a_function_is_no_fallback():
    """linear_cross_entropy in a compiled model runs in linfuse."""
    head = linfuse.LinearCrossEntropy(8, 11)
    fast = compiled(lambda x, labels: head(x, labels), fallback="error")
    with torch.no_grad():
        fast(torch.randn(3, 8), torch.tensor([1, 2, 3]))
    assert "head_loss" not in reasons() and "not supported" not in reasons() and linfuse.stats().loss_heads == 1
    (said,) = linfuse.explain(head, torch.randn(3, 8), torch.tensor([1, 2, 3])).notes
    assert "is a loss head: its 3 x 11 logits, 132 B, are never stored" in said and "with gradients three" in said
    rows = linfuse.LinearLogprobs(8, 11)
    assert "with gradients four" in linfuse.explain(rows, torch.randn(3, 8), torch.tensor([1, 2, 3])).notes[0]


def test_hugging_face():
    """A model of transformers' with its own loss, of which no line changes. Where the logits are returned, they are
    there."""
    try:
        config, kind = whole_models.transformers("LlamaConfig"), whole_models.transformers("LlamaForCausalLM")
    except whole_models.Missing as why:
        pytest.skip(str(why))
    model = kind(config(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, vocab_size=600,
                        intermediate_size=32, use_cache=False))
    tokens = torch.randint(600, (4, 40))

    def loss(tokens):
        return model(input_ids=tokens, labels=tokens).loss

    got, want = step(model, compiled(loss), tokens), step(model, loss, tokens)
    assert linfuse.stats().loss_heads == 1, reasons()
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    found = compiled(model)(input_ids=tokens, labels=tokens)
    assert found.logits.shape == (4, 40, 600) and linfuse.stats().loss_heads == 1
    assert "are also read by the caller" in reasons()


@not_on_gpu
@pytest.mark.parametrize("written", [shifted, huggingface], ids=lambda one: one.__name__)
def test_logits_are_never_stored(written, monkeypatch):
    """Of 1000 rows and 2000 words no tensor takes half of what the logits would, forward and backward."""
    monkeypatch.setattr(sys.modules[__name__], "WORDS", 2000)
    model = Model(written)
    tokens, labels = torch.randint(2000, (2, 10, 100))
    run, args = without_guards(model, tokens, labels)
    with Counted() as counted:
        run(*args)[0].backward()
    assert linfuse.stats().loss_heads == 1 and 0 < counted.largest < 4 * 1000 * 2000 / 2
    with Counted() as counted:
        model(tokens, labels).backward()
    assert counted.largest >= 4 * 990 * 2000
