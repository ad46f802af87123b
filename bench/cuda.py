# SPDX-License-Identifier: Apache-2.0
"""linfuse beside torch on a GPU, in one process: `make bench-cuda`.

  bench/cuda.py                          every row; leaves bench/results/cuda-DATE-DEVICE.{json,md}
  bench/cuda.py --only NAME              the row of that name, else those whose name contains it (may be repeated)
  bench/cuda.py --modes fp32,tf32        linfuse's precisions (fp32, tf32, bf16, fp16), and bf16_tensors, f16_tensors:
                                         x, parameters and results of that type; "" for none
  bench/cuda.py --peers eager,compiled   torch's ways (eager, compiled; compiled in tf32 and bf16; bf16_tuned, which is
                                         bf16 by mode="max-autotune-no-cudagraphs"); "" for none
  bench/cuda.py --clean                  the L2 cache taken by reading, so that a run has nobody's lines to write back;
                                         only printed
  bench/cuda.py --merge FILE...          measures nothing: makes the table of what such runs have printed or saved, the
                                         newest of each
  bench/cuda.py --docs                   puts the short table into docs/benchmarks.md as well

How a time is taken: everything lies on the GPU, inputs uniform in [0, 1), weights as torch.nn.Linear draws them. Before
each run 256 MB are written, which takes the L2 cache; CUDA events stand right before and behind the run, and launching
is ahead of them: it does not count. burst: the median of 30 runs after 0.3 s of rest. steady: the median of the second
half of a row of 300 right behind (fewer where they are long: what takes --bound seconds, 1.5 unless told).
Errors are relative, against double precision, on 48 rows. Making a program compiles its kernel, unless the disk's cache
has it, as it has when it is made again.

Each measurement is printed as a line RECORD {...}, so that a run cut short has not been for nothing. Times are
reported, never asserted.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import cuda_table
import machine
from cuda_rows import ROWS

RESULTS = Path(__file__).resolve().parent / "results"
FLUSHED = 256 << 20  # bytes
REST, BOUND = 0.3, 1.5  # seconds
BURST, STEADY = 30, 300
HEAD_START = 40_000_000  # cycles in which the GPU does nothing, some 20 ms, and launching gets ahead of it
LAUNCHES = 20  # in a row, by the host's clock: few enough not to fill the queue of launches
CHECKED = 48  # rows


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--modes", default=",".join(cuda_table.MODES))
    parser.add_argument("--peers", default=",".join(cuda_table.PEERS))
    parser.add_argument("--bound", type=float, default=BOUND, metavar="S", help="seconds a steady row of runs may take")
    parser.add_argument("--clean", action="store_true", help="read before each run what is written otherwise")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md too")
    parser.add_argument("--library", type=Path, default=machine.ROOT / "build" / "release" / "liblinfuse.so")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    args = parser.parse_args()
    if args.clean and (args.merge or args.docs or args.out != RESULTS):
        parser.error("--clean is another way of measuring: it goes into no table")
    return args


def chosen(only):
    names = {r.name for r in ROWS}
    found = [r for r in ROWS if not only or any(r.name == word if word in names else word in r.name for word in only)]
    if not found:
        sys.exit(f"bench: no row is called {' or '.join(only)}; --list names them")
    return found


# ---- time ----


class Clock:
    """Times what is launched on the current stream."""

    def __init__(self, torch, bound, clean):
        self.torch, self.bound, self.clean = torch, bound, clean
        self.flush = torch.ones(FLUSHED // 4, device="cuda")

    def runs(self, run, count):
        """Milliseconds of each of count runs."""
        event = self.torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        self.torch.cuda._sleep(HEAD_START)
        for begin, end in pairs:
            self.flush.sum() if self.clean else self.flush.fill_(1.0)
            begin.record()
            run()
            end.record()
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]

    def measure(self, run):
        """burst, steady, and how many runs each is of."""
        for _ in range(3):
            run()
        self.torch.cuda.synchronize()
        one = max(statistics.median(self.runs(run, 3)), 1e-3) / 1e3 + 1e-4  # flushing takes its time too
        steady = max(3, min(STEADY, int(self.bound / one)))
        time.sleep(REST)
        short, long = self.runs(run, BURST), self.runs(run, steady)
        return {
            "burst_ms": statistics.median(short),
            "steady_ms": statistics.median(long[steady // 2 :]),
            "runs": [BURST, steady],
        }


# ---- the contenders ----


def draw(torch, row):
    """name -> tensor on the GPU."""
    made = torch.Generator("cuda").manual_seed(1)
    tensors = {}
    for value in row.spec.inputs + row.spec.params:
        low, high = getattr(value, "low", 0.0), getattr(value, "high", 1.0)
        shape = [row.rows if e == "B" else e for e in value.extents]
        tensors[value.name] = torch.empty(shape, device="cuda").uniform_(low, high, generator=made)
    return tensors


def error_of(y, want, picked):
    return float((y[picked].double() - want).norm() / want.norm())


def reference(torch, row, tensors, picked):
    """Those rows in double precision, by torch."""
    import to_torch

    module = to_torch.module(row.spec, lambda v: tensors[v.name].double())
    with torch.no_grad():
        return module(tensors["x"][picked].double())


def torch_contender(torch, row, tensors, way):
    import to_torch

    dtype = torch.bfloat16 if way.startswith("bf16") else torch.float32
    torch.set_float32_matmul_precision("high" if way == "tf32" else "highest")
    module = to_torch.module(row.spec, lambda v: tensors[v.name].to(dtype))
    x = tensors["x"].to(dtype)
    if way != "eager":
        torch._dynamo.reset()
        module = torch.compile(module, mode="max-autotune-no-cudagraphs" if way.endswith("_tuned") else None)
    return lambda: module(x)


def measure_torch(torch, clock, row, tensors, way, check):
    begun = time.perf_counter()
    with torch.no_grad():
        run = torch_contender(torch, row, tensors, way)
        y = run()
        torch.cuda.synchronize()
        facts = {"first_s": time.perf_counter() - begun, "error": check(y)}
        given = y.numel() * y.element_size()
        del y
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = run()
        torch.cuda.synchronize()
        facts["beside_bytes"] = max(0, torch.cuda.max_memory_allocated() - before - given)
        del y
        return {**facts, **clock.measure(run)}


def host_us(torch, run):
    """Microseconds until a run is launched, ctypes included."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(LAUNCHES):
        run()
    return (time.perf_counter() - begun) / LAUNCHES * 1e6


