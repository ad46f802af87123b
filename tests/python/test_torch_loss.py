# SPDX-License-Identifier: Apache-2.0
"""linfuse.linear_cross_entropy and linear_logprobs: against PyTorch in double precision, by types, by bytes."""

import contextlib
import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import linfuse
from linfuse import loss_cpu, loss_ops, loss_tiles, native
from torch_door import both_ways, fresh, loss_ways, not_on_gpu

begin_and_end = fresh(23)
way = loss_ways()
ROWS, WORDS, FEATURES = 37, 2305, 19  # two tiles of words; odd everywhere
OPTIONS = {
    "bias": (False, True),
    "probabilities": (False, True),
    "class_weight": (False, True),
    "label_smoothing": (0.0, 0.2),
    "reduction": ("mean", "sum", "none"),
    "softcap": (None, 3.0),
    "temperature": (1.0, 0.6),
    "z_loss": (0.0, 0.03),
}
PAIRS = sorted({
    tuple(sorted({**{name: values[0] for name, values in OPTIONS.items()}, one: left, other: right}.items(),
                 key=lambda item: item[0]))
    for one, other in itertools.combinations(OPTIONS, 2)
    for left in OPTIONS[one] for right in OPTIONS[other]
}, key=str)  # fmt: skip


@pytest.fixture
def torch_ops(monkeypatch):
    monkeypatch.setattr(loss_cpu, "allowed", False)


def logits_of(x, weight, bias, softcap, temperature):
    logits = F.linear(x, weight, bias)
    return (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature


def by_pytorch(x, weight, target, bias=None, *, class_weight=None, ignore_index=-100, label_smoothing=0.0,
               reduction="mean", softcap=None, temperature=1.0, z_loss=0.0):
    """What linear_cross_entropy says that it computes, from the logits."""
    logits = logits_of(x, weight, bias, softcap, temperature)
    loss = F.cross_entropy(logits, target, class_weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
                           reduction=reduction)
    if not z_loss:
        return loss
    valid = torch.ones(len(x), dtype=bool) if target.is_floating_point() else target != ignore_index
    more = z_loss * logits.logsumexp(dim=1).square() * valid
    return loss + {"mean": more.sum() / valid.sum(), "sum": more.sum(), "none": more}[reduction]


def case(rows=ROWS, words=WORDS, features=FEATURES, dtype=torch.float32, bias=False, probabilities=False,
         class_weight=False):
    x, weight = torch.randn(rows, features, dtype=dtype), torch.randn(words, features, dtype=dtype)
    target = torch.randint(words, (rows,))
    target[1::3] = -100
    if probabilities:
        target = torch.randn(rows, words).softmax(dim=1)
    return [x, weight, torch.randn(words, dtype=dtype) if bias else None], target, (
        torch.rand(words) + 0.1 if class_weight else None)


def with_gradients(function, tensors, *rest, double=False, seed=1, **options):
    """The result of function(x, weight, target, bias, ...) and the gradients of x, weight and bias."""
    leaves = [None if one is None else one.detach().to(torch.float64 if double else one.dtype).requires_grad_()
              for one in tensors]
    x, weight, bias = leaves
    result = function(x, weight, *rest, bias, **options)
    results = [one for one in (result if isinstance(result, tuple) else [result]) if one is not None]
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(one.shape, generator=generator, device="cpu").to(one) for one in results]
    given = [one for one in leaves if one is not None]
    return [one.detach() for one in results] + list(torch.autograd.grad(results, given, upstream))


