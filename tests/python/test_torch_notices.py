# SPDX-License-Identifier: Apache-2.0
"""What linfuse says of itself: stats() grouped by reason, one warning where little is fused, options that cannot be
honoured, the logger."""

import logging
import re
import warnings

import pytest
import torch
from test_account import check_html
from torch import nn
from torch.nn import functional as F
from torch_door import PYTORCH, compiled, fresh, not_on_gpu

import linfuse

begin_and_end = fresh(11)


def waves(x):
    """Two ops that linfuse has not, alone with one that it would not run by itself."""
    return torch.erfinv(torch.erfinv(x * 0.25))


def mostly(x):
    return torch.softmax(F.gelu(torch.erfinv(x) * 2 + 1), dim=-1)


def said(call):
    """The warnings of linfuse's that a call gives."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        call()
    return [one for one in caught if str(one.message).startswith("linfuse")]


# ---- stats ----


def test_stats_are_grouped():
    def model(x, index, table):
        rows = F.embedding(index, table) + F.embedding(index, table * 2)
        return torch.softmax(x + torch.erfinv(rows), dim=-1)

    with torch.no_grad():
        compiled(model)(torch.rand(4, 8), torch.tensor([1, 0, 2, 1]), torch.rand(3, 8))
    stats = linfuse.stats()
    assert stats.graphs == 1 and stats.graphs_fused == 0 and stats.fused_parts > 0 and stats.fused_calls > 0
    assert isinstance(stats.fallbacks, list)
    left = {op: one for one in stats.fallbacks for op in one.ops}
    assert left["embedding"].ops.count("embedding") == 2 and left["erfinv"].reason == "not supported yet"
    assert all(one.count == len(one.ops) for one in stats.fallbacks)
    count = sum(one.count for one in stats.fallbacks)
    assert stats.ops > count and f"{count} of {stats.ops} ops in PyTorch" in str(stats)
    assert "embedding x2" in str(stats) and stats.json()["fallbacks"][0]["reason"] == stats.fallbacks[0].reason


def test_a_loss_says_what_does_it():
    head, x, target = nn.Linear(8, 16), torch.rand(4, 8), torch.tensor([1, 0, 2, 1])
    (left,) = linfuse.explain(lambda x, target: F.cross_entropy(head(x).relu(), target), x, target).fallbacks
    assert left.why.startswith("not supported yet; linfuse.linear_cross_entropy(x, weight, target) does it")
    (left,) = linfuse.explain(lambda x, target: F.cross_entropy(head(x), target), x, target).fallbacks
    assert left.why.startswith("no loss head: its logits take 256 B")


def test_one_reason_is_one_line():
    with torch.no_grad():
        compiled(mostly)(torch.rand(4, 8))
    assert "\n1 of 5 ops in PyTorch: erfinv: not supported yet" in str(linfuse.stats())
    assert "1 graph, 0 fused as a whole; 1 fused part, 1 fused call\n1 program alive" in repr(linfuse.stats())


@not_on_gpu
def test_calls_in_pytorch():
    """A part that is fused at other calls: its ops, and how often."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.rand(4, 8)
    with torch.no_grad():
        held = {}

        def keep(graph, given):
            held.update(run=linfuse.compile_graph(graph, given).run, args=list(given))
            return held["run"]

        torch.compile(model, backend=keep)(x)
        wide = [one.double() if one is x else one for one in held["args"]]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="dtype"):
                held["run"](*wide)
    (left,) = linfuse.stats().fallbacks
    assert left.when == "call" and left.count == 2 and left.ops == ("linear", "gelu") and "float64" in left.reason
    assert f"2 calls in PyTorch: linear, gelu: {left.reason}" in str(linfuse.stats())


def test_units_and_html():
    with torch.no_grad():
        fast = compiled(nn.Sequential(nn.Linear(512, 512), nn.GELU()).eval())
        fast(torch.rand(4, 512))
        compiled(waves)(torch.rand(4, 8))
    stats = linfuse.stats()
    assert "1.06 MB of prepared weights" in str(stats) and "2 graphs, 1 fused as a whole" in str(stats)
    words = " ".join(check_html(stats._repr_html_()).words)
    assert all(fact in words for fact in stats.facts()) and "erfinv x2" in words


# ---- warnings ----


def test_nothing_fused_is_warned_of_once():
    fast = compiled(waves)
    (one,) = said(lambda: fast(torch.rand(4, 8)))
    assert one.filename == __file__
    assert str(one.message).startswith(
        "linfuse: none of 3 ops of waves (test_torch_notices.py) fused; in PyTorch: erfinv x2: not supported yet "
        "(1 other reason). "
    )
    assert "linfuse.explain" in str(one.message)
    assert not said(lambda: (fast(torch.rand(5, 8)), fast(torch.rand(3, 3, 8))))  # traced anew


def test_models_of_one_file_are_told_apart():
    class Sharp(nn.Module):
        def forward(self, x):
            return torch.erfinv(x)

    class Flat(nn.Module):
        def forward(self, x):
            return torch.erfinv(x)

    for kind in (Sharp, Flat):
        for times in (1, 0):
            got = said(lambda: compiled(kind())(torch.rand(4, 8)))
            assert len(got) == times and all(f" of {kind.__name__}.forward (" in str(one.message) for one in got)
            torch._dynamo.reset()


