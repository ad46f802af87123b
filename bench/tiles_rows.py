# SPDX-License-Identifier: Apache-2.0
"""What bench/tiles.py measures: products of several widths, depths and tails, each at several numbers of rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    name: str
    n: int
    k: int
    tail: str  # lines of model text: from a, to y
    rows: tuple

    def text(self):
        return (
            f"input x f32[B, {self.k}]\nparam linear.weight f32[{self.n}, {self.k}]\nparam linear.bias f32[{self.n}]\n"
            f"a = linear(x, linear.weight, linear.bias)\n{self.tail}\nreturn y\n"
        )


_SOFTMAX = "b = gelu(a)\ny = softmax(b, dim=1)"
_LOGSUMEXP = "y = logsumexp(a, dim=1)"
_SILU = "b = silu(a)\ny = mul(b, 2.0)"

PRODUCTS = [
    Product("gelu_softmax", 8192, 8192, _SOFTMAX,
            (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 2048)),
    Product("logsumexp", 8192, 8192, _LOGSUMEXP, (16, 64, 128, 256, 640, 1024, 4096)),
    Product("silu_group", 4096, 1024, "b = silu(a)\nc = add(b, 1.0)\ny = group_norm(c, 64)",
            (16, 128, 512, 1024, 4096, 32768)),
    Product("silu_scale", 4096, 4096, _SILU, (1, 64, 128, 192, 256, 384, 512, 1000, 2048, 16384)),
    Product("relu_small", 1024, 1024, "y = relu(a)", (16, 64, 128, 512, 1024, 2048, 8192, 65536)),
    Product("gelu_wide", 32768, 4096, "y = gelu(a)", (16, 64, 128, 256, 512)),
    Product("softmax_odd", 1000, 2048, "y = softmax(a, dim=1)", (32, 128, 512, 4096, 16384)),
    Product("logsumexp_short", 8192, 64, _LOGSUMEXP, (128, 1024, 8192, 65536)),
]

# Sizes that the cost model was not fitted to: other numbers of rows of the same products, and two products more.
HELD_BACK = {
    "gelu_softmax": (4, 24, 80, 144, 320, 448, 900, 1536),
    "logsumexp": (48, 200, 300, 2500),
    "silu_group": (64, 300, 2000, 10000),
    "silu_scale": (24, 100, 300, 700, 3000, 6000),
    "relu_small": (32, 256, 700, 4000, 20000),
    "gelu_wide": (48, 192, 384, 1000),
    "softmax_odd": (16, 200, 1500, 7000),
    "logsumexp_short": (500, 3000, 30000),
}
MORE = [
    Product("gelu_other", 5120, 2048, "y = gelu(a)", (40, 250, 600, 1500, 5000)),
    Product("layer_norm_other", 2560, 3072, "y = layer_norm(a, [2560])", (60, 130, 520, 1100, 9000)),
]
