# SPDX-License-Identifier: Apache-2.0
"""Every op's meaning in double precision (src/ir/eval*.c, through tests/eval_tool.c) against PyTorch in float64.

Both see the same f32 numbers, upcast. NaN and Inf must stand where PyTorch has them; finite values may differ by 1e-12
of max(|ref|, scale), where scale is 1 for what is computed element by element (or the rms of the result where that is
smaller), and the same op on absolute values for sums and products, whose rounding grows with their terms."""

import itertools
import math
import re
import subprocess

import numpy as np
import pytest
import torch
import torch.nn.functional as F

TOLERANCE = 1e-12
LEAST_CASES = 600
CASES = []
rng = np.random.default_rng(20240607)


class Case:
    """One model: `leaves` {name: array}; x, y and t are inputs, t of positions, the others parameters. reference: torch
    tensors to torch tensor(s). scale: the same for the size of what is summed."""

    def __init__(self, body, leaves, reference, scale=None, named=()):
        self.leaves = {k: np.asarray(v, np.float32) for k, v in leaves.items()}
        self.reference, self.scale = reference, scale
        self.dims = []
        lines = []
        for name, value in self.leaves.items():
            extents = [str(e) for e in value.shape]
            for axis, symbol in enumerate(named if name in "xt" else ()):
                extents[axis] = symbol
                if name == "x":
                    self.dims.append(value.shape[axis])
            kind = "input" if name in "xyt" else "param"
            lines.append(f"{kind} {name} {'i64' if name == 't' else 'f32'}[{', '.join(extents)}]")
        self.body = body if "\n" in body else f"r = {body}\nreturn r"
        self.text = "\n".join(lines) + "\n" + self.body + "\n"
        self.name = f"{len(CASES)}: {body}".replace("\n", "; ")


def case(*arguments, **keywords):
    CASES.append(Case(*arguments, **keywords))


# ---- numbers ----

SPECIAL = np.array(
    "nan inf -inf 0 -0 1e-45 -1e-45 1e-40 1.1754944e-38 3.4028235e38 -3.4028235e38 1e30 -1e30 1e-8 -1e-8 0.5 -0.5 "
    "1 -1 2 -2 3 -3 6 -6 19.5 20 20.5 -20 88.8 104 -104 709.5 710 -746".split(),
    np.float32,
)


def normal(*shape, scale=1.0):
    return rng.standard_normal(shape) * scale


def sprinkled(*shape, values=(math.nan, math.inf, -math.inf), share=0.1):
    """Random numbers with special ones among them."""
    x = normal(*shape)
    where = rng.random(shape) < share
    x[where] = rng.choice(values, int(where.sum()))
    return x


def samples(*shape):
    yield normal(*shape)
    yield sprinkled(*shape)
    yield sprinkled(*shape, values=(0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38), share=0.3)


# ---- one value ----

