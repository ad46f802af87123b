# SPDX-License-Identifier: Apache-2.0
"""What is measured: the rows with their targets, and more over the op table."""

from dataclasses import dataclass

from spec import Spec

# ---- the models; m is never written into one: it is the extent B ----


def lse_chain(n, k):
    s = Spec()
    row = s.op("logsumexp", s.linear(s.input("x", "B", k), "linear", n, k), dim=1, keepdim=True)
    for _ in range(2):
        row = s.op("leaky_relu", row, negative_slope=0.01)
    s.op("gelu", s.op("gelu", row))
    return s


def gelu_softmax(n, k):
    s = Spec()
    s.op("softmax", s.op("gelu", s.linear(s.input("x", "B", k), "linear", n, k)), dim=1)
    return s


def mean_residual(n, k):
    s = Spec()
    x = s.input("x", "B", k)
    less = s.op("sub", s.linear(x, "linear", n, k), s.weight("subtract", n))
    row = s.op("logsumexp", s.op("mean", less, dim=1, keepdim=True), dim=1, keepdim=True)
    s.op("add", s.op("gelu", row), x)
    return s


def linear_then(*chain):
    """A linear layer and ops of one value after it."""
    def make(n, k):
        s = Spec()
        value = s.linear(s.input("x", "B", k), "linear", n, k)
        for op, attrs in chain:
            value = s.op(op, value, **attrs)
        return s
    return make


def linear_max_pool(n, k):
    s = Spec()
    pooled = s.op("max_pool1d", s.linear(s.input("x", "B", k), "linear", n, k), kernel_size=2)
    s.op("mul", s.op("sum", pooled, dim=1), 0.5)
    return s


def linear_layer_norm(n, k):
    s = Spec()
    s.op("layer_norm", s.linear(s.input("x", "B", k), "linear", n, k), [n], *s.affine("norm", n))
    return s


def linear_rms_norm(n, k):
    s = Spec()
    product = s.linear(s.input("x", "B", k), "linear", n, k)
    s.op("rms_norm", product, [n], s.param("norm.weight", (n,), 0.5, 1.5), eps=1e-5)
    return s


def linear_group_norm(n, k):
    s = Spec()
    normed = s.op("group_norm", s.linear(s.input("x", "B", k), "linear", n, k), 32, *s.affine("norm", n))
    s.op("hardtanh", normed, min_val=-2.0, max_val=2.0)
    return s


def linear_batch_norm_train(n, k):
    s = Spec()
    product = s.linear(s.input("x", "B", k), "linear", n, k)
    s.op("relu", s.op("batch_norm", product, None, None, *s.affine("norm", n), training=True))
    return s


def bare_softmax(n, k):
    s = Spec()
    s.op("softmax", s.input("x", "B", n), dim=1)
    return s


def bare_layer_norm(n, k):
    s = Spec()
    s.op("layer_norm", s.input("x", "B", n), [n], *s.affine("norm", n))
    return s


def two_linears(hidden, tail):
    """k -> hidden, GELU, hidden -> n, and what follows."""
    def make(n, k):
        s = Spec()
        inner = s.op("gelu", s.linear(s.input("x", "B", k), "up", hidden, k))
        outer = s.linear(inner, "down", n, hidden)
        if tail:
            s.op(tail, outer, dim=1)
        return s
    return make


def norm_mlp(hidden):
    """LayerNorm, k -> hidden, GELU, hidden -> n."""
    def make(n, k):
        s = Spec()
        normed = s.op("layer_norm", s.input("x", "B", k), [k], *s.affine("norm", k))
        inner = s.op("gelu", s.linear(normed, "up", hidden, k))
        s.linear(inner, "down", n, hidden)
        return s
    return make


def tiny_classifier(hidden):
    """k -> hidden, ReLU, hidden -> n, softmax."""
    def make(n, k):
        s = Spec()
        inner = s.op("relu", s.linear(s.input("x", "B", k), "up", hidden, k))
        s.op("softmax", s.linear(inner, "down", n, hidden), dim=1)
        return s
    return make


def prenorm(n, k):
    s = Spec()
    x = s.input("x", "B", "S", k)
    normed = s.op("layer_norm", x, [k], *s.affine("norm", k), eps=1e-6)
    s.op("add", x, s.op("silu", s.linear(normed, "linear", n, k)))
    return s


