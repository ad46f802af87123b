# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model.cuda(), backend="linfuse"): streams, graphs, memory, precision, devices. What holds on every
device is tested by the other files, with LINFUSE_TEST_DEVICE=cuda on the GPU."""

import gc
import multiprocessing
import os
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from torch_door import assert_close, assert_fused, compiled, errors, flat, fresh, reasons, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
fresh_each_time = fresh(11)
K, N = 96, 160


class Chain(nn.Module):
    """A product, a statistic of its rows, and a result of a row's own."""

    def __init__(self, k=K, n=N):
        super().__init__()
        self.linear, self.norm = nn.Linear(k, n), nn.LayerNorm(n)

    def forward(self, x):
        h = F.gelu(self.linear(x))
        return self.norm(h), torch.logsumexp(h, dim=1, keepdim=True)


@pytest.fixture
def module():
    return Chain().eval().cuda()


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def draw(batch=33, k=K):
    return torch.randn(batch, k, device="cuda")


def agree(fast, module, x, **limits):
    got = fast(x)
    assert all(y.is_cuda for y in flat(got))
    assert_close(got, reference(module, x), module(x), **limits)


def busy(milliseconds=50):
    """Keeps the current stream at work for about so long."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


# ---- calls ----


def test_every_batch_with_one_program(module):
    fast = compiled(module)
    for batch in (8, 1, 3, 0, 700, 8):
        agree(fast, module, draw(batch))
    stats = assert_fused()
    assert stats.programs_made == 1 and stats.prepared == 1 and stats.fused_calls == 6
    assert stats.prepared_bytes > 0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.T.contiguous().T,
        lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
        lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t),
        lambda t: t[:1].expand(9, -1),
        lambda t: t[::2],
    ],
    ids=["transposed", "part of rows", "off by four bytes", "expanded", "every other row"],
)
def test_inputs_laid_out_otherwise(module, view):
    fast = compiled(module)
    agree(fast, module, view(draw(20)))
    assert_fused()


def test_rows_that_are_not_finite():
    """A guarded rewrite is in it: mean of a product."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(K, N)

        def forward(self, x):
            return self.linear(x).mean(1, keepdim=True) + x

    module = Mean().eval().cuda()
    fast, x = compiled(module), draw(64)
    x[3, 5], x[9, 0], x[40, 1] = float("nan"), float("inf"), float("-inf")
    agree(fast, module, x)
    assert_fused()


def test_nothing_is_waited_for(module):
    fast, x = compiled(module), draw()
    want = [y.clone() for y in fast(x)]
    torch.cuda.synchronize()
    busy()
    end = torch.cuda.Event()
    got = fast(x)
    end.record()
    assert not end.query(), "the call waited for the stream"
    assert all(torch.equal(y, z) for y, z in zip(got, want))


def test_memory_is_pytorchs(module):
    """Outputs and workspace come from the caching allocator: the GPU's free memory stays what it is at new sizes."""
    fast = compiled(module)
    fast(draw(64))
    fast(draw(2048))
    large = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for batch in (4096, 5000, 8192):
        fast(draw(batch))
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] <= 4 << 20  # a call's own flags
    assert_fused()


def test_memory_goes_with_the_module():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    module = nn.Sequential(nn.Linear(4096, 4096), nn.GELU()).eval().cuda()
    fast = compiled(module)
    fast(draw(64, 4096))
    assert before - torch.cuda.mem_get_info()[0] > 100 << 20
    del module, fast
    torch._dynamo.reset()
    gc.collect()
    assert linfuse.stats().programs == 0
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] < 40 << 20


# ---- streams and threads ----


def test_the_current_stream_is_used(module):
    fast, x = compiled(module), draw()
    want = [y.clone() for y in fast(x)]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        fast(x + 0)  # the first call there makes what later ones use
        side.synchronize()
        busy()
        late = x + 0  # is there after a while only
        got = fast(late)
        assert not side.query()
    side.synchronize()
    assert all(torch.equal(y, z) for y, z in zip(got, want))


