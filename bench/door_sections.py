# SPDX-License-Identifier: Apache-2.0
"""What bench/door.py measures: the cost of a call, of the first call, full size against C, a sweep against PyTorch."""

import copy
import functools
import gc
import importlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch

import build
import cases
import machine
import report
import to_torch

PATHS = [str(machine.ROOT / folder) for folder in ("python", "examples", "tests/python")] + [str(build.installed())]
sys.path[:0] = PATHS

AGREE = (
    2e-4  # of the larger of the value and the rms of all: sums in another order stay below, another function does not
)
REFERENCE = {
    "lse_chain": ("LseChain", 1024),
    "gelu_softmax": ("GeluSoftmax", 1024),
    "mean_residual": ("MeanResidual", 2048),
}


@dataclass(frozen=True)
class Context:
    device: str
    quick: bool
    models: str  # of the sweep those whose name contains one of these words, commas between
    without: list  # backends that are not measured
    files: object  # of build.py

    def wanted(self, name):
        return any(word in name for word in self.models.split(","))

    def backends(self):
        return [who for who in ("inductor", "linfuse") if who not in self.without]

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def example(name, features, device):
    """A reference model as examples/ has it."""
    made = getattr(importlib.import_module(name), REFERENCE[name][0])
    torch.manual_seed(1)
    with torch.device(device):
        return made(features, features).eval()


def apart(got, want):
    """The largest difference, against the larger of the value and the rms of all."""
    if isinstance(want, (tuple, list)):
        return max(map(apart, got, want))
    rms = want.double().square().mean().sqrt()
    return ((got.double() - want.double()).abs() / want.double().abs().clamp(min=rms)).max().item()


def compiled(model, backend):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


