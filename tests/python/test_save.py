# SPDX-License-Identifier: Apache-2.0
"""linfuse.save: the command and linfuse.load give what PyTorch gives; what cannot be saved is named."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import linfuse


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return F.silu(self.linear(self.norm(x))) * self.scale + x


class Two(nn.Module):
    """Two inputs, of which the second is used first, two outputs, a buffer, nested modules, a shared one."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(24), Block(24)])
        self.head = nn.Linear(24, 10)
        self.register_buffer("shift", torch.rand(24))

    def forward(self, x, y):
        y = torch.tanh(y) + self.shift
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        z = self.head(x + y)
        return torch.log_softmax(z, dim=-1), z.amax(dim=1)


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.GroupNorm(4, 32), nn.Hardtanh())
        with torch.no_grad():
            self[1].running_mean.uniform_(-1, 1)
            self[1].running_var.uniform_(0.5, 2)


def function(x):
    return (x.clamp(min=0.1).log() * 2 + 1).softmax(-1)


CASES = {
    "two": (lambda: Two().eval(), 2),
    "normed": (lambda: Normed().eval(), 1),
    "function": (lambda: function, 1),
    "compiled": (lambda: torch.compile(Normed().eval(), backend="linfuse"), 1),
}


def draw(batch, count):
    random = torch.Generator().manual_seed(batch)
    return tuple(torch.rand(batch, 24, generator=random) for _ in range(count))


def reference(model, inputs):
    """In double precision, by PyTorch."""
    plain = getattr(model, "_orig_mod", model)
    with torch.no_grad():
        if isinstance(plain, nn.Module):
            plain = plain.double()
        got = plain(*(x.double() for x in inputs))
        if isinstance(plain, nn.Module):
            plain.float()
    return [one.numpy() for one in (got if isinstance(got, tuple) else (got,))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(1)
    found = {}
    for name, (make, count) in CASES.items():
        model = make()
        found[name] = model, count, linfuse.save(model, draw(6, count), tmp_path_factory.mktemp(name))
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [1, 6, 33])
def test_load(saved, name, batch):
    model, count, files = saved[name]
    program = linfuse.load(files.model, files.weights)
    inputs = draw(batch, count)
    got = program(*inputs)
    want = reference(model, inputs)
    got = got if isinstance(got, tuple) else (got,)
    assert len(got) == len(want)
    for one, other in zip(got, want):
        np.testing.assert_allclose(one.numpy(), other, rtol=3e-5, atol=3e-6)


def means(dim):
    mean = dim.exp().mean(dim=1)  # a value named as an op is; an input named as an argument is
    return mean


def loss(x, y):
    return torch.softmax(x * y, dim=1)


def both(features):
    y = features.exp()
    return y.sum(dim=1), torch.tanh(y)


