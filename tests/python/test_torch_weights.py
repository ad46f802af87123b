# SPDX-License-Identifier: Apache-2.0
"""Weights are prepared once, and again when they change, however they change; programs go with the module."""

import copy
import gc
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import cuda, native, weights
from linfuse.counters import registry
from torch_door import (
    DEVICE,
    ON_GPU,
    assert_close,
    assert_fused,
    compiled,
    fresh,
    not_on_gpu,
    reasons,
    reference,
    without_guards,
)


fresh_each_time = fresh(4)


class Net(nn.Module):
    """Two products; a mean behind one of them, which linfuse folds into the weights."""

    def __init__(self, k=20, n=12):
        super().__init__()
        self.one, self.two = nn.Linear(k, n), nn.Linear(n, k)
        self.register_buffer("scale", torch.rand(k) + 0.5)
        self.shift = torch.randn(k)

    def forward(self, x):
        h = self.two(torch.tanh(self.one(x))) * self.scale + self.shift
        return h, h.mean(dim=1, keepdim=True) + x


X = torch.randn(7, 20)


def agree(fast, module, x=X):
    with torch.no_grad():
        assert_close(fast(x), reference(module, x), module(x))


def prepared():
    return linfuse.stats().prepared


def check_change(module, change):
    """Right before and after, prepared exactly once for each."""
    fast = compiled(module)
    agree(fast, module)
    agree(fast, module)
    assert prepared() == 1
    before = [y.clone() for y in module(X)]
    with torch.no_grad():
        change(module)
    assert not all(torch.equal(y, z) for y, z in zip(before, module(X))), "the change changes nothing"
    agree(fast, module)
    agree(fast, module)
    assert_fused()
    return fast


def edit(module):
    module.one.weight[2, 3] += 1.0


def edit_bias(module):
    module.two.bias.mul_(2)


def edit_through_a_view(module):
    module.two.weight.view(-1)[5:9].add_(1)


def edit_buffer(module):
    module.scale.neg_()


def edit_held_tensor(module):
    module.shift.add_(1)


def replace(module):
    module.one.weight = nn.Parameter(torch.randn(12, 20))


def replace_buffer(module):
    module.scale = torch.rand(20)


def load(module):
    module.load_state_dict(Net().state_dict())


def load_assigned(module):
    module.load_state_dict(Net().state_dict(), assign=True)


def through_data(module):
    module.one.weight.data = torch.randn(12, 20)


def initialise(module):
    nn.init.normal_(module.two.weight)


def copy_in(module):
    module.two.bias.copy_(torch.randn(20))


def there_and_back(module):
    module.double()
    module.float()
    module.one.weight.add_(1)


def swap(module):
    module.one, module.two = copy.deepcopy(module.one), nn.Linear(12, 20)


@pytest.mark.parametrize(
    "change",
    [
        edit,
        edit_bias,
        edit_through_a_view,
        edit_buffer,
        edit_held_tensor,
        replace,
        replace_buffer,
        load,
        load_assigned,
        through_data,
        initialise,
        copy_in,
        there_and_back,
        swap,
    ],
)
def test_change(change):
    check_change(Net().eval(), change)
    assert prepared() == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.5, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.5, foreach=False),
        lambda p: torch.optim.Adam(p, lr=0.5, fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.5, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.5, fused=True, momentum=0.9),
    ],
    ids=["sgd foreach", "sgd", "adam fused", "adamw foreach", "sgd fused"],
)
def test_optimizer_steps(make):
    module = Net()
    fast = compiled(module)
    optimizer = make(module.parameters())
    agree(fast, module)
    for step in range(3):
        optimizer.zero_grad()
        sum(y.square().mean() for y in module(X)).backward()
        before = module.one.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(before, module.one.weight)
        agree(fast, module)
        assert prepared() == step + 2
    assert_fused()


def test_moved_away_and_back():
    """.to() another dtype and back: other memory, the same Parameter objects or not, never the old values."""
    module = Net().eval()
    fast = compiled(module)
    agree(fast, module)
    module.to(torch.float64)
    with torch.no_grad():
        wide = fast(X.double())
        assert all(torch.equal(y, z) for y, z in zip(wide, module(X.double())))
        module.one.weight.mul_(3)
    module.to(torch.float32)
    agree(fast, module)
    assert "float64" in reasons()


def test_moved_to_a_device_that_computes_nothing():
    module = Net().eval()
    fast = compiled(module)
    agree(fast, module)
    module.to("meta")
    module.shift = module.shift.to("meta")
    with torch.no_grad():
        assert fast(X.to("meta"))[0].device.type == "meta"
    assert "device meta" in reasons()


def test_tied_weights():
    """One Parameter in two places: a change of it counts in both, and it may be untied and tied anew."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(20, 20), nn.Linear(20, 20)
            self.up.weight = self.down.weight

        def forward(self, x):
            return F.gelu(self.down(x)) @ self.up.weight + self.up(x)

    module = Tied().eval()
    fast = compiled(module)
    agree(fast, module)
    with torch.no_grad():
        module.down.weight.mul_(1.5)
    agree(fast, module)
    module.up.weight = nn.Parameter(torch.randn(20, 20))
    agree(fast, module)
    module.down.weight = module.up.weight
    agree(fast, module)
    assert_fused()


def test_two_modules_of_a_class():
    """PyTorch uses one trace for both; each has its program, and neither throws the other's out."""
    modules = [Net().eval() for _ in range(4)]
    fast = [compiled(module) for module in modules]
    for _ in range(3):
        for one, module in zip(fast, modules):
            agree(one, module)
    stats = assert_fused()
    assert stats.programs == 4 and stats.prepared == 4


