# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, backend="linfuse"): the reference models, every batch size, options, and calls that PyTorch
has to run."""

import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import cuda, fused, partition
from linfuse.capture import hint
from torch_door import ON_GPU, assert_close, assert_fused, compiled, errors, flat, fresh, not_on_gpu, reasons, reference


fresh_each_time = fresh(1)


class LseChain(nn.Module):
    def __init__(self, k=48, n=80):
        super().__init__()
        self.linear = nn.Linear(k, n)

    def forward(self, x):
        x = self.linear(x)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.gelu(x)
        return F.gelu(x)


class GeluSoftmax(nn.Module):
    def __init__(self, k=48, n=80):
        super().__init__()
        self.linear = nn.Linear(k, n)

    def forward(self, x):
        return F.softmax(F.gelu(self.linear(x)), dim=1)


class MeanResidual(nn.Module):
    def __init__(self, k=48):
        super().__init__()
        self.gemm = nn.Linear(k, k)
        self.subtract = nn.Parameter(torch.randn(k))

    def forward(self, x):
        original = x.clone().detach()
        x = self.gemm(x)
        x = x - self.subtract
        x = torch.mean(x, dim=1, keepdim=True)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = F.gelu(x)
        return x + original


@pytest.mark.parametrize("model", [LseChain, GeluSoftmax, MeanResidual])
def test_reference_models(model):
    """Right, fused as a whole, one program for all batch sizes, 0 and 1 among them."""
    module = model().eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (8, 1, 3, 0, 130, 8):
            x = torch.randn(batch, 48)
            y = fast(x)
            assert y.shape == module(x).shape
            assert_close(y, reference(module, x), module(x))
    stats = assert_fused()
    assert stats.programs_made == 1 and stats.programs == 1 and stats.fused_calls == 6
    assert stats.prepared == 1 and stats.prepared_bytes > 0 and stats.workspace_bytes > 0


def test_no_recompilation_for_batches():
    """PyTorch traces for the first size, for any size, and for 1 and 0, which it takes for special; linfuse compiles
    once."""
    fast = compiled(GeluSoftmax().eval())
    with torch.no_grad():
        for batch in (5, 6, 7, 19, 64, 1, 0, 33):
            fast(torch.randn(batch, 48))
    stats = assert_fused()
    assert stats.graphs <= 4 and stats.programs_made == 1


def test_marked_dynamic():
    """What PyTorch is told to be dynamic from the start comes as a name at once."""
    fast = compiled(MeanResidual().eval())
    with torch.no_grad():
        for batch in (9, 2, 70):
            x = torch.randn(batch, 48)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            fast(x)
    assert assert_fused().graphs == 1


def test_dynamic_compile_flag():
    module = LseChain().eval()
    fast = torch.compile(module, backend="linfuse", dynamic=True)
    with torch.no_grad():
        for batch in (4, 11, 2):
            x = torch.randn(batch, 48)
            assert_close(fast(x), reference(module, x), module(x))
    assert assert_fused().graphs == 1


def test_several_batch_axes():
    """Leading extents fold into rows; the second one may vary as well."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(24), nn.Linear(24, 32)

        def forward(self, x):
            return F.silu(self.linear(self.norm(x)))

    module = Tokens().eval()
    fast = compiled(module)
    with torch.no_grad():
        for shape in ((2, 5, 24), (3, 5, 24), (3, 7, 24), (4, 9, 24), (1, 1, 24)):
            x = torch.randn(shape)
            assert_close(fast(x), reference(module, x), module(x), str(shape))
    assert_fused()


