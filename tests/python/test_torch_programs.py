# SPDX-License-Identifier: Apache-2.0
"""Programs go with the module, and there is one for each set of weights; whatever happens in between, none is found
that ends, none is stale, and none is in the way of the interpreter's end."""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import linfuse
from linfuse import native, weights
from linfuse.counters import registry
from test_torch_weights import Net, X, agree
from torch_door import (
    DEVICE,
    ON_GPU,
    assert_close,
    assert_fused,
    compiled,
    fresh,
    not_on_gpu,
    reference,
    without_guards,
)

fresh_each_time = fresh(4)


def test_programs_go_with_the_module():
    module = Net().eval()
    fast = compiled(module)
    agree(fast, module)
    with_it = linfuse.stats()
    assert with_it.programs == 1 and with_it.prepared_bytes > 0 and (with_it.param_bytes == 0 or ON_GPU)
    kept = weakref.ref(module.one.weight)
    del module, fast
    gc.collect()
    assert kept() is None, "linfuse keeps a parameter alive"
    without = linfuse.stats()
    assert without.programs == 0 and without.prepared_bytes == 0 and without.workspace_bytes == 0
    assert without.fused_calls == with_it.fused_calls


def test_programs_go_with_replaced_parameters():
    module = Net().eval()
    fast = compiled(module)
    for _ in range(4):
        agree(fast, module)
        module.one.weight = nn.Parameter(torch.randn(12, 20))
        gc.collect()
    agree(fast, module)
    assert linfuse.stats().programs == 1


def test_programs_go_with_the_traces():
    module = Net().eval()
    agree(compiled(module), module)
    torch._dynamo.reset()
    gc.collect()
    assert linfuse.stats().programs == 0


def test_nobody_finds_a_program_that_ends(monkeypatch):
    """While calls are freed other threads run, and weak references must not lead them there."""
    found, close = [], native.Call.close

    def watched(call):
        found.append((program() is not None, len(registry.programs)))
        close(call)

    module = Net().eval()
    fast = compiled(module)
    agree(fast, module)
    (program,) = map(weakref.ref, registry.programs)
    monkeypatch.setattr(native.Call, "close", watched)
    del fast, module
    torch._dynamo.reset()
    gc.collect()
    assert found == [(False, 0)]


@not_on_gpu
def test_memory_is_not_copied():
    """Parameters are borrowed: what is held besides them is what was packed."""
    module = nn.Sequential(nn.Linear(512, 256), nn.GELU()).eval()
    fast = compiled(module)
    agree(fast, module, torch.randn(4, 512))
    stats = linfuse.stats()
    weight = 512 * 256 * 4
    assert stats.param_bytes == 0 and weight <= stats.prepared_bytes < 1.5 * weight


class Turned(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(k, n).t())

    def forward(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.w))


@not_on_gpu
@pytest.mark.parametrize("k, n", [(5, 7), (200, 150)])
def test_a_parameter_that_had_to_be_copied(k, n):
    """Not contiguous, and written to behind PyTorch's back; a NaN in it is no change."""
    model, x = Turned(k, n), torch.randn(4, k)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        model.w.data.mul_(2)
        assert_close(fast(x), reference(model, x), model(x))
        model.w[1, 2] = torch.nan
        fast(x)
        prepared = linfuse.stats().prepared
        assert_close(fast(x), reference(model, x), model(x))
        assert linfuse.stats().prepared == prepared


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.state = nn.Linear(5, 5), torch.zeros(2, 5)

    def forward(self, x):
        self.state = torch.tanh(self.linear(x) + self.state)
        return self.state


def test_a_tensor_that_is_another_at_every_call():
    """A module's own tensor, replaced by each call: no program is left behind for each of them."""
    model, plain, x = Recurrent(), Recurrent(), torch.randn(2, 5)
    plain.load_state_dict(model.state_dict())
    fast, results = compiled(model), []
    with torch.no_grad():
        for _ in range(40):
            results.append(fast(x))
            torch.testing.assert_close(results[-1], plain(x))
    assert linfuse.stats().programs <= 8


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("scale", torch.rand(6))

    def forward(self, x):
        return torch.relu(self.linear(x) * self.scale)


class Learnt(Scaled):
    def __init__(self):
        super().__init__()
        del self.scale
        self.scale = nn.Parameter(torch.rand(6))


@pytest.mark.parametrize("kind", [Learnt, Scaled])
def test_many_modules_of_one_kind(kind):
    """As a model compiled block by block has: each keeps its program."""
    if kind is Scaled and torch.__version__.startswith("2.4."):
        pytest.skip("2.4 does not tell buffers from other tensors that a module has")
    blocks = [kind().eval() for _ in range(20)]
    fast, x = torch.compile(Scaled.forward, backend="linfuse"), torch.randn(3, 6)
    with torch.no_grad():
        for _ in range(3):
            for block in blocks:
                assert_close(fast(block, x), reference(block, x), block(x))
    stats = assert_fused()
    assert stats.programs == stats.programs_made == 20
    del blocks[5:], block
    gc.collect()
    assert linfuse.stats().programs == 5


