# SPDX-License-Identifier: Apache-2.0
"""A product's error against double precision is no larger than PyTorch's in float32, however long its sums."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

ROWS, COLUMNS, SEEDS = 24, 300, 3
EQUAL = 1.02  # two roundings of the same sums in another order: as good as each other


def draw(kind, k, generator):
    """x and w [COLUMNS][k], as nn.Linear draws it."""
    x = torch.rand(ROWS, k, generator=generator)
    if kind != "uniform":
        x = torch.randn(ROWS, k, generator=generator)
    if kind == "wide range":
        x *= torch.exp(69 * torch.rand(ROWS, k, generator=generator) - 60)
    w = (2 * torch.rand(COLUMNS, k, generator=generator) - 1) / k**0.5
    return x, w


@pytest.mark.parametrize("kind", ["uniform", "normal", "wide range"])
@pytest.mark.parametrize("k", [48, 784, 4096, 8192, 32768])
def test_no_less_accurate_than_torch(linfuse, tmp_path, k, kind):
    generator = torch.Generator().manual_seed(k)
    ours = theirs = 0.0
    model, weights = tmp_path / "m.lf", tmp_path / "w.safetensors"
    model.write_text(f"input x f32[B, {k}]\nparam w f32[{COLUMNS}, {k}]\na = linear(x, w)\nreturn a\n")
    for _ in range(SEEDS):
        x, w = draw(kind, k, generator)
        np.save(tmp_path / "x.npy", x.numpy())
        save_file({"w": w.numpy()}, weights)
        linfuse("run", model, "--weights", weights, "--input", f"x={tmp_path / 'x.npy'}",
                "--output", f"a={tmp_path / 'a.npy'}")
        wanted = x.double() @ w.double().T
        error = lambda y: float((y.double() - wanted).norm() / wanted.norm())
        ours += error(torch.from_numpy(np.load(tmp_path / "a.npy")))
        theirs += error(torch.nn.functional.linear(x, w))
    assert ours > 0, "no rounding error at all: was it computed in float32?"
    assert ours <= EQUAL * theirs, f"K={k}, {kind}: {ours / SEEDS:.3g}, PyTorch {theirs / SEEDS:.3g}"
