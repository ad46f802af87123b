# SPDX-License-Identifier: Apache-2.0
"""What torch.export.export makes, and arguments in tuples, lists and dicts: explain, save, bench and torch.compile take
them as they take a model and its inputs."""

import inspect
import traceback

import pytest
import torch
import test_torch_spellings as spellings
from torch import nn
from torch.nn import functional as F
from torch_door import PYTORCH, assert_close, assert_fused, compiled, fresh, not_on_gpu, reference

import linfuse
from linfuse import tracing

begin_and_end = fresh(3)
pytestmark = not_on_gpu


class Net(nn.Module):
    """Two inputs, a buffer, ops that torch.export has overloads of its own for."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(32, 24), nn.LayerNorm(24), nn.Linear(24, 8)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x, y):
        h = F.dropout(self.norm(F.gelu(self.body(x))), 0.5, self.training).to(torch.float32) + y
        return {"odds": torch.softmax(self.head(h), dim=-1) * self.scale, "energy": torch.logsumexp(h, 1)}


def inputs(batch=16):
    return torch.rand(batch, 32), torch.rand(batch, 24)


def exported(model, given, **more):
    any_batch = tuple({0: torch.export.Dim("B")} for _ in given)
    return torch.export.export(model, given, **{"dynamic_shapes": any_batch, **more})


class Called(nn.Module):
    """A function as a module, which is what torch.export takes."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


@pytest.mark.parametrize("op", sorted(spellings.BY_ROW))
def test_overloads(op):
    """Every spelling of the table, exported, is one fused part, right against eager."""
    if PYTORCH < (2, 5) and op in ("batch_norm", "rms_norm", "selu"):
        pytest.skip("torch.export of PyTorch 2.4 takes it apart")
    sources = [s for spelling in spellings.BY_ROW[op] for s in spellings.expressions(spelling)]
    f, given = spellings.function_of(sources), tuple(spellings.leaves().values())
    with torch.no_grad():
        module = tracing.subject(torch.export.export(Called(f), given), ()).model
        got, want = compiled(module)(*given), f(*given)
    assert not linfuse.stats().fallbacks
    for source, mine, eager in zip(sources, got, want):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5, msg=source)


@pytest.mark.parametrize("decomposed", [False, True])
def test_explain(decomposed):
    """The account is the module's but for names: all fused, by the exported model's name, at its own inputs."""
    program = exported(Net().eval(), inputs())
    if decomposed:
        program = program.run_decompositions({})
    account = linfuse.explain(program)
    assert account.title == "Net" and not account.fallbacks and len(account.parts) == 1
    assert account.json()["dims"] == {"B": 16}
    kinds = [op["op"] for op in linfuse.explain(Net().eval(), *inputs()).json()["ops"]]
    if not decomposed:
        assert [op["op"] for op in account.json()["ops"]] == kinds


def test_what_is_left_is_named():
    class Waves(Net):
        def forward(self, x, y):
            return torch.softmax(self.body(torch.sin(x)) + y, 1)

    (left,) = linfuse.explain(exported(Waves().eval(), inputs())).fallbacks
    assert left.op == "torch.ops.aten.sin" and left.why == "not supported yet"


SAVED = "check_guards" in inspect.signature(torch.export.ExportedProgram.module).parameters


@pytest.mark.skipif(SAVED, reason="this PyTorch can")
def test_save_needs_a_newer_pytorch(tmp_path):
    with pytest.raises(linfuse.Error, match="needs a PyTorch newer than .*: save the module it was made of"):
        linfuse.save(exported(Net().eval(), inputs()), (), tmp_path)


@pytest.mark.skipif(not SAVED, reason="of newer PyTorch")
def test_save(tmp_path):
    """The saved program has the parameters' own names and serves any batch."""
    model = Net().eval()
    saved = linfuse.save(exported(model, inputs()), (), tmp_path)
    program = linfuse.load(saved.model, weights=saved.weights)
    x, y = inputs(5)
    assert "param body.weight f32[24, 32]" in saved.model.read_text()
    assert [one.name for one in program.inputs] == ["x", "y"]
    with torch.no_grad():
        want = model(x, y)
    for mine, eager in zip(program(x, y), want.values()):
        torch.testing.assert_close(mine, eager)


@pytest.mark.skipif(not SAVED, reason="of newer PyTorch")
def test_save_of_one_batch_is_refused(tmp_path):
    program = torch.export.export(Net().eval(), inputs())
    with pytest.raises(linfuse.Error, match="extents alone; give torch.export.export dynamic_shapes"):
        linfuse.save(program, (), tmp_path)
    assert not list(tmp_path.iterdir())


def test_bench():
    strict = {"fallback": "error"}
    made = linfuse.bench(exported(Net().eval(), inputs()), options=strict, inductor=False, seconds=0.05)
    assert made.title == "Net" and made.calls > 0