def test_refresh_while_weights_are_prepared(monkeypatch):
    """What is said while somebody prepares is not lost when he is done."""
    model, x = nn.Sequential(nn.Linear(300, 300), nn.ReLU()).eval(), torch.randn(2, 300)
    fast, prepare = compiled(model), native.Compiled.prepare

    def written_meanwhile(program):
        prepare(program)
        monkeypatch.setattr(native.Compiled, "prepare", prepare)
        model[0].weight.data[100:104] = 1.0
        linfuse.refresh()

    with torch.no_grad():
        fast(x)
        linfuse.refresh()
        monkeypatch.setattr(native.Compiled, "prepare", written_meanwhile)
        fast(x)
        for _ in range(3):
            assert_close(fast(x), reference(model, x), model(x))


def test_a_lost_slot_does_not_hang():
    """An exception may come between taking a slot and the call: a later change of weights waits for it in vain."""
    model, x = Net(), torch.randn(3, 20)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        (prepared,) = [one for one in weights.registry.programs if one.idle]
        prepared.idle.pop()
        model.one.weight.mul_(2)
        torch.testing.assert_close(fast(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)


def test_called_again_while_weights_are_prepared(monkeypatch):
    """By what a collection of garbage ends, in the same thread."""
    model, again = Net().eval(), []
    load = weights.Prepared.load

    def call_in_between(self, names, params):
        if not again:
            again.append(None)
            again[0] = run(*args)
        load(self, names, params)

    with torch.no_grad():
        run, args = without_guards(model, X)
        model.one.weight.mul_(2)
        monkeypatch.setattr(weights.Prepared, "load", call_in_between)
        got = run(*args), *again, run(*args)
        assert len(got) == 3
        for one in got:
            assert_close(one, reference(model, X), model(X))


@pytest.mark.parametrize("view", [lambda w: w.t(), lambda w: w[0:1].expand(20, 20)], ids=["transposed", "expanded"])
def test_another_layout_in_the_same_place(view):
    """Neither the version nor the address tells."""
    model = nn.Sequential(nn.Linear(20, 20), nn.Tanh()).eval()
    fast = compiled(model)
    for _ in range(3):
        agree(fast, model)
    before = model[0].weight.data
    for values in (view(before), before):
        model[0].weight.data = values
        for _ in range(3):
            agree(fast, model)


def test_an_interrupt_while_weights_are_prepared(monkeypatch):
    """Of others, which then are not taken for those before."""
    model = Net().eval()
    fast, one = compiled(model), model.one.weight.data
    agree(fast, model)
    prepare, other = native.Compiled.prepare, one * 3

    def interrupted(self):
        prepare(self)
        raise KeyboardInterrupt

    model.one.weight.data = other
    with monkeypatch.context() as patch, torch.no_grad(), pytest.raises(KeyboardInterrupt):
        patch.setattr(native.Compiled, "prepare", interrupted)
        fast(X)
    model.one.weight.data = one
    agree(fast, model)
    assert_fused()


def test_a_fork_in_the_middle_of_a_call():
    """The child goes on with it: its slot is one of the program's still."""
    model = Net().eval()
    fast = compiled(model)
    agree(fast, model)
    (prepared,) = [one for one in weights.registry.programs if one.idle]
    slot = prepared.idle.pop()
    weights._after_fork()
    prepared.idle.append(slot)
    assert set(prepared.idle) <= set(prepared.slots)
    agree(fast, model)


_KEPT_TO_THE_END = """
import importlib, sys
import torch, linfuse
torch.set_default_device(sys.argv[2])
with torch.no_grad():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    fast = torch.compile(module, backend="linfuse")
    fast(torch.randn(3, 8))
importlib.import_module(sys.argv[1]).kept = [module, fast, *linfuse.counters.registry.programs]
del module, fast
"""


@pytest.mark.parametrize("holder", ["torch", "os", "linfuse.weights"])
def test_the_interpreter_ends_in_silence(holder):
    """Whoever holds a program, and in whatever order modules go."""
    words = [sys.executable, "-W", "ignore", "-c", _KEPT_TO_THE_END, holder, DEVICE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "torch.save": lambda one: saved(one),
}


def saved(one):
    file = io.BytesIO()
    torch.save(one, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_a_compiled_module_can_be_copied(made):
    """The copy compiles anew, with weights of its own wherever PyTorch's copy has such."""
    module = Net().eval()
    try:
        made(torch.compile(module, backend="eager"))
    except Exception as why:
        pytest.skip(f"this PyTorch does not copy compiled modules so: {why}")
    fast = compiled(module)
    for _ in range(3):
        agree(fast, module)
    other = made(fast)
    agree(other, module)
    with torch.no_grad():
        module.one.weight.add_(1)
    agree(fast, module)
    agree(other, other._orig_mod)


def test_what_is_compiled_says_that_it_cannot_be_copied():
    """What leads to the C library's handles; the module can be copied, and the copy compiled."""
    module, graphs = Net().eval(), []

    def keep(graph, given):
        graphs.append(linfuse.compile_graph(graph, given))
        return graphs[0]

    agree(torch.compile(module, backend=keep), module)
    (part,) = graphs[0].parts
    (prepared,) = part.family.programs.values()
    for one in (graphs[0], part, part.family, prepared):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps, saved):
            with pytest.raises(TypeError, match=f"linfuse's {type(one).__name__} belongs to this process"):
                attempt(one)