ONE = {
    "relu": ([""], lambda x: F.relu(x)),
    "leaky_relu": (["", "negative_slope=0.2", "negative_slope=0", "negative_slope=-1.5"], F.leaky_relu),
    "gelu": (["", 'approximate="none"', 'approximate="tanh"'], F.gelu),
    "sigmoid": ([""], torch.sigmoid),
    "tanh": ([""], torch.tanh),
    "silu": ([""], F.silu),
    "mish": ([""], F.mish),
    "softplus": (["", "beta=2", "beta=0.3, threshold=5", "threshold=1.5", "beta=-1"], F.softplus),
    "clamp": (["min=-1", "max=0.25", "min=-0.5, max=2", "min=2, max=-2", "min=0, max=0"], torch.clamp),
    "hardtanh": (["", "min_val=-2", "max_val=0.5", "min_val=0, max_val=6"], F.hardtanh),
    "hardswish": ([""], F.hardswish),
    "hardsigmoid": ([""], F.hardsigmoid),
    "elu": (["", "alpha=0.5", "alpha=-2", "alpha=0"], F.elu),
    "selu": ([""], F.selu),
    "celu": (["", "alpha=0.5", "alpha=3"], F.celu),
    "softsign": ([""], F.softsign),
    "logsigmoid": ([""], F.logsigmoid),
    "hardshrink": (["", "lambd=2", "lambd=0", "lambd=-1"], F.hardshrink),
    "softshrink": (["", "lambd=2", "lambd=0"], F.softshrink),
    "exp": ([""], torch.exp),
    "log": ([""], torch.log),
    "expm1": ([""], torch.expm1),
    "log1p": ([""], torch.log1p),
    "erf": ([""], torch.erf),
    "logical_not": ([""], lambda x: torch.logical_not(x).to(x.dtype)),
    "abs": ([""], torch.abs),
    "neg": ([""], torch.neg),
    "sqrt": ([""], torch.sqrt),
    "rsqrt": ([""], torch.rsqrt),
    "reciprocal": ([""], torch.reciprocal),
    "pow": ([f"exponent={e}" for e in (2, 3, 0.5, -0.5, -1, -2, 0, 1, 1.7, -3, 4, 0.3333)], torch.pow),
    "clone": ([""], torch.clone),
    "to": (["dtype=\"f32\""], lambda x, dtype: x.to({"f32": torch.float32}[dtype])),
    "dropout": (["p=0.3, training=false", "training=false", "p=1, training=false"], F.dropout),
}


def keywords(text):
    """'alpha=2, approximate="tanh"' as a dict."""
    text = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", text))
    return eval(f"dict({text})")  # our own table, above


for op, (settings, function) in ONE.items():
    for setting in settings:

        def reference(x, function=function, setting=setting):
            return function(x, **keywords(setting))

        call = f"{op}(x{', ' if setting else ''}{setting})"
        case(call, {"x": SPECIAL}, reference)
        case(call, {"x": normal(5, 7, scale=3)}, reference, named="B")
        case(call, {"x": normal(2, 3, 2, 3, scale=40)}, reference)
        case(call, {"x": np.float32(0.7)}, reference)
case("leaky_relu(x, 0.3)", {"x": SPECIAL}, lambda x: F.leaky_relu(x, 0.3))
case("pow(x, 0.5)", {"x": SPECIAL}, lambda x: torch.pow(x, 0.5))
case("clamp(x, 0.5)", {"x": SPECIAL}, lambda x: torch.clamp(x, 0.5))
case("clamp(x, None, 0.5)", {"x": SPECIAL}, lambda x: torch.clamp(x, None, 0.5))

# ---- two values ----

def type_of(*given, **named):
    return next(one.dtype for one in (*given, *named.values()) if isinstance(one, torch.Tensor))


TWO = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    **{op: lambda *given, f=getattr(torch, op), **named: f(*given, **named).to(type_of(*given, **named))
       for op in ("gt", "lt", "ge", "le", "eq", "ne")},
    "minimum": torch.minimum,
    "maximum": torch.maximum,
}
SHAPES = [
    ((4, 5), (4, 5)),
    ((4, 5), (5,)),
    ((4, 1), (1, 5)),
    ((3, 1, 2), (4, 1)),
    ((), (3,)),
    ((2, 3), ()),
    ((1,), (2, 1, 3)),
    ((2, 1, 3, 1), (5, 1, 4)),
    ((1, 1), (1,)),
]
for op, function in TWO.items():
    case(f"{op}(x, y)", {"x": SPECIAL[:, None], "y": SPECIAL}, function)
    case(f"{op}(x, x)", {"x": SPECIAL}, lambda x, f=function: f(x, x))
    for left, right in SHAPES:
        case(
            f"{op}(x, y)",
            {"x": normal(*left), "y": normal(*right)},
            function,
            named="B" if left and left[0] > 4 else (),
        )
    case(f"{op}(x, w)", {"x": normal(6, 4), "w": normal(4)}, function, named="B")
    for number in (2.5, -0.0, 1e30):
        case(f"{op}(x, {number})", {"x": SPECIAL}, lambda x, f=function, n=number: f(x, torch.tensor(n, dtype=x.dtype)))
        case(f"{op}({number}, x)", {"x": SPECIAL}, lambda x, f=function, n=number: f(torch.tensor(n, dtype=x.dtype), x))
        case(
            f"{op}(input=x, other={number})",
            {"x": normal(3, 2)},
            lambda x, f=function, n=number: f(x, torch.tensor(n, dtype=x.dtype)),
        )
