# SPDX-License-Identifier: Apache-2.0
"""Every row of python/linfuse/ops.py in every spelling this PyTorch has, through torch.compile: all fused, right
against float64.

The spellings come from the table itself, so a new one without arguments here fails. One graph an op holds all its
spellings as outputs. Modules and operators follow."""

import builtins
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import ops
from torch_door import ON_GPU, assert_close, assert_fused, compiled, errors, flat, fresh, no_default_device, reference

NAMES = "x w b y u v n m r h p t o".split()
# By op, or by spelling where that differs: what it is called on, with which arguments, and what is done with the
# result.
#   x [B,16] w [24,16] b [24]   h = linear(x, w, b) [B,24]   p = |h| + 0.5   t = h with an axis between [B,1,24]
#   y [B,24]   u [8,24]   v, n [24], n > 0   m [B,8]   r [24,8]   o: a number in a 0-dim tensor
POOL = ["2", "(2,)", "3, 2", "3, stride=2, padding=1", "kernel_size=4, ceil_mode=True", "5, 1, 2"]
HALVES = ["torch.bfloat16", "dtype=torch.float16"]
TURN = ["0, 1", "1, 0", "-1, -2"]
ARGUMENTS = {
    "linear": ("x", ["w, b", "w", "weight=w, bias=b", "w, bias=None"], ""),
    "matmul": ("h", ["r", "u.T", "u.t()", "u.transpose(0, 1)", "u.mT"], ""),
    "torch.mv": ("h", ["v"], ""),
    "Tensor.mv": ("h", ["v"], ""),
    "torch.addmm": ("m", ["h, r", "h, u.T", "h, u.T, beta=0.5, alpha=2", "h, r, beta=0", "h, r, alpha=-1"], ""),
    "Tensor.addmm": ("m", ["h, r", "h, u.T", "mat1=h, mat2=r"], ""),
    "Tensor.addmm_": ("m", ["h, r"], ""),
    "leaky_relu": ("h", ["", "0.2", "negative_slope=0.3"], ""),
    "gelu": ("h", ["", "approximate='none'", "approximate='tanh'"], ""),
    "softplus": ("h", ["", "2", "beta=2, threshold=1.5"], ""),
    "clamp": ("h", ["-0.5, 0.25", "min=-0.1", "max=0.1", "min=y", "y, y + 0.5"], ""),
    "torch.clamp_min": ("h", ["0.1"], ""),
    "Tensor.clamp_min": ("h", ["0.1", "min=y"], ""),
    "torch.clamp_min_": ("h", ["0.1"], ""),
    "Tensor.clamp_min_": ("h", ["0.1"], ""),
    "torch.clamp_max": ("h", ["0.1"], ""),
    "Tensor.clamp_max": ("h", ["0.1"], ""),
    "torch.clamp_max_": ("h", ["0.1"], ""),
    "Tensor.clamp_max_": ("h", ["0.1"], ""),
    "hardtanh": ("h", ["", "-2, 0.5", "min_val=-0.1, max_val=0.2"], ""),
    "F.relu6": ("h", [""], ""),
    "elu": ("h", ["", "0.5", "alpha=2"], ""),
    "celu": ("h", ["", "0.5", "alpha=2.0"], ""),
    "log": ("p", [""], ""),
    "log1p": ("p", [""], ""),
    "torch.norm": ("h", ["", "dim=1", "2, 1, True", "p=1, dim=-1, keepdim=True", "float('inf'), (0, 1)"], ""),
    "Tensor.norm": ("h", ["", "dim=1", "2, 1, True", "p=1, dim=-1"], ""),
    "torch.linalg.vector_norm": ("h", ["", "dim=1", "1, 1, True", "float('inf'), dim=0"], ""),
    "F.normalize": ("h", ["", "dim=0", "p=1.0", "float('inf'), -1", "eps=2.5"], ""),
    "sqrt": ("p", [""], ""),
    "rsqrt": ("p", [""], ""),
    "reciprocal": ("p", [""], ""),
    "pow": ("p", ["2", "0.5", "-0.5", "3", "1.7"], ""),
    "torch.square": ("h", [""], ""),
    "torch.square_": ("h", [""], ""),
    "Tensor.square": ("h", [""], ""),
    "Tensor.square_": ("h", [""], ""),
    "clone": ("h", ["", "memory_format=torch.contiguous_format"], ""),
    "dropout": ("h", ["0.3, False", "p=0.3, training=False", "0.0, True"], "* 2"),
    "torch.dropout": ("h", ["0.3, False"], "* 2"),
    "torch.alpha_dropout": ("h", ["0.3, False"], "* 2"),
    "torch.dropout_": ("h", ["0.3, False"], "* 2"),
    "torch.feature_dropout": ("h", ["0.3, False"], "* 2"),
    "F.dropout1d": ("t", ["0.3, False"], ".squeeze(1) * 2"),
    "F.feature_alpha_dropout": ("h", ["0.3, False"], "* 2"),
    "Tensor.contiguous": ("h", [""], "* 2"),
    "Tensor.detach": ("h", [""], "* 2"),
    "torch.detach": ("h", [""], "* 2"),
    "Tensor.float": ("h", [""], "* 2"),
    "Tensor.half": ("h", [""], "* 2"),
    "Tensor.bfloat16": ("h", [""], "* 2"),
    "Tensor.type": ("h", ["torch.float32", *HALVES], "* 2"),
    "Tensor.to": ("h", ["torch.float32", "'cuda'" if ON_GPU else "'cpu'", "y", *HALVES], "* 2"),
    "Tensor.type_as": ("h", ["y"], "* 2"),
    "torch.positive": ("h", [""], "* 2"),
    "Tensor.positive": ("h", [""], "* 2"),
    "operator.pos": ("h", [""], "* 2"),
    "add": ("h", ["y", "v", "2", "0.5", "o", "y.mean(1, keepdim=True)"], ""),
    "sub": ("h", ["y", "v", "2", "o"], ""),
    "mul": ("h", ["y", "v", "2", "o"], ""),
    "div": ("h", ["p", "n", "2", "o"], ""),
    "torch.rsub": ("h", ["y", "1.5", "y, alpha=2"], ""),
    "minimum": ("h", ["y", "v", "o"], ""),
    "maximum": ("h", ["y", "v", "o"], ""),
    "torch.add": ("h", ["y", "y, alpha=0.5", "2, alpha=3", "other=v"], ""),
    "torch.sub": ("h", ["y", "y, alpha=0.5", "other=v"], ""),
    "sum": (
        "h",
        [
            "",
            "1",
            "dim=1, keepdim=True",
            "-1, True",
            "(0, 1)",
            "dim=0",
            "axis=1",
            "1, keepdim=True, dtype=torch.float32",
        ],
        "",
    ),
    "mean": ("h", ["", "1", "dim=1, keepdim=True", "(0, 1)", "0", "dim=[0, 1], keepdim=True"], ""),
    "max": ("h", ["y", "other=y"], ""),
    "min": ("h", ["y", "other=y"], ""),
    "torch.amax": ("h", ["", "1", "(0, 1)", "dim=1, keepdim=True"], ""),
    "Tensor.amax": ("h", ["", "1", "dim=1, keepdim=True"], ""),
    "torch.amin": ("h", ["", "1", "(0, 1)", "dim=1, keepdim=True"], ""),
    "Tensor.amin": ("h", ["", "1", "dim=1, keepdim=True"], ""),
    "logsumexp": ("h", ["1", "dim=1, keepdim=True", "(0, 1)", "0"], ""),
    "softmax": ("h", ["1", "dim=-1", "0", "1, dtype=torch.float32"], ""),
    "log_softmax": ("h", ["1", "dim=-1", "0"], ""),
    "F.softmax": ("h", ["1", "dim=-1", "dim=0", "dim=1, dtype=torch.float32"], ""),
    "F.log_softmax": ("h", ["1", "dim=-1"], ""),
    "torch.ops.aten._to_copy": ("h", ["dtype=torch.float32"], "* 2"),
    "torch.ops.aten.alias": ("h", [""], "* 2"),
    "torch._softmax": ("h", ["1, False", "0, False"], ""),
    "torch._log_softmax": ("h", ["-1, False"], ""),
    "torch.native_layer_norm": ("h", ["(24,), None, None, 1e-5", "[24], v, n, 1e-3"], "[0]"),
    "torch.native_group_norm": ("h", ["None, None, len(h), 24, 1, 4, 1e-5", "v, n, len(h), 24, 1, 6, 1e-3"], "[0]"),
    "torch._native_batch_norm_legit_no_training": (
        "h",
        ["n, v, v, n, 0.1, 1e-3", "None, None, v, n, 0.1, 1e-5"],
        "[0]",
    ),
    "layer_norm": ("h", ["(24,)", "[24], v, n", "(24,), weight=n, eps=1e-3", "(24,), None, v"], ""),
    "group_norm": ("h", ["4", "6, v, n", "3, weight=n, bias=v, eps=1e-3"], ""),
    "rms_norm": ("h", ["(24,)", "[24], n", "(24,), weight=n, eps=1e-3"], ""),
    "instance_norm": ("t", ["", "None, None, None, None, True, 0.1, 1e-3", "eps=1e-4"], ".squeeze(1)"),
    "torch.instance_norm": ("t", ["None, None, None, None, True, 0.1, 1e-3, False"], ".squeeze(1)"),
    "batch_norm": (
        "h",
        [
            "v, n",
            "v, n, n, v",
            "v, n, weight=n, bias=v, eps=1e-3",
            "None, None, training=True",
            "None, None, n, v, True",
        ],
        "",
    ),
    "torch.batch_norm": (
        "h",
        ["n, v, v, n, False, 0.1, 1e-3, False", "None, None, None, None, True, 0.1, 1e-5, False"],
        "",
    ),
    "avg_pool1d": ("t", POOL + ["3, 2, 1, False, False"], ".squeeze(1)"),
    "max_pool1d": ("t", POOL + ["3, 2, 1, 2", "2, dilation=3"], ".squeeze(1)"),
    "Tensor.reshape": ("h", ["-1, 4, 6", "(h.size(0), 24)", "h.shape[0], 2, 12", "-1"], "* 2"),
    "Tensor.view": ("h", ["-1, 4, 6", "(h.size(0), 24)", "h.shape[0], 2, 12", "-1"], "* 2"),
    "torch.reshape": ("h", ["(-1, 4, 6)", "[h.shape[0], 24]"], "* 2"),
    "Tensor.unflatten": ("h", ["1, (4, 6)", "-1, (2, -1)"], "* 2"),
    "torch.unflatten": ("h", ["1, (4, 6)"], "* 2"),
    "Tensor.view_as": ("h", ["y"], "* 2"),
    "Tensor.reshape_as": ("h", ["y"], "* 2"),
    "torch.ravel": ("h", [""], "* 2"),
    "Tensor.ravel": ("h", [""], "* 2"),
    "flatten": ("t", ["1", "", "start_dim=1", "0, 1", "1, -1"], "* 2"),
    "unsqueeze": ("h", ["1", "0", "-1", "dim=2"], "* 2"),
    "squeeze": ("t", ["1", "", "-2", "0"], "* 2"),
    "torch.squeeze": ("t", ["1", "", "dim=1", "(0, 1)"], "* 2"),
    "transpose": ("h", TURN, "* 2"),
    "Tensor.permute": ("t", ["0, 2, 1", "(2, 1, 0)", "-1, 0, 1"], "* 2"),
    "torch.permute": ("t", ["(0, 2, 1)", "(2, 0, 1)"], "* 2"),
    "torch.t": ("h", [""], "* 2"),
    "Tensor.t": ("h", [""], "* 2"),
    ".T": ("h", [""], "* 2"),
    ".mT": ("h", [""], "* 2"),
    "torch.ops.aten.numpy_T": ("h", [""], "* 2"),
    "torch.ops.aten.mT": ("h", [""], "* 2"),
    **{name: ("h", ["y", "v", "0", "o", "0.25"], "* h") for name in ("gt", "lt", "ge", "le", "eq", "ne")},
    "logical_and": ("(h > 0)", ["(y < 1)", "(v > -1)"], "* h"),
    "logical_or": ("(h > 1)", ["(y < -1)", "(v > 1)"], "* h"),
    "logical_not": ("(h > 0)", [""], "* h"),
    "torch.where": ("h > y", ["h, y", "2.5, h", "h, o", "h * 2, v", "input=h, other=0.0"], ""),
    "Tensor.where": ("h", ["h > 0, y", "condition=y < v, other=-1.5"], ""),
    "torch.masked_fill": ("h", ["h < y, 0", "v > 0, float('-inf')"], ""),
    "Tensor.masked_fill": ("h", ["y <= v, -1e4", "mask=h > 0, value=o"], ""),
    "torch.ops.aten.slice": ("h", ["1", "1, 3", "-1, 0, 17", "1, -9, -1, 3", "1, 0, 9223372036854775807"], "* 2"),
    "torch.narrow": ("h", ["1, 3, 7", "dim=-1, start=-5, length=5"], "* 2"),
    "Tensor.narrow": ("h", ["1, 0, 24", "1, -5, 2"], "* 2"),
    "torch.select": ("h", ["1, 5", "-1, -1"], "* 2"),
    "Tensor.select": ("t", ["1, 0", "2, -2", "dim=-1, index=3"], "* 2"),
    "operator.getitem": (
        "t",
        ["(slice(None), 0)", "(..., slice(3, 20))", "(slice(None), slice(None), slice(1, None, 5))", "(..., None, -1)",
         "(slice(None), None, 0, slice(-3, None))", "...", "(None, slice(None), 0, 7)"],
        "* 2",
    ),
    "torch.split": ("h", ["[5, 19], 1", "10, dim=-1", "split_size_or_sections=[24, 0, 0][:1], dim=1"], "[-1] * 2"),
    "Tensor.split": ("h", ["[5, 18, 1], 1", "7, -1"], "[0] * 2"),
    "torch.split_with_sizes": ("h", ["[11, 13], 1"], "[1] * 2"),
    "Tensor.split_with_sizes": ("h", ["[11, 13], dim=1"], "[0] * 2"),
    "torch.chunk": ("h", ["2, 1", "5, dim=-1"], "[1] * 2"),
    "Tensor.chunk": ("h", ["3, -1"], "[2] * 2"),
    "torch.unbind": ("h", ["1", "dim=-1"], "[3] * 2"),
    "Tensor.unbind": ("t", ["1"], "[0] * 2"),
}
OVER_A_DIM = ["1", "dim=1", "1, True", "dim=-1, keepdim=True"]  # of max and min, which give indices too