def test_rows_by_view():
    """Extents that come from x.size() and x.shape are PyTorch's names in the second trace."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 24)

        def forward(self, x):
            y = self.linear(x).view(x.size(0), 4, 6)
            return torch.softmax(y, dim=-1).reshape(x.shape[0], -1) * 2

    module = Heads().eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (4, 6, 24, 9, 1):
            x = torch.randn(batch, 16)
            assert_close(fast(x), reference(module, x), module(x), str(batch))
    assert assert_fused().programs_made == 1


def test_batch_that_looks_like_features():
    """A batch of the same size as the features is still the batch."""
    module = GeluSoftmax(24, 24).eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (24, 7):
            x = torch.randn(batch, 24)
            assert_close(fast(x), reference(module, x), module(x))
    assert assert_fused().programs_made == 1


def test_squeezed_batch_of_one():
    """x.squeeze() means something else for a batch of one; the extents of each node are checked, so it stays right."""

    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 12)

        def forward(self, x):
            return torch.softmax(self.linear(x).squeeze(), dim=0).sum()

    module = Squeezed().eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (1, 5, 1, 3):
            x = torch.randn(batch, 16)
            assert_close(fast(x), reference(module, x), module(x))


# ---- what PyTorch has to run ----


def test_gradients():
    """With grad mode on and parameters that require grad, PyTorch runs and gradients are its own."""
    module = GeluSoftmax()
    twin = GeluSoftmax()
    twin.load_state_dict(module.state_dict())
    x = torch.randn(6, 48, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    compiled(module)(x).square().sum().backward()
    twin(z).square().sum().backward()
    assert torch.equal(x.grad, z.grad)
    for mine, theirs in zip(module.parameters(), twin.parameters()):
        assert torch.equal(mine.grad, theirs.grad)
    assert "requires grad while grad mode is on" in reasons() and linfuse.stats().fused_calls == 0


def test_frozen_part_runs_fused_under_grad_mode():
    """A frozen body is fused although grad mode is on; the head that learns is PyTorch's, and learns."""

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).requires_grad_(False)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.body(x)))

    module = Frozen()
    x = torch.randn(5, 16)
    y = compiled(module)(x)
    y.sum().backward()
    grad = module.head.weight.grad.clone()
    module.head.weight.grad = None
    module(x).sum().backward()
    torch.testing.assert_close(grad, module.head.weight.grad)
    assert linfuse.stats().fused_calls == 1


def test_grad_and_no_grad_alternate():
    module = GeluSoftmax()
    fast = compiled(module)
    x = torch.randn(4, 48)
    for _ in range(2):
        with torch.no_grad():
            assert not fast(x).requires_grad
        assert fast(x).requires_grad
    with torch.inference_mode():
        y = fast(x)
    assert y.is_inference() and linfuse.stats().fused_calls == 3


def test_doubles():
    module, x = GeluSoftmax().eval().double(), torch.randn(5, 48).double()
    with torch.no_grad():
        assert torch.equal(compiled(module)(x), module(x))
    assert "float64" in reasons() and linfuse.stats().fused_calls == 0


def test_non_contiguous_inputs():
    module = GeluSoftmax().eval()
    fast = compiled(module)
    wide = torch.randn(48, 10)
    with torch.no_grad():
        for x in (wide.T, torch.randn(20, 48)[::2], torch.randn(10, 96)[:, ::2], torch.randn(1, 48).expand(6, 48)):
            assert not x.is_contiguous()
            assert_close(fast(x), reference(module, x), module(x))
    assert_fused()


def test_outputs_lie_as_pytorchs():
    """A result computed element by element from a transposed input is transposed in memory; code after it may count
    on that."""

    def turned(x, y):
        return torch.relu(x + y) * 2, torch.softmax(x, dim=0)

    x, y = torch.randn(7, 5).T, torch.randn(7, 5).T
    got, want = compiled(turned)(x, y), turned(x, y)
    for mine, theirs in zip(got, want):
        assert mine.stride() == theirs.stride() and not mine._is_view()
        torch.testing.assert_close(mine, theirs)
    assert_fused()