def test_layers_of_a_model():
    """The same code compiled per layer."""
    layers = nn.ModuleList([nn.Sequential(nn.Linear(20, 20), nn.GELU()) for _ in range(5)]).eval()
    fast = [compiled(layer) for layer in layers]
    with torch.no_grad():
        for _ in range(2):
            x = want = X
            for one, layer in zip(fast, layers):
                x, want = one(x), layer(want)
            torch.testing.assert_close(x, want)
    assert assert_fused().prepared == 5


def test_non_contiguous_parameter():
    module = nn.Sequential(nn.Linear(20, 12), nn.GELU()).eval()
    module[0].weight = nn.Parameter(torch.randn(20, 12).T)
    assert not module[0].weight.is_contiguous()
    fast = compiled(module)
    agree(fast, module)
    with torch.no_grad():
        module[0].weight[0, 0] = 5
    agree(fast, module)
    assert_fused()


def test_parameter_that_is_not_finite():
    module = Net().eval()
    with torch.no_grad():
        module.two.weight[3, 4] = float("inf")
    fast = compiled(module)
    agree(fast, module)
    with torch.no_grad():
        module.two.weight[3, 4] = 0.5
    agree(fast, module)
    assert_fused()


def test_inference_tensors_as_parameters():
    """They have no version counter, and may be written in inference mode: they are read at every call."""
    with torch.inference_mode():
        module = Net().eval()
        fast = compiled(module)
        for _ in range(3):
            y, z = fast(X), module(X)
            for mine, theirs in zip(y, z):
                torch.testing.assert_close(mine, theirs)
            module.one.weight.add_(0.5)
    assert_fused()


def test_inference_mode_over_plain_parameters():
    module = Net().eval()
    fast = compiled(module)
    with torch.inference_mode():
        for _ in range(2):
            for mine, theirs in zip(fast(X), module(X)):
                torch.testing.assert_close(mine, theirs)
            module.one.weight.mul_(1.1)
    assert_fused()


def write_data(module):
    module.one.weight.data.mul_(2)


def write_data_of_one(module):
    module.one.weight.data[3, 5] += 1


def write_numpy(module):
    module.two.bias.detach().numpy()[4] = 3


def average(module):
    """As an average of weights is often kept."""
    for mine, other in zip(module.parameters(), Net().parameters()):
        mine.data.mul_(0.9).add_(other.data, alpha=0.1)


@not_on_gpu
@pytest.mark.parametrize("change", [write_data, write_data_of_one, write_numpy, average])
def test_writes_that_no_counter_tells_of(change):
    check_change(Net().eval(), change)
    assert prepared() == 2


@not_on_gpu
def test_refresh():
    """A large parameter is looked at in places: a write to one value of it, of which PyTorch knows nothing, wants the
    word."""
    module = nn.Sequential(nn.Linear(300, 200), nn.Tanh()).eval()
    x = torch.randn(3, 300)
    fast = compiled(module)
    agree(fast, module, x)
    module[0].weight.data.mul_(1.5)
    agree(fast, module, x)
    assert prepared() == 2
    module[0].weight.data[77, 123] = 50.0
    linfuse.refresh()
    agree(fast, module, x)
    assert prepared() == 3
    assert_fused()


def test_parameter_without_a_counter_in_a_later_call():
    """Whoever calls what the backend gave with inference tensors gets PyTorch's answer, and later calls are fused
    again."""
    module = Net().eval()
    with torch.no_grad():
        run, args = without_guards(module, X)
        with torch.inference_mode():
            other = [value * 1 for value in args]
        for _ in range(2):
            run(*other)
        module.one.weight.mul_(2)  # wants every slot: none may have been lost
        torch.testing.assert_close(run(*args)[0], module(X)[0])
    assert "version counter" in reasons("call") and linfuse.stats().calls_fused == 2


# ---- lives ----


def test_programs_go_with_the_module():
    module = Net().eval()
    fast = compiled(module)
    agree(fast, module)
    with_it = linfuse.stats()
    assert with_it.programs == 1 and with_it.prepared_bytes > 0 and (with_it.param_bytes == 0 or ON_GPU)
    kept = weakref.ref(module.one.weight)
    del module, fast
    gc.collect()
    assert kept() is None, "the door keeps a parameter alive"
    without = linfuse.stats()
    assert without.programs == 0 and without.prepared_bytes == 0 and without.workspace_bytes == 0
    assert without.calls_fused == with_it.calls_fused


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
    kind = cuda.CudaPrepared if ON_GPU else weights.Prepared
    load = kind.load

    def call_in_between(self, names, params):
        if not again:
            again.append(None)
            again[0] = run(*args)
        load(self, names, params)

    with torch.no_grad():
        run, args = without_guards(model, X)
        model.one.weight.mul_(2)
        monkeypatch.setattr(kind, "load", call_in_between)
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
    prepare, other = native.Program.prepare, one * 3

    def interrupted(self):
        prepare(self)
        raise KeyboardInterrupt

    model.one.weight.data = other
    with monkeypatch.context() as patch, torch.no_grad(), pytest.raises(KeyboardInterrupt):
        patch.setattr(native.Program, "prepare", interrupted)
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
