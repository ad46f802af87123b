# SPDX-License-Identifier: Apache-2.0
"""bf16 and f16 through torch.compile, on the CPU: every op of the table as exact as eager in the same type, special
values, casts, autocast, mixtures; weights, files and NumPy's arrays in these types; what PyTorch is left."""

import copy
import statistics

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import capture, choice, fused, native, ops
from torch_door import (assert_fused, compiled, denormals, flat, fresh, no_default_device, not_on_gpu, reasons,
                        without_guards)
from test_torch_spellings import BY_ROW, expressions, function_of, leaves

pytestmark = not_on_gpu
fresh_each_time = fresh(8)
HALVES = [torch.bfloat16, torch.float16]
RATIOS = []
half_types = pytest.mark.parametrize("dtype", HALVES, ids=["bf16", "f16"])


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """No product here is large; and whatever the CPU, none is PyTorch's for its speed."""
    monkeypatch.setattr(choice, "has_bf16_products", lambda: False)


def stands(got, want, eager):
    """NaN and Inf where double precision rounded to the type has them, or eager."""

    def same(other):
        return (got == other) | (got.isnan() & other.isnan()) | (got.isfinite() & other.isfinite())

    return bool((same(want.to(got.dtype)) | same(eager)).all())


def lies(tensor):
    """Its strides, where an extent of more than 1 makes them matter."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]


def largest(got, want):
    """Largest |y - ref| / max(|ref|, rms(ref)) where all are finite."""
    finite = want.isfinite() & got.isfinite()
    if not finite.any():
        return 0.0
    ref, off = want[finite], (got[finite].double() - want[finite]).abs()
    return float((off / ref.abs().clamp(min=max(float(ref.square().mean().sqrt()), 1e-300))).max())


def check(got, eager, want, what=""):
    """As exact as eager in the same type, which rounds after each op; half a unit in the last place is nobody's
    error."""
    got, eager, want = flat(got), flat(eager), flat(want)
    assert len(got) == len(eager) == len(want)
    for y, e, z in zip(got, eager, want):
        assert y.dtype is e.dtype and y.shape == e.shape and lies(y) == lies(e), what
        assert stands(y, z, e), f"{what}: NaN or Inf elsewhere"
        unit = torch.finfo(y.dtype).eps / 2
        least = unit if y.numel() > 32 else 2 * unit  # of few numbers the largest error is luck
        mine, theirs = max(largest(y, z), least), max(largest(e, z), least)
        assert mine <= 1.5 * theirs, f"{what}: error {mine:.3g}, eager's is {theirs:.3g}"
        RATIOS.append(mine / theirs)


def in_double(source):
    """What a spelling says, where everything is in double precision."""
    for word in ("torch.float32", "torch.bfloat16", "torch.float16"):
        source = source.replace(word, "torch.float64")
    for word in (".float(", ".half(", ".bfloat16("):
        source = source.replace(word, ".double(")
    return source


# ---- the table of ops ----


@half_types
@pytest.mark.parametrize("op", sorted(BY_ROW))
def test_every_op(op, dtype):
    sources = [source for spelling in BY_ROW[op] for source in expressions(spelling)]
    given = {name: tensor.to(dtype) for name, tensor in leaves().items()}
    f, wide = function_of(sources), function_of([in_double(source) for source in sources])
    with torch.no_grad():
        with no_default_device():
            got = compiled(f)(**given)
        eager, want = f(**given), wide(**{name: tensor.double() for name, tensor in given.items()})
    assert assert_fused().fused_calls == 1
    for one in zip(flat(got), flat(eager), flat(want), sources):
        check(*one)


def test_error_in_the_median_is_no_larger_than_eagers():
    assert len(RATIOS) > 300 and statistics.median(RATIOS) <= 1.0, statistics.median(RATIOS)


UNARY = [
    torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.neg, torch.reciprocal, torch.square, F.gelu,
    F.silu, F.mish, F.softplus, F.hardtanh, F.relu6, F.hardswish, F.hardsigmoid, F.elu, F.selu, F.leaky_relu,
    lambda x: torch.sqrt(x), lambda x: torch.rsqrt(x), lambda x: torch.log(x), lambda x: x.clamp(-2, 2),
    lambda x: x + 1, lambda x: x * 3, lambda x: 1 / x, lambda x: x - 0.5, lambda x: torch.maximum(x, x * 0.5),
]


def specials(dtype):
    info = torch.finfo(dtype)
    small = info.smallest_normal
    values = [0.0, -0.0, 1.0, -1.0, info.max, info.min, small, -small, small / 4, -small / 4, info.eps, 88.0, -88.0]
    return torch.tensor([*values, float("inf"), float("-inf"), float("nan")], dtype=dtype)


@half_types
def test_special_values(dtype):
    def f(x):
        return tuple(op(x) for op in UNARY)

    x = specials(dtype)[None].repeat(3, 1)
    with torch.no_grad():
        got, eager, want = compiled(f)(x), f(x), f(x.double())
    assert_fused()
    for at, (y, e, z) in enumerate(zip(got, eager, want)):
        assert stands(y, z, e), (at, y[0], e[0])


@half_types
def test_every_number_is_read_and_written_as_pytorch_does(dtype, denormals):
    """All 65536 of a type, as f32 and back, and f32 numbers between them, ties among them."""

    def f(x, wide):
        return x.float() * 1.0, x * 1.0, (wide * 1.0).to(dtype)

    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(256, 256)
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])[:, None]
    bits = (torch.arange(1 << 16, dtype=torch.int64) << 16) + low
    wide = torch.cat([bits.to(torch.int32).view(torch.float32), torch.randn(1, 1 << 16) * 100]).view(-1, 256)
    fast = compiled(f)
    with torch.no_grad():
        for y, e in zip(fast(x, wide), f(x, wide)):
            assert torch.equal(y.isnan(), e.isnan()) and torch.equal(y.nan_to_num(7.0), e.nan_to_num(7.0))
            real = ~e.isnan()
            assert torch.equal(torch.signbit(y)[real], torch.signbit(e)[real])
    assert_fused()


# ---- models ----


class Block(nn.Module):
    """Two products, a norm before, a residual, a softmax."""

    def __init__(self, k=48, n=80):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(k), nn.Linear(k, n), nn.Linear(n, k)

    def forward(self, x):
        h = self.down(F.gelu(self.up(self.norm(x))))
        return torch.softmax(x + h, dim=-1), h.amax(dim=1)


def in_type(module, dtype):
    return copy.deepcopy(module).to(dtype)


@half_types
def test_a_model_of_any_batch(dtype):
    module = in_type(Block().eval(), dtype)
    fast = compiled(module)
    with torch.no_grad():
        for batch in (1, 5, 33, 5, 5, 5):
            x = torch.randn(batch, 48).to(dtype)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            check(fast(x), module(x), in_type(module, torch.float64)(x.double()))
    assert assert_fused().programs_made == 1


@half_types
def test_changed_weights_are_seen(dtype):
    module, x = in_type(Block().eval(), dtype), torch.randn(4, 48).to(dtype)
    module.up.weight = nn.Parameter(torch.randn(48, 80).to(dtype).t())  # not contiguous: a copy is looked at
    fast = compiled(module)

    def agree():
        check(fast(x), module(x), in_type(module, torch.float64)(x.double()))

    with torch.no_grad():
        for _ in range(4):
            agree()
        module.down.weight.mul_(2)
        agree()
        module.down.bias.data[3] = 5  # no version counts it
        agree()
        module.up.weight.data[1, 2] = 9
        agree()
        module.load_state_dict({name: value * 0.5 for name, value in module.state_dict().items()})
        agree()
    assert_fused()


@half_types
def test_calls_go_without_python(dtype, monkeypatch):
    module, x = in_type(Block().eval(), dtype), torch.randn(4, 48).to(dtype)
    fast, counts = compiled(module), []
    is_again = fused.Part._is_again
    monkeypatch.setattr(fused.Part, "_is_again", lambda *args: counts.append(1) or is_again(*args))
    with torch.no_grad():
        for _ in range(5):
            fast(x)
        assert len(counts) == 2
        assert fast(x.flip(0).flip(0))[0].dtype is dtype and len(counts) == 2


@half_types
def test_large_results(dtype):
    """On memory that is used again, by its type."""
    module = nn.Sequential(nn.Linear(4, 2048), nn.ReLU()).eval()
    fast = torch.compile(in_type(module, dtype), backend="linfuse"), torch.compile(module, backend="linfuse")
    with torch.no_grad():
        for _ in range(3):
            for rows, one, plain in ((2200, fast[0], in_type(module, dtype)), (1100, fast[1], module)):
                x = torch.randn(rows, 4).to(plain[0].weight.dtype)
                got = one(x)
                torch.testing.assert_close(got, plain(x))
                got.resize_(3)
    linfuse.empty_cache()


# ---- casts, mixtures, autocast ----


def mixed(x, y, v):
    """bf16 or f16 x, f32 y and v."""
    h = F.layer_norm(x.to(y.dtype), (48,), v)
    return x + y, h.to(x.dtype) * x, (x * y).type_as(x), torch.softmax(x, 1, dtype=y.dtype), x.mean(1).to(y.dtype) + 1


@half_types
def test_mixed_types(dtype):
    given = torch.randn(6, 48).to(dtype), torch.randn(6, 48), torch.rand(48) + 0.5
    with torch.no_grad():
        check(compiled(mixed)(*given), mixed(*given), mixed(*[one.double() for one in given]))
    assert_fused()


@half_types
def test_numbers_in_tensors_do_not_widen(dtype):
    def scalars(x, s, k, i):
        return x * s + k - i, torch.maximum(x, s.to(x.dtype)), s * s + 0.5, s.to(x.dtype) * i

    given = torch.randn(4, 6).to(dtype), torch.tensor(1.25), torch.tensor(0.5, dtype=torch.float64), torch.tensor(3)
    with torch.no_grad():
        check(compiled(scalars)(*given), scalars(*given), scalars(*[one.double() for one in given]))
    assert_fused()


@half_types
def test_bits_seen_as_another_type_are_no_cast(dtype):
    """Tensor.view(dtype) is spelled like a view of other extents."""
    other = HALVES[dtype is torch.bfloat16]

    def f(x):
        return (x * 2).view(other) * 1

    x = torch.randn(3, 8).to(dtype)
    assert torch.equal(compiled(f)(x), f(x))


class Cast(nn.Module):
    """f32 parameters, a product in another type."""

    def __init__(self, dtype):
        super().__init__()
        self.linear, self.dtype = nn.Linear(48, 80), dtype

    def forward(self, x):
        w, b = self.linear.weight.to(self.dtype), self.linear.bias.to(dtype=self.dtype)
        return F.gelu(F.linear(x.to(self.dtype), w, b)).float()


@half_types
def test_casts_of_parameters_are_prepared(dtype):
    module, x = Cast(dtype).eval(), torch.randn(5, 48)
    fast = compiled(module)

    def agree():
        wide = copy.deepcopy(module).double()
        wide.dtype = torch.float64
        check(fast(x), module(x), wide(x.double()))

    with torch.no_grad():
        for _ in range(4):
            agree()
        module.linear.weight.mul_(2)
        agree()
    assert assert_fused().programs_made == 1


@half_types
def test_under_autocast(dtype):
    """By the types that PyTorch chooses, op by op; parameters stay f32."""
    module = Block().eval()
    fast, wide = compiled(module), copy.deepcopy(module).double()
    with torch.no_grad():
        for batch in (5, 9):
            x = torch.randn(batch, 48)
            with torch.autocast("cpu", dtype=dtype):
                got, eager = flat(fast(x)), flat(module(x))
            for y, e, z in zip(got, eager, flat(wide(x.double()))):
                assert y.dtype is e.dtype
                assert largest(y, z) <= 1.5 * max(largest(e, z), torch.finfo(dtype).eps)
        torch.testing.assert_close(fast(x)[0], module(x)[0])  # and without it again
    assert_fused()


def test_a_transposed_weight_stays_one_under_autocast():
    w, x = nn.Parameter(torch.randn(80, 48) / 7), torch.randn(5, 48)
    parts = []

    def f(x):
        return torch.relu(x @ w.t())

    def keep(graph, inputs):
        compiled_graph = linfuse.compile_graph(graph, inputs)
        parts.extend(compiled_graph.parts)
        return compiled_graph.run

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, eager = torch.compile(f, backend=keep)(x), f(x)
    check(got, eager, torch.relu(x.double() @ w.detach().double().t()))
    text = parts[0].model.text()
    assert "linear(" in text and "matmul(" not in text, text


class Inside(nn.Module):
    """autocast as a statement, on or off, between a product before and one behind."""

    def __init__(self, enabled=True):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(48, 48) for _ in range(3))
        self.enabled = enabled

    def forward(self, x):
        h = torch.tanh(self.first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            k = self.second(torch.sort(F.gelu(self.second(h.to(x.dtype))), dim=1).values)
        return torch.softmax(self.third(k.to(x.dtype)), 1), k


def test_autocast_as_a_statement(monkeypatch):
    """What PyTorch runs of it runs under it, parts that run in PyTorch too; nothing is moved across its ends."""
    module, x = Inside().eval(), torch.randn(5, 48)
    with torch.no_grad():
        eager, want = module(x), copy.deepcopy(module).double()(x.double())
        run, args = without_guards(module, x)
        assert linfuse.stats().fused_parts == 4
        assert "_exit_autocast" in reasons("compile") and "linear" not in reasons("compile")
        got = run(*args)
        check(got, eager, want)
        assert got[1].dtype is torch.bfloat16
        monkeypatch.setattr(fused.Part, "_slot", refused)
        linfuse.refresh()  # no shortcut
        got = run(*args)
    assert "it cannot run" in reasons("call")
    for y, e in zip(got, eager):
        assert y.dtype is e.dtype
        torch.testing.assert_close(y, e)


def refused(*_):
    raise native.Error("it cannot run")


def test_autocast_that_is_off_is_in_nobodys_way():
    module, x = Inside(enabled=False).eval(), torch.randn(5, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), module(x))
        assert "autocast" not in reasons() and linfuse.stats().fused_parts == 2  # before sort and behind
        linfuse.reset_stats()
        with torch.autocast("cpu", dtype=torch.bfloat16):  # there it changes something
            got, eager = compiled(module)(x), module(x)
        check(got, eager, copy.deepcopy(module).double()(x.double()))
        assert "_exit_autocast" in reasons()


def test_positions_are_left_alone():
    """Integers are no numbers to calculate with: what wants them runs in PyTorch, and sees them as they are."""
    table, x = nn.Embedding(10, 48).bfloat16(), torch.tensor([[1, 9], [3, 0]])
    tail = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 20), nn.GELU()).bfloat16().eval()

    def f(x):
        return tail(table(x)), x + (1 << 40)

    with torch.no_grad():
        got, eager = compiled(f)(x), f(x)
        check(got[0], eager[0], in_type(tail, torch.float64)(in_type(table, torch.float64)(x)))
    assert torch.equal(got[1], eager[1]) and linfuse.stats().fused_parts == 1


def test_doubles_are_refused():
    with pytest.raises(ops.Unsupported, match="^dtype float64$"):
        capture.check_tensor(torch.empty(2, dtype=torch.float64), torch.device("cpu"))


# ---- what is PyTorch's because it is faster ----


@pytest.fixture
def fast_bf16(monkeypatch):
    monkeypatch.setattr(choice, "has_bf16_products", lambda: True)


def large(dtype, *tail, n=640):
    return nn.Sequential(nn.Linear(n, n), *tail).eval().to(dtype), torch.randn(16, n).to(dtype)


def test_large_products_in_bf16_are_pytorchs(fast_bf16):
    module, x = large(torch.bfloat16, nn.GELU(), nn.Softmax(-1))
    fast = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
    assert linfuse.stats().fused_parts == 1 and choice.REASON in reasons("compile") and "linear" in reasons()
    with torch.no_grad():  # who wants all of it fused has it so
        torch._dynamo.reset()
        linfuse.reset_stats()
        torch.testing.assert_close(compiled(module, fallback="error")(x), module(x))
    assert_fused(parts=1)


def test_large_products_in_bf16_where_tiles_multiply_them(fast_bf16, monkeypatch):
    """With AMX linfuse has those whose operand lies in memory: it multiplies what a kernel makes first in f32."""
    fact = native.machine_fact
    monkeypatch.setattr(native, "machine_fact", lambda name: "amx" if name == "isa" else fact(name))
    stored, x = large(torch.bfloat16, nn.GELU(), nn.Linear(640, 640).bfloat16(), nn.Softmax(-1))
    with torch.no_grad():
        torch.testing.assert_close(compiled(stored)(x), stored(x))
    assert_fused(parts=1)
    linfuse.reset_stats()
    made = nn.Sequential(nn.LayerNorm(640), nn.Linear(640, 640), nn.GELU()).eval().bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(compiled(made)(x), made(x))
    assert choice.REASON in reasons("compile") and "linear" in reasons()


@pytest.mark.parametrize("model", [
    lambda: large(torch.float16, nn.GELU()), lambda: large(torch.float32, nn.GELU()),
    lambda: large(torch.bfloat16, nn.GELU(), n=256), lambda: (large(torch.bfloat16)[0], torch.randn(1, 640).bfloat16()),
], ids=["f16", "f32", "small", "one row"])
def test_other_products_are_not(fast_bf16, model):
    module, x = model()
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), module(x))
    assert_fused(parts=1)


def test_a_product_that_need_not_be_done_is_fused(fast_bf16):
    module, x = large(torch.bfloat16)

    def mean(x):
        return torch.sigmoid(module(x).mean(dim=1))

    with torch.no_grad():
        torch.testing.assert_close(compiled(mean)(x), mean(x), rtol=2e-2, atol=1e-2)
    assert_fused(parts=1)


def test_an_addmm_is_a_product_too(fast_bf16):
    x, w, b = torch.randn(16, 640).bfloat16(), torch.randn(640, 640).bfloat16(), torch.randn(640).bfloat16()

    def f(x):
        return torch.addmm(b, x, w).relu().softmax(1)

    with torch.no_grad():
        compiled(f)(x)
    assert choice.REASON in reasons("compile")


# ---- files and arrays ----

MODEL = """
input x {0}[B, 24]
param w {0}[16, 24]
a = linear(x, w)
s = softmax(a, dim=1)
t = to(s, dtype="f32")
return s, t
"""


@half_types
def test_saved_and_loaded(dtype, tmp_path):
    module, x = in_type(Block().eval(), dtype), torch.randn(3, 48).to(dtype)
    saved = linfuse.save(module, x, tmp_path)
    name = native.Dtype.bf16.name if dtype is torch.bfloat16 else native.Dtype.f16.name
    assert f"param up.weight {name}[80, 48]" in saved.model.read_text()
    program, longer = linfuse.load(tmp_path), torch.randn(7, 48).to(dtype)
    with torch.no_grad():
        check(program(longer), module(longer), in_type(module, torch.float64)(longer.double()))
    assert program.memory().params == sum(2 * one.numel() for one in module.parameters())
    again = copy.deepcopy(program)
    assert all(torch.equal(one, other) for one, other in zip(again(x), program(x)))
    with pytest.raises(TypeError, match=rf"input x is torch.float32, not {dtype}: pass it as .to\({dtype}\)"):
        program(x.float())


@half_types
def test_programs_take_torchs_tensors(dtype, tmp_path):
    name = "bf16" if dtype is torch.bfloat16 else "f16"
    (tmp_path / "m.lf").write_text(MODEL.format(name))
    w, x = torch.randn(16, 24).to(dtype), torch.randn(5, 24).to(dtype)
    program = linfuse.load(tmp_path / "m.lf", {"w": w})
    assert str(program.inputs[0]) == f"x {name}[B, 24]"
    narrow, wide = program(x)
    want = torch.softmax(x.double() @ w.double().T, 1)
    assert narrow.dtype is dtype and wide.dtype is torch.float32
    assert largest(wide, want) < torch.finfo(dtype).eps and largest(narrow, want) < torch.finfo(dtype).eps
    with pytest.raises(TypeError, match=f"parameter w is torch.float32, not {dtype}"):
        linfuse.load(tmp_path / "m.lf", {"w": w.float()})
    linfuse.load(tmp_path / "m.lf", seed=1)(x)


def test_programs_take_numpys_f16(tmp_path):
    (tmp_path / "m.lf").write_text(MODEL.format("f16"))
    random = np.random.default_rng(3)
    w, x = (random.standard_normal(shape).astype(np.float16) for shape in ((16, 24), (4, 24)))
    narrow, wide = linfuse.load(tmp_path / "m.lf", {"w": w})(x)
    assert narrow.dtype == np.float16 and wide.dtype == np.float32
    want = torch.softmax(torch.from_numpy(x).double() @ torch.from_numpy(w).double().T, 1).numpy()
    np.testing.assert_allclose(wide, want, rtol=2e-3, atol=1e-6)
    with pytest.raises(TypeError, match=r"input x is float32, not float16: pass it as \.astype\(numpy\.float16\)"):
        linfuse.load(tmp_path / "m.lf", {"w": w})(x.astype(np.float32))


def test_programs_take_ml_dtypes_bf16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    (tmp_path / "m.lf").write_text(MODEL.format("bf16"))
    random = np.random.default_rng(3)
    w, x = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((16, 24), (4, 24)))
    program = linfuse.load(tmp_path / "m.lf", {"w": w})
    narrow, wide = program(x)
    assert narrow.dtype == ml_dtypes.bfloat16 and wide.dtype == np.float32
    same = [torch.from_numpy(one.astype(np.float32)).bfloat16() for one in (w, x)]
    other = linfuse.load(tmp_path / "m.lf", {"w": same[0]})(same[1])
    np.testing.assert_array_equal(wide, other[1].numpy())
    np.testing.assert_array_equal(narrow.astype(np.float32), other[0].float().numpy())
    with pytest.raises(TypeError, match=r"float32, not bfloat16: pass it as \.astype\(ml_dtypes\.bfloat16\)"):
        program(x.astype(np.float32))


def test_without_ml_dtypes_numpy_has_no_bf16(tmp_path, monkeypatch):
    (tmp_path / "m.lf").write_text(MODEL.format("bf16"))
    program = linfuse.load(tmp_path / "m.lf", seed=1)
    monkeypatch.setitem(native.Dtype.bf16.__dict__, "numpy", None)
    del native.Dtype.bf16.__dict__["numpy"]
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(linfuse.Error, match="NumPy has no bfloat16: install ml_dtypes, or use torch tensors"):
        program(np.zeros((2, 24), np.float16))


# ---- explain ----


@half_types
def test_explain(dtype):
    account = linfuse.explain(in_type(Block().eval(), dtype), torch.randn(64, 48).to(dtype))
    whole = linfuse.explain(Block().eval(), torch.randn(64, 48))
    assert not account.fallbacks and len(account.parts) == 1
    assert account.plain.bytes < 0.6 * whole.plain.bytes  # half the bytes an element