fresh_each_time = fresh(2)


def leaves(batch=6):
    return {
        "x": torch.randn(batch, 16),
        "w": torch.randn(24, 16) / 4,
        "b": torch.randn(24),
        "y": torch.randn(batch, 24),
        "u": torch.randn(8, 24) / 5,
        "v": torch.randn(24),
        "n": torch.rand(24) + 0.5,
        "m": torch.randn(batch, 8),
        "r": torch.randn(24, 8) / 5,
        "o": torch.tensor(0.75),
    }


def expressions(spelling):
    """Source text for every use of a spelling."""
    first, arguments, after = ARGUMENTS.get(spelling.name) or ARGUMENTS.get(spelling.row.op) or ("h", [""], "")
    space, _, leaf = spelling.name.rpartition(".")
    subject = f"{first}.clone()" if spelling.in_place else first
    whole = spelling.row.op in ("max", "min") and leaf in ("max", "min")
    for given in arguments + (["", *OVER_A_DIM] if whole else []):
        if spelling.name.startswith("operator.") and given.startswith("y.mean"):
            continue
        picked = ".values" if whole and given in OVER_A_DIM else ""
        if space == "Tensor":
            call = f"{subject}.{leaf}({given})"
        elif not space:
            call = f"{subject}.{leaf}"
        else:
            call = f"{spelling.name}({subject}{', ' if given else ''}{given})"
        yield f"({call}){picked}{after}"