COLUMN = torch.ones(6, 1)
SHAPED = {
    "relu": lambda x: torch.relu(x + 1) * 2,
    "product of one column": lambda x: torch.relu(x @ COLUMN),
    "product, transposed": lambda x: torch.relu(x @ COLUMN).transpose(0, -1),
    "keepdim": lambda x: torch.relu(x).sum(-1, keepdim=True) * 2,
    "unsqueeze(0)": lambda x: (torch.relu(x) * 2).unsqueeze(0),
    "unsqueeze(-1)": lambda x: (torch.relu(x) * 2).unsqueeze(-1),
    "transposed, unsqueeze": lambda x: (torch.relu(x) * 2).transpose(0, -1).unsqueeze(1),
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in SHAPED), ("relu", True), ("transposed, unsqueeze", True)]
)
def test_strides_are_eagers(name, dynamic):
    """Of results with extents of 0 and 1 too, where strides follow from nothing but what eager does. Where PyTorch's
    own trace says another thing than eager then does, the trace counts."""
    function, told = SHAPED[name], []

    def listen(graph, given):
        (result,) = next(iter(reversed(graph.graph.nodes))).args[0]
        told.append(tuple(map(hint, result.meta["example_value"].stride())))
        return linfuse.compile_graph(graph, given).run

    cases, as_eager = 0, 0
    for shape in ((3, 6), (1, 6), (0, 6), (2, 1, 6), (1, 4, 6), (0, 4, 6)):
        turned = tuple(reversed(range(len(shape))))
        for x in (torch.randn(shape), torch.randn(shape[::-1]).permute(turned)):
            torch._dynamo.reset()
            got, want = torch.compile(function, backend=listen, dynamic=dynamic)(x), function(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == told[-1] and got._is_view() <= want._is_view(), f"{x.shape}, {x.stride()}"
            cases += 1
            as_eager += got.stride() == want.stride()
    assert as_eager >= cases - 2
    assert_fused()


def test_sparse_input():
    def product(x, w):
        return torch.relu(x @ w) + 1

    x, w = torch.eye(6).to_sparse(), torch.randn(6, 4)
    try:
        y = compiled(product)(x, w)
    except torch._dynamo.exc.TorchDynamoException:
        pytest.skip("this PyTorch does not trace sparse tensors")
    torch.testing.assert_close(y, product(x, w))


def test_nothing_is_shared_with_inputs():
    """Outputs are memory of their own, and two calls have two."""
    module = MeanResidual().eval()
    fast = compiled(module)
    x = torch.randn(4, 48)
    with torch.no_grad():
        a, b = fast(x), fast(x)
        kept = a.clone()
        b.fill_(float("nan"))
        x.fill_(0)
    assert torch.equal(a, kept)


def test_non_finite_rows():
    """A row with NaN or Inf gives what PyTorch gives, and does not touch its neighbours."""
    for model in (LseChain, GeluSoftmax, MeanResidual):
        module = model().eval()
        fast = compiled(module)
        x = torch.randn(9, 48)
        x[2, 3], x[4, 0], x[6, 1] = float("nan"), float("inf"), float("-inf")
        with torch.no_grad():
            assert_close(fast(x), reference(module, x), module(x), model.__name__)


def test_call_outside_the_guards():
    """Whoever calls what the backend gave with other extents, dtypes or ranks gets PyTorch's answer or error, never
    garbage."""
    held = {}

    def keep(graph, inputs):
        held["graph"] = linfuse.compile_graph(graph, inputs)
        held["inputs"] = [i for i in inputs]
        return held["graph"].run

    module = GeluSoftmax().eval()
    with torch.no_grad():
        torch.compile(module, backend=keep)(torch.randn(4, 48))
        args, run = held["inputs"], held["graph"].run
        at = next(i for i, a in enumerate(args) if tuple(a.shape) == (4, 48))
        other = torch.randn(3, 48)
        torch.testing.assert_close(run(*args[:at], other, *args[at + 1 :])[0], module(other))
        assert not linfuse.stats().fallbacks
        with pytest.raises(RuntimeError):
            run(*args[:at], torch.randn(3, 47), *args[at + 1 :])
        double = torch.randn(3, 2, 48)
        torch.testing.assert_close(run(*args[:at], double, *args[at + 1 :])[0], module(double))
    assert "is given as [3, 47]" in reasons("call") and "is given as [3, 2, 48]" in reasons("call")


# ---- options ----


def test_options():
    module = MeanResidual().eval()
    x = torch.randn(6, 48)
    x[1, 2] = float("inf")
    with torch.no_grad():
        for options in (
            {"assume_finite": True},
            {"rules": "-all"},
            {"rules": ["none"]},
            {"precision": "tf32"},
            {"fallback": "error"},
        ):
            torch._dynamo.reset()
            y = compiled(module, **options)(x)
            keep = torch.arange(6) != 1 if options.get("assume_finite") else slice(None)
            assert errors([y[keep]], [reference(module, x)[0][keep]]) < 1e-5
    assert_fused()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"precison": "fp32"}, "no option precison"),
        ({"precision": "fp8"}, "fp8"),
        ({"rules": "+no_such_rule"}, "no_such_rule"),
        ({"fallback": "maybe"}, "maybe"),
    ],
)
def test_wrong_options(options, words):
    with torch.no_grad(), pytest.raises(Exception, match=words):
        compiled(GeluSoftmax().eval(), **options)(torch.randn(2, 48))


