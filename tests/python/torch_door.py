# SPDX-License-Identifier: Apache-2.0
"""What the tests of torch.compile(backend="linfuse") share: compiling, comparing with float64, asking what was
fused."""

import copy
import gc
import os
from contextlib import contextmanager

import pytest
import torch

import linfuse
from linfuse import loss_cpu, weights

DEVICE = os.environ.get("LINFUSE_TEST_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"  # conftest.py makes it PyTorch's default device
not_on_gpu = pytest.mark.skipif(ON_GPU, reason="of the CPU alone")


PYTORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def fresh(seed):
    """A fixture for every test of a file: nothing compiled, nothing counted, random numbers from the seed."""

    @pytest.fixture(autouse=True)
    def begin_and_end():
        torch._dynamo.reset()
        gc.collect()
        weights.captured.clear()  # the graphs of earlier tests are gone, which only who made them can know
        linfuse.reset_stats()
        torch.manual_seed(seed)
        yield
        torch._dynamo.reset()

    return begin_and_end


@pytest.fixture
def denormals():
    """One thread that keeps them: what inductor of PyTorch 2.4 compiles has the thread that loads it, and those that it
    starts, flush them to 0 from then on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    yield
    torch.set_num_threads(threads)


def loss_ways():
    """A fixture: scalar losses by C where it takes them, and by the torch ops alone."""

    @pytest.fixture(params=["c", "torch"])
    def way(request, monkeypatch):
        if request.param == "c" and ON_GPU:
            pytest.skip("C computes losses on CPUs")
        monkeypatch.setattr(loss_cpu, "allowed", request.param == "c")
        return request.param

    return way


both_ways = pytest.mark.usefixtures("way")


def compiled(model, **options):
    """The model compiled by linfuse. What is not fused runs op by op unless said: inductor takes seconds a graph, and
    test_torch_rest.py is about it."""
    return torch.compile(model, backend="linfuse", options={"rest": "eager", **options})


@contextmanager
def no_default_device():
    """Where a default device is set, PyTorch 2.11 cuts a graph at Tensor.unflatten, whoever compiles it."""
    torch.set_default_device(None)
    try:
        yield
    finally:
        torch.set_default_device(DEVICE if ON_GPU else None)


@contextmanager
def no_compiler():
    """Inductor as on a machine without a C++ compiler. By inductor's own patches: what pytest's put back is no longer
    a setting of PyTorch's afterwards."""
    from torch._inductor import config, cpp_builder

    for name in ("get_cpp_compiler", "cpp_compiler_search"):  # which of them remembers differs by PyTorch's version
        if hasattr(getattr(cpp_builder, name, None), "cache_clear"):
            getattr(cpp_builder, name).cache_clear()
    with config.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
        yield


def without_guards(model, *inputs):
    """What the backend gives for a model's one graph, and its arguments: to be called without PyTorch's guards."""
    held = {}

    def keep(graph, given):
        held.update(run=linfuse.compile_graph(graph, given).run, args=list(given))
        return held["run"]

    torch.compile(model, backend=keep)(*inputs)
    return held["run"], held["args"]


def flat(result):
    """Tensors of a result, whatever they are packed in."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for one in result for tensor in flat(one)]


def reference(model, *inputs):
    """The same in float64."""
    wide = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
    return flat(wide(*[x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]))


def errors(got, want, strict=True):
    """Largest |y - ref| / max(|ref|, rms(ref)) over finite values; strict: NaN and Inf must stand where the reference
    has
    them, which is not always so for eager itself."""
    worst = 0.0
    assert len(got) == len(want)
    for y, ref in zip(got, want):
        assert y.shape == ref.shape, f"{tuple(y.shape)}, not {tuple(ref.shape)}"
        narrow = ref.float()
        finite = narrow.isfinite() if strict else narrow.isfinite() & y.isfinite()
        same = (y == narrow) | (y.isnan() & narrow.isnan()) | finite
        assert bool(same.all()) or not strict, "NaN or Inf elsewhere than in the reference"
        assert bool(y[finite].isfinite().all()), "NaN or Inf where the reference is finite"
        if finite.any():
            r, d = ref[finite].double(), (y[finite].double() - ref[finite].double()).abs()
            scale = r.abs().clamp(min=float(r.square().mean().sqrt()))
            worst = max(worst, float((d / scale.clamp(min=1e-300)).max()))
    return worst


def assert_close(got, want, eager, what="", factor=2.0, least=2e-6):
    """The error against float64 is at most `factor` times eager's; `least` is a few units of rounding."""
    mine, theirs = errors(flat(got), want), errors(flat(eager), want, strict=False)
    assert mine <= max(factor * theirs, least), f"{what}: error {mine:.3g}, eager's is {theirs:.3g}"


def assert_fused(parts=None):
    """Everything since the last reset ran fused."""
    stats = linfuse.stats()
    assert stats.graphs > 0 and stats.graphs_fused == stats.graphs, str(stats)
    assert not stats.fallbacks and stats.fused_calls > 0, str(stats)
    if parts is not None:
        assert stats.fused_parts == parts, str(stats)
    return stats


def reasons(when=None):
    """The reasons counted, joined."""
    left = [one for one in linfuse.stats().fallbacks if when in (None, one.when)]
    return "; ".join(f"{' '.join(one.nodes)} {' '.join(one.ops)}: {one.reason}" for one in left)