@pytest.mark.parametrize(
    "model, inputs, outputs",
    [
        (nn.Sequential(nn.Linear(24, 4), nn.Softmax(1)).eval(), ["x"], ["y"]),
        (means, ["x"], ["y"]),
        (loss, ["x", "y"], ["softmax"]),
        (both, ["x"], ["sum_1", "tanh"]),
    ],
)
def test_ports_have_names_that_callers_guess(model, inputs, outputs, tmp_path):
    given = draw(5, len(inputs))
    program = linfuse.load(linfuse.save(model, given, tmp_path).model.parent)
    assert [spec.name for spec in program.inputs] == inputs and [spec.name for spec in program.outputs] == outputs
    got = program(*given)
    for one, want in zip(got if isinstance(got, tuple) else (got,), reference(model, given)):
        np.testing.assert_allclose(one.numpy(), want, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", CASES)
def test_command(saved, name, linfuse_command, tmp_path):
    model, count, files = saved[name]
    inputs, words = draw(9, count), []
    program = linfuse.load(files.model, files.weights)
    for spec, x in zip(program.inputs, inputs):
        np.save(tmp_path / f"{spec.name}.npy", x.numpy())
        words += ["--input", f"{spec.name}={tmp_path / spec.name}.npy"]
    for spec in program.outputs:
        words += ["--output", f"{spec.name}={tmp_path / spec.name}.out.npy"]
    linfuse_command("run", files.model, "--weights", files.weights, *words)
    for spec, want in zip(program.outputs, reference(model, inputs)):
        np.testing.assert_allclose(np.load(tmp_path / f"{spec.name}.out.npy"), want, rtol=3e-5, atol=3e-6)


def test_names(saved):
    """PyTorch's own, and the arguments in forward's order."""
    model, _, files = saved["two"]
    program = linfuse.load(files.model, files.weights)
    assert [spec.name for spec in program.inputs] == ["x", "y"]
    stored = load_file(files.weights)
    assert set(stored) == set(model.state_dict())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(stored[name], value, rtol=0, atol=0)
    text = files.model.read_text()
    assert text.startswith("# Two, saved by linfuse ")
    assert "blocks.1.linear = linear(" in text and "head = linear(" in text
    numbered = saved["normed"][2]
    assert "\nlinear_0 = linear(" in numbered.model.read_text() and "_0.weight" in load_file(numbered.weights)


def test_nothing_changes(tmp_path):
    """Saving and explaining leave the model, its gradients and what is compiled of it as they were."""
    model = Normed().train()
    model[2].p = 0.0
    x, before = draw(8, 1)[0], {key: value.clone() for key, value in model.state_dict().items()}
    fast = torch.compile(model, backend="linfuse")
    random = torch.get_rng_state()
    linfuse.explain(fast, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    model(x).sum().backward()
    assert all(one.grad is not None for one in model.parameters())


def test_saving_often(tmp_path):
    """Not a matter for torch.compile's own limit of recompilations."""
    model, x = Normed().eval(), draw(4, 1)[0]
    fast = torch.compile(model, backend="linfuse")
    with torch.no_grad():
        fast(x)
        made = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for _ in range(12):
            linfuse.save(fast, x, tmp_path)
        with torch._dynamo.config.patch(error_on_recompile=True):
            fast(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == made + 2 * 12  # at two batch sizes each


# ---- what cannot be saved ----


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.wave = nn.Linear(24, 24), Wave()

    def forward(self, x):
        return torch.relu(self.wave(self.linear(x)))


class Wave(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Broken(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return torch.relu(x) + 1
        return x


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Odd(), r"Odd cannot be saved, part of it is not linfuse's: .* in wave \(.*sin\): .*\. Save the part"),
        (Normed().train(), r"Normed cannot be saved.*(dropout|batch_norm)"),
        (Broken(), "Broken cannot be saved: PyTorch does not see it as one graph"),
        (lambda x: (x * 2, x), r"cannot be saved"),
        (lambda x: x.double() * 2, r"cannot be saved"),
    ],
)
def test_cannot(model, words, tmp_path):
    with pytest.raises(linfuse.Error, match=words):
        linfuse.save(model, draw(4, 1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_loose_tensor(tmp_path):
    loose = torch.rand(24)
    with pytest.raises(
        linfuse.Error, match=r"a tensor of extents \[24\] .* is neither among the inputs nor a module's"
    ):
        linfuse.save(lambda x: torch.relu(x + loose), draw(4, 1), tmp_path / "out")


def test_arguments_in_another_order(tmp_path):
    with pytest.raises(TypeError, match="in this order: here the inputs are a str, the folder a Tensor"):
        linfuse.save(torch.nn.Linear(3, 3), str(tmp_path / "dir"), torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


def test_place_is_taken(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(linfuse.Error, match="Normed cannot be saved in .*file: File exists: save it elsewhere"):
        linfuse.save(Normed().eval(), draw(4, 1), tmp_path / "file")


def test_state_dict_of_a_sequential_is_its_weights(tmp_path):
    """Whose names begin with digits; in a file there is a _ before them."""
    model, x = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4)).eval(), torch.randn(3, 6)
    saved = linfuse.save(model, (x,), tmp_path)
    state = model.state_dict()
    want = linfuse.load(saved.model, saved.weights)(x)
    assert torch.equal(linfuse.load(saved.model, weights=state)(x), want)
    with pytest.raises(linfuse.Error, match="the weights have no _0.weight, _0.bias$"):
        linfuse.load(saved.model, weights={name: value for name, value in state.items() if name[0] != "0"})


class ByBatch(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.linear, self.compute = nn.Linear(6, 5), forward

    def forward(self, x):
        return self.compute(self.linear(x), x)


@pytest.mark.parametrize("forward", [lambda y, x: y / x.shape[0], lambda y, x: y.relu() if x.shape[0] > 4 else y])
def test_what_depends_on_the_batch_is_refused(forward, tmp_path):
    with torch.no_grad(), pytest.raises(linfuse.Error, match="depends on the extents"):
        linfuse.save(ByBatch(forward), torch.rand(4, 6), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_one_tensor_for_two_inputs_is_refused(tmp_path):
    x = torch.rand(4, 24)
    with torch.no_grad(), pytest.raises(linfuse.Error, match="same tensor is given for two inputs"):
        linfuse.save(Two().eval(), (x, x), tmp_path / "saved")