def function_of(sources):
    body = ", ".join(sources)
    text = (
        "def f(x, w, b, y, u, v, n, m, r, o):\n h = F.linear(x, w, b)\n p = h.abs() + 0.5\n t = h.unsqueeze(1)\n"
        f" return ({body},)\n"
    )
    scope = {"torch": torch, "F": F, "operator": operator, "builtins": builtins}
    exec(text, scope)  # our own table, above
    return scope["f"]


BY_ROW = {}
for one in ops.spellings():
    BY_ROW.setdefault(one.row.op, []).append(one)


@pytest.mark.parametrize("op", sorted(BY_ROW))
def test_spellings(op):
    sources = [source for spelling in BY_ROW[op] for source in expressions(spelling)]
    assert sources
    given = leaves()
    f = function_of(sources)
    with torch.no_grad():
        with no_default_device():
            got = compiled(f)(**given)
        eager = f(**given)
        want = (
            flat(f(**{k: t.double() for k, t in given.items()}))
            if "float32" not in str(sources) and op != "dropout"
            else None
        )
    stats = assert_fused()
    assert stats.fused_calls == 1
    for i, source in enumerate(sources):
        if want is not None:
            assert_close(got[i], [want[i]], eager[i], source)
        else:
            torch.testing.assert_close(got[i], eager[i], msg=source)