for op, alpha in itertools.product(("add", "sub"), (0, 1, -2, 0.1)):
    case(
        f"{op}(x, y, alpha={alpha})",
        {"x": SPECIAL[:, None], "y": SPECIAL},
        lambda x, y, f=TWO[op], a=alpha: f(x, y, alpha=a),
    )

for op in ("logical_and", "logical_or"):

    def logical(x, y, f=getattr(torch, op)):
        return f(x, y).to(x.dtype)

    case(f"{op}(x, y)", {"x": SPECIAL[:, None], "y": SPECIAL}, logical)
    case(f"{op}(x, y)", {"x": sprinkled(4, 1, 3, values=(0.0, -0.0, 1.0), share=0.6), "y": normal(5, 1)}, logical)

# ---- three values ----

YES = np.array([[1.0, 0.0, -0.0, math.nan, -math.inf, 5e-324, 2.0]]).T
case("where(c, x, y)", {"c": YES, "x": SPECIAL, "y": normal(*SPECIAL.shape)}, lambda c, x, y: torch.where(c != 0, x, y))
case("where(c, x, 7)", {"c": YES[:, 0], "x": normal(3, 1)}, lambda c, x: torch.where(c != 0, x, 7.0))
case("where(c, x, -inf)", {"c": YES, "x": SPECIAL}, lambda c, x: torch.where(c != 0, x, -math.inf))
case("where(c, 0.5, x)", {"c": YES, "x": SPECIAL}, lambda c, x: torch.where(c != 0, 0.5, x))
case("where(c, 1, 0)", {"c": YES}, lambda c: torch.where(c != 0, 1.0, 0.0))
case("where(c, c, input)", {"c": normal(4, 3), "input": normal(4, 3)}, lambda c, input: torch.where(c != 0, c, input),
     named="B")

# ---- reductions ----

REDUCE = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}
AXES = {
    (7,): [0, -1],
    (4, 6): [0, 1, -1, -2, [0, 1], [1]],
    (3, 4, 5): [0, 1, -1, [0, 1], [0, 2], [-1, 1], [0, 1, 2]],
    (2, 3, 4, 2): [1, [1, 2], [0, 2], [1, 3], [0, 3], [0, 1, 3]],
    (2, 1500): [1, 0, [0, 1]],
    (1500, 2): [0, [-1]],
    (1, 1): [0, [0, 1]],
}
for (op, function), (shape, axes) in itertools.product(REDUCE.items(), AXES.items()):
    for number, axis in enumerate(axes):
        for keep, x in zip((False, True, False), samples(*shape)):

            def reference(x, f=function, axis=axis, keep=keep):
                return f(x, dim=axis, keepdim=keep)

            scale = (lambda x, r=reference: r(abs(x))) if op in ("sum", "mean") else None
            suffix = ", keepdim=true" if keep else (", keepdim=false" if number % 2 else "")
            case(f"{op}(x, dim={axis}{suffix})", {"x": x}, reference, scale, named="B" if number % 3 == 0 else ())
for op in ("sum", "mean", "max", "min"):
    function = getattr(torch, op)
    scale = (lambda x, f=function: f(abs(x))) if op in ("sum", "mean") else None
    for shape in ((), (5,), (3, 4), (2, 3, 4)):
        case(f"{op}(x)", {"x": normal(*shape)}, lambda x, f=function: f(x), scale)
    case(f"{op}(x)", {"x": sprinkled(3, 4)}, lambda x, f=function: f(x), scale)
