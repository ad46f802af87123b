# SPDX-License-Identifier: Apache-2.0
"""Several threads call one compiled model, weights change meanwhile, processes fork and spawn: nothing hangs, nothing
is stale, and PyTorch's threads and their count are kept to."""

import multiprocessing
import os
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linfuse
from linfuse import native
from torch_door import assert_fused, compiled, fresh, without_guards

SECONDS = 120


fresh_each_time = fresh(5)


class Net(nn.Module):
    def __init__(self, k=32, n=48):
        super().__init__()
        self.one, self.two = nn.Linear(k, n), nn.Linear(n, k)

    def forward(self, x):
        return torch.softmax(self.two(F.gelu(self.one(x))), dim=1)


class Shifted(Net):
    """With a tensor that is no buffer: of such a model few programs are kept."""

    def __init__(self):
        super().__init__()
        self.shift = torch.randn(32)

    def forward(self, x):
        return super().forward(x) + self.shift

    def held(self):
        return {**dict(self.named_parameters()), "shift": self.shift}


def in_threads(count, work):
    """Runs work(index) in so many threads; the first exception is raised here."""
    failures = []

    def run(index):
        try:
            with torch.no_grad():
                work(index)
        except BaseException as why:  # noqa: BLE001
            failures.append(why)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_share_a_model():
    module = Net().eval()
    fast = compiled(module)
    xs = [torch.randn(3 + i, 32) for i in range(6)]
    with torch.no_grad():
        for x in xs:
            fast(x)
        want = [fast(x).clone() for x in xs]

    def work(index):
        for _ in range(60):
            assert torch.equal(fast(xs[index]), want[index])

    in_threads(6, work)
    stats = assert_fused()
    assert stats.fused_calls == 12 + 6 * 60 and stats.programs == 1 and stats.prepared == 1


def test_weights_change_between_threads_calls():
    """Weights are written while nobody calls; then all threads come at once and find them changed. One prepares, the
    others wait, and nobody sees the old ones or a mixture."""
    module = Net().eval()
    fast = compiled(module)
    x = torch.randn(40, 32)
    states = [[param.detach().clone() for param in Net().parameters()] for _ in range(2)]

    def write(state):
        for param, value in zip(module.parameters(), state):
            param.copy_(value)

    with torch.no_grad():
        wants = []
        for state in states:
            write(state)
            wants.append(fast(x).clone())
    rounds, callers = 40, 4
    barrier = threading.Barrier(callers + 1, timeout=SECONDS)

    def work(index):
        for turn in range(rounds):
            if index == 0:
                write(states[turn % 2])
            barrier.wait()
            for _ in range(3 if index else 0):
                assert torch.equal(fast(x), wants[turn % 2])
            barrier.wait()

    in_threads(callers + 1, work)
    stats = assert_fused()
    assert stats.prepared == 2 + rounds and stats.programs == 1


def test_two_sets_of_weights_in_two_threads():
    """Two modules share the trace; threads that call both at once never get the other's weights."""
    modules = [Net().eval(), Net().eval()]
    fast = [compiled(module) for module in modules]
    x = torch.randn(9, 32)
    with torch.no_grad():
        want = [one(x).clone() for one in fast]

    def work(index):
        for turn in range(80):
            which = (turn + index) % 2
            assert torch.equal(fast[which](x), want[which])

    in_threads(4, work)
    assert linfuse.stats().programs == 2


def test_first_calls_at_once():
    module = Net().eval()
    fast = compiled(module)
    x = torch.randn(5, 32)
    results = [None] * 4

    def work(index):
        results[index] = fast(x)

    in_threads(4, work)
    with torch.no_grad():
        torch.testing.assert_close(results[0], module(x))
    assert all(torch.equal(result, results[0]) for result in results)
    assert linfuse.stats().programs == 1