def measure_linfuse(torch, clock, row, tensors, mode, native, check):
    import ctypes

    stream = torch.cuda.current_stream().cuda_stream
    context = native.Context()
    stored = mode.removesuffix("_tensors") if mode.endswith("_tensors") else "f32"
    of_torch = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[stored]
    tensors = {name: value.to(of_torch) for name, value in tensors.items()}
    model = native.Model.read(context, row.spec.lf(stored), row.name)
    precision = mode if stored == "f32" else "fp32"  # half-precision tensors are multiplied as they are

    def compiled():
        begun = time.perf_counter()
        made = native.Compiled(model, {"device": "cuda", "precision": precision, "dim.B": str(row.rows)})
        return made, time.perf_counter() - begun

    program, first = compiled()
    again, second = compiled()
    again.close()
    begun = time.perf_counter()
    for value in row.spec.params:
        values = tensors[value.name]
        program.set_param(value.name, values.shape, values.data_ptr(), dtype=native.Dtype[stored], borrow=True,
                          memory=native.Place.DEVICE, stream=stream)
    program.prepare()
    prepared = time.perf_counter() - begun
    call = native.Call(program)
    shape = model.shape(native.Port.OUTPUT, 0, [row.rows])
    y = torch.full(shape, float("nan"), device="cuda", dtype=of_torch)
    dims = (ctypes.c_int64 * 1)(row.rows)
    size = call.workspace(ctypes.addressof(dims))
    workspace = torch.full((size + 1,), 255, dtype=torch.uint8, device="cuda")
    inputs = (ctypes.c_void_p * 1)(tensors["x"].data_ptr())
    outputs = (ctypes.c_void_p * 1)(y.data_ptr())
    options = native.RunOptions(memory=native.Place.DEVICE, stream=stream, workspace=workspace.data_ptr(),
                                workspace_bytes=size)
    words = [call.address, *map(ctypes.addressof, (dims, inputs, outputs, options))]
    run_at = native.lib.lf_call_run_at

    def run():
        if run_at(*words):
            raise native.Error(native.lib.lf_call_message(call.address).decode())

    run()
    torch.cuda.synchronize()
    facts = {
        "compile_ms": [first * 1e3, second * 1e3],
        "prepare_ms": prepared * 1e3,
        "error": check(y),
        "beside_bytes": size,
        "prepared_bytes": program.memory().prepared,
        "launches": json.loads(program.explain([row.rows], json=True))["fused"]["launches"],
    }
    times = clock.measure(run)
    again = max(3, min(100, int(BOUND / (LAUNCHES * 1e-3 * times["burst_ms"]))))
    facts["host_us"] = statistics.median(host_us(torch, run) for _ in range(again))
    call.close()
    program.close()
    return {**facts, **times}


