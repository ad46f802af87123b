# SPDX-License-Identifier: Apache-2.0
"""Weights are prepared once, and again when they change, however they change."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from torch_door import (
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
    assert "version counter" in reasons("call") and linfuse.stats().fused_calls == 2