def relative(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def no_worse(got, eager, want, slack):
    """Each error is at most eager's, or a slack of rounding: some results are right to the last digit by luck."""
    for ours, theirs, right in zip(got, eager, want, strict=True):
        assert relative(ours, right) <= max(1.5 * relative(theirs, right), slack)


@both_ways
@pytest.mark.parametrize("options", PAIRS, ids=lambda pairs: "-".join(
    f"{name}={value}" for name, value in pairs if value != OPTIONS[name][0]) or "plain")
def test_options(options):
    """Every pair of options: loss and gradients, no further from double precision than eager's."""
    options = dict(options)
    what = {name: options.pop(name) for name in ("bias", "probabilities", "class_weight")}
    tensors, target, of_class = case(**what)
    double = target.double() if what["probabilities"] else target
    want = with_gradients(by_pytorch, tensors, double, double=True, **options,
                          class_weight=None if of_class is None else of_class.double())
    eager = with_gradients(by_pytorch, tensors, target, class_weight=of_class, **options)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target, class_weight=of_class, **options)
    no_worse(got, eager, want, 5e-7)


@both_ways
@pytest.mark.parametrize("rows, words, features", [(1, 1, 1), (1, 7, 1), (3, 8191, 5), (600, 11, 7), (130, 4097, 64)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_sizes(rows, words, features, reduction):
    tensors, target, _ = case(rows, words, features)
    target = target.to(torch.int32)
    want = with_gradients(by_pytorch, tensors, target.long(), double=True, reduction=reduction)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target, reduction=reduction)
    for ours, right in zip(got, want, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=2e-6, atol=2e-6 * float(right.abs().max()))


@both_ways
def test_ranks_of_x():
    tensors, target, _ = case(24, 50, 8)
    x, weight, _ = tensors
    folded = linfuse.linear_cross_entropy(x.view(2, 3, 4, 8), weight, target.view(2, 3, 4), reduction="none")
    plain = linfuse.linear_cross_entropy(x, weight, target, reduction="none")
    assert folded.shape == (2, 3, 4) and torch.equal(folded.flatten(), plain)
    alone = linfuse.linear_cross_entropy(x[0], weight, target[0])
    assert alone.shape == () and torch.allclose(alone, plain[0])
    turned = linfuse.linear_cross_entropy(x.t().contiguous().t(), weight.t().contiguous().t(), target)
    assert torch.equal(turned, linfuse.linear_cross_entropy(x, weight, target))


@both_ways
@pytest.mark.parametrize("kinds", [("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float32"),
                                   ("float32", "bfloat16")], ids="-".join)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_types(kinds, reduction):
    """Half precision: sums are in float32, so errors are no larger than eager's, and mostly far smaller."""
    (x, weight, _), target, _ = case(200, 3001, 48)
    of_x, of_weight = (getattr(torch, kind) for kind in kinds)
    tensors = [x.to(of_x), weight.to(of_weight) / 4, None]
    want = with_gradients(by_pytorch, tensors, target, double=True, reduction=reduction)
    common = torch.promote_types(of_x, of_weight)
    eager = with_gradients(by_pytorch, [one if one is None else one.to(common) for one in tensors], target,
                           reduction=reduction)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target, reduction=reduction)
    assert [one.dtype for one in got] == [torch.float32, of_x, of_weight]
    for ours, theirs, right in zip(got, eager, want, strict=True):
        rounding = 5e-7 if ours.dtype is torch.float32 else torch.finfo(ours.dtype).eps / 2
        assert relative(ours, right) <= max(relative(theirs, right), rounding)


@both_ways
def test_a_large_vocabulary_in_bf16():
    (x, weight, _), target, _ = case(24, 256_000, 8)
    target[:20] = 7  # one word in most rows
    tensors = [x.bfloat16(), weight.bfloat16(), None]
    want = with_gradients(by_pytorch, tensors, target, double=True)
    eager = with_gradients(by_pytorch, tensors, target)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target)
    for ours, theirs, right in zip(got, eager, want, strict=True):
        assert relative(ours, right) <= relative(theirs, right)


