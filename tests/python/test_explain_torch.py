# SPDX-License-Identifier: Apache-2.0
"""linfuse.explain on PyTorch models: module names, extents of the inputs, what is left to PyTorch and why."""

import pytest
import torch
from test_account import check_html
from torch import nn
from torch.nn import functional as F

import linfuse
from linfuse import choice


pytestmark = pytest.mark.usefixtures("own_cache")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 48), nn.GELU())
        self.head = nn.Linear(48, 8)

    def forward(self, x):
        return F.log_softmax(self.head(self.body(x)), dim=1)


class Waves(Net):
    def forward(self, x):
        y = torch.sin(self.body(x))
        return F.softmax(self.head(y), dim=1)


def test_names_and_extents():
    account = linfuse.explain(Net().eval(), torch.rand(16, 32))
    facts = account.json()
    assert [op["name"] for op in facts["ops"]] == ["body.0", "body.1", "head", "log_softmax"]
    assert [op["op"] for op in facts["ops"]] == ["linear", "gelu", "linear", "log_softmax"]
    assert facts["dims"] == {"B": 16} and facts["ops"][0]["shape"] == [16, 48]
    assert facts["fallbacks"] == [] and len(account.parts) == 1 and account.title == "Net"
    assert "body.0" in str(account) and "Left to PyTorch" not in str(account)
    assert "body.0" in " ".join(check_html(account._repr_html_()).words)


@pytest.mark.parametrize("rows, columns, tail, left", [
    (65536, 10, nn.Softmax(dim=1), True),
    (65536, 1000, nn.Softmax(dim=1), False),  # tiles are full
    (64, 10, nn.Softmax(dim=1), False),  # too little to matter
    (65536, 64, nn.AvgPool1d(64), False),  # no product is left
])  # fmt: skip
def test_few_columns_of_many_rows_are_pytorchs_on_a_gpu(rows, columns, tail, left):
    model, x = nn.Sequential(nn.Linear(1024, columns), tail).eval(), torch.empty(rows, 1024)
    account = linfuse.explain(model, x, device="h200")
    assert [one.why for one in account.fallbacks] == [choice.REASON_FEW] * left
    assert not linfuse.explain(model, x, device="cpu").fallbacks
    if not left:
        plain = account.plain
        assert account.fused.us < 1.25 * max(plain.us, plain.host_us)


def test_precision_of_the_cpu():
    """fp32, whatever is asked for, as when compiling; but what is asked for must be something."""
    x = torch.rand(16, 32)
    want = linfuse.explain(Net().eval(), x).json()
    assert linfuse.explain(Net().eval(), x, precision="tf32").json() == want
    with pytest.raises(linfuse.Error, match="precision is one of fp32, tf32, bf16, fp16, not half"):
        linfuse.explain(Net().eval(), x, precision="half")


def test_same_as_the_command(tmp_path, linfuse_command):
    """The account of the module is the command's of the saved model. Two outputs keep their names; one becomes y."""

    class Two(Net):
        def forward(self, x):
            found = super().forward(x)
            return found, found.exp()

    model, x = Two().eval(), torch.rand(16, 32)
    files = linfuse.save(model, x, tmp_path)
    told = linfuse_command("explain", files.model, "--batch", 16, "--device", "h200").stdout
    assert str(linfuse.explain(model, x, device="h200")).strip() == told.strip()


def test_compiled_and_functions():
    x = torch.rand(16, 32)
    model = Net().eval()
    want = linfuse.explain(model, x, device="a100").json()
    assert linfuse.explain(torch.compile(model, backend="linfuse"), x, device="a100").json() == want
    assert linfuse.explain(torch.compile(model, backend="eager"), x, device="a100").json() == want

    def scaled(t):
        return (t * 2 + 1).softmax(-1)

    for one in (scaled, torch.compile(scaled, backend="linfuse")):
        assert [op["op"] for op in linfuse.explain(one, x).json()["ops"]] == ["mul", "add", "softmax"]


def test_arguments_by_name():
    """A model's own arguments are no options of linfuse; what could be either goes into kwargs."""

    def model(x, *, scale, device=1.0):
        return (x * scale + device).softmax(-1)

    x, scale = torch.rand(4, 8), torch.rand(8)
    want = linfuse.explain(lambda x, scale: (x * scale + 1.0).softmax(-1), x, scale).json()
    for account in (
        linfuse.explain(model, x, scale=scale),
        linfuse.explain(model, x=x, scale=scale, assume_finite=True),
    ):
        assert [op["op"] for op in account.json()["ops"]] == [op["op"] for op in want["ops"]]
    by_name = linfuse.explain(model, x, scale=scale, device="a100", kwargs={"device": 2.0}).json()
    assert by_name["device"] == "a100" and not by_name["fallbacks"]
    with pytest.raises(linfuse.Error, match="scal"):
        linfuse.explain(model, x, scal=scale)
    with pytest.raises(TypeError, match="x is given twice"):
        linfuse.explain(model, x, x=x, scale=scale)


def test_what_is_left():
    account = linfuse.explain(Waves().eval(), torch.rand(16, 32))
    (left,) = account.fallbacks
    assert "sin" in left.op and left.why and left.module == ""
    assert len(account.parts) == 2
    assert "Left to PyTorch" in str(account) and "sin" in str(account)
    facts = account.json()
    assert facts["fallbacks"][0]["op"] == left.op
    assert {op["part"] for op in facts["ops"]} == {1, 2}
    words = " ".join(check_html(account._repr_html_()).words)
    at = [words.index(word) for word in ("input", "1. linear+gelu", "torch.sin", "2. linear+softmax", "output")]
    assert at == sorted(at) and left.part == 2


def test_graph_break():
    class Broken(Net):
        def forward(self, x):
            y = self.body(x)
            torch._dynamo.graph_break()
            return F.softmax(self.head(y), dim=1)

    account = linfuse.explain(Broken().eval(), torch.rand(16, 32))
    assert len(account.parts) == 2
    assert "PyTorch broke the model into 2 graphs." in str(account)


def test_all_of_it_is_pytorchs():
    account = linfuse.explain(lambda x: torch.sin(x), torch.rand(4, 4))
    assert not account.parts and len(account.fallbacks) == 1
    assert "Nothing of it runs in linfuse." in str(account)
    check_html(account._repr_html_())


def test_what_pytorch_does_not_trace():
    """An LSTM has Dynamo leave the whole call to Python."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.LSTM(8, 8)

        def forward(self, x):
            return self.second(self.first(x))[0]

    with pytest.raises(linfuse.Error, match="traced nothing of Reader: .*TORCH_LOGS=graph_breaks"):
        linfuse.explain(Reader().eval(), torch.rand(4, 8))


def test_options():
    model, x = Net().eval(), torch.rand(16, 32)
    assert linfuse.explain(model, x, device="h200").json()["device"] == "h200"
    with pytest.raises(linfuse.Error, match="no rule 'nonsense'"):
        linfuse.explain(model, x, rules="+nonsense")
    with pytest.raises(linfuse.Error, match="dims"):
        linfuse.explain(model, x, dims={"B": 4})
    with pytest.raises(TypeError, match="int"):
        linfuse.explain(3)


def test_weights_are_not_asked_for():
    """Costs alone: nothing is prepared, no program stays."""
    linfuse.reset_stats()
    linfuse.explain(Net().eval(), torch.rand(16, 32))
    assert linfuse.stats().prepared == 0 and linfuse.stats().graphs == 0
