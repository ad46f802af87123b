# SPDX-License-Identifier: Apache-2.0
"""The loss head with its words split over ranks: processes on gloo, each of which also computes the whole."""

import os
import re

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import linfuse
from linfuse.loss import tensors_over_ranks
from torch_door import not_on_gpu

pytestmark = not_on_gpu
ROWS, WORDS, FEATURES = 21, 47, 6
ENDS = {1: [47], 2: [30, 47], 3: [20, 20, 47], 4: [1, 16, 40, 47]}  # uneven; a rank of three has no word at all


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks(ranks, tmp_path):
    torch.multiprocessing.spawn(one_rank, (ranks, str(tmp_path / "meet")), nprocs=ranks)


def one_rank(rank, ranks, meet):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    alone = [dist.new_group([one]) for one in range(ranks)][rank]
    checks = (same_as_whole, one_gather, a_rank_without_valid_targets, one_rank_is_no_ranks, dtensors, bad_calls)
    for check in (*checks, compiled):
        torch.manual_seed(5)
        check(rank, ranks, alone)
    dist.barrier()
    os._exit(0)  # a group of PyTorch 2.4 that ends holds Python's lock while it waits for gloo's threads, which want it


def words_of(rank, ranks):
    ends = [0, *ENDS[ranks]]
    return ends[rank], ends[rank + 1]


def case(probabilities=False):
    target = torch.randint(WORDS, (ROWS,))
    target[::4] = -100
    if probabilities:
        target = torch.rand(ROWS, WORDS)
    return torch.randn(ROWS, FEATURES), 2 * torch.randn(WORDS, FEATURES), target, torch.randn(WORDS)


def results(function, x, weight, target, bias, **options):
    leaves = [one.detach().clone().requires_grad_() for one in (x, weight, bias)]
    found = function(leaves[0], leaves[1], target, leaves[2], **options)
    found = [one for one in (found if isinstance(found, tuple) else [found]) if one is not None]
    upstream = [torch.linspace(0.5, 2.0, one.numel()).reshape(one.shape) for one in found]
    torch.autograd.backward(found, upstream)
    return [one.detach() for one in found], [one.grad for one in leaves]


def same_bits_everywhere(values):
    for value in values:
        others = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(others, value.contiguous())
        assert all(torch.equal(one, value) for one in others)


def same_as_whole(rank, ranks, alone):
    first, end = words_of(rank, ranks)
    mine = dict(process_group=dist.group.WORLD, vocab_range=(first, end))
    of_class = torch.rand(WORDS) + 0.1
    loss, logprobs = linfuse.linear_cross_entropy, linfuse.linear_logprobs
    for function, options in (
        (loss, {}),
        (loss, dict(reduction="sum", label_smoothing=0.1)),
        (loss, dict(reduction="none", class_weight=of_class)),
        (loss, dict(class_weight=of_class, label_smoothing=0.2, z_loss=0.05, softcap=2.0)),
        (loss, dict(probabilities=True, label_smoothing=0.2, class_weight=of_class, temperature=0.7)),
        (logprobs, {}),
        (logprobs, dict(entropy=False, softcap=3.0, temperature=0.7)),
    ):
        options = dict(options)
        x, weight, target, bias = case(options.pop("probabilities", False))
        want, want_grads = results(function, x, weight, target, bias, **options)
        got, grads = results(function, x, weight[first:end], target, bias[first:end], **options, **mine)
        same_bits_everywhere([*got, grads[0]])
        for ours, right in zip((*got, *grads), (*want, want_grads[0], *(one[first:end] for one in want_grads[1:]))):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=2e-6)


def one_gather(rank, ranks, alone):
    """One all-gather of 16 bytes a row that counts, and 16 more, in a step; and the sum of x's gradient."""
    x, weight, target, bias = case()
    first, end = words_of(rank, ranks)
    sent = []
    gather, reduce = dist.all_gather, dist.all_reduce
    dist.all_gather = lambda out, one, **rest: (sent.append(one.nbytes), gather(out, one, **rest))
    dist.all_reduce = lambda one, **rest: (sent.append(-one.nbytes), reduce(one, **rest))
    try:
        results(linfuse.linear_cross_entropy, x, weight[first:end], target, bias[first:end], label_smoothing=0.1,
                process_group=dist.group.WORLD, vocab_range=(first, end))
    finally:
        dist.all_gather, dist.all_reduce = gather, reduce
    assert sent == [16 * (int((target != -100).sum()) + 1), -4 * ROWS * FEATURES]