def test_logprobs():
    tensors, target, _ = case(bias=True)

    def by_hand(x, weight, target, bias, softcap=None, temperature=1.0):
        logits = logits_of(x, weight, bias, softcap, temperature)
        valid = target != -100
        log_softmax = logits.log_softmax(dim=1)
        nll = F.nll_loss(log_softmax, target, reduction="none")
        return nll, logits.logsumexp(dim=1) * valid, -(log_softmax.exp() * log_softmax).sum(dim=1) * valid

    for options in ({}, {"softcap": 3.0, "temperature": 0.6}):
        want = with_gradients(by_hand, tensors, target, double=True, **options)
        eager = with_gradients(by_hand, tensors, target, **options)
        got = with_gradients(linfuse.linear_logprobs, tensors, target, **options)
        no_worse(got, eager, want, 5e-7)
    x, weight, bias = tensors
    nll, lse, entropy, best = linfuse.linear_logprobs(x, weight, target, bias, entropy=False, argmax=True)
    assert entropy is None
    assert torch.equal(best, torch.where(target == -100, -1, F.linear(x, weight, bias).argmax(dim=1)))


@both_ways
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_rows_ignored(reduction):
    tensors, target, _ = case(bias=True)
    target[:] = -100
    want = with_gradients(by_pytorch, tensors, target, reduction=reduction)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target, reduction=reduction)
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@both_ways
def test_no_rows():
    (x, weight, _), target, _ = case()
    assert linfuse.linear_cross_entropy(x[:0], weight, target[:0]).isnan()
    assert linfuse.linear_cross_entropy(x[:0], weight, target[:0], reduction="sum") == 0
    assert linfuse.linear_cross_entropy(x[:0], weight, target[:0], reduction="none").shape == (0,)
    likely = torch.rand(0, WORDS)
    assert linfuse.linear_cross_entropy(x[:0], weight, likely).isnan()
    assert linfuse.linear_cross_entropy(x[:0], weight, likely, reduction="none").shape == (0,)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_no_features(reduction, probabilities):
    """Logits are the bias alone."""
    torch.manual_seed(0)
    target = torch.rand(5, 7) if probabilities else torch.tensor([0, 6, 3, 3, 1])
    bias = torch.randn(7, requires_grad=True)
    again = bias.detach().clone().requires_grad_()
    got = linfuse.linear_cross_entropy(torch.ones(5, 0), torch.ones(7, 0), target, bias, reduction=reduction)
    want = F.cross_entropy(again.expand(5, 7), target, reduction=reduction)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(bias.grad, again.grad)


@both_ways
@pytest.mark.parametrize("scale", [1e-20, 1e4, 1e30])
def test_tiny_and_huge_logits(scale):
    (x, weight, _), target, _ = case(bias=True)
    tensors = [x * scale, weight, None]
    want = with_gradients(by_pytorch, tensors, target, double=True)
    eager = with_gradients(by_pytorch, tensors, target)
    got = with_gradients(linfuse.linear_cross_entropy, tensors, target)
    no_worse(got, eager, want, 5e-7)


@both_ways
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_infinite_logits(reduction):
    """Words switched off by a bias of -inf, also a whole tile of them, a target among them; NaN and +inf."""
    (x, weight, bias), target, _ = case(bias=True)
    target[1::3] = 5
    for at, value in ((slice(0, 5), -math.inf), (slice(2048, None), -math.inf), (slice(0, 2048), -math.inf),
                      (slice(5, 6), -math.inf), (slice(9, 10), math.nan), (slice(9, 10), math.inf)):  # fmt: skip
        other = bias.clone()
        other[at] = value
        want = with_gradients(by_pytorch, [x, weight, other], target, reduction=reduction)
        got = with_gradients(linfuse.linear_cross_entropy, [x, weight, other], target, reduction=reduction)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_entropy_of_impossible_words():
    """Words of probability 0 add nothing, where 0 * -inf would be NaN."""
    (x, weight, bias), target, _ = case(bias=True)
    bias[:7] = -math.inf
    target[:] = 11
    got = with_gradients(linfuse.linear_logprobs, [x, weight, bias], target)
    want = with_gradients(linfuse.linear_logprobs, [x, weight[7:], bias[7:]], target - 7)
    for ours, right in zip(got, want, strict=True):
        assert torch.allclose(ours[-len(right):] if ours.shape != right.shape else ours, right, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradcheck(reduction):
    tensors, target, of_class = case(5, 11, 4, torch.float64, bias=True, class_weight=True)
    leaves = [one.requires_grad_() for one in tensors]
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: linfuse.linear_cross_entropy(
            x, weight, target, bias, class_weight=of_class.double(), label_smoothing=0.1, softcap=2.0, z_loss=0.1,
            reduction=reduction), leaves)
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: linfuse.linear_logprobs(x, weight, target, bias, temperature=0.7), leaves)