ROWS = np.array(
    [
        [math.inf, 1, 2],
        [-math.inf] * 3,
        [-math.inf, math.inf, 0],
        [math.nan, math.inf, 1],
        [-math.inf, math.nan, 1],
        [math.inf, math.inf, 1],
        [-math.inf, 1, 2],
        [3e38, 3e38, -3e38],
        [0, -0.0, 1e-45],
        [-800, -801, -1000],
    ]
)
for (op, function), dim in itertools.product(REDUCE.items(), (0, 1)):
    scale = (lambda x, f=function, d=dim: f(abs(x), dim=d)) if op in ("sum", "mean") else None
    case(f"{op}(x, dim={dim})", {"x": ROWS}, lambda x, f=function, d=dim: f(x, dim=d), scale)

# ---- normalisations ----

for op, function in {"softmax": F.softmax, "log_softmax": F.log_softmax}.items():
    for shape in ((6,), (5, 8), (3, 4, 5), (2, 3, 2, 4), (2, 1200)):
        for dim in range(-len(shape), len(shape)):
            for x in (normal(*shape, scale=5), sprinkled(*shape)):
                case(f"{op}(x, dim={dim})", {"x": x}, lambda x, f=function, d=dim: f(x, dim=d), named="B")
    case(f"{op}(x, dim=1)", {"x": ROWS}, lambda x, f=function: f(x, dim=1))


def affine(extents, weight=True, bias=True):
    return {**({"w": normal(*extents)} if weight else {}), **({"b": normal(*extents)} if bias else {})}


BOTH = list(itertools.product((False, True), repeat=2))
for shape, count in (
    ((6,), 1),
    ((4, 8), 1),
    ((4, 8), 2),
    ((2, 3, 5), 1),
    ((2, 3, 5), 2),
    ((2, 3, 2, 4), 3),
    ((2, 1100), 1),
):
    extents = list(shape[-count:])
    for weight, bias in BOTH:
        leaves = affine(extents, weight, bias)
        more = "".join(f", {k}={v}" for k, v in (("weight", "w"), ("bias", "b")) if v in leaves)
        for x, eps in (
            (normal(*shape), None),
            (sprinkled(*shape), 1e-3),
            (normal(*shape, scale=1e30), 1e-5),
            (np.ones(shape), 0.1),
        ):
            case(
                f"layer_norm(x, normalized_shape={extents}{more}{'' if eps is None else f', eps={eps}'})",
                {"x": x, **leaves},
                lambda x, w=None, b=None, n=extents, e=eps: F.layer_norm(
                    x, n, w, b, **({} if e is None else {"eps": e})
                ),
                named="B" if len(shape) > count else (),
            )
    for weight, eps in itertools.product((False, True), (None, 1e-2)):
        leaves = affine(extents, weight, False)
        more = ", weight=w" if weight else ""
        for x in (normal(*shape), sprinkled(*shape), np.zeros(shape)):
            # None is the epsilon of the model's type, which is f32.
            case(
                f"rms_norm(x, {extents}{more}{'' if eps is None else f', eps={eps}'})",
                {"x": x, **leaves},
                lambda x, w=None, n=extents, e=eps: F.rms_norm(
                    x, n, w, eps=np.finfo(np.float32).eps.item() if e is None else e
                ),
            )
case("layer_norm(x, 8)", {"x": normal(4, 8)}, lambda x: F.layer_norm(x, [8]))
case(
    "rms_norm(x, normalized_shape=8, eps=None)",
    {"x": normal(4, 8)},
    lambda x: F.rms_norm(x, [8], eps=np.finfo(np.float32).eps.item()),
)

for shape, groups in (
    ((3, 8), 2),
    ((3, 8), 1),
    ((2, 6, 5), 3),
    ((2, 6, 5), 1),
    ((2, 6, 5), 6),
    ((2, 4, 3, 2), 2),
    ((2, 4, 3, 2), 4),
    ((2, 2400), 2),
    ((2, 2400), 1),
):
    for weight, bias in BOTH:
        leaves = affine([shape[1]], weight, bias)
        more = "".join(f", {k}={v}" for k, v in (("weight", "w"), ("bias", "b")) if v in leaves)
        for x, eps in ((normal(*shape), 1e-5), (sprinkled(*shape, share=0.05), 1e-2)):
            case(
                f"group_norm(x, num_groups={groups}{more}, eps={eps})",
                {"x": x, **leaves},
                lambda x, w=None, b=None, g=groups, e=eps: F.group_norm(x, g, w, b, e),
                named="B",
            )