def test_every_row_is_reached():
    """Every public op of linfuse has a spelling, and every row one that this PyTorch has. Not cross_entropy: its
    targets are positions, which no part takes from PyTorch; linfuse.linear_cross_entropy does."""
    spelled = {spelling.row.op for spelling in ops.spellings()}
    assert {row.name for row in linfuse.native.ops()} == {*spelled, "cross_entropy"}


# ---- modules ----

MODULES = {
    "Linear": lambda: nn.Linear(24, 12),
    "Linear without bias": lambda: nn.Linear(24, 12, bias=False),
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "LeakyReLU": lambda: nn.LeakyReLU(0.2),
    "GELU": nn.GELU,
    "GELU tanh": lambda: nn.GELU(approximate="tanh"),
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "Softplus": lambda: nn.Softplus(2, 10),
    "Hardtanh": lambda: nn.Hardtanh(-0.5, 0.7),
    "Hardswish": nn.Hardswish,
    "Hardsigmoid": nn.Hardsigmoid,
    "ELU": lambda: nn.ELU(0.5),
    "SELU": nn.SELU,
    "CELU": lambda: nn.CELU(0.7),
    "Dropout": lambda: nn.Dropout(0.4),
    "AlphaDropout": lambda: nn.AlphaDropout(0.4),
    "Identity": nn.Identity,
    "Softmax": lambda: nn.Softmax(dim=1),
    "Softmax without dim": lambda: nn.Softmax(),
    "LogSoftmax": lambda: nn.LogSoftmax(dim=-1),
    "LayerNorm": lambda: nn.LayerNorm(24),
    "LayerNorm plain": lambda: nn.LayerNorm(24, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(24),
    "GroupNorm": lambda: nn.GroupNorm(4, 24),
    "BatchNorm1d": lambda: nn.BatchNorm1d(24),
    "BatchNorm1d of the batch": lambda: nn.BatchNorm1d(24, track_running_stats=False),
    "ReLU in place": lambda: nn.ReLU(inplace=True),
    "SiLU in place": lambda: nn.SiLU(inplace=True),
    "Hardtanh in place": lambda: nn.Hardtanh(inplace=True),
    "ELU in place": lambda: nn.ELU(inplace=True),
    "Dropout in place": lambda: nn.Dropout(0.3, inplace=True),
    "Flatten": nn.Flatten,
    "Unflatten": lambda: nn.Unflatten(1, (4, 6)),
}
BETWEEN = {  # on h.unsqueeze(1)
    "AvgPool1d": lambda: nn.AvgPool1d(3),
    "AvgPool1d padded": lambda: nn.AvgPool1d(4, 2, padding=1, count_include_pad=False),
    "MaxPool1d": lambda: nn.MaxPool1d(2),
    "MaxPool1d dilated": lambda: nn.MaxPool1d(3, 1, dilation=2),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(1),
    "InstanceNorm1d affine": lambda: nn.InstanceNorm1d(1, affine=True),
    "InstanceNorm1d running": lambda: nn.InstanceNorm1d(1, track_running_stats=True),
    "LayerNorm": lambda: nn.LayerNorm([1, 24]),
    "Dropout1d": lambda: nn.Dropout1d(0.3),
}


class Tail(nn.Module):
    """linear -> layer -> times 1.5, the layer on an axis more where asked for."""

    def __init__(self, layer, between):
        super().__init__()
        self.linear, self.layer, self.between = nn.Linear(16, 24), layer, between

    def forward(self, x):
        h = self.linear(x)
        h = self.layer(h.unsqueeze(1)).squeeze(1) if self.between else self.layer(h)
        return h * 1.5


def randomised(module):
    """No weight at its neutral start, so that each one counts."""
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand_like(tensor) + 0.3)
    return module