def test_streams_at_once(module):
    """Each has its own workspace and flags: many streams in flight give what one gives."""
    fast = compiled(module)
    inputs = [draw(40 + 11 * i) for i in range(6)]
    want = [[y.clone() for y in fast(x)] for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    got = [None] * len(inputs)
    for _ in range(20):
        for i, (stream, x) in enumerate(zip(streams, inputs)):
            with torch.cuda.stream(stream):
                got[i] = fast(x)
    torch.cuda.synchronize()
    for ys, zs in zip(got, want):
        assert all(torch.equal(y, z) for y, z in zip(ys, zs))
    assert_fused()


def test_results_dropped_while_the_gpu_is_at_work(module):
    """Memory of results and workspace goes back at once and is used again by the same stream, in order."""
    fast, x = compiled(module), draw(512)
    want = fast(x)[0].clone()
    for _ in range(30):
        fast(x)
        torch.full((512, N), float("nan"), device="cuda")
    assert torch.equal(fast(x)[0], want)


def test_a_result_used_on_another_stream(module):
    """By PyTorch's rule, record_stream: memory of a result that is gone is not given away while it is read there."""
    fast, x = compiled(module), draw(512)
    want = fast(x)[0].clone()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    result = fast(x)[0]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        late = result + 0
    result.record_stream(side)
    del result
    for _ in range(8):
        torch.full((512, N), float("nan"), device="cuda")
        fast(draw(512))
    side.synchronize()
    assert torch.equal(late, want)


def test_an_input_made_on_another_stream(module):
    """Handed over as PyTorch's rules want it; it may go at once, though the call has not yet read it."""
    fast, source = compiled(module), draw(512)
    want = fast(source)[0].clone()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = source + 0
    torch.cuda.current_stream().wait_stream(side)
    busy()
    got = fast(x)[0]
    x.record_stream(torch.cuda.current_stream())
    del x
    with torch.cuda.stream(side):
        for _ in range(8):
            torch.full((512, K), float("nan"), device="cuda")
    assert torch.equal(got, want)


def test_threads(module):
    fast = compiled(module)
    inputs = [draw(16 + 5 * i) for i in range(5)]
    want = [[y.clone() for y in fast(x)] for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(i, own_stream):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream() if own_stream else torch.cuda.current_stream()):
            for _ in range(40):
                got = fast(inputs[i])
            torch.cuda.current_stream().synchronize()
            if not all(torch.equal(y, z) for y, z in zip(got, want[i])):
                wrong.append(i)

    for own_stream in (False, True):
        threads = [threading.Thread(target=work, args=(i, own_stream)) for i in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert_fused()


def test_weights_changed_while_calls_are_in_flight(module):
    """A change is in order with the stream it is made on, and calls before it have the old weights."""
    fast, x = compiled(module), draw(256)
    side = torch.cuda.Stream()
    old = [y.clone() for y in fast(x)]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        busy(30)
        before = fast(x)
        module.linear.weight.mul_(1.5)
        after = fast(x)
        new = module(x)
    torch.cuda.synchronize()
    assert all(torch.equal(y, z) for y, z in zip(before, old))
    for y, z in zip(after, new):
        torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
    assert linfuse.stats().prepared == 2


def without_a_gpu(held, x):
    """In a forked child: PyTorch's error, and an end of what was inherited."""
    try:
        with torch.no_grad():
            held.pop()(x)
    except RuntimeError:
        torch._dynamo.reset()
        gc.collect()
        os._exit(0)
    os._exit(1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child(module):
    """CUDA does not survive a fork: the child has PyTorch's error, as with any model, does not hang, and ends nothing
    of its parent's."""
    held, x = [compiled(module)], draw()
    want = [y.clone() for y in held[0](x)]
    child = multiprocessing.get_context("fork").Process(target=without_a_gpu, args=(held, x))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert all(torch.equal(y, z) for y, z in zip(held[0](x), want))
    assert_fused()


# ---- graphs ----


def captured(fast, x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    return graph, y


def test_graph(module):
    """A first call prepares; then captured, replayed on other inputs, beside calls that are not in the graph."""
    fast, x = compiled(module), draw(128)
    fast(x)
    graph, y = captured(fast, x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        fast(draw(128))
        assert_close(y, reference(module, x), module(x))
    stats = assert_fused()
    assert stats.fused_calls == 5


def test_graph_at_an_extent_not_met_before(module):
    fast, x = compiled(module), draw(77)
    fast(draw(8))
    fast(draw(9))  # PyTorch's trace for any batch
    graph, y = captured(fast, x)
    graph.replay()
    assert_close(y, reference(module, x), module(x))
    assert_fused()


def test_graphs_share_nothing(module):
    """Two graphs of one model, replayed at once on two streams."""
    fast = compiled(module)
    inputs = [draw(300), draw(300)]
    fast(inputs[0])
    graphs = [captured(fast, x) for x in inputs]
    want = [[y.clone() for y in fast(x)] for x in inputs]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(30):
        for stream, (graph, _) in zip(streams, graphs):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, ys), zs in zip(graphs, want):
        assert all(torch.equal(y, z) for y, z in zip(ys, zs))


def test_graph_after_the_weights_changed(module):
    """It keeps those it was captured with, whatever becomes of the module; calls have the new ones."""
    fast, x = compiled(module), draw(64)
    old = [y.clone() for y in fast(x)]
    graph, y = captured(fast, x)
    module.linear.weight.mul_(2)
    agree(fast, module, x)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(y, old))
    del module, fast
    gc.collect()
    torch.cuda.empty_cache()
    scratch = torch.full((64 << 20,), float("nan"), device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(y, old)) and scratch.isnan().all()


def test_weights_not_prepared_at_a_capture(module):
    """PyTorch runs it then, and says why."""
    fast, x = compiled(module), draw(64)
    fast(x)
    module.linear.bias.add_(1)
    graph, y = captured(fast, x)
    graph.replay()
    assert_close(y, reference(module, x), module(x))
    assert "not prepared" in reasons("call")


def test_a_program_that_ends_during_a_capture(module):
    fast, x, other = compiled(module), draw(64), Chain(32, 48).eval().cuda()
    gone = compiled(other)
    gone(draw(5, 32))
    fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
        del other, gone
        gc.collect()
    graph.replay()
    assert_close(y, reference(module, x), module(x))


# ---- weights ----


def test_moved_to_the_cpu_and_back(module):
    fast, x = compiled(module), draw()
    agree(fast, module, x)
    module.cpu()
    assert_close(fast(x.cpu()), reference(module, x.cpu()), module(x.cpu()))
    module.linear.weight.mul_(3)
    module.cuda()
    agree(fast, module, x)
    assert_fused()


def test_running_statistics():
    """Training writes them without counting."""
    module = nn.Sequential(nn.Linear(K, N), nn.BatchNorm1d(N), nn.ReLU()).cuda()
    fast, x = compiled(module), draw()
    for _ in range(3):
        module.train()
        fast(x)
        module.eval()
        agree(fast, module, x)


def test_refresh(module):
    fast, x = compiled(module), draw()
    fast(x)
    module.linear.weight.data.mul_(2)
    linfuse.refresh()
    agree(fast, module, x)
    assert linfuse.stats().prepared == 2


def test_numbers_on_the_cpu(module):
    """PyTorch takes a 0-dim tensor on the CPU beside those on the GPU."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(K, N), torch.tensor(1.5)

        def forward(self, x, shift):
            return torch.relu(self.linear(x) * self.scale + shift)

    module = Scaled().eval().cuda()
    fast, x = compiled(module), draw()
    for shift in (torch.tensor(0.25), torch.tensor(2), torch.tensor(0.5, device="cuda")):
        assert_close(fast(x, shift), reference(module, x, shift), module(x, shift))
    assert_fused()


# ---- what is PyTorch's ----


def test_mixed_devices(module):
    """What runs on the CPU runs there, in PyTorch; the rest is fused."""

    def mixed(x):
        h = torch.relu(module.linear(x)) * 2
        return F.gelu(torch.tanh(h.cpu()) + 1).cuda() + 1, torch.tanh(h)

    fast, x = compiled(mixed), draw()
    assert_close(fast(x), flat(mixed(x)), mixed(x), least=1e-5)
    assert "device cpu, and not cuda:0" in reasons() and linfuse.stats().fused_calls > 0


def test_weights_on_another_device(module):
    """An error in PyTorch is PyTorch's error."""
    with pytest.raises(RuntimeError, match="device"):
        compiled(module)(torch.randn(3, K, device="cpu"))


def test_fallback_is_an_error_where_asked_for(module):
    fast, x = compiled(module, fallback="error"), draw()
    fast(x)
    module.linear.bias.add_(1)
    with pytest.raises(Exception, match="not prepared"):
        captured(fast, x)
    torch.cuda.synchronize()


# ---- precision ----


@pytest.mark.parametrize(
    "precision, low, high", [("fp32", 0, 2e-6), ("tf32", 1e-5, 5e-3), ("bf16", 2e-4, 5e-2), ("fp16", 1e-5, 5e-3)]
)
def test_precision(precision, low, high):
    """tf32 and lower are seen in the result, and are no larger than they may be."""
    module, x = nn.Sequential(nn.Linear(1024, 512), nn.Tanh()).eval().cuda(), draw(256, 1024)
    fast = compiled(module, precision=precision)
    error = errors(flat(fast(x)), reference(module, x))
    assert_fused()
    assert low <= error <= high, error


def test_pytorchs_word_on_precision():
    module, x = nn.Sequential(nn.Linear(1024, 512), nn.Tanh()).eval().cuda(), draw(256, 1024)
    found = {}
    try:
        for word in ("highest", "high", "medium"):
            torch._dynamo.reset()
            torch.set_float32_matmul_precision(word)
            found[word] = errors(flat(compiled(module)(x)), reference(module, x))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found["highest"] < 2e-6 < found["high"] <= found["medium"], found


# ---- asking ----


def test_explain(module):
    account = linfuse.explain(module, draw(1024))
    facts = account.json()
    assert not account.fallbacks and facts["dims"] == {"B": 1024}
    assert "h200" in facts["device"].lower() or "a100" in facts["device"].lower()
    assert linfuse.explain(module, draw(8), device="cpu").json()["device"] == "cpu"
    assert "tf32" not in str(account) and "tf32" in str(linfuse.explain(module, draw(1024), precision="tf32"))


def test_load(tmp_path, module):
    linfuse.save(module, (draw(4),), tmp_path)
    program = linfuse.load(tmp_path / "model.lf", tmp_path / "model.safetensors", device="cuda")
    for batch in (5, 64, 0):
        x = draw(batch)
        assert_close(program(x), reference(module, x), module(x))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        busy(20)
        late = draw(9)
        got = program(late)
        assert not side.query()
    side.synchronize()
    assert_close(got, reference(module, late), module(late))
    on_host = program(late.cpu())
    assert all(not y.is_cuda for y in on_host)
    torch.testing.assert_close(on_host[0], got[0].cpu())
    with pytest.raises(TypeError, match="cuda:0"):
        linfuse.load(tmp_path / "model.lf", tmp_path / "model.safetensors")(late)