case("group_norm(x, 2)", {"x": normal(3, 4)}, lambda x: F.group_norm(x, 2))


def running(channels):
    return {"m": normal(channels), "v": rng.random(channels) + 0.1}


def with_running(function, **fixed):
    """The running statistics are copied: PyTorch updates them."""
    return lambda x, m=None, v=None, w=None, b=None: function(
        x, None if m is None else m.clone(), None if v is None else v.clone(), weight=w, bias=b, **fixed
    )


for shape in ((5, 4), (3, 4, 5), (2, 3, 4, 2), (1, 3, 6), (1500, 2)):
    for (weight, bias), training, given in itertools.product(BOTH, (False, True), (True, False)):
        if not training and not given:
            continue
        leaves = {**(running(shape[1]) if given else {}), **affine([shape[1]], weight, bias)}
        first = "m, v" if given else "running_mean=None, running_var=None"
        more = "".join(f", {k}={v}" for k, v in (("weight", "w"), ("bias", "b")) if v in leaves)
        for x, eps in ((normal(*shape), 1e-5), (sprinkled(*shape, share=0.05), 1e-2)):
            case(
                f"batch_norm(x, {first}{more}, training={str(training).lower()}, momentum=0.3, eps={eps})",
                {"x": x, **leaves},
                with_running(F.batch_norm, training=training, momentum=0.3, eps=eps),
                named="B",
            )
        if len(shape) > 2:
            first = ", running_mean=m, running_var=v" if given else ""
            for x, eps in ((normal(*shape), 1e-5), (sprinkled(*shape, share=0.05), 1e-2)):
                case(
                    f"instance_norm(x{first}{more}, use_input_stats={str(training).lower()}, momentum=0.2, eps={eps})",
                    {"x": x, **leaves},
                    with_running(F.instance_norm, use_input_stats=training, momentum=0.2, eps=eps),
                    named="B",
                )
case("batch_norm(x, m, v)", {"x": normal(3, 4), **running(4)}, lambda x, m, v: F.batch_norm(x, m, v))
case("instance_norm(x)", {"x": normal(3, 4, 5)}, lambda x: F.instance_norm(x))
case("batch_norm(x, m, v)", {"x": SPECIAL[:, None], "m": [0.5], "v": [4]}, lambda x, m, v: F.batch_norm(x, m, v))
case(
    "batch_norm(x, m, v)",
    {"x": normal(2, 4), "m": [0, math.inf, math.nan, 1], "v": [math.inf, 1, 1, -1]},
    lambda x, m, v: F.batch_norm(x, m, v),
)

# ---- pools ----

pools = list(itertools.product((1, 2, 3, 5), (None, 1, 2, 3, 6), (0, 1, 2), (1, 2, 3), (False, True), (False, True)))
for number, (kernel, stride, padding, dilation, ceil, include) in enumerate(pools):
    if padding > kernel // 2:
        continue
    length = 13 + number % 4
    shape = (2, 3, length) if number % 2 else (3, length)
    x = normal(*shape) if number % 3 else sprinkled(*shape)
    common = dict(kernel_size=kernel, stride=stride, padding=padding, ceil_mode=ceil)
    if dilation == 1:
        arguments = {**common, "count_include_pad": include}
        text = ", ".join(f"{k}={str(v).lower() if v is not None else 'None'}" for k, v in arguments.items())
        case(
            f"avg_pool1d(x, {text})",
            {"x": x},
            lambda x, a=arguments: F.avg_pool1d(x, **a),
            lambda x, a=arguments: F.avg_pool1d(abs(x), **a),
            named="B",
        )
    if include:
        arguments = {**common, "dilation": dilation}
        text = ", ".join(f"{k}={str(v).lower() if v is not None else 'None'}" for k, v in arguments.items())
        case(f"max_pool1d(x, {text})", {"x": x}, lambda x, a=arguments: F.max_pool1d(x, **a), named="B")