def a_rank_without_valid_targets(rank, ranks, alone):
    x, weight, target, bias = case()
    target[target >= 0] = WORDS - 1
    first, end = words_of(rank, ranks)
    want, _ = results(linfuse.linear_cross_entropy, x, weight, target, bias)
    got, _ = results(linfuse.linear_cross_entropy, x, weight[first:end], target, bias[first:end],
                     process_group=dist.group.WORLD, vocab_range=(first, end))
    torch.testing.assert_close(got, want)
    target[:] = -100
    got, grads = results(linfuse.linear_cross_entropy, x, weight[first:end], target, bias[first:end],
                         process_group=dist.group.WORLD, vocab_range=(first, end))
    assert got[0].isnan() and not any(one.any() for one in grads)


def one_rank_is_no_ranks(rank, ranks, alone):
    given = case()
    for function in (linfuse.linear_cross_entropy, linfuse.linear_logprobs):
        want, want_grads = results(function, *given)
        got, grads = results(function, *given, process_group=alone, vocab_range=(0, WORDS))
        assert all(map(torch.equal, (*got, *grads), (*want, *want_grads)))


def dtensors(rank, ranks, alone):
    """A weight sharded by Shard(0) says by itself which words are whose; its gradient is sharded alike."""
    x, weight, target, _ = case()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks,))
    shard = tensors_over_ranks.Shard(0)
    sharded = tensors_over_ranks.distribute_tensor(weight, mesh, [shard]).requires_grad_()
    plain = weight.clone().requires_grad_()
    want = linfuse.linear_cross_entropy(x, plain, target)
    got = linfuse.linear_cross_entropy(x, sharded, target)
    torch.testing.assert_close(got, want)
    want.backward()
    got.backward()
    assert sharded.grad.placements == (shard,)
    torch.testing.assert_close(sharded.grad.full_tensor(), plain.grad)
    whole = tensors_over_ranks.distribute_tensor(weight, mesh, [tensors_over_ranks.Replicate()])
    with pytest.raises(linfuse.Error, match=re.escape("it must be sharded by Shard(0)")):
        linfuse.linear_cross_entropy(x, whole, target)


def bad_calls(rank, ranks, alone):
    """What is wrong is an error on every rank, and nobody waits for others."""
    x, weight, target, _ = case()
    first, end = words_of(rank, ranks)
    mine = dict(process_group=dist.group.WORLD, vocab_range=(first, end))
    target[3] = WORDS
    with pytest.raises(IndexError, match=f"Target {WORDS} is out of bounds"):
        linfuse.linear_cross_entropy(x, weight[first:end], target, **mine)
    target[3] = 0
    with pytest.raises(linfuse.Error, match="together they must hold each word once"):
        linfuse.linear_cross_entropy(x, weight, target, process_group=dist.group.WORLD, vocab_range=(0, WORDS))
    even = linfuse.linear_cross_entropy(x, weight[: 2 * ranks].chunk(ranks)[rank], target % (2 * ranks),
                                        process_group=dist.group.WORLD)
    torch.testing.assert_close(even, linfuse.linear_cross_entropy(x, weight[: 2 * ranks], target % (2 * ranks)))
    with pytest.raises(linfuse.Error, match="argmax is not exchanged"):
        linfuse.linear_logprobs(x, weight[first:end], target, argmax=True, **mine)


def compiled(rank, ranks, alone):
    x, weight, target, _ = case()
    first, end = words_of(rank, ranks)
    group = dist.group.WORLD

    def loss(x, weight):
        return linfuse.linear_cross_entropy(x * 2, weight, target, process_group=group, vocab_range=(first, end))

    fast = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert torch.equal(fast(x, weight[first:end]), loss(x, weight[first:end]))