# ---- the cases ----


@dataclass(frozen=True)
class Case:
    name: str
    make: object              # (n, k) -> Spec
    sizes: tuple              # m, n, k; k is 0 where there is no product
    target: float = 1.0       # how many times as fast as the best peer linfuse is to be
    quick: tuple = None       # sizes under --quick, where these are too large for it
    sequences: int = 0        # > 0: the m rows come as this many sequences
    from_c: bool = False      # linfuse is called from C, since the call itself is what is measured

    def sizes_for(self, quick):
        return self.quick if quick and self.quick else self.sizes

    def spec(self, quick):
        return self.make(*self.sizes_for(quick)[1:])

    def dims(self, quick):
        m = self.sizes_for(quick)[0]
        return {"B": self.sequences, "S": m // self.sequences} if self.sequences else {"B": m}


TABLE = [
    Case("lse_chain", lse_chain, (1024, 8192, 8192), 1.10, quick=(256, 4096, 4096)),
    Case("gelu_softmax", gelu_softmax, (1024, 8192, 8192), 1.10, quick=(256, 4096, 4096)),
    Case("mean_residual", mean_residual, (2048, 8192, 8192), 200, quick=(512, 4096, 4096)),
    Case("lse_chain_mid", lse_chain, (256, 2048, 2048), 1.10),
    Case("lse_chain_k64", lse_chain, (4096, 4096, 64), 2.5),
    Case("gelu_softmax_k64", gelu_softmax, (4096, 4096, 64), 1.5),
    Case("lse_chain_k256", lse_chain, (4096, 4096, 256), 1.6),
    Case("gelu_softmax_1row", gelu_softmax, (1, 4096, 4096), 1.05),
    Case("gelu_softmax_16rows", gelu_softmax, (16, 4096, 4096), 1.25),
    Case("gelu_softmax_256rows", gelu_softmax, (256, 1024, 1024)),
    Case("norm_mlp", norm_mlp(4096), (512, 1024, 1024)),
    Case("tiny_classifier", tiny_classifier(256), (8, 10, 256)),
    Case("gelu_softmax_tiny", gelu_softmax, (8, 64, 64), 3, from_c=True),
]

MORE = [
    Case("linear_layer_norm", linear_layer_norm, (1024, 1024, 1024)),
    Case("linear_rms_norm", linear_rms_norm, (1024, 2048, 512)),
    Case("linear_group_norm", linear_group_norm, (1024, 1024, 1024)),
    Case("linear_batch_norm", linear_batch_norm_train, (4096, 256, 256)),
    Case("linear_max_pool", linear_max_pool, (1024, 2048, 512)),
    Case("linear_avg_pool", linear_then(("avg_pool1d", {"kernel_size": 4}), ("gelu", {})), (1024, 2048, 512)),
    Case("linear_mish", linear_then(("mish", {})), (2048, 1024, 256)),
    Case("linear_silu", linear_then(("silu", {})), (1024, 1024, 1024)),
    Case("linear_hardswish", linear_then(("hardswish", {})), (4096, 1024, 64)),
    Case("linear_mean", linear_then(("mean", {"dim": 1, "keepdim": True})), (2048, 4096, 4096),
         quick=(512, 4096, 2048)),
    Case("bare_softmax", bare_softmax, (4096, 4096, 0)),
    Case("bare_layer_norm", bare_layer_norm, (8192, 1024, 0)),
    Case("mlp_gelu", two_linears(4096, None), (512, 1024, 1024)),
    Case("mlp_classifier", two_linears(256, "log_softmax"), (4096, 10, 784)),
    Case("log_softmax_head", linear_then(("log_softmax", {"dim": 1})), (256, 32000, 512)),
    Case("prenorm_residual", prenorm, (2048, 1024, 1024), sequences=8),
    Case("tall_relu", linear_then(("relu", {})), (100000, 64, 64)),
    Case("lse_chain_k16", lse_chain, (8192, 2048, 16)),
    Case("sigmoid_n1", linear_then(("sigmoid", {})), (16384, 1, 1024)),
    Case("tanh_k1", linear_then(("tanh", {})), (8192, 1024, 1)),
]

CASES = TABLE + MORE