# ---- all of it ----


def heading(torch, args):
    import subprocess

    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(
            asked, check=False, capture_output=True, text=True, timeout=20
        ).stdout.strip() or "unknown"
    except (OSError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "commit": machine.commit(args.library.parent),
        "command": " ".join(["bench/cuda.py", *sys.argv[1:]]),
        **({"clean": True} if args.clean else {}),
    }


def measure_row(torch, clock, row, args, head, native):
    tensors = draw(torch, row)
    count = min(row.rows, CHECKED)
    picked = torch.linspace(0, row.rows - 1, count, device="cuda").long()
    want = reference(torch, row, tensors, picked)
    def check(y):
        return error_of(y, want, picked)
    jobs = [
        ("torch " + way, lambda way=way: measure_torch(torch, clock, row, tensors, way, check))
        for way in args.peers.split(",")
        if way
    ]
    jobs += [
        ("linfuse " + mode, lambda mode=mode: measure_linfuse(torch, clock, row, tensors, mode, native, check))
        for mode in args.modes.split(",")
        if mode
    ]
    records = []
    for contender, job in jobs:
        record = {"row": row.name, "contender": contender, **head}
        try:
            record |= job()
        except Exception as why:  # one contender that fails is a fact about it, and no reason to lose the others
            record["failed"] = f"{type(why).__name__}: {why}"[:400]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        records.append(record)
        print("RECORD " + json.dumps(record), flush=True)
    return records


def main():
    args = arguments()
    if args.list:
        for row in ROWS:
            print(f"{row.name:16} {row.title}")
        return 0
    if args.merge:
        records = cuda_table.read(args.merge)
    else:
        try:
            import torch

            torch.cuda.init()
        except (ImportError, AssertionError, RuntimeError) as error:
            print(
                f"bench/cuda.py wants a PyTorch with CUDA and a GPU (PYTHON= chooses the Python): {error}",
                file=sys.stderr,
            )
            return 3
        import linfuse_c
        import to_torch  # noqa: F401  what is here is imported by now:

        sys.path.remove(str(Path(__file__).resolve().parent))  # a package called cuda exists, and is not this file
        native = linfuse_c.load(args.library) if args.modes else None
        clock, head, records = Clock(torch, args.bound, args.clean), heading(torch, args), []
        for row in chosen(args.only):
            records += measure_row(torch, clock, row, args, head, native)
    print("\n" + cuda_table.table(records))
    all_asked = not args.only and args.modes == ",".join(cuda_table.MODES) and args.peers == ",".join(cuda_table.PEERS)
    whole = args.merge or (all_asked and not args.clean)
    if whole or args.out != RESULTS:
        how = __doc__[__doc__.index("How a time") : __doc__.index("Each measurement")]
        saved = cuda_table.save(args.out, records, how)
        print("saved: " + ", ".join(map(str, saved)))
        if args.docs:
            cuda_table.into_docs(machine.ROOT / "docs" / "benchmarks.md", records, saved[1])
    return 1 if any("failed" in r for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
