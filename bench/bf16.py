# SPDX-License-Identifier: Apache-2.0
"""Linear layers in bf16 and what follows them, by each of linfuse's instruction sets and by PyTorch, in turns in this
process, on PyTorch's threads.

  bench/bf16.py                        1, 2, 4 and all cores; prints a table
  bench/bf16.py --threads 4,16         as many threads
  bench/bf16.py --only 1024x8192       the rows whose name contains it (may be repeated)
  bench/bf16.py --isa amx,avx512       linfuse's kernels: those of them that the machine has
  bench/bf16.py --inductor             beside torch.compile, too, which compiles each row first
  bench/bf16.py --seconds 0.5          a row's turns at one number of threads take so long, but are three at least
  bench/bf16.py --build DIR            where liblinfuse.so is: build/release, or what make pack-gpu left

Milliseconds are medians of turns, GFLOP/s those of the product. Errors are relative to fp32's largest result.
Exit status: 0, or 1 where linfuse's error is more than twice eager's. Times are reported, never asserted.
"""

import argparse
import ctypes
import itertools
import os
import statistics
import sys
import time
from pathlib import Path

import machine

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

import cases
import linfuse_c
import report
import to_torch

ROWS = [  # model, M, N, K
    (cases.lse_chain, 1024, 8192, 8192), (cases.lse_chain, 4096, 4096, 4096), (cases.lse_chain, 256, 4096, 4096),
    (cases.gelu_softmax, 1024, 1024, 1024), (cases.gelu_softmax, 64, 4096, 4096), (cases.gelu_softmax, 16, 4096, 4096),
    (cases.gelu_softmax, 1, 4096, 4096), (cases.lse_chain, 4096, 4096, 64),
]
LEAST_TURNS, LEAST_TURN = 3, 1e-3  # a turn of short calls is several
TWICE = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    count = len(machine.cores())
    usual = ",".join(str(n) for n in sorted({n for n in (1, 2, 4) if n < count} | {count}))
    parser.add_argument("--threads", default=usual)
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    parser.add_argument("--isa", default="amx,avx512")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--build", type=Path, default=machine.ROOT / "build" / "release")
    return parser.parse_args()


class Linfuse:
    """A program by one instruction set, bound to x."""

    def __init__(self, native, isa, threads, spec, tensors):
        self.native = native
        os.environ["LINFUSE_ISA"] = isa
        context = native.Context(threads)
        context.use_openmp()
        model = native.Model.read(context, spec.lf("bf16"))
        x = tensors["x"]
        program = native.Compiled(model, {"dim.B": str(len(x))})
        for value in spec.params:
            given = tensors[value.name]
            program.set_param(value.name, given.shape, given.data_ptr(), dtype=native.Dtype.bf16, borrow=True)
        program.prepare()
        self.call = native.Call(program)
        self.y = torch.empty(model.shape(native.Port.OUTPUT, 0, [len(x)]), dtype=torch.bfloat16)
        self.dims = (ctypes.c_int64 * 1)(len(x))
        self.inputs, self.outputs = (ctypes.c_void_p * 1)(x.data_ptr()), (ctypes.c_void_p * 1)(self.y.data_ptr())
        self.kept = context, model, program, tensors

    def __call__(self):
        self.call.run_at(*map(ctypes.addressof, (self.dims, self.inputs, self.outputs)))
        return self.y


def usable(native, isas):
    """Those that the machine has."""
    found = []
    for isa in isas:
        os.environ["LINFUSE_ISA"] = isa
        try:
            native.Compiled(native.Model.read(native.Context(1), "input x f32[B, 1]\na = relu(x)\nreturn a\n"), {})
            found.append(isa)
        except native.Error as why:
            print(f"{isa} is left out: {why}")
    return found


def medians(ways, seconds):
    """name -> seconds of a call, all in turns."""
    calls, times = {}, {name: [] for name in ways}
    for name, call in ways.items():
        call()
        begun = time.perf_counter()
        call()
        calls[name] = max(1, round(LEAST_TURN / (time.perf_counter() - begun)))
    end = time.perf_counter() + seconds
    for turn in itertools.count():
        if turn >= LEAST_TURNS and time.perf_counter() > end:
            return {name: statistics.median(took) for name, took in times.items()}
        names = list(ways)
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            begun = time.perf_counter()
            for _ in range(calls[name]):
                ways[name]()
            times[name].append((time.perf_counter() - begun) / calls[name])


def error_of(y, reference):
    return float((y.float() - reference).abs().max() / reference.abs().max())


def measure(native, make, sizes, threads, args, isas):
    """A line for each number of threads, and whether all results are right."""
    m, n, k = sizes
    spec = make(n, k)
    torch.set_num_threads(max(threads))
    drawn = {name: torch.from_numpy(a) for name, a in spec.draw({"B": m}, lambda s: torch.empty(s).numpy()).items()}
    tensors = {name: value.bfloat16() for name, value in drawn.items()}
    reference = to_torch.module(spec, lambda value: tensors[value.name].float())(tensors["x"].float())
    eager = to_torch.module(spec, lambda value: tensors[value.name])
    compiled = torch.compile(eager, backend="inductor", dynamic=False) if args.inductor else None
    lines, right = [], True
    for count in threads:
        torch.set_num_threads(count)
        ways = {"eager": lambda: eager(tensors["x"])}
        if compiled is not None:
            ways["inductor"] = lambda: compiled(tensors["x"])
        for isa in isas:
            ways[isa] = Linfuse(native, isa, count, spec, tensors)
        errors = {name: error_of(call(), reference) for name, call in ways.items()}
        right = right and all(errors[isa] <= TWICE * errors["eager"] for isa in isas)
        took = medians(ways, args.seconds)
        best = min(took["eager"], took.get("inductor", took["eager"]))
        lines.append({"threads": str(count),
                      **{f"{name} ms": report.sig(1e3 * took[name]) for name in ways},
                      **{f"{name} GFLOP/s": report.sig(2e-9 * m * n * k / took[name]) for name in ways},
                      **{f"torch / {isa}": report.times(best / took[isa]) for isa in isas},
                      **{f"{name} error": f"{errors[name]:.0e}" for name in ways}})
    return lines, right


def main():
    args = arguments()
    native = linfuse_c.load(args.build / "liblinfuse.so")
    threads = [int(word) for word in args.threads.split(",")]
    heading = machine.heading(machine.cores(), args.build)
    print(f"{heading['date']}, commit {heading['commit']}, {heading['cpu']}, torch {torch.__version__}, load "
          f"{heading['load_before'][0]:.1f}")
    isas = usable(native, args.isa.split(","))
    all_right = []
    with torch.inference_mode():
        for make, *sizes in ROWS:
            name = f"{make.__name__} {report.size(sizes)}"
            if not args.only or any(word in name for word in args.only):
                lines, right = measure(native, make, sizes, threads, args, isas)
                all_right.append(right)
                print(f"\n{name}", report.aligned(list(lines[0]), [list(line.values()) for line in lines]), sep="\n",
                      flush=True)
    return 0 if all_right and all(all_right) else 1


if __name__ == "__main__":
    sys.exit(main())
