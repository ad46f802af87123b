# SPDX-License-Identifier: Apache-2.0
"""The loss head beside PyTorch's and, on a GPU with Triton, Liger's and CCE's, in turns in this process:
`make bench-loss`.

  bench/loss.py                           2048 x 32000 x 1024 (rows, words, features) on the CPU, 8192 x 128256 x 4096
                                          and 8192 x 256000 x 2304 on a GPU; leaves bench/results/loss-DATE-MACHINE.*
  bench/loss.py --shape 512x8000x256      another shape; leaves build/bench/loss-*
  bench/loss.py --type bf16               bf16 alone (fp32 and bf16 unless said)
  bench/loss.py --device cuda             on the GPU

Peak bytes are what a call adds to the memory in use: on a GPU what PyTorch allocates, on a CPU what the process holds.
Exit status: 0, or 1 where gradients are farther from double precision than eager's. Times are reported, never asserted.
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import sys
from pathlib import Path

import machine

os.environ.setdefault("LINFUSE_LIBRARY", str(machine.ROOT / "build" / "release" / "liblinfuse.so"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its workers would run into what is timed next

import torch
import torch.nn.functional as F

import build
import door
import door_sections  # puts the tree's packages in Python's path
import report

import linfuse

SHAPES = {"cpu": ["2048x32000x1024"], "cuda": ["8192x128256x4096", "8192x256000x2304"]}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TURN = 0.1  # s that a turn takes at least
FAR = 1.1  # times eager's error
OVER = (1, 2, 4, 8)  # the plot's vocabularies: a shape's, divided by these


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=list(SHAPES))
    parser.add_argument("--shape", action="append", help="ROWSxWORDSxFEATURES")
    parser.add_argument("--type", action="append", choices=list(TYPES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--build", type=Path, default=machine.ROOT / "build" / "release", help="where the library was built"
    )
    parser.add_argument("--without", action="append", default=[], help="somebody not to measure")
    return parser.parse_args()


def eager(x, weight, target):
    return F.cross_entropy(F.linear(x, weight).float(), target)


def peers(args):
    """name -> loss(x, weight, target), and who is missing and why."""
    found = {"eager": eager, "inductor": torch.compile(eager, backend="inductor"),
             "linfuse": linfuse.linear_cross_entropy}
    missing = []
    for name, module, made in (
        ("liger", "liger_kernel.transformers",
         lambda it: (lambda x, weight, target: it.LigerFusedLinearCrossEntropyLoss()(weight, x, target))),
        ("cce", "cut_cross_entropy", lambda it: it.linear_cross_entropy),
    ):
        try:
            if args.device != "cuda":
                raise ImportError("its kernels are Triton's, for GPUs")
            found[name] = made(importlib.import_module(module))
        except ImportError as why:
            missing.append(f"{name} is left out: {why}")
    return {name: loss for name, loss in found.items() if name not in args.without}, missing


class Work:
    """A head of some shape and type. x: [M, K], weight: [N, K], target: [M]."""

    def __init__(self, sizes, dtype, device):
        rows, words, features = sizes
        torch.manual_seed(0)
        self.x = torch.randn(rows, features, device=device).to(dtype).requires_grad_()
        self.weight = (torch.randn(words, features, device=device) / features**0.5).to(dtype).requires_grad_()
        self.target = torch.randint(words, (rows,), device=device)

    def step(self, loss):
        def run():
            self.x.grad = self.weight.grad = None
            loss(self.x, self.weight, self.target).backward()
            return self.x.grad, self.weight.grad

        return run

    def forward(self, loss):
        def run():
            with torch.no_grad():
                return loss(self.x, self.weight, self.target)

        return run

    def right(self):
        """The gradients in double precision, a hundred rows at a time."""
        x, weight = self.x.detach().double(), self.weight.detach().double()
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight)
        for begin in range(0, len(x), 100):
            rows = slice(begin, begin + 100)
            share = (x[rows] @ weight.t()).softmax(dim=1)
            share.scatter_add_(1, self.target[rows, None], -torch.ones_like(share[:, :1]))
            share /= len(x)
            of_x[rows] = share @ weight
            of_weight.addmm_(share.t(), x[rows])
        return of_x, of_weight


def peak_bytes(call, device):
    """What a call adds at its peak, its results among it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what is free, and would be used again unseen
    if not machine.reset_peak():
        return None
    before = machine.memory("VmRSS")
    call()
    return machine.memory("VmHWM") - before


