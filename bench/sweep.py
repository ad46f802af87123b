# SPDX-License-Identifier: Apache-2.0
"""lse_chain over M and K, N fixed: how much of the roofline linfuse reaches, and whether time grows with the work.

  bench/sweep.py [--minutes 8] [--n 2048]      leaves bench/results/sweep-DATE-CPU.{json,png}
  bench/sweep.py --quick                       a few sizes; leaves build/bench/sweep-*

The roofline's time is the longer of flops over the rate of multiply-adds and bytes over the rate of reading memory,
both measured by bench/peak.c. On a machine that shares its cores with others, what a core can do changes from one
second to the next: the rate of multiply-adds is measured again and again between the calls of a size, and its median
counts (`share`). `share_of_best` is held against the best half millisecond of the whole run instead. Small sizes live
in caches, so a share may pass 100%. Sizes that do not fit the memory, or whose call is predicted to take too long, are
left out, and so is what remains when the time is up.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import machine

os.environ.update(OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="1")

import torch

import build
import cases
import linfuse_c
import report
from contenders import Linfuse

THREADS = 2
ROWS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536]
DEPTHS = [16, 64, 256, 1024, 4096, 16384]
LONGEST_CALL = 20.0   # s, as predicted
LONG = 3.0            # s: such a call warms up by itself
TURNS, TURN = 8, 0.05 # a point's calls: so many times so many seconds, the machine's rate measured after each
WANTED, FROM_ROWS, FROM_DEPTH = 0.70, 64, 256


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument(
        "--build", type=Path, default=machine.ROOT / "build" / "release", help="where the library was built"
    )
    parser.add_argument("--out", type=Path, help="where the result goes")
    return parser.parse_args()


def calls_and_rate(call, expected, rate):
    """Medians: seconds of a call, and what rate() gave in between."""
    if expected < LONG:
        call()
    times, rates = [], [rate()]
    turns = TURNS if expected < 1 else 2
    for _ in range(turns):
        end, first = time.perf_counter() + TURN, len(times)
        while len(times) == first or (time.perf_counter() < end and len(times) < first + 100):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        rates.append(rate())
    return statistics.median(times), statistics.median(rates)


def point(native, context, m, n, k, files, peak, cores):
    """One size: a dict; with "skipped" in it where it was not run."""
    found = {"m": m, "n": n, "k": k}
    if 4.0 * (m * k + 3 * n * k) > 0.6 * machine.available_bytes():
        return {**found, "skipped": "does not fit the memory"}
    spec, dims = cases.lse_chain(n, k), {"B": m}
    ours = Linfuse()
    ours.compile(native, context, dims, spec.lf())
    fused = ours.account()["fused"]
    if fused["us"] / 1e6 > LONGEST_CALL:
        return {**found, "skipped": f"predicted to take {fused['us'] / 1e6:.0f} s"}
    arrays = spec.draw(dims, lambda shape: torch.empty(shape).numpy())
    ours.prepare({v.name: arrays[v.name] for v in spec.params})
    ours.bind([arrays["x"]])
    watch, start = machine.Watch(cores, []), time.monotonic()
    seconds, flops = calls_and_rate(ours.call, fused["us"] / 1e6, lambda: build.flops_now(files, THREADS))
    roof = max(fused["flops"] / flops, fused["bytes"] / peak["bytes"])
    best_roof = max(fused["flops"] / peak["flops"], fused["bytes"] / peak["bytes"])
    others = watch.others(time.monotonic() - start)
    ours.end()
    return {
        **found,
        "ms": 1e3 * seconds,
        "predicted_ms": fused["us"] / 1e3,
        "flops_now": flops,
        "share": roof / seconds,
        "share_of_best": best_roof / seconds,
        "others": others,
        "bound": "flops" if fused["flops"] / flops == roof else "memory",
    }


def sweep(args, files, peak, cores):
    native = linfuse_c.load(files.library)
    context = native.Context(THREADS)
    rows, depths = (ROWS[::3], DEPTHS[::2]) if args.quick else (ROWS, DEPTHS)
    sizes = sorted(((m, k) for m in rows for k in depths), key=lambda size: size[0] * size[1])
    end, points = time.monotonic() + 60 * args.minutes, []
    for m, k in sizes:  # the long ones last: when the time is up, they are what is missing
        late = time.monotonic() > end
        skipped = {"m": m, "n": args.n, "k": k, "skipped": "time was up"}
        found = skipped if late else point(native, context, m, args.n, k, files, peak, cores)
        words = (found.get("skipped")
                 or f"{report.sig(found['ms'])} ms, {report.percent(found['share'])} of the roofline")
        print(f"M {m:6}  K {k:6}  {words}", flush=True)
        points.append(found)
    return points


def draw(points, heading, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measured = [p for p in points if "ms" in p]
    depths = sorted({p["k"] for p in measured})
    figure, (share, cost) = plt.subplots(1, 2, figsize=(13, 5.2))
    for k, colour in zip(depths, plt.cm.viridis([0.9 * i / max(1, len(depths) - 1) for i in range(len(depths))])):
        line = sorted((p["m"], 100 * p["share"], p["ms"]) for p in measured if p["k"] == k)
        m, shares, ms = zip(*line)
        share.plot(m, shares, marker="o", markersize=4, color=colour, label=f"K = {k}")
        cost.plot(m, ms, marker="o", markersize=4, color=colour, label=f"K = {k}")
    share.axhline(100 * WANTED, color="#333333", linewidth=1, linestyle="--")
    share.set(xscale="log", xlabel="M, rows", ylabel="% of the roofline", title="Share of the roofline", ylim=(0, None))
    wanted = f"{report.percent(WANTED)}: to be reached from M {FROM_ROWS}, K {FROM_DEPTH} on"
    share.text(1, 100 * WANTED + 1, wanted, fontsize=8)
    cost.set(xscale="log", yscale="log", xlabel="M, rows", ylabel="ms a call", title="Time of a call")
    for axes in (share, cost):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    cost.legend(frameon=False, fontsize=9)
    doubt = ", DISTURBED by other processes" if any(p["others"] > machine.DISTURBED for p in measured) else ""
    model = f"lse_chain, N = {measured[0]['n']}, {THREADS} threads"
    figure.suptitle(f"{model}, {heading['cpu']}, {heading['date']}{doubt}", fontsize=11)
    figure.savefig(path, dpi=130, bbox_inches="tight")


def main():
    args = arguments()
    cores = machine.pin(THREADS)
    files = build.build(args.build)
    heading, peak = machine.heading(cores), build.machine_peak(files, THREADS)
    print("\n".join(report.heading_lines(heading, peak)), end="\n\n")
    points = sweep(args, files, peak, cores)
    wanted = [p for p in points if "share" in p and p["m"] >= FROM_ROWS and p["k"] >= FROM_DEPTH]
    dips = [f"M {p['m']} K {p['k']} ({report.percent(p['share'])})" for p in wanted if p["share"] < WANTED]
    print(f"\n{len(wanted) - len(dips)} of {len(wanted)} sizes from M {FROM_ROWS}, K {FROM_DEPTH} on reach "
          f"{report.percent(WANTED)} of the roofline" + report.among("not", dips))
    folder = args.out or (build.OUT if args.quick else Path(__file__).resolve().parent / "results")
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"sweep-{heading['date'][:10]}-{machine.cpu_slug()}"
    Path(f"{stem}.json").write_text(json.dumps({"heading": heading, "peak": peak, "points": points}, indent=1) + "\n")
    draw(points, heading, f"{stem}.png")
    print(f"saved: {stem}.json, .png")


if __name__ == "__main__":
    sys.exit(main())
