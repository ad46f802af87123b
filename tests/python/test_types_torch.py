# SPDX-License-Identifier: Apache-2.0
"""Every op of the table in f16 and bf16, by the command, against PyTorch on the same numbers of the type.

The reference is PyTorch in float64. A result may differ from it by half a unit in the last place of its type, for being
stored, and what f32 loses on the way; or by as much as PyTorch's own result in that type does. NaN and infinities stand
where the reference has them once it is rounded to the type, or where PyTorch's own result has them. Pointwise ops see
every number that the type has."""

import subprocess

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_eval_torch import CASES, ONE, apply, keywords

KINDS = {"f16": torch.float16, "bf16": torch.bfloat16}
TYPES = {**KINDS, "f32": torch.float32}
LEAST_CASES = 600
# What f32 may lose on the way to a result of that size: sums of some hundred terms, an exp, an erf.
LOST = 4e-6


def write(path, tensor):
    if tensor.dtype == torch.int64:
        np.save(path, tensor.numpy())
        return
    array = tensor.view(torch.int16).numpy()
    np.save(path, array.view(np.float16) if tensor.dtype == torch.float16 else array.view("V2"))


def read(path):
    array = np.load(path)
    if array.dtype == np.dtype("V2"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def run(command, folder, text, leaves):
    """The outputs of the model for these leaves, tensors of their types."""
    (folder / "m.lf").write_text(text)
    call = [command, "run", folder / "m.lf", "--threads", "2"]
    params = {name: leaf.contiguous() for name, leaf in leaves.items() if f"param {name} " in text}
    if params:
        save_file(params, folder / "w.safetensors")
        call += ["--weights", folder / "w.safetensors"]
    for name, leaf in leaves.items():
        if name not in params:
            write(folder / f"{name}.npy", leaf.contiguous())
            call += ["--input", f"{name}={folder}/{name}.npy"]
    names = [name.strip() for name in text.strip().split("\n")[-1].removeprefix("return ").split(",")]
    for name in names:
        call += ["--output", f"{name}={folder}/out_{name}.npy"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, text + done.stderr
    return [read(folder / f"out_{name}.npy") for name in names]


def all_of(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def half_unit(x, dtype):
    """Half of a unit in the last place of each finite number, in the type."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp(min=info.tiny))[1] - 1
    return torch.ldexp(torch.full_like(x, info.eps / 2), exponent)


def kind_of(x):
    return torch.where(x.isnan(), 2.0, torch.where(x.isinf(), x.sign(), torch.zeros_like(x)))


def wrong(y, exact, eager, scale):
    """A line on the element that is furthest off; None where all is well."""
    if y.shape != exact.shape:
        return f"shape {tuple(y.shape)}, not {tuple(exact.shape)}"
    if eager is not None and eager.dtype != y.dtype:
        return f"type {y.dtype}, not {eager.dtype}"
    nearest, got = exact.to(y.dtype).double(), y.double()
    own = nearest if eager is None else eager.double()
    bad = (kind_of(got) != kind_of(nearest)) & (kind_of(got) != kind_of(own))
    finite = got.isfinite() & nearest.isfinite()
    allowed = 1.001 * half_unit(exact, y.dtype) + LOST * torch.maximum(exact.abs(), scale)
    allowed = torch.where(own.isfinite(), torch.maximum(allowed, (own - exact).abs()), allowed)
    bad |= finite & ((got - exact).abs() > allowed)
    if not bad.any():
        return None
    at = int(torch.where(bad, torch.where(finite, (got - exact).abs() / allowed, torch.inf), 0.0).argmax())
    values = [float(v.flatten()[at]) for v in (got, exact, own)]
    return f"{int(bad.sum())} of {bad.numel()}: element {at} is {values[0]!r}, not {values[1]!r}; PyTorch {values[2]!r}"


def eager_of(reference, leaves):
    """What PyTorch computes in the type; None where it cannot."""
    try:
        return all_of(apply(reference, leaves))
    except (RuntimeError, NotImplementedError):
        return None


def check(command, folder, text, leaves, reference, scale=None):
    got = run(command, folder, text, leaves)
    wide = {name: leaf.double() for name, leaf in leaves.items()}
    exact, eager = all_of(apply(reference, wide)), eager_of(reference, leaves)
    size = all_of(apply(scale or reference, wide))
    for i, y in enumerate(got):
        magnitude = size[i].abs() if scale else torch.ones_like(exact[i])
        magnitude = torch.where(magnitude.isfinite(), magnitude, 0.0)
        words = wrong(y, exact[i], eager and eager[i], magnitude)
        if words:
            return words
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_every_op(command, tmp_path, kind):
    failures = []
    for case in CASES[kind == "bf16" :: 2]:  # neighbours are much alike: each type takes every other one
        text = case.text.replace(" f32[", f" {kind}[")
        leaves = {name: torch.from_numpy(value).to(torch.int64 if f" {name} i64[" in text else KINDS[kind])
                  for name, value in case.leaves.items()}
        words = check(command, tmp_path, text, leaves, case.reference, case.scale)
        if words:
            failures.append(f"{case.name}: {words}")
    assert len(CASES) >= LEAST_CASES and not failures, "\n".join(failures[:20] + [f"{len(failures)} in all"])


@pytest.mark.parametrize("kind", KINDS)
def test_pointwise_ops_on_every_number(command, tmp_path, kind):
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(KINDS[kind]).reshape(-1, 64)
    failures = []
    for op, (settings, function) in ONE.items():
        for setting in settings:
            text = f"input x {kind}[B, 64]\nr = {op}(x{', ' if setting else ''}{setting})\nreturn r\n"
            words = check(command, tmp_path, text, {"x": x}, lambda x: function(x, **keywords(setting)))  # noqa: B023
            if words:
                failures.append(f"{op}({setting}): {words}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("to", TYPES)
def test_casts_on_every_number(command, tmp_path, source, to):
    """To the bit, but for NaN's."""
    if source == "f32":
        x = torch.arange(-(1 << 31), 1 << 31, 4099, dtype=torch.int64).to(torch.int32).view(torch.float32)
        np.save(tmp_path / "x.npy", x.numpy())
    else:
        x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(TYPES[source])
        write(tmp_path / "x.npy", x)
    (tmp_path / "m.lf").write_text(f'input x {source}[B]\nr = to(x, dtype="{to}")\nreturn r\n')
    subprocess.run([command, "run", tmp_path / "m.lf", "--input", tmp_path / "x.npy", "--output", tmp_path / "r.npy"],
                   check=True, capture_output=True)  # fmt: skip
    got, wanted = read(tmp_path / "r.npy"), x.to(TYPES[to])
    assert got.dtype == wanted.dtype and torch.equal(got.isnan(), wanted.isnan())
    bits = torch.int32 if to == "f32" else torch.int16
    assert torch.equal(got.view(bits)[~wanted.isnan()], wanted.view(bits)[~wanted.isnan()])
