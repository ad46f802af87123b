# SPDX-License-Identifier: Apache-2.0
"""One case: everybody loads, then rounds in which each has its turn, then the results are held against each other."""

import math
import mmap
import os
import statistics
import time
from dataclasses import dataclass

import numpy as np

import machine
import to_torch
from contenders import OURS, PEERS, Job
from worker import Failed, Worker

AGREE = 2e-4  # fp32 sums of up to 8192 products in another order stay well below it; another function does not


@dataclass(frozen=True)
class Effort:
    rounds: int
    fewest: int      # rounds, however long they take
    seconds: float   # a case's rounds end with the first round after this
    warm: float      # s of calls before the rounds, each contender
    burst: float     # s of short calls, each contender, each round


FULL = Effort(rounds=15, fewest=5, seconds=10, warm=0.3, burst=0.05)
QUICK = Effort(rounds=5, fewest=3, seconds=1.0, warm=0.05, burst=0.02)


def shared(shape):
    """f32 memory that forked children see too."""
    count = math.prod(shape)
    return np.frombuffer(mmap.mmap(-1, max(4, 4 * count)), np.float32, count).reshape(shape)


class Measurement:
    """What is known of one case; as_record() is what is saved."""

    def __init__(self, case, quick, files, cores):
        self.case, self.quick, self.cores = case, quick, cores
        spec, dims = case.spec(quick), case.dims(quick)
        self.job = Job(
            spec, dims, spec.draw(dims, shared), to_torch.output_shape(spec, dims), len(cores), files.library,
            files.overhead
        )
        names = {**PEERS, **{name: made for name, made in OURS.items() if case.from_c or name == "linfuse"}}
        self.results = {name: shared((math.prod(self.job.output_shape),)) for name in names}
        self.workers = {name: Worker(made, self.job, self.results[name]) for name, made in names.items()}
        self.failures, self.facts, self.rounds = {}, {name: {} for name in names}, {name: [] for name in names}

    # ---- steps ----

    def each(self, names, action):
        """action(name, worker); who fails is left out from then on."""
        for name in names:
            if name not in self.failures:
                try:
                    action(name, self.workers[name])
                except Failed as failure:
                    self.failures[name] = str(failure)

    def load(self):
        """linfuse alone first, since its compiling and preparing are timed; then the peers side by side."""
        for group in (OURS, PEERS):
            names = [n for n in self.workers if n in group]
            self.each(names, lambda _, worker: worker.start("load"))
            self.each(names, lambda name, worker: self.facts[name].update(worker.finish()))

    def warm(self, effort):
        self.each(list(self.workers), lambda name, worker: self.facts[name].update(worker.ask("warm", effort.warm)))

    def run_rounds(self, effort):
        order, start = list(self.workers), time.monotonic()
        watch = machine.Watch(self.cores, [w.process.pid for w in self.workers.values()])
        for done in range(effort.rounds):
            if done >= effort.fewest and time.monotonic() - start > effort.seconds:
                break
            self.each(order, lambda name, worker: self.rounds[name].append(worker.ask("burst", effort.burst)))
            order.append(order.pop(0))  # nobody always follows the same one
        self.others = watch.others(time.monotonic() - start)

    def compare(self):
        """The largest difference from PyTorch's result, against the larger of the value and the rms of all."""
        self.errors, shapes = {}, {}
        self.each([n for n in self.workers if n != "linfuse from C"],
                  lambda name, worker: shapes.update({name: tuple(worker.ask("show"))}))
        reference = self.results["torch eager"]
        for name, shape in shapes.items():
            if name != "torch eager":
                same_shape = shape == shapes.get("torch eager")
                self.errors[name] = largest_error(self.results[name], reference) if same_shape else math.inf

    def end(self):
        for worker in self.workers.values():
            worker.end()

    # ---- what came out ----

    def medians(self):
        return {name: statistics.median(times) for name, times in self.rounds.items()
                if times and name not in self.failures}

    def as_record(self):
        medians = self.medians()
        ours = medians.get("linfuse from C" if self.case.from_c else "linfuse")
        peers = {name: ms for name, ms in medians.items() if name in PEERS}
        best = min(peers, key=peers.get, default=None)
        ratio = peers[best] / ours if best and ours else None
        return {
            "case": self.case.name, "threads": self.job.threads, "sizes": self.case.sizes_for(self.quick),
            "lf": self.job.spec.lf(), "ms": medians, "linfuse_ms": ours, "best_peer": best, "ratio": ratio,
            "target": self.case.target, "met": bool(ratio and ratio >= self.case.target), "rounds": self.rounds,
            "errors": self.errors,
            "agree": all(e <= AGREE for e in self.errors.values()), "failures": self.failures,
            "facts": self.facts, "others": self.others, "disturbed": self.others > machine.DISTURBED,
            "load": os.getloadavg()[0],
        }


def largest_error(values, reference, piece=1 << 22):
    rms = math.sqrt(sum(float(np.square(reference[i:i + piece], dtype=np.float64).sum())
                        for i in range(0, reference.size, piece)) / reference.size)
    worst = 0.0
    for i in range(0, reference.size, piece):
        want = reference[i:i + piece]
        error = np.abs(values[i:i + piece] - want) / np.maximum(np.abs(want), rms)
        worst = max(worst, float(np.max(np.where(np.isnan(error), np.inf, error))))
    return worst


def measure(case, quick, files, cores):
    effort = QUICK if quick else FULL
    measurement = Measurement(case, quick, files, cores)
    try:
        measurement.load()
        measurement.warm(effort)
        measurement.run_rounds(effort)
        measurement.compare()
        return measurement.as_record()
    finally:
        measurement.end()