def turns(calls, context, rounds, burst, every=1):
    """name -> seconds a call in each round; in a round everybody has a turn of `burst` seconds, in an order that is
    drawn: who comes after a product at full power finds a GPU at a lower clock. Calls that take longer than that have
    one in one of `every` rounds."""
    count, times, order = {}, {name: [] for name in calls}, list(calls)
    for name, call in calls.items():  # the least of some: somebody else may have had the machine
        least = min(timed(call, context, 1) for _ in range(3))
        if least < burst:
            least = min(timed(call, context, 3) for _ in range(5))
        count[name] = max(1, int(burst / max(least, 1e-7)))
    draw = random.Random(1)
    for at in range(rounds):
        draw.shuffle(order)
        for name in order:
            if count[name] == 1 and at % every != 0:
                continue
            time.sleep(0.02)  # whoever was before: its threads stop spinning
            if count[name] > 1:
                timed(calls[name], context, max(1, count[name] // 10))
            times[name].append(timed(calls[name], context, count[name]))
    return times


def in_turns(calls, context, *how):
    """name -> seconds a call, the median over rounds."""
    return medians(turns(calls, context, *how))


def medians(times):
    return {name: statistics.median(one) for name, one in times.items()}


def timed(call, context, count):
    context.wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    context.wait()
    return (time.perf_counter() - start) / count


# ---- the cost of a call ----


def nothing(graph, inputs):
    """A backend that computes nothing after its first call: what is left is Dynamo's own cost."""
    kept = []

    def run(*args):
        if not kept:
            kept.append(graph.forward(*args))
        return kept[0]

    return run


def only_c(run_c, out):
    """A backend that does nothing but the C call, into `out`: guards and C as they follow each other in a call."""

    def backend(graph, inputs):
        def run(*args):
            run_c()
            return (out,)

        return run

    return backend


def overhead(context):
    """A call at 8 x 64 x 64."""
    model, x = example("gelu_softmax", 64, context.device), torch.rand(8, 64, device=context.device)
    with torch.no_grad():
        want = model(x)
        run, _, kept = c_call("gelu_softmax", 64, model, x)
        backends = {"guards alone": nothing, "guards and the C call": only_c(run, kept[-1])}
        calls = {"eager": model}
        for name, backend in {**backends, **{who: who for who in reversed(context.backends())}}.items():
            # a module each: Dynamo's guards would see the others' compilations
            calls[name] = torch.compile(copy.deepcopy(model), backend=backend)
        error = max(apart(call(x), want) for call in calls.values())
        bound = {name: (lambda f=f: f(x)) for name, f in calls.items()}
        if context.device == "cuda":
            bound["linfuse, graph replayed"] = captured(calls["linfuse"], x)
            bound["linfuse from C"] = run  # by ctypes, which costs less than a microsecond
        times = turns(bound, context, 9 if context.quick else 20 if context.device == "cuda" else 60, 0.01)
    if context.device == "cpu":
        lines = subprocess.run(
            [context.files.overhead, "400"], check=True, capture_output=True, text=True
        ).stdout.split()
        times["linfuse from C"] = [1e-9 * float(line) for line in lines]
    # the least: what calls take where nobody else uses the machine meanwhile
    ways = (min, lambda one: statistics.quantiles(one, n=4)[0], statistics.median)
    us = {name: [1e6 * way(one) for way in ways] for name, one in times.items()}

    def over(*who):
        least, low, middle = (report.sig(us["linfuse"][at] - sum(us[name][at] for name in who)) for at in range(3))
        return f"{least} us by the least, {low} us by lower quartiles, {middle} us by medians"

    words = [
        f"linfuse over guards and the C call: {over('guards and the C call')} (to be at most 20); "
        f"over the sum of the two measured alone: {over('guards alone', 'linfuse from C')}",
        f"max err {error:.0e}",
    ]
    return {
        "title": "A call at 8 x 64 x 64, Linear -> GELU -> Softmax",
        "head": ["who", "least us", "lower quartile us", "median us"],
        "rows": [[name, *map(report.sig, us[name])] for name in times],
        "words": words,
        "seconds": times,
        "right": error < AGREE,
    }


def captured(call, *inputs):
    """The call as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(*inputs)
    return graph.replay


# ---- the first call ----

_FIRST = """
import sys, time
import torch
name, made, backend, device, way, features, batch = sys.argv[1:]
model = getattr(__import__(name), made)(int(features), int(features)).eval().to(device)
x = torch.rand(int(batch), int(features), device=device)
with torch.no_grad():
    model(x)
    if way != "cold":  # PyTorch's compiler imported and used once, by a backend that does nothing
        torch.compile(lambda t: t + 1, backend="eager")(x)
    start = time.perf_counter()
    torch.compile(model, backend=backend)(x)
    if device == "cuda":
        torch.cuda.synchronize()
    print(time.perf_counter() - start)
"""


def first_call(context):
    """Seconds until the first result, each in a process of its own."""
    ways = ["compiler warm", "compiler warm, kernels on disk"] + ["cold"] * (context.device == "cpu")
    names = ["gelu_softmax"] if context.quick else list(REFERENCE)
    todo = [(name, backend) for name in names for backend in reversed(context.backends())]
    found = {one: first_calls(*one, context, ways) for one in todo}
    how = (
        "Seconds from torch.compile to the first result, 64 x 1024 x 1024, in a process of its own. compiler warm: "
        "after PyTorch's compiler was imported and used once by a backend that does nothing, without caches on disk; "
        "kernels on disk: the same again with what the one before left there."
    )
    how += " cold: with importing PyTorch's compiler." if "cold" in ways else ""
    return {
        "title": "The first call",
        "head": ["model", "backend", *ways],
        "rows": [[*one, *map(report.sig, found[one])] for one in todo],
        "words": [how],
        "seconds": {" ".join(one): found[one] for one in todo},
        "right": True,
    }


def first_calls(name, backend, context, ways):
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as empty:
        return [run_first(name, backend, context, way, empty if way == "cold" else kept) for way in ways]


def run_first(name, backend, context, way, cache):
    caches = {"TORCHINDUCTOR_CACHE_DIR": cache, "XDG_CACHE_HOME": cache, "TRITON_CACHE_DIR": cache}
    environment = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(PATHS)}
    words = [sys.executable, "-c", _FIRST, name, REFERENCE[name][0], backend, context.device, way, "1024", "64"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: the first call of {name} by {backend} failed\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


# ---- full size, against C ----

BESIDE = "C", "guards and C", "C, new memory"  # what linfuse's time is set against


def full_size(context):
    """The reference models through torch.compile and from C, in the same process, in turns."""
    rows, seconds, right = [], {}, True
    for name, (_, batch) in REFERENCE.items():
        features, batch = (2048, batch // 4) if context.quick else (8192, batch)
        times, error = against_c(name, features, batch, context)
        right = right and error < AGREE
        measured = seconds[name] = medians(times)
        rows.append(
            [
                name,
                f"{batch}x{features}x{features}",
                *(report.sig(1e3 * one) for one in measured.values()),
                *(report.percent(more(times["linfuse"], times[who])) for who in BESIDE if who in times),
                report.times(measured["eager"] / measured["linfuse"]),
                f"{error:.0e}",
            ]
        )
        gc.collect()
    over = [f"over {who}" for who in BESIDE if who in measured]
    head = ["model", "MxNxK", *(f"{one} ms" for one in measured), *over, "eager / linfuse", "max err"]
    return {
        "title": "Full size, through torch.compile and from C",
        "head": head,
        "rows": rows,
        "words": [
            "Times are medians; what is over others is the median of rounds in which both had a turn. Over C: to be at "
            "most 3%. Guards and C: a backend that does nothing but the C call (no goal). C writes "
            "into the same memory at every call; new memory: into a tensor made for the call, as PyTorch's results "
            "are, which for large ones costs the kernel's clearing of its pages."
        ],
        "seconds": seconds,
        "right": right,
    }


def against_c(name, features, batch, context):
    model, x = example(name, features, context.device), torch.rand(batch, features, device=context.device)
    with torch.no_grad():
        want = model(x)
        fast = compiled(copy.deepcopy(model), "linfuse")
        error = apart(fast(x), want)
        calls = {"eager": lambda: model(x), "linfuse": lambda: fast(x)}
        _, run_into, kept = c_call(name, features, model, x)
        context.wait()
        error = max(error, apart(kept[-1], want))
        calls["C"] = lambda: run_into(kept[-1])
        least = torch.compile(copy.deepcopy(model), backend=only_c(calls["C"], kept[-1]))
        error = max(error, apart(least(x), want))
        calls["guards and C"] = lambda: least(x)
        if context.device == "cpu":
            calls["C, new memory"] = lambda: run_into(torch.empty(want.shape))
        else:
            calls["linfuse, graph replayed"] = captured(fast, x)
        rounds = 12 if context.quick else 20 if context.device == "cuda" else 30
        return turns(calls, context, rounds, 0.05 if context.device == "cuda" else 0.2, 3), error


def more(times, others):
    """By how much a call takes longer than another, by the median of rounds: a machine's pace wanders over them."""
    return statistics.median(one / other for one, other in zip(times, others)) - 1


def model_text(name, features):
    return (machine.ROOT / "models" / f"{name}.lf").read_text().replace("8192", str(features))


def c_call(name, features, model, x):
    """The C call: model text, the module's weights, everything bound. What runs it as it is bound, what runs it into
    another output, and what it borrows."""
    from linfuse import native

    context = native.Context(torch.get_num_threads())
    read = native.Model.read(context, model_text(name, features), name)
    program = native.Compiled(read, {"device": x.device.type, "dim.B": str(len(x))})
    weights = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    if name == "gelu_softmax":  # a Sequential calls its first module 0
        weights = {key.replace("0.", "linear."): value for key, value in weights.items()}
    for key, value in weights.items():
        program.set_param(key, value.shape, value.data_ptr())
    program.prepare()
    call = native.Call(program)
    place = native.Place.DEVICE if x.is_cuda else native.Place.HOST
    options = native.RunOptions(stream=torch.cuda.current_stream().cuda_stream if x.is_cuda else 0)
    call.set_input(0, x.shape, x.data_ptr(), place)
    run = functools.partial(call.run, options)

    def run_into(out):
        call.set_output(0, out.shape, out.data_ptr(), place)
        run()

    out = torch.empty(call.output_shape(0), device=x.device)
    run_into(out)
    return run, run_into, [x, call, out]


# ---- many models, against PyTorch ----

_QUICK = (
    "linear_layer_norm",
    "linear_mish",
    "linear_max_pool",
    "mlp_classifier",
    "lse_chain_k64",
    "gelu_softmax_16rows",
)


def sweep_models(context):
    """name, module, inputs: bench/cases.py's, other than the reference models at full size; then the drawn models that
    tests/python sweeps, wider."""
    yield from written_models(context)
    yield from drawn_models(context)


def drawn_models(context):
    from torch_models import Drawn

    scale, batch = (128, 1024) if context.device == "cuda" else (16, 512)  # at most 12288 wide, 1536 on the CPU
    for number in range(6 if context.quick else 72):
        if context.wanted(f"drawn_{number:02}"):
            torch.manual_seed(number)
            with torch.device(context.device):
                model = Drawn(number, scale).eval()
            yield f"drawn_{number:02}", model, [torch.randn(batch, model.k, device=context.device)]


def written_models(context):
    for case in cases.CASES:
        if case.name in REFERENCE or not context.wanted(case.name) or (context.quick and case.name not in _QUICK):
            continue
        spec, dims = case.spec(context.quick), case.dims(context.quick)
        drawn = {
            name: torch.from_numpy(array).to(context.device)
            for name, array in spec.draw(dims, lambda e: np.empty(e, np.float32)).items()
        }
        yield (
            case.name,
            to_torch.module(spec, lambda value: drawn[value.name]),
            [drawn[value.name] for value in spec.inputs],
        )


def sweep(context):
    """Eager, the default backend and linfuse in turns, one model after another."""
    seconds, errors = {}, {}
    for name, model, inputs in sweep_models(context):
        torch._dynamo.reset()
        with torch.no_grad():
            calls, errors[name] = contenders(model, inputs, context)
            seconds[name] = sweep_turns(calls, context)
        gc.collect()
    return sweep_section(seconds, errors)


def contenders(model, inputs, context):
    """Who takes part, compiled, and how far each is from eager. Where that is far, eager may be as far from the truth:
    then how far all are from double precision, too."""
    calls = {"eager": model, **{who: torch.compile(model, backend=who) for who in context.backends()}}
    got = {who: call(*inputs) for who, call in calls.items()}
    errors = {who: apart(one, got["eager"]) for who, one in got.items()}
    if max(errors.values()) >= AGREE:
        exact = model.double()(*[one.double() for one in inputs])
        model.float()  # what it was, to the bit
        errors["double"] = {who: apart(one, exact) for who, one in got.items()}
    return {who: (lambda f=f: f(*inputs)) for who, f in calls.items()}, errors


def is_right(errors):
    """Whether a result is eager's, or at most twice as far from double precision."""
    exact = errors.get("double")
    return errors["linfuse"] < AGREE or (exact is not None and exact["linfuse"] <= 2 * exact["eager"])


def sweep_turns(calls, context):
    return in_turns(calls, context, 3 if context.quick else 7, 0.02 if context.device == "cuda" else 0.05)


def sweep_section(seconds, errors):
    """The table of a sweep, measured at once or in pieces."""
    rows = []
    others = [who for who in ("eager", "inductor") if all(who in times for times in seconds.values())]
    for name, times in seconds.items():
        shown = [report.sig(1e3 * times[who]) for who in (*others, "linfuse")]
        ratios = [report.times(times[who] / times["linfuse"]) for who in others]
        rows.append([name, *shown, *ratios, f"{errors[name]['linfuse']:.0e}"])
    means = {who: report.geometric_mean([t[who] / t["linfuse"] for t in seconds.values()]) for who in others}
    speed = ", ".join(f"{report.times(mean)} {who}'s speed" for who, mean in means.items())
    words = [f"geometric mean of {len(rows)} models: {speed}"]
    for name, one in errors.items():
        far = {who: one[who] for who in ("linfuse", "inductor") if one.get(who, 0) >= AGREE}
        if far:
            from_eager = " and ".join(f"{who}'s by {error:.0e}" for who, error in far.items())
            words.append(f"{name}: not eager's result, {from_eager}" + "".join(
                f"; {who} from double precision {error:.0e}" for who, error in one.get("double", {}).items()))
    return {
        "title": "A sweep of models",
        "head": [
            "model",
            *(f"{who} ms" for who in (*others, "linfuse")),
            *(f"{who} / linfuse" for who in others),
            "max err",
        ],
        "rows": rows,
        "words": words,
        "seconds": seconds,
        "errors": errors,
        "right": all(map(is_right, errors.values())),
    }


SECTIONS = {"overhead": overhead, "first": first_call, "full": full_size, "sweep": sweep}
