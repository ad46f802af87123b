# SPDX-License-Identifier: Apache-2.0
"""How good the choice of tiles on a GPU is: the one that the cost model chose beside the fastest.

  bench/tiles.py [--library liblinfuse.so] [--precisions fp32,bf16] [--only NAME] [--held-back] [--bound S]
                 [--out FILE.json]
  bench/tiles.py --again FILE.json...   measures nothing: judges what today's cost model chooses (no GPU needed) by
                                        times measured before
  bench/tiles.py --reference            explain's prediction for the models of bench/cuda_rows.py beside what they
                                        take, in a burst of runs after a rest
  bench/tiles.py --list DIR             writes the models to DIR, and ends

Every shape of tiles that can serve is measured at every size, as `--tune` does it. Wants a GPU, and no Python package.
Measures under a cache of its own for choices unless XDG_CACHE_HOME is set; times that are there already are taken.
"""

import argparse
import ctypes
import json
import math
import statistics
import sys
import time
from pathlib import Path

import machine
from tiles_rows import HELD_BACK, MORE, PRODUCTS, Product

LARGEST = 1 << 26  # elements of x
REST, RUNS = 0.3, 30  # seconds before a burst, and its runs


class Memory:
    """Numbers and room on the GPU, by its driver."""

    def __init__(self, native):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as why:
            sys.exit(f"tiles: wants a GPU, or --again and times measured before: {why}")
        self.native = native
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.cuda.cuCtxSetCurrent(context))
        name = ctypes.create_string_buffer(128)
        self.check(self.cuda.cuDeviceGetName(name, 128, device))
        self.device = name.value.decode()

    @staticmethod
    def check(error):
        if error:
            sys.exit(f"tiles: the GPU's driver says error {error}")

    def room(self, count):
        at = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4 * count)))
        return at.value

    def drawn(self, name, low, high, count):
        """The first few millions are drawn, and then the same again."""
        done = min(count, 3 * (1 << 20) + 7)
        values, there = (ctypes.c_float * done)(), self.room(count)
        draw = self.native.lib.lf_draw_uniform
        draw.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_float, ctypes.c_float, ctypes.c_size_t,
                         ctypes.c_void_p]
        draw.restype = None
        draw(1, name.encode(), low, high, done, values)
        self.check(self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(there), values, ctypes.c_size_t(4 * done)))
        while done < count:
            more = min(done, count - done)
            self.check(self.cuda.cuMemcpyDtoD_v2(ctypes.c_uint64(there + 4 * done), ctypes.c_uint64(there),
                                                 ctypes.c_size_t(4 * more)))
            done += more
        return there

    def free(self, at):
        self.check(self.cuda.cuMemFree_v2(ctypes.c_uint64(at)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=machine.ROOT / "build" / "release" / "liblinfuse.so")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--held-back", action="store_true", help="sizes that the cost model was not fitted to, instead")
    parser.add_argument(
        "--reference", action="store_true", help="the reference models: explain's prediction beside a burst of runs"
    )
    parser.add_argument(
        "--bound", type=float, default=1e9, metavar="S", help="seconds after which nothing more is begun"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--list", type=Path, metavar="DIR")
    return parser.parse_args()


def chosen_products(only, held_back=False):
    held = [Product(p.name, p.n, p.k, p.tail, HELD_BACK[p.name]) for p in PRODUCTS] + MORE
    return [p for p in (held if held_back else PRODUCTS) if not only or p.name in only]


def measure(native, product, precision, memory, x, w, b, y):
    """A record for each number of rows."""
    context = native.Context()
    model = native.Model.read(context, product.text(), product.name)
    program = native.Compiled(
        model, {"device": "cuda", "precision": precision, "tune": "true", "dim.B": str(product.rows[0])}
    )
    there = native.RunOptions(memory=native.Place.DEVICE)
    program.set_param("linear.weight", (product.n, product.k), w, borrow=True, memory=native.Place.DEVICE)
    program.set_param("linear.bias", (product.n,), b, borrow=True, memory=native.Place.DEVICE)
    program.prepare()
    call = native.Call(program)
    inputs, outputs = (ctypes.c_void_p * 1)(x), (ctypes.c_void_p * 1)(y)
    for rows in product.rows:
        dims = (ctypes.c_int64 * 1)(rows)
        call.run_at(*map(ctypes.addressof, (dims, inputs, outputs)), there)
        memory.check(memory.cuda.cuCtxSynchronize())
        account = json.loads(program.explain([rows], json=True))
        yield {
            "model": product.name,
            "rows": rows,
            "n": product.n,
            "k": product.k,
            "precision": precision,
            "predicted_us": account["fused"]["us"],
            "times": {c["shape"]: c["measured_us"] for c in account["tiles"]["candidates"] if "measured_us" in c},
            "expected": {c["shape"]: c["product_us"] for c in account["tiles"]["candidates"]},
        }
    call.close()
    program.close()
    model.close()
    context.close()


def measure_reference(native, row, precision, memory):
    """A row of bench/cuda_rows.py: what explain predicts, and the median of a burst of runs after a rest."""
    context = native.Context()
    model = native.Model.read(context, row.spec.lf(), row.name)
    program = native.Compiled(model, {"device": "cuda", "precision": precision, "dim.B": str(row.rows)})
    held = []

    def draw(value):
        extents = [row.rows if e == "B" else e for e in value.extents]
        low, high = getattr(value, "low", 0.0), getattr(value, "high", 1.0)
        held.append(memory.drawn(value.name, low, high, math.prod(extents)))
        return extents, held[-1]

    for value in row.spec.params:
        program.set_param(value.name, *draw(value), borrow=True, memory=native.Place.DEVICE)
    program.prepare()
    call = native.Call(program)
    shape = model.shape(native.Port.OUTPUT, 0, [row.rows])
    elements = 1
    for e in shape:
        elements *= e
    held.append(memory.room(elements))
    dims, outputs, inputs = (
        (ctypes.c_int64 * 1)(row.rows),
        (ctypes.c_void_p * 1)(held[-1]),
        (ctypes.c_void_p * 1)(draw(row.spec.inputs[0])[1]),
    )
    there = native.RunOptions(memory=native.Place.DEVICE)
    call.run_at(*map(ctypes.addressof, (dims, inputs, outputs)), there)
    memory.check(memory.cuda.cuCtxSynchronize())
    one = statistics.median(call.time(3))
    time.sleep(REST)
    ms = 1e3 * statistics.median(call.time(max(3, min(RUNS, int(0.5 / one)))))
    account = json.loads(program.explain([row.rows], json=True))
    for handle in (call, program, model, context):
        handle.close()
    for at in held:
        memory.free(at)
    return {
        "model": row.name,
        "precision": precision,
        "predicted_ms": account["fused"]["us"] / 1e3,
        "burst_ms": ms,
        "tiles": account.get("tiles", {}).get("shape", "-"),
    }


def reference(native, memory, precisions, only, bound, begun):
    """Prints explain's prediction beside what was measured, for the reference models."""
    from cuda_rows import ROWS

    for row in (r for r in ROWS if not only or r.name in only):
        for precision in precisions:
            if time.time() - begun > bound:
                print(f"{row.name} {precision}: left out, no time", flush=True)
                continue
            r = measure_reference(native, row, precision, memory)
            print(
                "REFERENCE", json.dumps(r), f"predicted / measured {r['predicted_ms'] / r['burst_ms']:.2f}", flush=True
            )


def expected_now(native, record):
    """What the cost model says today, without a GPU."""
    product = next(p for p in PRODUCTS + MORE if p.name == record["model"])
    context = native.Context()
    model = native.Model.read(context, product.text(), product.name)
    program = native.Compiled(model, {"device": "h200", "precision": record["precision"]})
    account = json.loads(program.explain([record["rows"]], json=True))
    for handle in (program, model, context):
        handle.close()
    return {
        **record,
        "predicted_us": account["fused"]["us"],
        "expected": {c["shape"]: c["product_us"] for c in account["tiles"]["candidates"]},
    }


def judge(records):
    """Prints a line a size, and how far the choices are from the best; returns what it printed at the end."""
    lost = []
    for r in records:
        shapes = [s for s in r["expected"] if s in r["times"]]
        if len(shapes) < 2:
            continue
        choice, best = min(shapes, key=lambda s: r["expected"][s]), min(shapes, key=lambda s: r["times"][s])
        lost.append((r["times"][choice] / r["times"][best] - 1, r))
        size = f"{r['rows']}x{r['n']}x{r['k']}"
        print(
            f"{r['model']:16}{r['precision']:5}{size:>18}  chosen {choice:7} best {best:7} {100 * lost[-1][0]:6.1f}%  "
            f"predicted {r['predicted_us'] / r['times'][choice]:5.2f}  "
            + "  ".join(f"{s} {r['times'][s]:.1f} ({r['expected'][s]:.0f})" for s in shapes)
        )
    if not lost:
        sys.exit("tiles: nothing was measured")
    values = [v for v, _ in lost]
    worst = max(lost, key=lambda v: v[0])
    facts = {
        "sizes": len(lost),
        "median": statistics.median(values),
        "worst": worst[0],
        "over_10": sum(v > 0.10 for v in values),
        "over_25": sum(v > 0.25 for v in values),
    }
    print(
        f"{len(lost)} sizes: the choice takes {100 * facts['median']:.1f}% longer than the best in the median, "
        f"{100 * worst[0]:.1f}% at worst ({worst[1]['model']} {worst[1]['precision']}, {worst[1]['rows']} rows); "
        f"over 10%: {facts['over_10']}, over 25%: {facts['over_25']}"
    )
    return facts


def main():
    options = arguments()
    if options.list:
        for product in PRODUCTS + MORE:
            (options.list / f"{product.name}.lf").write_text(product.text())
        return
    import linfuse_c

    native = linfuse_c.load(options.library)
    if options.again:
        records = [r for path in options.again for r in json.loads(path.read_text())["records"]]
        judge([expected_now(native, r) for r in records])
        return
    begun = time.time()
    memory = Memory(native)
    if options.reference:
        reference(native, memory, options.precisions.split(","), options.only, options.bound, begun)
        return
    products = chosen_products(options.only, options.held_back)
    x, w = memory.drawn("x", 0.0, 1.0, LARGEST), memory.drawn("w", -1 / 64, 1 / 64, max(p.n * p.k for p in products))
    b, y = (
        memory.drawn("b", -1 / 64, 1 / 64, max(p.n for p in products)),
        memory.room(max(r * p.n for p in products for r in p.rows if "logsumexp" not in p.name)),
    )
    print(f"{memory.device}: {time.time() - begun:.1f} s until the numbers are there", flush=True)
    records = []
    for product in products:
        for precision in options.precisions.split(","):
            if time.time() - begun > options.bound:
                print(f"{product.name} {precision}: left out, no time", flush=True)
                continue
            for record in measure(native, product, precision, memory, x, w, b, y):
                records.append(record)
                print("RECORD", json.dumps(record), flush=True)
            print(f"{product.name} {precision}: at {time.time() - begun:.1f} s", flush=True)
    facts = judge(records)
    if options.out:
        header = {
            "device": memory.device,
            "commit": machine.commit(options.library.parent),
            "command": " ".join(sys.argv),
            "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }
        options.out.write_text(json.dumps({**header, **facts, "records": records}, indent=1) + "\n")


main()