def test_remedy_of_a_dtype():
    model = nn.Linear(8, 8).double()
    (one,) = said(lambda: compiled(model)(torch.rand(4, 8, dtype=torch.float64)))
    assert "dtype float64. Give it a model and inputs in float32." in str(one.message)


def test_convolutions_are_the_reason():
    """Of a CNN the warning names its convolutions first, whatever lies alone between them; so does the account."""
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 4)).eval(), torch.rand(2, 3, 8, 8)
    (one,) = said(lambda: compiled(model)(x))
    assert "in PyTorch: conv2d x8: convolutions are left to PyTorch (1 other reason)." in str(one.message)
    text = str(linfuse.explain(model, x))
    assert "  convolutions are left to PyTorch\n    conv2d x8; the first is input_1: torch.conv2d in 0\n" in text


@not_on_gpu
def test_the_encoder_layers_fast_path():
    """It is one op of PyTorch's; what is said shows how to see through it, and that does."""
    if PYTORCH < (2, 5):
        pytest.skip("PyTorch 2.4 does not trace it as one op")
    model, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.rand(2, 4, 16)
    with torch.no_grad():
        (left,) = linfuse.explain(model, x).fallbacks
        assert left.op == "torch._transformer_encoder_layer_fwd" and "hides the linear layers" in left.why
        (switch,) = re.findall(r"torch\.backends\.mha\.\w+\(False\)", left.why)
        try:
            eval(switch)
            assert len(linfuse.explain(model, x).parts) > 0
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def test_what_is_mostly_fused_is_not_warned_of():
    assert not said(lambda: compiled(mostly)(torch.rand(4, 8)))


@not_on_gpu
def test_options_that_cannot_be_honoured():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.rand(4, 8)
    (one,) = said(lambda: compiled(model, precision="tf32")(x))
    assert "precision tf32 is a GPU's; the CPU computes in fp32" in str(one.message)
    assert not said(lambda: compiled(model, precision="fp32")(x))
    torch._dynamo.reset()  # PyTorch 2.4 takes what was compiled with other options
    (one,) = said(lambda: compiled(model, tune=True)(x))
    assert "tune measures a GPU's kernels; on the CPU there is nothing to choose from" in str(one.message)
    with torch.no_grad():  # the mode is inductor's, too
        assert not said(lambda: torch.compile(model, backend="linfuse", mode="max-autotune")(x))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")  # allowed, not asked for
        assert not said(lambda: compiled(nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval())(x))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"presicion": "fp32"}, "linfuse has no option presicion; it has precision, .*; did you mean precision\\?"),
        ({"fallbakc": "error"}, "no option fallbakc; it has .*; did you mean fallback\\?"),
        ({"precision": "ft32"}, "precision is one of fp32, tf32, bf16, fp16, not ft32; did you mean fp32\\?"),
        ({"fallback": "eror"}, "fallback is one of pytorch, error, not eror; did you mean error\\?"),
        ({"rest": "inducter"}, "rest is one of auto, inductor, eager, not inducter; did you mean inductor\\?"),
        ({"rules": "-fold_bais"}, "there is no rule 'fold_bais'; did you mean fold_bias\\?"),
        ({"nothing_near_it": 1}, "linfuse has no option nothing_near_it; it has precision"),
    ],
)
def test_words_that_were_meant(options, says):
    """As options of torch.compile; those that explain takes are C's, or a model's arguments."""
    with pytest.raises(linfuse.Error, match=says):
        linfuse.compile_graph(torch.fx.symbolic_trace(nn.ReLU()), [torch.rand(2, 3)], options)


def test_words_that_explain_takes(root):
    model, x = nn.Linear(3, 3).eval(), torch.rand(2, 3)
    with pytest.raises(linfuse.Error, match="options are measure, device, .*; did you mean device\\?"):
        linfuse.explain(model, x, devise="h200")
    with pytest.raises(linfuse.Error, match="there is no 'h20'; did you mean h200\\?"):
        linfuse.explain(model, x, device="h20")
    with pytest.raises(linfuse.Error, match="mlp.lf has no extent Batch; it has B"):
        linfuse.explain(root / "models" / "mlp.lf", dims={"Batch": 3})


def test_unknown_mode():
    from linfuse.backend import backend

    def through(mode):
        torch._dynamo.reset()
        named = lambda graph, given: backend(graph, given, mode=mode)  # noqa: E731
        return torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), backend=named)(torch.rand(4, 8))

    (one,) = said(lambda: through("turbo"))
    assert "mode turbo is unknown" in str(one.message) and "max-autotune" in str(one.message)
    assert not said(lambda: through("default"))


# ---- the logger ----


def test_logger(caplog):
    with caplog.at_level(logging.INFO, "linfuse"), torch.no_grad():
        compiled(mostly)(torch.rand(4, 8))
    lines = [record.getMessage() for record in caplog.records if record.name == "linfuse"]
    assert lines[0] == "a graph of 5 ops: 4 fused, in 1 part"
    assert lines[1].startswith("part0: ") and "softmax" in lines[1]
    assert lines[2] == "in PyTorch: erfinv: not supported yet"