def test_fallback_error():
    """Whoever wants to be told is told, with the node and the reason, at the trace and at the call."""

    def odd(x):
        return torch.erfinv(torch.tanh(x) * 0.5)

    line = odd.__code__.co_firstlineno + 1
    words = rf'erfinv \(torch.erfinv, .*test_torch_backend.py:{line}\): not supported yet \(.*fallback="pytorch"\)'
    with pytest.raises(Exception, match=words):
        compiled(odd, fallback="error")(torch.randn(3, 4))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"requires grad while grad mode is on \(call it under torch.no_grad\(\)\)"):
        compiled(GeluSoftmax(), fallback="error")(torch.randn(3, 48))


@not_on_gpu
def test_matmul_precision_is_honoured():
    """On the CPU everything is fp32, whatever is allowed."""
    module = GeluSoftmax(300, 40).eval()
    x = torch.randn(4, 300)
    before = torch.get_float32_matmul_precision()
    try:
        for word in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(word)
            torch._dynamo.reset()
            with torch.no_grad():
                assert errors(flat(compiled(module)(x)), reference(module, x)) < 2e-6
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(ON_GPU or not shutil.which("g++"), reason="the default backend wants a compiler")
def test_beside_the_default_backend():
    """The same module by both in turns: each has its own, and none compiles anew for the other's sake."""
    module, x = GeluSoftmax().eval(), torch.randn(5, 48)
    fast, other = compiled(module), torch.compile(module)
    with torch.no_grad():
        want, eager = reference(module, x), module(x)
        for _ in range(3):
            assert_close(fast(x), want, eager)
            assert_close(other(x), want, eager, factor=4)
    stats = assert_fused()
    assert stats.graphs == 1 and stats.fused_calls == 3


def test_stats_text_and_json():
    with torch.no_grad():
        compiled(GeluSoftmax().eval())(torch.randn(3, 48))
    stats = linfuse.stats()
    assert "1 graph, 1 fused as a whole; 1 fused part, 1 fused call" in str(stats) and stats.json()["fused_calls"] == 1
    linfuse.reset_stats()
    assert linfuse.stats().fused_calls == 0 and linfuse.stats().graphs == 0


def test_native_imports_nothing():
    """The binding alone needs neither PyTorch nor NumPy."""
    import subprocess

    code = (
        "import importlib.util, sys, os; spec = importlib.util.spec_from_file_location('native', sys.argv[1]); "
        "m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; print(m.version())"
    )
    path = linfuse.__path__[0] + "/native.py"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == linfuse.version(), done.stderr


