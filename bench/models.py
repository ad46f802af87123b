# SPDX-License-Identifier: Apache-2.0
"""Whole models eager, through inductor and through linfuse, in turns in this process: `make bench-models`.

  bench/models.py                  every model at its usual size; leaves bench/results/models-DATE-MACHINE.{json,md}
  bench/models.py --small          fewer layers, shorter and fewer inputs, for two cores
  bench/models.py --only bert,vit  the models whose name contains one of these; leaves build/bench/models-*
  bench/models.py --type bf16      bf16 alone (fp32 and bf16 unless said)
  bench/models.py --what training  training steps alone (inference and training unless said)
  bench/models.py --mode MODE      torch.compile's mode, of inductor and linfuse alike
  bench/models.py --device cuda    on the GPU, beside inductor's max-autotune too
  bench/models.py --add            keep what the report that is there has of other models and types

Exit status: 0, or 1 where a result is much farther from double precision than eager's. Times are reported, never
asserted.
"""

import argparse
import copy
import gc
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import machine

# Another build is measured where the variable names one.
os.environ.setdefault("LINFUSE_LIBRARY", str(machine.ROOT / "build" / "release" / "liblinfuse.so"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its workers would run into what is timed next

import torch

import build
import door
import door_sections  # puts the tree's packages in Python's path
import report

import linfuse
from linfuse import amounts, tracing
from torch._inductor import utils
from whole_models import MODELS, Missing

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WHAT = ("inference", "training")
FAR = 4  # times eager's error: another function, or a type that was not kept
TURN = 0.1  # s that a turn takes at least
fresh_cache = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="", metavar="WORD,...")
    parser.add_argument("--type", action="append", default=[], choices=list(TYPES))
    parser.add_argument("--what", action="append", default=[], choices=WHAT)
    parser.add_argument("--mode")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--add", action="store_true")
    parser.set_defaults(build=Path(os.environ["LINFUSE_LIBRARY"]).parent)
    return parser.parse_args()


@dataclass
class Work:
    """A model and what it is called with, without gradients or for a step of training."""

    model: torch.nn.Module
    given: dict
    training: bool

    @classmethod
    def of(cls, model, size, dtype, device, training):
        given = {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in model.given(size).items()}
        return cls(model.made(size).to(device, dtype), given, training)

    def wide(self):
        """The same in double precision."""
        given = {name: x.double() if x.is_floating_point() else x for name, x in self.given.items()}
        return Work(copy.deepcopy(self.model).double(), given, self.training)

    def call(self, how=None):
        """A call: as it is, or by torch.compile. It gives tensors: a result, or the gradients of all weights."""
        plain = tracing.wrapped(self.model, 0, list(self.given))  # a function each: Dynamo's guards see no others
        run = torch.compile(plain, **how) if how else plain
        values = list(self.given.values())

        def infer():
            with torch.no_grad():
                return [run(self.model, *values)]

        def step():
            self.model.zero_grad(set_to_none=True)
            run(self.model, *values).float().square().mean().backward()
            return [one.grad for one in self.model.parameters() if one.grad is not None]

        return step if self.training else infer

    def weight_bytes(self):
        held = {one.data_ptr(): one.nbytes for one in [*self.model.parameters(), *self.model.buffers()]}
        return sum(held.values())


def apart(got, want):
    """||got - want|| / ||want||, over all of several tensors."""
    difference = sum((one.double() - other).square().sum().item() for one, other in zip(got, want))
    return math.sqrt(difference / sum(other.square().sum().item() for other in want))


def ways(args):
    """Who takes part, and what torch.compile is told."""
    mode = {"mode": args.mode} if args.mode else {}
    found = {"eager": None, "inductor": {"backend": "inductor", **mode}}
    if args.device == "cuda" and not args.mode:
        found["max-autotune"] = {"backend": "inductor", "mode": "max-autotune"}
    return {**found, "linfuse": {"backend": "linfuse", **mode}}


def measure(work, args, context):
    """All that is recorded of a model."""
    torch._dynamo.reset()
    gc.collect()
    linfuse.reset_stats()
    want = work.wide().call()()
    calls, first, errors = {}, {}, {}
    for who, how in ways(args).items():
        calls[who] = work.call(how)
        with fresh_cache():
            start = time.perf_counter()
            got = calls[who]()
            context.wait()
            first[who] = time.perf_counter() - start
        errors[who] = apart(got, want)
    del want, got
    times = door_sections.turns(calls, context, args.rounds, TURN)
    stats = linfuse.stats()
    held = stats.prepared_bytes + stats.param_bytes + stats.workspace_bytes
    return {
        "seconds": door_sections.medians(times), "rounds": times, "first": first, "errors": errors,
        "parts": stats.fused_parts, "graphs": stats.graphs, "ops": stats.ops,
        "left": [{"reason": one.reason, "ops": one.ops, "when": one.when} for one in stats.fallbacks],
        "weight_bytes": work.weight_bytes(), "held_bytes": held,
    }


# ---- tables ----


def row(name, one, others):
    seconds, first, errors = one["seconds"], one["first"], one["errors"]
    best = min(seconds[who] for who in others)
    left = sum(len(reason["ops"]) for reason in one["left"])
    return [
        name, *(report.sig(1e3 * seconds[who]) for who in (*others, "linfuse")),
        report.times(seconds["eager"] / seconds["linfuse"]), report.times(best / seconds["linfuse"]),
        f"{report.sig(first['inductor'])} / {report.sig(first['linfuse'])}",
        report.times(one["held_bytes"] / one["weight_bytes"]),
        f"{one['parts']}, {left} of {one['ops']}",
        " / ".join(f"{errors[who]:.0e}" for who in ("eager", "inductor", "linfuse")),
    ]


def section(title, found, missing):
    """The table of what was measured in one type."""
    others = [who for who in next(iter(found.values()))["seconds"] if who != "linfuse"]
    over = {who: [one["seconds"][who] / one["seconds"]["linfuse"] for one in found.values()] for who in others}
    means = ", ".join(f"{report.times(report.geometric_mean(ratios))} {who}'s speed" for who, ratios in over.items())
    words = [f"geometric mean of {amounts.counted(len(found), 'model')}: {means}", *missing]
    for name, one in found.items():
        reasons = "; ".join(f"{amounts.listed(left['ops'])}: {left['reason']}" for left in one["left"])
        words.append(f"{name}, left to PyTorch: {reasons or 'nothing'}")
    return {
        "title": title,
        "head": ["model", *(f"{who} ms" for who in (*others, "linfuse")), "eager / linfuse", "best / linfuse",
                 "first call s, inductor / linfuse", "held / weights", "parts, ops left", "error e / i / l"],
        "rows": [row(name, one, others) for name, one in found.items()],
        "words": words, "found": found, "missing": missing,
        "right": all(one["errors"]["linfuse"] <= FAR * one["errors"]["eager"] for one in found.values()),
    }


def measured(args, dtype, what, context):
    found, missing = {}, []
    for model in MODELS:
        if not context.wanted(model.name):
            continue
        try:
            work = Work.of(model, model.small if args.small else model.usual, TYPES[dtype], args.device,
                           what == "training")
        except Missing as why:
            missing.append(f"{model.name} is left out: {why}")
            continue
        found[model.name] = measure(work, args, context)
        print(f"{model.name} {dtype} {what}: " + ", ".join(
            f"{who} {report.sig(1e3 * ms)} ms" for who, ms in found[model.name]["seconds"].items()), flush=True)
    return found, missing


def main():
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench: models.py --device cuda needs a PyTorch with CUDA and a GPU")
    context = door_sections.Context(args.device, args.small, args.only, [], None)
    heading = door.heading_of(args)
    folder = build.OUT if args.only else door.RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    slug = heading["device"].lower().replace(" ", "-") if args.device == "cuda" else machine.cpu_slug()
    stem = folder / f"models-{heading['date'][:10]}-{slug}"
    before = stem.with_suffix(".json")
    sections = json.loads(before.read_text())["sections"] if args.add and before.exists() else {}
    size = "fewer layers and inputs" if args.small else "usual sizes"
    for what in args.what or WHAT:
        for dtype in args.type or TYPES:
            title = f"{what.capitalize()}, {dtype}, {size}" + (f", mode {args.mode}" if args.mode else "")
            found, missing = measured(args, dtype, what, context)
            found = {**sections.get(title, {}).get("found", {}), **found}
            made = sections[title] = section(title, found, missing)
            made["when"] = f"{machine.heading([])['date']}, commit {heading['commit']}"
            made["command"] = heading["command"]
            print(f"\n{title}\n" + report.aligned(made["head"], made["rows"]), *made["words"], sep="\n", flush=True)
    heading["load_after"] = list(os.getloadavg())
    stem.with_suffix(".json").write_text(json.dumps({"heading": heading, "sections": sections}, indent=1) + "\n")
    stem.with_suffix(".md").write_text(door.as_markdown(heading, sections))
    print(f"\nsaved: {stem}.json, .md")
    return 0 if all(one["right"] for one in sections.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