@pytest.fixture
def threads_switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_programs_end_while_others_call(threads_switch_often):
    """More sets of weights than programs are kept for, in several threads: one's program ends when another calls it."""
    modules = [Shifted().eval() for _ in range(10)]
    x = torch.randn(9, 32)
    with torch.no_grad():
        run, args = without_guards(modules[0], x)
        names = [next((name for name, held in modules[0].held().items() if held is arg), None) for arg in args]
        sets = [[module.held().get(name, x) for name in names] for module in modules]
        want = [run(*one)[0].clone() for one in sets]

    def work(index):
        for turn in range(600):
            which = (3 * index + turn // (7 if index else 1)) % len(sets)
            assert torch.equal(run(*sets[which])[0], want[which])

    in_threads(4, work)
    stats = assert_fused()
    assert stats.fused_calls == 11 + 4 * 600 and stats.programs_made > 10


def test_programs_are_gone_through_while_others_come(threads_switch_often):
    """By stats(), refresh() and optimizers, in any thread."""
    fast, x, kept = torch.compile(Net.forward, backend="linfuse"), torch.randn(3, 32), [Net() for _ in range(8)]
    with torch.no_grad():
        for module in kept:
            fast(module, x)
    done = threading.Event()

    def work(index):
        if index == 0:
            for _ in range(150):
                fast(Net(), x)
            done.set()
        while not done.is_set():
            linfuse.refresh()
            assert linfuse.stats().programs >= 8

    in_threads(2, work)


def test_thread_count_is_pytorchs():
    """The same bits with any number of threads; not more of them work than PyTorch allows."""
    module = Net(256, 512).eval()
    fast = compiled(module)
    x = torch.randn(256, 256)
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            want = fast(x).clone()
            for threads in (1, 2, 3, 1):
                torch.set_num_threads(threads)
                torch._dynamo.reset() if threads == 3 else None
                assert torch.equal(fast(x), want)
            torch.set_num_threads(1)
            alone, together = cpu_share(fast, x)
            assert alone < 1.3, f"{alone:.2f} cores are used although PyTorch is allowed one"
    finally:
        torch.set_num_threads(before)
    assert_fused()


THREADS_OF = """
import os, torch, linfuse
from torch import nn

def threads():
    return len(os.listdir("/proc/self/task"))

wide, started = torch.randn(300, 256), 0
model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Softmax(1)).eval()
fast = torch.compile(model, backend="linfuse")
with torch.no_grad():
    for count in (3, 2, 5):
        torch.set_num_threads(count)
        want = model(wide)                           # PyTorch has its team now
        before = threads()
        torch.testing.assert_close(fast(wide), want)
        started += threads() - before
assert linfuse.stats().fused_calls == 3
print(started)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this PyTorch has other threads")
@pytest.mark.parametrize("whose", ["", "own"])
def test_threads_are_pytorchs(whose, environment):
    """Fused parts run on PyTorch's team, as large as it is at the call; linfuse starts threads only when told to: for
    each count of them that is larger than those before."""
    import subprocess

    done = subprocess.run([sys.executable, "-c", THREADS_OF], env={**environment, "LINFUSE_THREADS": whose},
                          capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    started = int(done.stdout)
    assert started >= 2 + 4 if whose == "own" else started == 0


def test_another_number_of_threads_is_another_runtimes():
    """A runtime that has not as many threads as PyTorch says is not PyTorch's."""
    assert not native.Context(torch.get_num_threads() + 1).use_openmp()


def cpu_share(fast, x):
    """CPU seconds a second while the model runs."""
    import time

    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < 0.5:
        fast(x)
    return (time.process_time() - cpu) / (time.perf_counter() - wall), torch.get_num_threads()


# ---- processes ----


def child_result(connection, fast, x):
    with torch.no_grad():
        connection.send(fast(x).tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_calls():
    """A model compiled and called before the fork is called after it, in the child and in the parent. The child has
    lost PyTorch's team, and PyTorch's own ops would wait for it."""
    module = Net(256, 256).eval()
    fast = compiled(module)
    x = torch.randn(64, 256)
    torch.set_num_threads(torch.get_num_threads())
    with torch.no_grad():
        want = fast(x)
    context = multiprocessing.get_context("fork")
    for threads in (None, 1, 3):
        mine, theirs = context.Pipe()
        child = context.Process(target=forked, args=(theirs, fast, x, want, threads))
        child.start()
        assert mine.poll(SECONDS), "the child hangs"
        assert mine.recv() == "same"
        child.join(SECONDS)
        assert child.exitcode == 0
        with torch.no_grad():
            assert torch.equal(fast(x), want)


def forked(connection, fast, x, want, threads):
    if threads:
        torch.set_num_threads(threads)  # 1: as DataLoader's workers do
    with torch.no_grad():
        connection.send("same" if torch.equal(fast(x), want) else "another result")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_threads_call():
    """A fork in the midst of other threads' calls; the child changes the weights, which waits for nobody who is not
    there. What
    the backend gave is called without PyTorch's guards around it: those have a lock that a fork may catch held."""
    module = Net().eval()
    with torch.no_grad():
        run, args = without_guards(module, torch.randn(16, 32))
    at = next(i for i, value in enumerate(args) if tuple(value.shape) == (16, 32))
    stop = threading.Event()

    def work(index):
        if index:
            while not stop.is_set():
                run(*args)
            return
        try:
            context = multiprocessing.get_context("fork")
            for _ in range(8):
                child = context.Process(target=forked_writer, args=(module, run, args, at))
                child.start()
                child.join(SECONDS)
                assert child.exitcode == 0, f"the child's exit code is {child.exitcode}"
        finally:
            stop.set()

    in_threads(3, work)


def forked_writer(module, run, args, at):
    torch.set_num_threads(1)
    with torch.no_grad():
        module.one.weight.mul_(2)
        os._exit(0 if torch.allclose(run(*args)[0], module(args[at]), rtol=1e-4, atol=1e-6) else 1)


class Rows(torch.utils.data.Dataset):
    """A dataset that runs the compiled model for every item."""

    def __init__(self, fast, rows):
        self.fast, self.rows = fast, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        with torch.no_grad():
            return self.fast(self.rows[index : index + 1])[0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_data_loader_with_workers():
    module = Net().eval()
    fast = compiled(module)
    rows = torch.randn(12, 32)
    with torch.no_grad():
        want = fast(rows)
        fast(rows[:1])
    loader = torch.utils.data.DataLoader(
        Rows(fast, rows), batch_size=4, num_workers=2, timeout=SECONDS, multiprocessing_context="fork"
    )
    torch.testing.assert_close(torch.cat(list(loader)), want)


def test_spawned_process():
    """A fresh process that compiles on its own."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    child = context.Process(target=spawned, args=(theirs, Net().state_dict()))
    child.start()
    assert mine.poll(SECONDS), "the child hangs"
    error, fused = mine.recv()
    child.join(SECONDS)
    assert child.exitcode == 0 and error < 1e-5 and fused == 1


def spawned(connection, state):
    sys.path.insert(0, os.path.dirname(__file__))
    module = Net().eval()
    module.load_state_dict(state)
    x = torch.randn(4, 32)
    with torch.no_grad():
        error = float((torch.compile(module, backend="linfuse")(x) - module(x)).abs().max())
    connection.send((error, linfuse.stats().fused_calls))


def test_process_ends_quietly():
    """Nothing is printed and nothing hangs at the interpreter's end, with programs alive and threads started."""
    import subprocess

    code = (
        "import torch, linfuse; from torch import nn; "
        "m = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Softmax(1)); "
        "f = torch.compile(m, backend='linfuse')\nwith torch.no_grad(): f(torch.randn(300, 256))\n"
        "assert linfuse.stats().fused_calls == 1"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and done.stderr == "", done.stderr
