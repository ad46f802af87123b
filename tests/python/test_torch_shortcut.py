# SPDX-License-Identifier: Apache-2.0
"""Calls like the last go without Python (python/shortcut.c), and whatever is not like the last is seen."""

import gc
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

import linfuse
from linfuse import fused, shortcut
from torch_door import DEVICE, ON_GPU, assert_close, compiled, fresh, not_on_gpu, reasons, reference

on_gpu = pytest.mark.skipif(not ON_GPU, reason="of a GPU alone")
fresh_each_time = fresh(5)


class Net(nn.Module):
    """Two products and two results."""

    def __init__(self, k=20, n=12):
        super().__init__()
        self.one, self.two = nn.Linear(k, n), nn.Linear(n, k)

    def forward(self, x, y):
        h = self.two(torch.tanh(self.one(x)))
        return h + y, h.amax(dim=1)


@pytest.fixture
def by_python(monkeypatch):
    """How many calls went through Part's own code, and ran."""
    counts = [0]
    is_again = fused.Part._is_again

    def counting(self, *args):
        counts[0] += 1
        return is_again(self, *args)

    monkeypatch.setattr(fused.Part, "_is_again", counting)
    return lambda: counts[0]


def pair(batch=7):
    return torch.randn(batch, 20), torch.randn(batch, 20)


def agree(fast, module, *inputs):
    with torch.no_grad():
        assert_close(fast(*inputs), reference(module, *inputs), module(*inputs))


def settled(module):
    """Compiled, and called as often as the shortcut wants."""
    fast, inputs = compiled(module), pair()
    for _ in range(3):
        agree(fast, module, *inputs)
    return fast, inputs


def test_library_is_built():
    assert shortcut._library is not None


def test_third_call_goes_without_python(by_python):
    module = Net().eval()
    fast, inputs = settled(module)
    assert by_python() == 2
    before = linfuse.stats().fused_calls
    for _ in range(5):
        agree(fast, module, *inputs)
        agree(fast, module, *pair())
    assert by_python() == 2
    assert linfuse.stats().fused_calls == before + 10


def check_change(by_python, change):
    """Whatever changes is seen at once; two calls later Python is no longer wanted."""
    module = Net().eval()
    fast, inputs = settled(module)
    inputs = change(module, inputs) or inputs
    before = by_python()
    for _ in range(3):
        agree(fast, module, *inputs)
    assert by_python() == before + 2
    for _ in range(3):
        agree(fast, module, *inputs)
    assert by_python() == before + 2


def write_in_place(module, inputs):
    with torch.no_grad():
        module.one.weight.mul_(2)


def write_unseen(module, inputs):
    module.two.bias.data[3] = 5  # no version counts it: the C library looks at the values


def new_values_elsewhere(module, inputs):
    module.one.weight.data = module.one.weight.detach() * 3


def load_state(module, inputs):
    module.load_state_dict({name: value * 0.5 for name, value in module.state_dict().items()})


def other_batch(module, inputs):
    return pair(9)


def refreshed(module, inputs):
    linfuse.refresh()


@pytest.mark.parametrize("change", [
    write_in_place, new_values_elsewhere, load_state, other_batch, refreshed,
    pytest.param(write_unseen, marks=not_on_gpu),
], ids=lambda change: change.__name__)
def test_changes_are_seen(by_python, change):
    check_change(by_python, change)


def test_batches_in_turns(by_python):
    """No two calls are alike: all of them are Python's."""
    module = Net().eval()
    fast = compiled(module)
    for batch in (7, 9, 7, 9, 1, 7):
        agree(fast, module, *pair(batch))
    assert by_python() == 6


@not_on_gpu
def test_threads_are_respected(by_python):
    module = Net().eval()
    fast, inputs = settled(module)
    before, threads = by_python(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        agree(fast, module, *inputs)
        assert by_python() == before + 1
    finally:
        torch.set_num_threads(threads)


def test_gradients_are_pytorchs():
    module = Net().eval()
    fast, inputs = settled(module)
    got = fast(*inputs)[0]
    assert got.requires_grad
    got.sum().backward()
    assert module.one.weight.grad is not None
    assert "grad" in reasons()
    agree(fast, module, *inputs)


def test_other_inputs_are_seen():
    module = Net().eval()
    fast, (x, y) = settled(module)
    agree(fast, module, torch.randn(20, 7).T, y)  # another order in memory
    agree(fast, module, x, torch.randn(7, 40)[:, ::2])
    with torch.no_grad():
        for tensors in ((x.double(), y), (x, y.double())):
            with pytest.raises(RuntimeError) if tensors[0].dtype is torch.float64 else torch.no_grad():
                want = module(*tensors)
                got = fast(*tensors)
                assert [one.dtype for one in got] == [one.dtype for one in want]
        agree(fast, module, x, y)


def test_vmap_and_forward_mode():
    module = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval()
    fast, x = compiled(module), torch.randn(7, 20)
    with torch.no_grad():
        for _ in range(4):
            fast(x)
        torch.testing.assert_close(torch.func.vmap(module)(x), torch.func.vmap(lambda row: fast(row[None])[0])(x))
        agree(fast, module, x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.randn(7, 20))
            got, want = (forward_ad.unpack_dual(model(dual)) for model in (fast, module))
            torch.testing.assert_close(got.tangent, want.tangent)
        agree(fast, module, x)


def test_subclass_of_tensor():
    class Mine(torch.Tensor):
        pass

    module = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval()
    fast, x = compiled(module), torch.randn(7, 20)
    with torch.no_grad():
        for _ in range(4):
            fast(x)
        torch.testing.assert_close(torch.Tensor(fast(x.as_subclass(Mine))), module(x))


@not_on_gpu
def test_large_results_come_from_kept_memory(by_python):
    module = nn.Sequential(nn.Linear(4, 2048), nn.ReLU()).eval()
    fast, x = compiled(module), torch.randn(1100, 4)
    for _ in range(4):
        agree(fast, module, x)
    assert by_python() == 2
    del fast
    assert linfuse.stats().output_bytes > 0
    linfuse.empty_cache()


def test_many_parameters_go_without(by_python):
    """More than a shortcut has room for."""
    module = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]).eval()
    fast, x = compiled(module), torch.randn(3, 8)
    for _ in range(4):
        agree(fast, module, x)
    assert by_python() == 4


