# SPDX-License-Identifier: Apache-2.0
"""Whole models through torch.compile, two narrow layers of each (whole_models.py): values, gradients, extents that
change, types, modes, and what other processes find on disk."""

import copy
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

import linfuse
from linfuse.notices import NEEDS_GRADIENTS
from torch_door import DEVICE, assert_close, compiled, flat, fresh, reasons
from whole_models import BY_NAME, Missing

begin_and_end = fresh(5)
LANGUAGE = ("bert", "gpt2", "llama", "mistral", "qwen2", "gemma2", "t5_encoder", "clip_text")


def whole(name, **size):
    """A model and what it is given; the test is skipped where there is no such model."""
    try:
        return BY_NAME[name].made(replace(BY_NAME[name].tiny, **size)), given(name)
    except Missing as why:
        pytest.skip(str(why))


def given(name, **size):
    """Inputs, of these extents."""
    return BY_NAME[name].given(replace(BY_NAME[name].tiny, **size))


def wide(model, inputs):
    """The result in double precision."""
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    return flat(copy.deepcopy(model).double()(**inputs))


def beside_eager(model, fast, inputs, **bounds):
    with torch.no_grad():
        got = fast(**inputs)
        assert_close(got, wide(model, inputs), model(**inputs), **bounds)
    return got


@pytest.mark.parametrize("name", BY_NAME)
def test_values(name):
    """As near to double precision as eager, at the extents of the first call and at others."""
    model, inputs = whole(name)
    fast = compiled(model)
    beside_eager(model, fast, inputs)
    stats = linfuse.stats()
    assert stats.graphs == 1 and stats.fused_parts > 0 and stats.fused_calls == stats.fused_parts, str(stats)
    beside_eager(model, fast, given(name, batch=2, **({"length": 7} if name in LANGUAGE else {})))
    assert not reasons("call"), str(linfuse.stats())


@pytest.mark.parametrize("name", BY_NAME)
def test_values_in_bf16(name):
    model, inputs = whole(name)
    inputs = {key: x.bfloat16() if x.is_floating_point() else x for key, x in inputs.items()}
    beside_eager(model.bfloat16(), compiled(model), inputs, least=1e-2)


@pytest.mark.parametrize("name", ["llama", "dlrm"])
def test_gradients(name):
    """Training is inductor's, forward and backward, and nothing of it runs in linfuse."""
    model, inputs = whole(name, layers=1)
    model.train()
    other, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    for one, run in ((model, model), (other, torch.compile(other, backend="linfuse")), (exact, exact)):
        kind = next(one.parameters()).dtype
        run(**{key: x.to(kind) if x.is_floating_point() else x for key, x in inputs.items()}).square().mean().backward()
    grads = [[one.grad for one in each.parameters() if one.grad is not None] for each in (other, exact, model)]
    assert_close(*grads, factor=3.0, least=1e-5)
    assert NEEDS_GRADIENTS in reasons("compile") and linfuse.stats().fused_calls == 0


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_reach_inductor(monkeypatch, mode):
    """What PyTorch says a mode is goes to inductor with what is left of a model, but for CUDA graphs around parts."""
    seen = []
    monkeypatch.setattr(torch._inductor, "compile", lambda module, inputs, options: seen.append(options) or module)
    model, inputs = whole("bert")
    beside_eager(model, torch.compile(model, backend="linfuse", mode=mode), inputs)
    (options,) = seen
    asked = torch._inductor.list_mode_options(mode)
    assert options == {key: value for key, value in asked.items() if key != "triton.cudagraphs"}
    assert linfuse.stats().fused_calls > 0


SECOND = """
import sys
from dataclasses import replace
import torch, linfuse
sys.path.insert(0, {here!r})
from whole_models import BY_NAME
size = replace(BY_NAME["llama"].tiny, layers=1)
model, given = BY_NAME["llama"].made(size), BY_NAME["llama"].given(size)
with torch.no_grad():
    got = torch.compile(model, backend="linfuse")(**given)
    parts = linfuse.stats().fused_calls
    torch._dynamo.reset()
    plain = torch.compile(model)(**given)
    torch.testing.assert_close(got, model(**given))
    torch.testing.assert_close(plain, model(**given))
counters = torch._dynamo.utils.counters
print(parts, counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
      got.double().sum().item())
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="of the CPU alone")
def test_second_process_finds_it_on_disk(tmp_path):
    """What a first process compiled serves a second; and plain inductor has its own beside it, in one process."""
    whole("llama")
    text = textwrap.dedent(SECOND).format(here=os.path.dirname(__file__))
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
           "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    said = [subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True).stdout
            for _ in range(2)]
    (parts, _, first), (again, hits, second) = (one.split() for one in said)
    assert parts == again and int(parts) > 1 and first == second
    assert int(hits) >= 2, said[1]