@pytest.mark.parametrize("name, one", [("x", [[1.0]]), ("weight", torch.nn.Linear(4, 3)), ("target", [1])])
def test_what_is_no_tensor_is_named(name, one):
    given = {"x": torch.rand(1, 4), "weight": torch.rand(3, 4), "target": torch.tensor([1]), name: one}
    with pytest.raises(linfuse.Error, match=f"{name} is a {type(one).__name__}; it must be a torch.Tensor"):
        linfuse.linear_cross_entropy(**given)


@both_ways
def test_second_derivatives_are_refused():
    (x, weight, _), target, _ = case()
    x.requires_grad_()
    for reduction in ("mean", "none"):
        loss = linfuse.linear_cross_entropy(x, weight, target, reduction=reduction).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivatives"):
            gradient.sum().backward()


# ---- bits ----


@not_on_gpu  # cuBLAS makes the logits there, by other kernels for other extents
def test_a_row_does_not_depend_on_the_others(monkeypatch):
    """Nor on how many there are, on where it stands, on how rows are cut into chunks, or on whether logits are kept."""
    (x, weight, _), target, _ = case(700, 2305, 33)
    target.clamp_(min=0)
    whole = linfuse.linear_cross_entropy(x, weight, target, reduction="none")
    for few in (1, 2, 5, 17, 64, 600):
        some = torch.randperm(700)[:few]
        assert torch.equal(linfuse.linear_cross_entropy(x[some], weight, target[some], reduction="none"), whole[some])
    ignored = target.clone()
    ignored[::2] = -100
    assert torch.equal(linfuse.linear_cross_entropy(x, weight, ignored, reduction="none")[1::2], whole[1::2])
    weight.requires_grad_()
    monkeypatch.setattr(loss_cpu, "allowed", False)
    kept = linfuse.linear_cross_entropy(x, weight, target, reduction="sum").detach()
    assert kept == whole.double().sum().float()


@not_on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others_in_c(dtype):
    """One row that counts, among others that do not and alone, with gradients and without."""
    (x, weight, _), target, _ = case(700, 2305, 33, dtype)
    target.clamp_(min=0)
    for row in (0, 5, 191, 192, 699):
        one = torch.full_like(target, -100)
        one[row] = target[row]
        ahead = torch.where(torch.arange(700) < row, target, one)  # its place in a chunk is another
        alone = linfuse.linear_cross_entropy(x[row : row + 1], weight, target[row : row + 1], reduction="sum")
        assert linfuse.linear_cross_entropy(x, weight, one, reduction="sum") == alone
        of_x = [with_gradients(linfuse.linear_cross_entropy, [x, weight, None], words, reduction="sum")[1][row]
                for words in (one, ahead)]
        assert torch.equal(*of_x)
        leaf = weight.clone().requires_grad_()
        assert linfuse.linear_cross_entropy(x, leaf, one, reduction="sum") == alone


@not_on_gpu
def test_same_bits_for_any_number_of_threads():
    tensors, target, of_class = case(300, 4097, 33, bias=True, class_weight=True)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(with_gradients(linfuse.linear_cross_entropy, tensors, target, class_weight=of_class,
                                        label_smoothing=0.1, z_loss=0.01))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def steps_in_c(monkeypatch):
    """The workspaces, in bytes, of the steps that C computes from now on."""
    seen, step = [], native.Loss.step

    def watched(self, context):
        seen.append(self.workspace(context))
        return step(self, context)

    monkeypatch.setattr(native.Loss, "step", watched)
    return seen


