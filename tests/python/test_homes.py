# SPDX-License-Identifier: Apache-2.0
"""A part's call as on a GPU (cuda.py), where there is none: streams, capture, workspace and alignment are Python's to
care for, and a program for the CPU stands in for one there."""

import contextlib
import gc
import threading
import time

import pytest
import torch
import torch._inductor
from torch import nn

import linfuse
from linfuse import calling, cuda, fused, native, shortcut, weights
from torch_door import assert_close, assert_fused, compiled, fresh, not_on_gpu, reasons, reference, without_guards

pytestmark = not_on_gpu
fresh_each_time = fresh(9)


class Gpu(cuda.Gpu):
    """The CPU, called as a GPU of number -1, which is what PyTorch says of its tensors."""

    place = native.Place.HOST

    def __init__(self, device):
        super().__init__(device)
        self.index, self.feature = -1, (None, "get_device", -1)

    def entered(self):
        return contextlib.nullcontext()

    def making(self, first):
        return contextlib.nullcontext()

    def given(self, params):
        return [param.detach().clone() for param in params]


@pytest.fixture
def gpu(monkeypatch):
    """What PyTorch would say: to be changed by tests."""
    state = {"stream": 5, "capturing": False, "current": -1}
    monkeypatch.setattr(cuda, "_stream_of", lambda index: state["stream"])
    monkeypatch.setattr(cuda, "_capturing", lambda: state["capturing"])
    monkeypatch.setattr(cuda, "_current_gpu", lambda: state["current"])
    monkeypatch.setattr(cuda, "_new", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
    monkeypatch.setattr(fused, "home_of", Gpu)
    monkeypatch.setattr(calling.Slots, "workspace", lambda slots, slot, sized: state.get("room", 512))
    run_at, set_param, state["ran"] = calling._run_at, native.Compiled.set_param, []

    def run(call, dims, inputs, outputs, options):
        state["ran"].append(native.RunOptions.from_buffer_copy(native.RunOptions.from_address(options)))
        return run_at(call, dims, inputs, outputs, None)  # a program for the CPU takes no stream

    monkeypatch.setattr(calling, "_run_at", run)
    monkeypatch.setattr(native.Compiled, "set_param", lambda *args, stream, **how: set_param(*args, **how))
    monkeypatch.setattr(shortcut, "_library", None)
    return state


@pytest.fixture
def compiling(monkeypatch):
    """Compilations, each as the thread it is in and its extents, that end when `go` is set."""

    class Compiling(list):
        go = threading.Event()

    seen, compile_for = Compiling(), native.Compiled.compile

    def slowly(program, extents):
        seen.append((threading.current_thread().name, tuple(extents)))
        if threading.current_thread() is not threading.main_thread():
            assert seen.go.wait(60)
        compile_for(program, extents)

    monkeypatch.setattr(native.Compiled, "compile", slowly)
    yield seen
    seen.go.set()


class Layers(nn.Module):
    """Three layers that are one, around what is PyTorch's; and one more."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(3))
        self.last = nn.Sequential(nn.Linear(20, 7), nn.GELU())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).cumsum(1)
        return self.last(x)


@pytest.mark.parametrize("kind", ["eager", "inductor"])
def test_kernels_are_compiled_while_the_host_goes_on(gpu, compiling, monkeypatch, kind):
    """Of each model one program, for the extents of the trace, before anybody calls and all at once."""
    module, x = Layers().eval(), torch.randn(5, 20)
    begun = []

    def called(self, *args):
        if not begun:
            while len(compiling) < 2:
                time.sleep(0.01)
            begun.extend(compiling)
            compiling.go.set()
        return run(self, *args)

    run = fused.Part.__call__
    monkeypatch.setattr(fused.Part, "__call__", called)
    monkeypatch.setattr(torch._inductor, "compile", lambda module, *rest: module)
    with torch.no_grad():
        fast = compiled(module, rest=kind)
        assert_close(fast(x), reference(module, x), module(x))
    assert begun == [("linfuse-compile", (5,))] * 2
    assert linfuse.stats().fused_parts == linfuse.stats().fused_calls == 4
    # then each layer's program for itself, which finds the kernel there
    assert compiling[2:] == [("MainThread", (5,))] * 4


def test_what_cannot_be_compiled_ahead_is_told_by_the_call(gpu, monkeypatch):
    def refuse(program, extents):
        raise native.Error("no such kernel", native.Status.UNSUPPORTED)

    module, x = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), torch.randn(5, 20)
    monkeypatch.setattr(native.Compiled, "compile", refuse)
    with torch.no_grad():
        assert_close(compiled(module)(x), reference(module, x), module(x))
    assert "no such kernel" in reasons("call")


def test_graphs_that_are_never_called_end_with_their_compilers(gpu, compiling):
    def drop(graph, given):
        linfuse.compile_graph(graph, given)
        return graph.forward

    before = set(threading.enumerate())
    with torch.no_grad():
        torch.compile(nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), backend=drop)(torch.randn(5, 20))
    (compiler,) = set(threading.enumerate()) - before
    gc.collect()
    compiling.go.set()
    compiler.join(60)
    assert not compiler.is_alive() and compiling == [("linfuse-compile", (5,))]


def program():
    (prepared,) = [one for one in weights.registry.programs if isinstance(one.home, Gpu)]
    return prepared


def test_a_slot_stays_with_its_stream(gpu):
    module, x = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), torch.randn(5, 20)
    with torch.no_grad():
        run, args = without_guards(module, x)
        for stream in (5, 7, 5, 0, 7):
            gpu["stream"] = stream
            assert_close(run(*args), reference(module, x), module(x))
        slots = program().slots
        assert [slot.stream for slot in slots] == [5, 7, 0] and [slot.runs for slot in slots] == [3, 2, 1]
    assert [options.stream for options in gpu["ran"]] == [5, 5, 7, 5, None, 7]
    assert {options.workspace_bytes for options in gpu["ran"]} == {512}
    assert_fused()


def test_workspace_is_kept_while_it_is_small(gpu):
    module, x = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), torch.randn(5, 20)
    with torch.no_grad():
        run, args = without_guards(module, x)
        (slot,) = program().slots
        assert slot.room_size == 512 and slot.options.workspace == slot.room_at == slot.room.data_ptr()
        gpu["room"] = 2 << 20
        run(*args)
        assert slot.room_size == 512 and gpu["ran"][-1].workspace_bytes == 2 << 20
        assert gpu["ran"][-1].workspace not in (None, slot.room_at)


def test_inputs_are_copied_to_where_wide_loads_may_read(gpu):
    module = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval()
    with torch.no_grad():
        run, args = without_guards(module, torch.randn(5, 20))
        for x in (torch.randn(101)[1:].view(5, 20), torch.randn(20, 5).T):
            given = [x if one.shape == x.shape else one for one in args]
            assert_close(run(*given), reference(module, x), module(x))
        (slot,) = program().slots
        assert slot.inputs[0] % cuda.ALIGNED == 0
    assert_fused()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(gpu, dtype):
    """Fused as on the CPU; what begins between two places where wide loads may read is copied."""
    module = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval().to(dtype)
    with torch.no_grad():
        run, args = without_guards(module, torch.randn(5, 20).to(dtype))
        for x in (torch.randn(5, 20).to(dtype), torch.randn(101).to(dtype)[1:].view(5, 20)):
            given = [x if one.shape == x.shape else one for one in args]
            (y,) = run(*given)
            assert y.dtype is dtype
            assert_close([y], reference(module, x), module(x))
        assert program().slots[0].inputs[0] % cuda.ALIGNED == 0
        module[0].weight.mul_(2)
        assert_close(run(*given), reference(module, x), module(x))
    assert {options.workspace_bytes for options in gpu["ran"]} == {512}
    assert_fused()


def test_a_captured_call_keeps_its_slot_and_weights(gpu):
    module, x = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), torch.randn(5, 20)
    with torch.no_grad():
        run, args = without_guards(module, x)
        gpu["capturing"] = True
        run(*args)
        prepared = program()
        ((kept, slot),) = weights.captured
        assert kept is prepared and prepared.fixed and slot.kept and slot not in prepared.idle
        module[0].weight.mul_(2)
        want = module(x)
        torch.testing.assert_close(run(*args)[0], want)
        assert "a graph is being captured" in reasons("call")
        gpu["capturing"] = False
        assert_close(run(*args), reference(module, x), want)
        assert len([one for one in weights.registry.programs if isinstance(one.home, Gpu)]) == 2


def test_another_gpu_is_the_current_one(gpu, monkeypatch):
    """The call is made with its own the current one."""
    entered = []

    @contextlib.contextmanager
    def enter(self):
        entered.append(gpu["current"])
        before, gpu["current"] = gpu["current"], -1
        yield
        gpu["current"] = before

    module, x = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).eval(), torch.randn(5, 20)
    with torch.no_grad():
        run, args = without_guards(module, x)
        monkeypatch.setattr(Gpu, "entered", enter)
        gpu["current"] = 3
        assert_close(run(*args), reference(module, x), module(x))
    assert entered == [3] and gpu["current"] == 3 and linfuse.stats().fused_calls == 2