def test_written_in_place():
    """add_ and its kin are overloads, too; a model's training graph has them."""

    def f(x, w):
        return (x @ w).add_(1).relu_()

    given = torch.rand(6, 8), torch.rand(8, 8)
    program = torch.export.export(Called(f), given)
    with torch.no_grad():
        got = compiled(program.module())(*given)
    assert_fused(parts=1)
    assert_close(got, reference(f, *given), f(*given))


# ---- arguments ----


def both(x, y, *, scale=1.0):
    return torch.relu(x @ y) * scale


def pair(xy):
    return torch.relu(xy[0] @ xy[1])


X, Y = torch.rand(4, 8), torch.rand(8, 8)


@pytest.mark.parametrize(
    "model, given, more",
    [
        (both, (X, Y), {}),
        (both, ((X, Y),), {}),
        (both, ([X, Y],), {}),
        (both, ({"x": X, "y": Y},), {}),
        (both, ({"x": X, "y": Y, "scale": 1.0},), {}),
        (both, ((X,),), {"kwargs": {"y": Y}}),
        (both, (), {"kwargs": {"x": X, "y": Y}}),
        (pair, ((X, Y),), {}),
        (pair, ([X, Y],), {}),
        (pair, (((X, Y),),), {}),
        (pair, ({0: X, 1: Y},), {}),
        (torch.mm, ((X, Y),), {}),
    ],
)
def test_arguments(model, given, more, tmp_path):
    """One by one, as a tuple, a list or a dict, by name; and where a model takes a tuple, it gets one."""
    account = linfuse.explain(model, *given, **more)
    assert not account.fallbacks and account.json()["dims"] == {"B": 4}
    strict = {"fallback": "error"}
    assert linfuse.bench(model, *given, options=strict, inductor=False, seconds=0.01, **more).calls > 0
    if len(given) == 1:
        saved = linfuse.save(model, given[0], tmp_path, **more)
        program = linfuse.load(saved.model)
        want = X @ Y if model is torch.mm else torch.relu(X @ Y)
        torch.testing.assert_close(program(X, Y), want)


def test_what_takes_one_argument_gets_it():
    """A dict whose words are no arguments of the model is one argument."""
    account = linfuse.explain(lambda batch: torch.relu(batch["x"] @ batch["y"]), {"x": X, "y": Y})
    assert not account.fallbacks


def test_no_function():
    with pytest.raises(TypeError, match="a Tensor is no torch.nn.Module, and no function of tensors"):
        linfuse.explain(X, X)


# ---- what fails ----


def branches(x):
    y = torch.relu(x)
    if y.sum() > 0:  # this line
        y = y * 2
    return y


def printed(caught):
    """What Python would print, and the line of `branches` that is marked."""
    text = "".join(traceback.format_exception(caught.value))
    lines, first = inspect.getsourcelines(branches)
    return text, f"{__file__}:{first + next(i for i, line in enumerate(lines) if 'this line' in line)}"


def test_save_names_the_line(tmp_path):
    """One error with the user's line and the remedy; PyTorch's is kept, and not printed."""
    with pytest.raises(linfuse.Error) as caught:
        linfuse.save(branches, X, tmp_path)
    text, line = printed(caught)
    said = str(caught.value)
    assert said.startswith("branches cannot be saved: PyTorch does not see it as one graph: ") and "\n" not in said
    assert f", at {line}. Save the part of the model without it, or write it with ops on tensors" in said
    assert isinstance(caught.value.__context__, torch._dynamo.exc.Unsupported) and "_dynamo" not in text


@pytest.mark.parametrize("call", [linfuse.explain, lambda f, x: linfuse.bench(f, x, inductor=False, seconds=0.01)])
def test_what_pytorch_cannot_compile(call, monkeypatch):
    def fails(*_args, **_more):
        raise torch._dynamo.exc.Unsupported("Some limit\n  Explanation: long")

    monkeypatch.setattr(tracing, "compile_module", fails)
    monkeypatch.setattr(linfuse.backend, "compile_module", fails)
    with pytest.raises(linfuse.Error, match="both: PyTorch cannot compile it, .*: Some limit") as caught:
        call(both, (X, Y))
    assert "torch.compiler.disable" in str(caught.value) and "_dynamo" not in printed(caught)[0]


def test_our_own_failures_show_where(monkeypatch):
    def fails(*_args, **_more):
        raise KeyError("training")

    monkeypatch.setattr(tracing, "compile_module", fails)
    with pytest.raises(linfuse.Error, match="linfuse fails on it: KeyError: 'training'. Please report this") as caught:
        linfuse.explain(both, X, Y)
    assert "raise KeyError" in printed(caught)[0]


@pytest.mark.parametrize("call", [linfuse.explain, lambda f, x: linfuse.save(f, x, "nowhere")])
def test_what_fails_in_eager_is_the_models_own(call, caplog):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        call(lambda x: x @ Y.T[:3], X)
    assert not isinstance(caught.value, linfuse.Error) and "_dynamo" not in printed(caught)[0]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