@not_on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_c_stores_no_logits(dtype, monkeypatch):
    """Its workspace holds those of 192 rows; rows add what is kept of each, and which of them count."""
    seen, words = steps_in_c(monkeypatch), 6000
    for rows in (1000, 3000):
        tensors, target, _ = case(rows, words, 8, dtype)
        with_gradients(linfuse.linear_cross_entropy, tensors, target.clamp(min=0))
    assert len(seen) == 2 and 192 * words * 4 < seen[0] < 1000 * words * 4 / 2
    assert seen[1] - seen[0] == 2000 * (8 + 20)


@not_on_gpu
def test_what_c_takes(monkeypatch):
    """Scalar losses of words; the rest is torch's, with the same results."""
    seen = steps_in_c(monkeypatch)
    (x, weight, bias), target, of_class = case(bias=True, class_weight=True)
    head = linfuse.linear_cross_entropy

    def taken(*args, **options):
        seen.clear()
        head(*args, **options)
        return bool(seen)

    assert taken(x, weight, target, bias, class_weight=of_class.half(), softcap=2.0, temperature=0.5, z_loss=0.1,
                 label_smoothing=0.1)
    assert taken(x.half(), weight.bfloat16(), target.int(), reduction="sum")
    assert taken(x, weight, target, temperature=2) and taken(x.bfloat16(), weight, target)
    assert not taken(x, weight, target, reduction="none")
    assert not taken(x, weight, torch.rand(ROWS, WORDS))
    assert not taken(x.double(), weight.double(), target)
    assert not taken(x, weight, target, temperature=-1.0)
    assert not taken(x, weight[:0], torch.full_like(target, -100))
    for rows, by_c in ((50, True), (100, False), (767, False), (768, True)):  # 4 MiB of logits; 192 of the rows
        (many, wide, _), _, _ = case(rows, 20_000, 2)
        assert taken(many, wide, torch.zeros(rows, dtype=torch.int64)) == by_c
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not taken(x, weight, target) and taken(x.bfloat16(), weight.bfloat16(), target)
    turned = weight.t().contiguous().t()
    assert taken(x, turned, target)
    monkeypatch.setattr(loss_cpu, "_COPIED", turned.nbytes - 1)
    assert not taken(x, turned, target)


@both_ways
def test_same_bits_again():
    tensors, target, _ = case(300, 4097, 33)
    for reduction in ("mean", "none"):
        first, second = (with_gradients(linfuse.linear_cross_entropy, tensors, target, reduction=reduction)
                         for _ in range(2))
        assert all(map(torch.equal, first, second))


# ---- memory and work ----

RUN = {"head_loss": loss_ops._loss, "head_rows": loss_ops._rows, "head_rows_backward": loss_ops._back}