for op, function in {"avg_pool1d": F.avg_pool1d, "max_pool1d": F.max_pool1d}.items():
    case(f"{op}(x, 4)", {"x": normal(2, 16)}, lambda x, f=function: f(x, 4))
    case(
        f"{op}(x, 2, 1)",
        {"x": SPECIAL[None, :]},
        lambda x, f=function: f(x, 2, 1),
        lambda x, f=function: f(abs(x), 2, 1),
    )
case("max_pool1d(x, 3, padding=1)", {"x": np.full((1, 6), -math.inf)}, lambda x: F.max_pool1d(x, 3, padding=1))

# ---- products ----

for m, k, n in [
    (1, 1, 1),
    (3, 5, 2),
    (4, 127, 255),
    (5, 128, 256),
    (9, 129, 257),
    (2, 260, 3),
    (1, 4, 300),
    (13, 3, 1),
]:
    for x in (normal(m, k), sprinkled(m, k, share=0.2 / k)):
        w, b = normal(n, k), normal(n)
        w.flat[:: max(1, n * k // 3)] = 0.0
        case("linear(x, w)", {"x": x, "w": w}, F.linear, lambda x, w: F.linear(abs(x), abs(w)), named="B")
        case("linear(x, w, b)", {"x": x, "w": w, "b": b}, F.linear, lambda x, w, b: F.linear(abs(x), abs(w), abs(b)))
        case("matmul(x, w)", {"x": x, "w": w.T}, torch.matmul, lambda x, w: torch.matmul(abs(x), abs(w)), named="B")
        case("matmul(x, y)", {"x": x, "y": w.T}, torch.matmul, lambda x, y: torch.matmul(abs(x), abs(y)))
for lead in ((2, 3), (2, 1, 4), (1, 2, 3, 2)):
    x, w, b = normal(*lead, 6), normal(5, 6), normal(5)
    case("linear(input=x, weight=w, bias=b)", {"x": x, "w": w, "b": b}, F.linear, named="BS")
    case("linear(x, w, bias=None)", {"x": x, "w": w}, F.linear, named="B")
    case("matmul(input=x, other=w)", {"x": x, "w": w.T}, torch.matmul, named="B")
for k, zero in itertools.product(range(9), (0.0, 2.0)):  # 0 * Inf is NaN, whichever side and place
    x, w = np.zeros((4, 9)), np.full((2, 9), zero)
    x[1, k], x[2, 8 - k], x[3] = math.inf, math.nan, 3e38
    case("linear(x, w)", {"x": x, "w": w}, F.linear)
    case("linear(x, w)", {"x": w, "w": x}, F.linear)
    case("matmul(x, w)", {"x": x, "w": w.T}, torch.matmul)

# ---- shapes ----

for shape, new in (
    ((4, 6), [2, 12]),
    ((4, 6), [-1]),
    ((2, 3, 4), [6, -1]),
    ((2, 3, 4), [2, 1, 12]),
    ((1, 5), [5]),
    ((3,), [3, 1, 1]),
):
    case(f"reshape(x, {new})", {"x": normal(*shape)}, lambda x, n=new: x.reshape(n))
    case(f"reshape(x, shape={new})", {"x": normal(*shape)}, lambda x, n=new: x.reshape(n))
for shape, dims in (((2, 1, 3, 1), (None, 1, -1, 0, [1, 3], [0, 1])), ((1, 1), (None, 0, [0, 1])), ((2, 3), (None, 1))):
    for dim in dims:
        case(
            f"squeeze(x, dim={dim})" if dim is not None else "squeeze(x)",
            {"x": normal(*shape)},
            lambda x, d=dim: x.squeeze() if d is None else x.squeeze(tuple(d) if isinstance(d, list) else d),
        )
for shape in ((), (3,), (2, 3, 2)):
    for dim in range(-len(shape) - 1, len(shape) + 1):
        case(
            f"unsqueeze(x, dim={dim})",
            {"x": normal(*shape)},
            lambda x, d=dim: x.unsqueeze(d),
            named="B" if shape else (),
        )
for start, end in ((0, -1), (1, -1), (1, 2), (-2, -1), (0, 1), (2, 2)):
    case(
        f"flatten(x, start_dim={start}, end_dim={end})",
        {"x": normal(2, 3, 4, 2)},
        lambda x, s=start, e=end: x.flatten(s, e),
        named="B",
    )
for shape in ((3, 5), (2, 3, 4), (2, 3, 2, 4)):
    for one, two in itertools.product(range(-len(shape), len(shape)), repeat=2):
        if (one + two) % 2 or len(shape) == 2:
            case(
                f"transpose(x, dim0={one}, dim1={two})",
                {"x": normal(*shape)},
                lambda x, a=one, b=two: x.transpose(a, b),
                named="B",
            )

for shape in ((7,), (3, 5), (2, 3, 4)):
    for dim, (start, end, step) in itertools.product(
        range(-len(shape), len(shape)), ((None, None, 1), (1, None, 1), (None, -1, 2), (-2, 99, 1), (0, 2, 3))
    ):
        case(
            f"slice(x, dim={dim}, start={start}, end={end}, step={step})",
            {"x": normal(*shape)},
            lambda x, d=dim, s=start, e=end, k=step: torch.ops.aten.slice(x, d, s, e, k),
        )

# ---- whole models: what is shared, returned, freed ----

case(
    "a = linear(x, w, b)\nc = logsumexp(a, dim=1, keepdim=true)\nd = leaky_relu(c)\ne = gelu(d)\n"
    'f = gelu(e, approximate="tanh")\nreturn f',
    {"x": normal(4, 9), "w": normal(7, 9), "b": normal(7)},
    lambda x, w, b: F.gelu(F.gelu(F.leaky_relu(torch.logsumexp(F.linear(x, w, b), 1, True))), approximate="tanh"),
    named="B",
)
case(
    "a = relu(x)\nc = reshape(a, [-1])\nd = add(a, x)\ne = transpose(d, 0, 1)\nreturn e, a, c, d, x",
    {"x": normal(3, 4)},
    lambda x: [(F.relu(x) + x).T, F.relu(x), F.relu(x).flatten(), F.relu(x) + x, x],
)
case(
    "u = mul(w, 2)\nv = squeeze(u)\na = mul(x, v)\nc = softmax(a, dim=-1)\nd = sub(a, c)\nz = mean(d, dim=0)\n"
    "return z, u",
    {"x": normal(3, 4), "w": normal(1, 4)},
    lambda x, w: [(x * w * 2 - F.softmax(x * w * 2, -1)).mean(0), w * 2],
    named="B",
)


# ---- losses ----


def cross_entropy(**options):
    return lambda x, t, w=None: F.cross_entropy(x, t.long(), w, **options)


def targets(*shape, classes, ignored=-100, share=0.2):
    t = rng.integers(0, classes, shape)
    return np.where(rng.random(shape) < share, ignored, t)


for reduction, smoothing, weighted in itertools.product(("mean", "sum", "none"), (0, 0.1, 1), (False, True)):
    for shape in ((7, 5), (1, 1), (4, 9, 3), (2, 3, 2, 4)):
        for x in samples(*shape):
            options = {"label_smoothing": smoothing, "reduction": reduction, "ignore_index": 2}
            case(
                f"cross_entropy(x, t, {'w, ' if weighted else ''}label_smoothing={smoothing}, "
                f'reduction="{reduction}", ignore_index=2)',
                {"x": x, "t": targets(*shape[:1], *shape[2:], classes=shape[1], ignored=2)}
                | ({"w": rng.random(shape[1])} if weighted else {}),
                cross_entropy(**options),
                scale=lambda x, t, w=None: torch.as_tensor(100.0, dtype=torch.float64),
                named="B",
            )
case("cross_entropy(x, t)", {"x": normal(6), "t": np.asarray(3)}, cross_entropy())
case("cross_entropy(x, t)", {"x": 300 * normal(6, 40), "t": targets(6, classes=40)}, cross_entropy())
for reduction in ("mean", "sum", "none"):  # nothing but rows to be left out
    case(
        f'cross_entropy(x, t, reduction="{reduction}")',
        {"x": normal(3, 4), "t": np.full(3, -100)},
        cross_entropy(reduction=reduction),
    )


# ---- the tool ----


class Tool:
    def __init__(self, path):
        self.path, self.process = path, None

    def ops(self):
        lines = subprocess.run(
            [self.path, "ops"], capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        return {name: (kind, signature) for name, kind, signature in (line.split("\t") for line in lines)}

    def run(self, c):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        kinds = [[v for k, v in c.leaves.items() if (k in "xyt") == is_input] for is_input in (True, False)]
        data = b"".join(v.astype("=f4").tobytes() for v in kinds[0] + kinds[1])
        text = c.text.encode()
        self.process.stdin.write(
            " ".join(map(str, (len(text), len(data) // 4, len(c.dims), *c.dims))).encode() + b"\n" + text + data
        )
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        assert answer, "the tool died"
        if answer[0] != b"ok":
            pytest.fail(f"status {answer[1].decode()}: {self.process.stdout.read(int(answer[2])).decode()}\n{c.text}")
        outputs = []
        for _ in range(int(answer[1])):
            shape = [int(e) for e in self.process.stdout.readline().split()][1:]
            outputs.append(np.frombuffer(self.process.stdout.read(8 * math.prod(shape)), "=f8").reshape(shape))
        return outputs


@pytest.fixture(scope="module")
def tool(eval_tool):
    t = Tool(str(eval_tool))
    yield t
    if t.process is not None:
        t.process.stdin.close()
        assert t.process.wait(timeout=60) == 0


def apply(function, tensors):
    """By name where the function is one of ours, which may leave some out; by position otherwise."""
    names = getattr(getattr(function, "__code__", None), "co_varnames", ())
    return function(**tensors) if "x" in names else function(*tensors.values())


def listed(result):
    return [t.numpy() for t in (result if isinstance(result, list) else [result])]


def compare(got, ref, scale):
    assert got.shape == ref.shape
    assert (np.isnan(got) == np.isnan(ref)).all(), f"NaN differs\ngot {got}\nref {ref}"
    infinite = np.isinf(ref)
    assert (np.isinf(got) == infinite).all() and (
        got[infinite] == ref[infinite]
    ).all(), f"Inf differs\ngot {got}\nref {ref}"
    finite = np.isfinite(ref)
    if scale is None:
        scale = min(1.0, float(np.sqrt(np.mean(np.square(ref[finite]))))) if finite.any() else 1.0
    allowed = TOLERANCE * np.maximum(abs(ref), np.nan_to_num(scale, nan=0, posinf=0))
    assert (abs(got - ref)[finite] <= np.broadcast_to(allowed, ref.shape)[finite]).all(), f"got {got}\nref {ref}"


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_same_as_torch(tool, c):
    tensors = {k: torch.from_numpy(v).double() for k, v in c.leaves.items()}
    with np.errstate(all="ignore"):
        ref = listed(apply(c.reference, tensors))
        scale = listed(apply(c.scale, tensors) if c.scale else [])
        got = tool.run(c)
        assert len(got) == len(ref)
        for i, (g, r) in enumerate(zip(got, ref)):
            compare(g, r, scale[i] if scale else None)


def test_every_op_and_attribute_has_a_case(tool):
    ops = tool.ops()
    assert ops and len(CASES) >= LEAST_CASES
    missing = []
    for op, (_, signature) in ops.items():
        calls = [call for c in CASES for call in re.findall(rf"(?<![\w.]){op}\((.*)\)", c.body)]
        names = [(p.split()[0], re.match(r"\w+", p.split()[1])[0]) for p in signature.split(", ")]
        missing += [] if calls else [op]
        missing += [
            f"{op}: {name}"
            for kind, name in names
            if kind[0] not in "TV" and not any(re.search(rf"\b{name}=", call) for call in calls)
        ]
    assert not missing
