# SPDX-License-Identifier: Apache-2.0
"""Two builds of linfuse in turns on one GPU: is the new one as fast as the old one?

  bench/turns.py OLD NEW                  each the root of a tree, with what make pack-gpu left in build/gpu
  bench/turns.py --only lse OLD NEW       rows as bench/cuda.py names them (may be repeated)
  bench/turns.py --modes fp32,tf32 ...    linfuse's precisions
  bench/turns.py --rounds 5 ...           turns of each build at each row

Each tree measures by its own bench/cuda.py, in a process of its own that waits while the other has its turn; which
begins changes from round to round. A row's time is the median over the rounds of its bursts. Prints a line a row and
the geometric mean of new over old; times are reported, never asserted.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

BOUND = 0.3  # seconds of the steady runs, which keep the clock where work has it


def measure_when_told(tree):
    """In a tree's process: a line ["row", "mode"] comes in, milliseconds of a burst go out, or why there are none."""
    sys.path.insert(0, str(tree / "bench"))
    import cuda as bench
    import linfuse_c
    import to_torch  # noqa: F401  what is in the folder is imported by now
    import torch

    sys.path.remove(str(tree / "bench"))  # a package called cuda exists, and is not that file
    bench.host_us = lambda *_: 0.0  # thousands of runs, and another question
    native = linfuse_c.load(tree / "build" / "gpu" / "liblinfuse.so")
    clock, rows = bench.Clock(torch, BOUND, False), {row.name: row for row in bench.ROWS}
    answers, sys.stdout = sys.stdout, sys.stderr  # what else is printed is no answer
    print(json.dumps(list(rows)), file=answers, flush=True)
    for line in sys.stdin:
        name, mode = json.loads(line)
        tensors = bench.draw(torch, rows[name])
        try:
            answer = bench.measure_linfuse(torch, clock, rows[name], tensors, mode, native, lambda y: 0.0)["burst_ms"]
        except Exception as why:  # a row that one build cannot run is a fact about it
            answer = f"{type(why).__name__}: {why}"
        del tensors
        torch.cuda.empty_cache()
        print(json.dumps(answer), file=answers, flush=True)


class Build:
    def __init__(self, tree):
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", str(tree)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.rows = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("turns: a build's process ended; what it said stands above")
        return json.loads(line)

    def measure(self, row, mode):
        self.process.stdin.write(json.dumps([row, mode]) + "\n")
        self.process.stdin.flush()
        return self.answer()


def compare(builds, row, mode, rounds):
    """Medians of each build's bursts in ms, or the first failure."""
    bursts = [[], []]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            answer = builds[which].measure(row, mode)
            if isinstance(answer, str):
                return f"{('old', 'new')[which]} build: {answer}"
            bursts[which].append(answer)
    return [statistics.median(b) for b in bursts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--modes", default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    trees = [tree.resolve() for tree in args.trees]
    if args.worker:
        return measure_when_told(trees[0])
    if len(trees) != 2:
        parser.error("two trees: the old one and the new one")
    builds = [Build(tree) for tree in trees]
    rows = [r for r in builds[0].rows if r in builds[1].rows and (not args.only or any(o in r for o in args.only))]
    ratios, failed = [], False
    for mode in args.modes.split(","):
        for row in rows:
            found = compare(builds, row, mode, args.rounds)
            if isinstance(found, str):
                failed = True
                print(f"{row} {mode}: {found}", flush=True)
                continue
            old, new = found
            ratios.append(new / old)
            print(f"{row} {mode}: old {old:.4f} ms, new {new:.4f} ms, new/old {new / old:.3f}", flush=True)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{len(ratios)} rows: geometric mean of new/old {mean:.4f}, {min(ratios):.3f} to {max(ratios):.3f}")
    for build in builds:
        build.process.stdin.close()
    return 1 if failed or not ratios else 0


if __name__ == "__main__":
    sys.exit(main())