class Counted(TorchDispatchMode):
    """Sees what the ops of linfuse do inside: the bytes of every tensor made, and the products."""

    def __init__(self):
        super().__init__()
        self.sizes, self.products, self._seen = [], 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name.startswith("linfuse::") and name[9:] in RUN:
            with self:
                return RUN[name[9:]](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.products += name in ("aten::mm", "aten::addmm_")
        for one in tree_leaves(result):
            storage = one.untyped_storage() if isinstance(one, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.sizes.append((storage.nbytes(), storage))  # held, so that no other gets its address
        return result

    @property
    def largest(self):
        return max(size for size, _ in self.sizes)


@not_on_gpu
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_never_stored(reduction, dtype, way):
    """No tensor is as large as the logits, by far: the largest one is the weight's gradient in float32."""
    rows, words, features = 1000, 6000, 8
    (x, weight, _), target, _ = case(rows, words, features, dtype)
    target.clamp_(min=0)
    x.requires_grad_(), weight.requires_grad_()
    with Counted() as counted:
        linfuse.linear_cross_entropy(x, weight, target, reduction=reduction).sum().backward()
    assert (counted.products > 0) == (way == "torch" or reduction == "none")
    tile = 4 * 512 * 2048
    assert counted.largest <= max(tile, 4 * words * features) < rows * words * dtype.itemsize / 2


@not_on_gpu
def test_kept_logits_have_a_budget(monkeypatch):
    """A quarter of the rows, or what a budget allows: the logits of a chunk, not each of its tiles, are within it."""
    monkeypatch.setitem(loss_tiles._KEPT, "cpu", 1 << 20)
    head = loss_tiles.Head(torch.empty(6000, 8), None, torch.float32, None, 1.0)
    sizes = [chunk.stop - chunk.start for chunk in head.chunks(1000, True)]
    assert sum(sizes) == 1000 and max(sizes) == 32 and 32 * 6000 * 4 <= 1 << 20
    monkeypatch.undo()
    assert max(chunk.stop - chunk.start for chunk in head.chunks(1000, True)) == 240
    assert max(chunk.stop - chunk.start for chunk in head.chunks(5, True)) == 5


@pytest.mark.usefixtures("torch_ops")
@not_on_gpu
def test_nothing_is_done_for_gradients_that_nobody_wants():
    """Products of one tile and one chunk: logits, and one for each gradient that is asked for; two without a scalar
    result, whose logits are made again."""
    (x, weight, _), target, _ = case(16, 100, 8)

    def products(reduction, *want):
        tensors = [one.detach().requires_grad_(wanted) for one, wanted in zip((x, weight), want)]
        with Counted() as counted:
            loss = linfuse.linear_cross_entropy(*tensors, target, reduction=reduction)
            if any(want):
                loss.sum().backward()
        return counted.products

    asked = [(False, False), (True, False), (False, True), (True, True)]
    assert [products("mean", *want) for want in asked] == [1, 2, 2, 3]
    assert [products("none", *want) for want in asked] == [1, 3, 3, 4]
    with torch.no_grad(), Counted() as counted:
        linfuse.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), target)
    assert counted.products == 1


@pytest.mark.usefixtures("torch_ops")
@not_on_gpu
def test_ignored_rows_cost_nothing():
    (x, weight, _), target, _ = case(512 * 3, 20, 8)
    target.fill_(-100)
    target[700:702] = 3
    with Counted() as counted:
        linfuse.linear_cross_entropy(x, weight.requires_grad_(), target)
    assert counted.products == 2  # one chunk, where all rows would be more


# ---- errors ----


def test_errors():
    (x, weight, _), target, _ = case()
    head = linfuse.linear_cross_entropy

    def says(text, function, *args, kind=linfuse.Error, **options):
        with pytest.raises(kind, match=re.escape(text)):
            function(*args, **options)

    says("reduction is one of mean, sum, none, not 'avg'", head, x, weight, target, reduction="avg")
    says("label_smoothing is between 0 and 1, not 2", head, x, weight, target, label_smoothing=2)
    says("x [37, 19] and weight [2305, 18]: weight is [N, K] and x [..., K]", head, x, weight[:, 1:], target)
    says("target is torch.int16", head, x, weight, target.to(torch.int16))
    says("x [37, 19] and target [36]", head, x, weight, target[1:])
    says("bias [3] and weight [2305, 19]", head, x, weight, target, torch.ones(3))
    says("class_weight [3]: it is [2305], one for each word", head, x, weight, target, class_weight=torch.ones(3))
    says("probabilities are [..., 2305]", head, x, weight, torch.rand(37, 5))
    says("give target.detach()", head, x, weight, torch.rand(37, WORDS, requires_grad=True))
    says("give class_weight.detach()", head, x, weight, target, class_weight=torch.ones(WORDS, requires_grad=True))
    says("softcap is a positive number or None, not 0", head, x, weight, target, softcap=0)
    says("temperature must not be 0", head, x, weight, target, temperature=0)
    says("weight is torch.int64", head, x, weight.long(), target)
    says("names 3000 words", head, x, weight, target, vocab_range=(0, 3000))
    says("process_group must name the ranks", head, x, weight, target, vocab_range=(5, 10))
    says("not probabilities", linfuse.linear_logprobs, x, weight, torch.rand(37, WORDS))