def test_missing_library_is_said_clearly(tmp_path):
    import os
    import shutil
    import subprocess

    shutil.copy(linfuse.__path__[0] + "/native.py", tmp_path / "native.py")
    environment = {**os.environ, "LINFUSE_LIBRARY": str(tmp_path / "nothing.so")}
    done = subprocess.run(
        [sys.executable, "-c", "import native"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "nothing.so, which is not there" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("sizes, most", [([5, 6, 1, 0, 9], 1), ([8, 4, 9], 2)], ids=["", "a batch like the features"])
def test_weight_given_as_an_argument(sizes, most):
    """A tensor of the caller's on the right of a product has no batch; the one on the left does."""

    def product(x, w):
        return torch.relu(x @ w) * 2

    fast = compiled(product)
    for batch in sizes:
        x, w = torch.randn(batch, 8), torch.randn(8, 4)
        assert_close(fast(x, w), reference(product, x, w), product(x, w))
    assert assert_fused().programs_made <= most


def test_vector_of_the_batch():
    """An input of rank 1 that runs over the batch, beside one that runs over features."""

    def scaled(x, s, v):
        return torch.tanh(x * s.unsqueeze(1)) + v

    fast = compiled(scaled)
    for batch in (5, 6, 8, 1):
        given = torch.randn(batch, 8), torch.randn(batch), torch.randn(8)
        assert_close(fast(*given), reference(scaled, *given), scaled(*given))
    assert_fused()


def test_transforms_of_functions():
    """vmap and grad over a compiled model are PyTorch's affair, and right."""
    module = GeluSoftmax().eval()
    fast = compiled(module)
    x = torch.randn(3, 5, 48)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(fast)(x), torch.vmap(module)(x))
    got = torch.func.grad(lambda t: fast(t).square().sum())(x[0])
    torch.testing.assert_close(got, torch.func.grad(lambda t: module(t).square().sum())(x[0]))


def test_tensor_subclass():
    """Whoever brings a class of tensors of their own keeps it."""

    class Tagged(torch.Tensor):
        pass

    x = torch.randn(4, 48).as_subclass(Tagged)
    module = GeluSoftmax().eval()
    with torch.no_grad():
        y, want = compiled(module)(x), module(x)
    assert type(y) is type(want)
    torch.testing.assert_close(torch.as_tensor(y), torch.as_tensor(want))


def test_forward_mode_gradients():
    """A tangent is not lost."""
    forward_ad = torch.autograd.forward_ad
    fast, x = compiled(lambda x: torch.tanh(x * 2 + 1)), torch.randn(3, 4)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(fast(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    torch.testing.assert_close(tangent, 2 * (1 - torch.tanh(x * 2 + 1) ** 2))


def test_vmap_inside():
    """What transforms see are no tensors with memory."""
    model, x = nn.Sequential(nn.Linear(4, 5), nn.GELU()), torch.randn(3, 2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.vmap(model))(x), model(x))


def test_signed_zeros_are_two_numbers():
    first, second = (lambda x: torch.relu(x) / 0.0 * 1.5), (lambda x: torch.relu(x) / -0.0 * 1.5)
    x = torch.ones(2, 3)
    with torch.no_grad():
        fast = compiled(first), compiled(second)
        for one, plain in zip(fast, (first, second)):
            assert torch.equal(one(x), plain(x))


def test_a_norm_over_an_extent_that_changes():
    def norm(x):
        return torch.relu(torch.nn.functional.layer_norm(x, x.shape[-1:]))

    fast = torch.compile(norm, backend="linfuse", dynamic=True)
    with torch.no_grad():
        for width in (5, 7, 12):
            x = torch.randn(3, width)
            torch.testing.assert_close(fast(x), norm(x))


def test_in_place_keeps_the_dtype():
    def accumulate(x, more):
        h = torch.relu(x)
        h.add_(more)
        return h

    x, more = torch.randn(4, 3), torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        got = compiled(accumulate)(x, more)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, accumulate(x, more))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_cannot_be_used(monkeypatch):
    """PyTorch runs what linfuse finds no driver for, and every call says why; a part for the GPU on the CPU's tensors
    stands in for one."""

    def part_for_gpu(name, capture, args, outputs, eager, options, strict):
        return fused.Part(name, capture, args, outputs, eager, {"device": "cuda"}, strict)

    monkeypatch.setattr(partition, "Part", part_for_gpu)
    monkeypatch.setattr(fused, "home_of", cuda.Gpu)
    monkeypatch.setattr(cuda, "_stream_of", lambda index: 0)
    monkeypatch.setattr(cuda, "_current_gpu", lambda: None)
    monkeypatch.setattr(cuda, "_capturing", lambda: False)
    monkeypatch.setattr(cuda, "_no_use", {})
    module, x = GeluSoftmax().eval(), torch.randn(3, 48)
    fast = compiled(module)
    with torch.no_grad():
        assert all(torch.equal(fast(x), module(x)) for _ in range(2))
        (left,) = linfuse.stats().fallbacks
        assert "driver" in left.reason and left.count == 2 and cuda._no_use == {torch.device("cpu"): left.reason}
        torch._dynamo.reset()
        with pytest.raises(linfuse.Error, match="driver"):
            compiled(module, fallback="error")(x)