def apart(got, want):
    """||got - want|| / ||want||"""
    return ((got.double() - want).norm() / want.norm()).item()


def measure(sizes, dtype, args, losses, context):
    torch._dynamo.reset()
    work = Work(sizes, dtype, args.device)
    right = work.right()
    errors, peaks = {}, {"forward": {}, "step": {}}
    for name, loss in losses.items():
        for what in peaks:
            call = getattr(work, what)(loss)
            call()  # compiles
            work.x.grad = work.weight.grad = None
            peaks[what][name] = peak_bytes(call, args.device)
        errors[name] = [apart(got, want) for got, want in zip((work.x.grad, work.weight.grad), right)]
    del right
    seconds = {what: door_sections.in_turns({name: getattr(work, what)(loss) for name, loss in losses.items()}, context,
                                            args.rounds, TURN) for what in peaks}
    return {"sizes": sizes, "seconds": seconds, "peaks": peaks, "errors": errors}


def over_vocabulary(sizes, dtype, args, losses):
    """name -> peak bytes of a step at each vocabulary of the plot."""
    rows, words, features = sizes
    found = {name: [] for name in losses}
    for part in sorted(OVER, reverse=True):
        torch._dynamo.reset()
        work = Work((rows, words // part, features), dtype, args.device)
        for name, loss in losses.items():
            call = work.step(loss)
            call()
            work.x.grad = work.weight.grad = None
            found[name].append((words // part, peak_bytes(call, args.device)))
    return found


def table(one):
    head = ["", "forward ms", "MB", "forward and backward ms", "MB", "error of dX, dW"]
    rows = [[name, *(text for what in ("forward", "step") for text in (
        report.sig(1e3 * one["seconds"][what][name]), report.megabytes(one["peaks"][what][name]))),
        ", ".join(f"{error:.0e}" for error in errors)] for name, errors in one["errors"].items()]
    return head, rows


def plot(found, title, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, points in found.items():
        axes.plot([words for words, _ in points], [peak / 2**20 for _, peak in points], marker="o", label=name)
    axes.set(xlabel="words", ylabel="MB that a step adds at its peak", title=title, ylim=(0, None))
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def main():
    args = arguments()
    context = door_sections.Context(args.device, False, "", [], None)
    heading = door.heading_of(args)
    folder = build.OUT if args.shape or args.without else door.RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    losses, missing = peers(args)
    sections, plots = {}, {}
    for shape in args.shape or SHAPES[args.device]:
        sizes = tuple(map(int, shape.split("x")))
        for kind in args.type or TYPES:
            title = f"{shape.replace('x', ' x ')}, {kind}"
            found = measure(sizes, TYPES[kind], args, losses, context)
            head, rows = table(found)
            sections[title] = {"title": title, "when": heading["date"], "command": heading["command"], "head": head,
                               "rows": rows, "words": missing, "found": found}
            print(f"\n{title}\n" + report.aligned(head, rows), *missing, sep="\n", flush=True)
            plots[title] = over_vocabulary(sizes, TYPES[kind], args, losses)
    heading["load_after"] = list(os.getloadavg())
    slug = heading["device"].lower().replace(" ", "-") if args.device == "cuda" else machine.cpu_slug()
    stem = folder / f"loss-{heading['date'][:10]}-{slug}"
    stem.with_suffix(".json").write_text(
        json.dumps({"heading": heading, "sections": sections, "plots": plots}, indent=1) + "\n")
    stem.with_suffix(".md").write_text(door.as_markdown(heading, sections))
    title, points = next(iter(plots.items()))
    plot(points, title, stem.with_suffix(".svg"))
    print(f"\nsaved: {stem}.json, .md, .svg")
    right = all(ours <= FAR * theirs for one in sections.values()
                for ours, theirs in zip(one["found"]["errors"]["linfuse"], one["found"]["errors"]["eager"]))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