def test_programs_go_with_their_parameters():
    module = Net().eval()
    fast, inputs = settled(module)
    assert linfuse.stats().programs == 1
    del fast, module  # parts live on in what Dynamo has compiled; their programs do not
    gc.collect()
    assert linfuse.stats().programs == 0


def test_nothing_leaks():
    module = Net().eval()
    fast, (x, y) = settled(module)
    with torch.no_grad():
        want = [one.clone() for one in fast(x, y)]
        counted = x, y, module.one.weight, module.two.bias, torch.float32
        for count in (100, 5000):
            gc.collect()
            before = [sys.getrefcount(one) for one in counted], len(gc.get_objects())
            for _ in range(count):
                got = fast(x, y)
            del got
            gc.collect()
            after = [sys.getrefcount(one) for one in counted], len(gc.get_objects())
        assert after[0] == before[0]
        assert abs(after[1] - before[1]) < 50
        assert all(torch.equal(a, b) for a, b in zip(fast(x, y), want))


def test_several_threads_at_once():
    module = Net().eval()
    fast, _ = settled(module)
    failed = []

    def work(seed):
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for step in range(200):
                rows = 7 + (seed + step // 50) % 2
                x, y = (torch.randn(rows, 20, generator=random).to(DEVICE) for _ in range(2))
                got, want = fast(x, y), module(x, y)
                if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, want)):
                    failed.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_weights_change_while_others_call():
    """A result is of the weights before or after, or of a write under way."""
    module = nn.Linear(16, 8, bias=False).eval()
    fast, x, stop, failed = compiled(module), torch.ones(3, 16), threading.Event(), []
    with torch.no_grad():
        module.weight.fill_(1.0)
        fast(x)

    def work():
        with torch.no_grad():
            while not stop.is_set():
                got = fast(x)
                if not (torch.equal(got, torch.full_like(got, 16.0)) or torch.equal(got, torch.full_like(got, 32.0))):
                    failed.append(got)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    with torch.no_grad():
        for step in range(60):
            module.weight.copy_(torch.full((8, 16), 1.0 + step % 2))
            fast(x)
    stop.set()
    for thread in threads:
        thread.join()
    # a write that is under way may be seen in part, as PyTorch's own product would see it
    assert all(((one >= 16.0) & (one <= 32.0)).all() for one in failed)


def test_without_the_library(monkeypatch, by_python):
    monkeypatch.setattr(shortcut, "_library", None)
    module = Net().eval()
    fast, inputs = settled(module)
    agree(fast, module, *inputs)
    assert by_python() == 4


def test_parts_of_a_larger_graph(by_python):
    module, x = nn.Linear(20, 12).eval(), torch.randn(7, 20)

    def forward(x):
        return F.relu(torch.sort(torch.tanh(module(x)), dim=1).values * 2)

    fast = torch.compile(forward, backend="linfuse")
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(fast(x), forward(x))
    parts = linfuse.stats().fused_parts
    assert parts > 0 and by_python() == 2 * parts


@on_gpu
def test_streams(by_python):
    """A shortcut is for one stream; on another Python is wanted twice again."""
    module = Net().eval()
    fast, inputs = settled(module)
    before, other = by_python(), torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        for _ in range(4):
            agree(fast, module, *inputs)
    assert by_python() == before + 2
    torch.cuda.current_stream().wait_stream(other)
    agree(fast, module, *inputs)
    assert by_python() == before + 3


@on_gpu
def test_capture_after_calls_alike():
    """A graph has a slot of its own, whatever the calls on its stream went by before."""
    module = Net().eval()
    fast, inputs = settled(module)
    other, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other), torch.no_grad():
        for _ in range(4):
            agree(fast, module, *inputs)
        with torch.cuda.graph(graph, stream=other):
            captured = fast(*inputs)
        for _ in range(4):
            agree(fast, module, *inputs)
        for tensor in inputs:
            tensor.add_(1)
        graph.replay()
        assert_close(captured, reference(module, *inputs), module(*inputs))
    torch.cuda.current_stream().wait_stream(other)


@on_gpu
def test_inputs_not_aligned(by_python):
    module = Net().eval()
    fast, (x, y) = settled(module)
    before = by_python()
    agree(fast, module, torch.randn(7 * 20 + 1)[1:].view(7, 20), y)
    assert by_python() == before + 1
    agree(fast, module, x, y)
    assert by_python() == before + 1


@on_gpu
def test_workspace_made_at_every_call(by_python):
    """More of it than a slot keeps."""
    module = nn.Sequential(nn.Linear(64, 8192), nn.Softmax(dim=1), nn.Linear(8192, 64)).eval()
    fast, x = compiled(module), torch.randn(2000, 64)
    for _ in range(4):
        agree(fast, module, x)
    assert by_python() == 2