@both_ways
@not_on_gpu
@pytest.mark.parametrize("bad", [2305, -1])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_target_out_of_range(bad, reduction):
    (x, weight, _), target, _ = case()
    target[5] = bad
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
        linfuse.linear_cross_entropy(x, weight, target, reduction=reduction)


def test_a_padded_vocabulary():
    """Rows of the weight behind the last word are no words, and their gradient is 0."""
    (x, weight, _), target, _ = case(words=2304)
    padded = torch.cat([weight, torch.full((64, FEATURES), 1e3)]).requires_grad_()
    loss = linfuse.linear_cross_entropy(x, padded, target, vocab_range=(0, 2304))
    loss.backward()
    plain = weight.clone().requires_grad_()
    same = linfuse.linear_cross_entropy(x, plain, target)
    same.backward()
    assert torch.equal(loss, same) and torch.equal(padded.grad[:2304], plain.grad) and not padded.grad[2304:].any()


# ---- GPUs, without one ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "softcap": 2.0, "z_loss": 0.1}], ids=["plain", "all"])
def test_a_gpu_is_not_waited_for(dtype, options, monkeypatch):
    """The ops as on a GPU, on tensors without data: what brings a number to the host is an error there."""
    monkeypatch.setattr(loss_ops, "_as_written", lambda x: contextlib.nullcontext())
    given = dict(ignore_index=-100, label_smoothing=0.0, softcap=None, temperature=1.0, operand=dtype)
    z_loss = options.get("z_loss", 0.0)
    given.update({name: value for name, value in options.items() if name in given})

    def there(*shape, dtype=dtype):
        return torch.empty(*shape, dtype=dtype, device="meta")

    tensors = there(5000, 8), there(40_000, 8), there(40_000), there(5000, dtype=torch.int64), there(40_000)
    got = loss_ops._loss(*tensors, *given.values(), "mean", z_loss, [True, True, True])
    assert [one.dtype for one in got] == [torch.float32] * 5
    third = "smooth" if given["label_smoothing"] else "entropy"
    rows = loss_ops._rows(*tensors, *given.values(), third, True, None, 0)
    assert rows[4].shape == (5000, 4)
    back = loss_ops._back(*rows[:3], *tensors, rows[2], rows[4], *given.values(), third, None, 0, [True] * 3)
    assert [(one.shape, one.dtype) for one in back] == [(one.shape, one.dtype) for one in tensors[:3]]
    for ask in (lambda one: one.sum().item(), lambda one: bool(one.any()), torch.nonzero):
        with pytest.raises((RuntimeError, NotImplementedError)):
            ask(tensors[3])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "z_loss": 0.1}], ids=["plain", "all"])
def test_rows_that_are_masked(reduction, options, monkeypatch):
    """Ignored rows are computed and dropped, where how many there are is not asked; a target that is no word makes its
    loss NaN, and the others' what they are."""
    tensors, target, _ = case(bias=True)
    head = linfuse.linear_cross_entropy
    want = with_gradients(head, tensors, target, reduction=reduction, **options)
    nothing = with_gradients(head, tensors, torch.full_like(target, -100), reduction=reduction, **options)
    rows = with_gradients(linfuse.linear_logprobs, tensors, target)
    monkeypatch.setattr(loss_ops, "_may_ask", lambda tensor: False)
    for ours, right in zip(with_gradients(head, tensors, target, reduction=reduction, **options), want, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)
    for ours, right in zip(with_gradients(linfuse.linear_logprobs, tensors, target), rows, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)
    for ours, right in zip(with_gradients(head, tensors, torch.full_like(target, -100), reduction=reduction, **options),
                           nothing, strict=True):
        assert torch.equal(ours.nan_to_num(7), right.nan_to_num(7))
    target[6] = WORDS
    loss, of_x, *_ = with_gradients(head, tensors, target, reduction=reduction, **options)
    assert of_x[6].isnan().all() and not of_x[:6].isnan().any()
    assert torch.equal(loss.isnan(), torch.arange(ROWS) == 6) if reduction == "none" else loss.isnan()
