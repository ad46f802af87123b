# SPDX-License-Identifier: Apache-2.0
"""The option tune: asked for by option or mode, heard only where there is something to measure, and no bit is changed
by it."""

import pytest
import torch
from torch import nn

import linfuse
from linfuse import backend
from linfuse.backend import Options
from torch_door import ON_GPU, assert_fused, compiled, fresh

fresh_each_time = fresh(13)
CUDA = torch.device("cuda")


def net():
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Softmax(dim=1)).eval()


def test_words():
    assert Options({"tune": True}).words(CUDA)["tune"] == "true"
    for options in ({}, {"tune": False}):
        assert "tune" not in Options(options).words(CUDA)
    assert "tune" not in Options({"tune": True}).words(torch.device("cpu"))
    with pytest.raises(linfuse.Error, match="tune is True or False, not 1"):
        Options({"tune": 1})


@pytest.mark.parametrize(
    "how, tuned",
    [
        ({}, False),
        ({"mode": "default"}, False),
        ({"mode": "reduce-overhead"}, False),
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, True),
        ({"options": {"tune": True}}, True),
        ({"options": {"tune": False}}, False),
    ],
    ids=str,
)
def test_asked_for(how, tuned, monkeypatch):
    seen = []
    monkeypatch.setattr(backend, "Options", lambda given: seen.append(Options(given)) or seen[-1])
    module, x = net(), torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(module, backend="linfuse", **how)(x), module(x))
    assert [one.tune for one in seen] == [tuned]
    assert_fused()


def test_a_loaded_program_on_the_cpu_has_nothing_to_measure(tmp_path):
    module = net()
    with torch.no_grad():
        linfuse.save(module, torch.randn(5, 64), tmp_path / "saved")
    file, weights = tmp_path / "saved" / "model.lf", tmp_path / "saved" / "model.safetensors"
    linfuse.load(file, weights, tune=False)
    with pytest.raises(linfuse.Error, match="tune: device cpu has nothing to measure"):
        linfuse.load(file, weights, tune=True)


def test_modes_are_pytorchs():
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        torch.compile(net(), backend="linfuse", mode=mode)(torch.randn(3, 64))
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="mode turbo is unknown and chooses nothing; there are default, "):
        torch.compile(net(), backend="linfuse", mode="turbo")(torch.randn(3, 64))


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU")
@pytest.mark.parametrize("batch", [1, 9, 40, 300])
def test_same_bits(batch, monkeypatch, tmp_path):
    """And a second program finds on disk what the first has measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module, x = net(), torch.randn(batch, 64)
    with torch.no_grad():
        want = compiled(module)(x)
        torch._dynamo.reset()
        fast = compiled(module, tune=True)
        for _ in range(3):  # measures, then runs what was fastest
            assert torch.equal(fast(x), want)
        assert len(list(tmp_path.glob("linfuse/tune-*.txt"))) == 1
        assert "as measured" in str(linfuse.explain(module, x))
    assert_fused()