def all_modules():
    return [(name, make, False) for name, make in MODULES.items()] + [
        (name, make, True) for name, make in BETWEEN.items()
    ]


@pytest.mark.parametrize("name, make, between", all_modules(), ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_modules(name, make, between):
    module = randomised(Tail(make(), between)).eval()
    fast = compiled(module)
    with torch.no_grad():
        for batch in (5, 9):
            x = torch.randn(batch, 16)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            with no_default_device():
                got = fast(x)
            assert_close(got, reference(module, x), module(x), name)
    assert assert_fused().programs_made == 1


def test_instance_norm_four_dims():
    """The way InstanceNorm2d is put behind a linear layer: two axes between, taken away after."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 24), nn.InstanceNorm2d(24)

        def forward(self, x, y):
            x = self.norm(self.linear(x).unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
            return (x + y) * y

    module = Norm().eval()
    x, y = torch.randn(7, 16), torch.randn(7, 24)
    with torch.no_grad():
        assert_close(compiled(module)(x, y), reference(module, x, y), module(x, y))
    assert_fused()


# ---- operators, numbers, parameters outside modules ----

FREE = nn.Parameter(torch.randn(12, 16) / 4)
BIAS = torch.randn(12)


def free_parameters(x):
    return torch.relu(x @ FREE.T + BIAS) ** 2


def numbers(x, y):
    return 2 * x + y - 1, (1 - x) / 4, 1 / (x.exp() + 1), -x * 2.5 + 3, abs(x) - True * 0, x**2 + x**0.5 * 0


def scalars(x, s, k, i):
    return x * s + k - i, torch.maximum(x, s), s / (x * x + 1)


def in_place_chain(x):
    y = x * 2
    y += 1
    y.mul_(x).relu_()
    y -= 0.5
    y /= 3
    torch.sigmoid_(y)
    return y, F.relu(y - 0.6, inplace=True)


def named_axes(x):
    return x.sum(axis=1, keepdims=True) + torch.mean(x, axis=0) * 2


def test_free_parameters():
    x = torch.randn(5, 16)
    with torch.no_grad():
        got, eager = compiled(free_parameters)(x), free_parameters(x)
        want = torch.relu(x.double() @ FREE.double().T + BIAS.double()) ** 2
    assert_close(got, [want], eager)
    stats = assert_fused()
    assert stats.prepared_bytes > FREE.numel() * 4  # FREE was packed, as a parameter is


@pytest.mark.parametrize("f, inputs", [(numbers, 2), (in_place_chain, 1), (named_axes, 1)])
def test_operators(f, inputs):
    given = [torch.rand(6, 10) for _ in range(inputs)]
    want = flat(f(*[x.double() for x in given]))
    assert_close(compiled(f)(*given), want, f(*given))
    assert_fused()


def test_zero_dim_tensors():
    """Of any dtype: beside a tensor with extents they do not widen it."""
    given = torch.randn(4, 6), torch.tensor(1.25), torch.tensor(0.5, dtype=torch.float64), torch.tensor(3)
    got, eager = compiled(scalars)(*given), scalars(*given)
    for mine, theirs in zip(got, eager):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine, theirs)
    assert_fused()
    again = torch.randn(4, 6), torch.tensor(-1.0), torch.tensor(2.0, dtype=torch.float64), torch.tensor(-5)
    for mine, theirs in zip(compiled(scalars)(*again), scalars(*again)):
        torch.testing.assert_close(mine, theirs)


def test_weight_seen_otherwise():
    """A weight transposed, reshaped, flattened on its way into the product is still a prepared weight."""

    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.c = nn.Parameter(torch.randn(16, 24) / 4), nn.Parameter(torch.randn(1, 24, 1))
            self.flat = nn.Parameter(torch.randn(24 * 8) / 5)

        def forward(self, x):
            h = F.linear(x, self.w.t(), self.c.flatten())
            return torch.mm(h.relu(), self.flat.view(24, 8)), h * self.c.squeeze(-1).squeeze(0)

    module = Seen()
    x = torch.randn(5, 16)
    with torch.no_grad():
        got, eager = compiled(module)(x), module(x)
        assert_close(got, reference(module, x), eager)
    assert errors(flat(got), reference(module, x)) < 1e-5
    assert_fused()
