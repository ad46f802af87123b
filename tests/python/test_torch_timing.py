# SPDX-License-Identifier: Apache-2.0
"""linfuse.bench and explain(measure=True): who is measured, how often, what is left out and why, and what stays."""

import dataclasses
import gc
import io
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch
from test_account import check_html
from torch import nn
from torch_door import ON_GPU, fresh, no_compiler

import linfuse
from linfuse import progress, timing

begin_and_end = fresh(7)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 8), nn.BatchNorm1d(8)

    def forward(self, x, y, *, scale=1.0):
        return torch.softmax(self.norm(self.linear(x)) * scale + y, dim=1)


def measured(model, *inputs, **more):
    return linfuse.bench(model, *inputs, seconds=0.05, **{"inductor": False, **more})


def test_eager_and_linfuse():
    """Medians by name, as many calls of each; linfuse runs fused, or else it fails; and what is counted stays."""
    model, x, y = Two().eval(), torch.rand(16, 32), torch.rand(8)
    fast = torch.compile(model, backend="linfuse")
    with torch.no_grad():
        fast(x, y, scale=2.0)
    before = linfuse.stats()
    for subject in (model, fast):
        made = measured(subject, x, y, kwargs={"scale": 2.0}, options={"fallback": "error"})
    linfuse.explain(model, x, y, scale=2.0, measure=True)
    assert list(made.ms) == ["eager", "linfuse"] and made.title == "Two" and not made.left_out
    assert made.ratio["eager"] == 1 and made.ratio["linfuse"] == made.ms["eager"] / made.ms["linfuse"]
    for name, ms in made.ms.items():
        assert 0 < made.fastest_ms[name] <= ms <= made.slowest_ms[name]
    assert made.first_call_s["linfuse"] > 1e-3 * made.ms["linfuse"]  # it compiles
    gc.collect()
    stats, counted = linfuse.stats(), ("graphs", "ops", "fused_parts", "fused_calls", "programs_made", "prepared")
    assert made.calls >= 5 and not stats.fallbacks
    assert {key: getattr(stats, key) for key in counted} == {key: getattr(before, key) for key in counted}
    with torch.no_grad():
        fast(x, y, scale=2.0)
    assert linfuse.stats().fused_calls == before.fused_calls + 1 == 2
    threads = [threading.Thread(target=measured, args=(model, x, y), kwargs={"kwargs": {"scale": 2.0}})
               for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert linfuse.stats().fused_calls == 2  # measurements do not count what others ran


def test_in_turns(monkeypatch):
    """Nobody always follows the same one, and who is slow makes turns of one call."""
    said, clock = [], iter(range(100000))
    monkeypatch.setattr(timing, "_settle", lambda: None)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    calls = {name: lambda name=name: said.append(name) for name in ("a", "b", "c")}
    turns, count = timing._take_turns(calls, lambda: None, 1.0, progress.Progress())
    assert count == 1 and {name: len(took) for name, took in turns.items()} == dict.fromkeys(calls, 5)
    assert said[6:12] == ["a", "a", "b", "b", "c", "c"] and said[12:18] == ["b", "b", "c", "c", "a", "a"]


def test_forms():
    """A table as text, the same in a notebook, and as plain values."""
    figures = [(10.3, 8, 5.96), (10, 8, 5.9), (11, 9, 6.1), (0.01, 25, 0.2)]
    made = timing.Bench("Net", "cpu", 1, 60, *(dict(zip(("eager", "inductor", "linfuse"), one)) for one in figures))
    assert made.headline == "PyTorch eager 10.3 ms, linfuse 5.96 ms: 1.7x, 60 calls each"
    text = str(made)
    assert text == repr(made) and text.startswith(f"Net on cpu, 1 thread: {made.headline}, in turns\n\n")
    assert "  inductor  8.00 ms  8.00 ms  9.00 ms      1.3x      25.0 s" in text.splitlines()
    words = " ".join(check_html(made._repr_html_()).words)
    assert made.headline in words and all(cell in words for row in made.table() for cell in row)
    assert made.json()["ratio"]["linfuse"] == pytest.approx(10.3 / 5.96)
    assert dataclasses.replace(made, machine="A CPU").where == "A CPU, 1 thread"
    assert dataclasses.replace(made, device="cuda", machine="A GPU").where == "A GPU"


def test_doubts():
    """A busy machine and uneven turns are said, and nothing on a quiet one."""
    same = dict.fromkeys(("eager", "linfuse"), 1.0)
    even = {"eager": 0.1, "linfuse": 0.2}
    quiet = timing.Bench("Net", "cpu", 1, 60, same, same, same, same, others=0.02, spread=even)
    assert not quiet.doubts and not str(quiet).endswith(".")
    noisy = dataclasses.replace(quiet, others=0.47, spread={"eager": 0.3, "linfuse": 0.2})
    assert quiet.headline == "PyTorch eager 1.00 ms, linfuse 1.00 ms: 1.0x, 60 calls each"
    assert str(noisy).splitlines()[-2:] == [
        "Other programs used 47% of the CPUs meanwhile: medians are doubtful, the fastest turns less so.",
        "The turns of eager differ by more than 25%: measure for longer, as by seconds=10, or on a quiet machine.",
    ]


@pytest.mark.parametrize("eager, ratio, says", [
    ("21.6", "1.8x", "1.8x"),
    ("10.7", "0.89x", "no ratio, by medians it is the other way round"),
])
def test_doubtful_headline(eager, ratio, says):
    """Where medians are doubtful, the fastest turns are the headline, and no ratio where both disagree."""
    median, fastest = {"eager": 16.0, "linfuse": 0.0184}, {"eager": 1e-3 * float(eager), "linfuse": 0.01203}
    noisy = timing.Bench("Net", "cpu", 2, 60, median, fastest, median, median, others=0.5)
    times = f"PyTorch eager {eager} us, linfuse 12.0 us in the fastest turns (medians doubtful)"
    assert noisy.headline == f"{times}: {says}, 60 calls each"
    head, _, ours = noisy.table()
    assert head[4] == "fastest vs eager" and ours[4] == ratio
    assert noisy.ratio["linfuse"] == pytest.approx(16 / 0.0184)


def test_busy_machine():
    """What other processes use is seen; what this one does itself is not theirs."""
    work = timing._Work()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        time.sleep(1)
        busy = work.of_others()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert busy is None or busy > 0.3
    made = measured(nn.Linear(8, 8).eval(), torch.rand(4, 8))
    assert set(made.spread) == set(made.ms) and (made.others is None or 0 <= made.others <= 1)


def test_inductor():
    made = measured(nn.Linear(8, 8).eval(), torch.rand(4, 8), inductor=True)
    can = ON_GPU or shutil.which("g++") is not None
    assert list(made.ms) == (["eager", "inductor", "linfuse"] if can else ["eager", "linfuse"]), made
    assert ("inductor" in made.left_out) != can


def test_no_compiler():
    """Inductor is left out with the reason; the others are measured."""
    with no_compiler():
        made = measured(lambda x: torch.sin(x * 17.25).sum(0), torch.rand(4, 9), inductor=True)
    assert list(made.ms) == ["eager", "linfuse"] and "C++ compiler" in made.left_out["inductor"]
    assert "inductor is left out: it has no C++ compiler" in str(made)


def test_failures_are_the_callers():
    with pytest.raises(RuntimeError, match="shape"):
        measured(nn.Linear(8, 8), torch.rand(4, 9))
    with pytest.raises(Exception, match="no option wings"):
        measured(nn.Linear(8, 8), torch.rand(4, 8), options={"wings": 2})
    for seconds in ("x", 0, float("nan"), True):
        with pytest.raises(TypeError, match="seconds is a number above 0, not "):
            linfuse.bench(nn.Linear(8, 8), torch.rand(4, 8), seconds=seconds)


def test_model_stays():
    """Running statistics and random numbers are as before, and what was compiled before is not compiled anew."""
    model = Two().train()
    fast = torch.compile(model, backend="eager")
    x, y = torch.rand(16, 32), torch.rand(8)
    before = model.norm.running_mean.clone(), torch.random.get_rng_state()
    measured(fast, x, y)
    assert torch.equal(model.norm.running_mean, before[0]) and torch.equal(torch.random.get_rng_state(), before[1])
    assert all(parameter.grad is None for parameter in model.parameters()) and model.training


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(monkeypatch):
    """On a terminal one line that is gone at the end; elsewhere nothing."""

    for stream, shows in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        measured(nn.Linear(8, 8).eval(), torch.rand(4, 8))
        text = stream.getvalue()
        assert ("linfuse: first call" in text and "turn 5" in text) == shows and "\n" not in text
        assert text.endswith("\r\x1b[K") if shows else text == ""


@pytest.mark.parametrize("patience, says", [(0.0, True), (60.0, False)])
def test_explain_says_what_it_does_where_it_takes_long(monkeypatch, patience, says):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", Terminal())
    linfuse.explain(nn.Linear(8, 8).eval(), torch.rand(4, 8))
    assert sys.stderr.getvalue().startswith("\rexplaining") == says and sys.stderr.getvalue().endswith("\r\x1b[K")


def test_explain_measured():
    """The measured headline comes first, and the predicted one says what it is."""
    model, x = nn.Sequential(nn.Linear(32, 8), nn.Softmax(1)).eval(), torch.rand(16, 32)
    account = linfuse.explain(model, x, measure=True)
    lines = str(account).splitlines()
    assert account.measured.machine == linfuse.native.machine_fact("cpu")
    assert lines[0] == f"Measured on {account.measured.where}: {account.measured.headline}"
    doubts = account.measured.doubts
    assert lines[1 : 2 + len(doubts)] == [*doubts, ""]
    assert lines[2 + len(doubts)].startswith("Predicted, linfuse's own kernels: without fusion ")
    assert account.json()["measured"]["ms"] == account.measured.ms
    words = " ".join(check_html(account._repr_html_()).words)
    assert account.measured.headline in words and all(doubt in words for doubt in doubts)
    plain = linfuse.explain(model, x)
    assert plain.measured is None and str(plain).startswith("Predicted, ") and "measured" not in plain.json()
    with pytest.raises(linfuse.Error, match="measure=True runs a PyTorch model"):
        linfuse.explain(model, x, measure=True, device="h200")


def test_explain_file_is_not_measured(root):
    with pytest.raises(linfuse.Error, match="linfuse bench"):
        linfuse.explain(root / "models" / "mlp.lf", measure=True)
