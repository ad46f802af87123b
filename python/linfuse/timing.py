# SPDX-License-Identifier: Apache-2.0
"""linfuse.bench: a PyTorch model eager, through inductor and through linfuse, in turns in this process."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from . import amounts, counters, native, tracing
from .progress import Progress

_TURN = 0.005  # s that a turn of the slowest takes at least
_FEWEST = 5  # turns of each, however long they take
_MOST = 200
_BUSY = 0.1  # the share of the CPUs from which on other programs disturb what is timed
_UNEVEN = 0.25  # of the median: how far the middle half of the turns may spread
_QUIET = 0.25  # s to wait at most until the threads of the one before stopped spinning


@dataclass(frozen=True)
class Bench:
    """What was measured. `ms` and `ratio` go by name: eager, inductor, linfuse; ratio is how many times as fast as
    eager, by medians. Print it for a table: its headline and its ratios go by the fastest turns where the medians are
    doubtful."""

    title: str
    device: str
    threads: int
    calls: int  # of each, on whose turns the medians are
    ms: dict[str, float]  # medians
    fastest_ms: dict[str, float]
    slowest_ms: dict[str, float]
    first_call_s: dict[str, float]  # compiling included
    left_out: dict[str, str] = field(default_factory=dict)  # who, and why
    others: float | None = None  # the share of the CPUs that other programs used meanwhile, where it is known
    spread: dict[str, float] = field(default_factory=dict)  # of the middle half of the turns, as a part of the median
    machine: str = ""  # the processor's name, or the GPU's

    @property
    def ratio(self) -> dict[str, float]:
        return _ratios(self.ms)

    @property
    def fastest_ratio(self) -> dict[str, float]:
        """`ratio` by the fastest turns, which other programs disturb least."""
        return _ratios(self.fastest_ms)

    @property
    def headline(self) -> str:
        """Times and ratio by medians; by the fastest turns where these are doubtful, with no ratio if both do not even
        agree on who is faster."""
        by, ratio, words = self.ms, self.ratio["linfuse"], ""
        if self.doubts:
            by, ratio = self.fastest_ms, self.fastest_ratio["linfuse"]
            words = " in the fastest turns (medians doubtful)"
        eager, ours = (amounts.time(1e3 * by[name]) for name in ("eager", "linfuse"))
        agree = (self.ratio["linfuse"] - 1) * (ratio - 1) >= 0
        gain = amounts.times(ratio) if agree else "no ratio, by medians it is the other way round"
        return f"PyTorch eager {eager}, linfuse {ours}{words}: {gain}, {amounts.counted(self.calls, 'call')} each"

    @property
    def where(self) -> str:
        name = self.machine or self.device
        return f"{name}, {amounts.counted(self.threads, 'thread')}" if self.device == "cpu" else name

    @property
    def doubts(self) -> list[str]:
        """Which numbers are doubtful, and why: a sentence each."""
        found = []
        if self.others is not None and self.others > _BUSY:
            found.append(f"Other programs used {self.others:.0%} of the CPUs meanwhile: medians are doubtful, the "
                         "fastest turns less so.")
        uneven = [name for name, spread in self.spread.items() if spread > _UNEVEN]
        if uneven:
            found.append(f"The turns of {' and '.join(uneven)} differ by more than {_UNEVEN:.0%}: measure for longer, "
                         "as by seconds=10, or on a quiet machine.")
        return found

    def json(self) -> dict[str, Any]:
        """As an object of plain values."""
        return {**asdict(self), "ratio": self.ratio, "where": self.where, "headline": self.headline,
                "doubts": self.doubts}

    def table(self) -> list[list[str]]:
        """Head and rows."""
        rows = [["", "median", "fastest", "slowest", "vs eager", "first call"]]
        ratio = self.ratio
        if self.doubts:
            rows[0][4], ratio = "fastest vs eager", self.fastest_ratio
        for name in self.ms:
            figures = [self.ms, self.fastest_ms, self.slowest_ms]
            rows.append([
                name, *(amounts.time(1e3 * of[name]) for of in figures), amounts.times(ratio[name]),
                amounts.time(1e6 * self.first_call_s[name]),
            ])
        return rows

    def __str__(self) -> str:
        rows = self.table()
        first, *wide = [max(map(len, column)) for column in zip(*rows)]
        lines = [f"{self.title} on {self.where}: {self.headline}, in turns", ""]
        for name, *figures in rows:
            lines.append("  ".join([f"  {name:<{first}}", *(f"{f:>{width}}" for f, width in zip(figures, wide))]))
        lines += [f"\n{name} is left out: {why}" for name, why in self.left_out.items()]
        lines += ["", *self.doubts] if self.doubts else []
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from . import html

        return html.bench(self)


def bench(model: nn.Module | Callable[..., Any], *inputs: Any, kwargs: Mapping[str, Any] | None = None,
          options: Mapping[str, Any] | None = None, inductor: bool = True, seconds: float = 3.0) -> Bench:
    """Measures a model as it is (eager), compiled by inductor and by linfuse, in turns, without gradients.

    model:     a torch.nn.Module or a function of tensors, compiled or not, or what torch.export.export made; on a CPU
               or a GPU.
    inputs:    what it is called with, one by one or as a tuple; kwargs: the same by name. An exported program has its
               own.
    options:   linfuse's, as torch.compile(options=...) takes them.
    inductor:  False leaves it out, whose compiling can take a minute; it is also left out where it cannot compile.
    seconds:   how long to measure, compiling not counted. At least 5 turns of each are taken.

    The model, its buffers, the random numbers and what stats() counts are as before afterwards.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise TypeError(f"seconds is a number above 0, not {seconds!r}")
    return measured(tracing.subject(model, inputs, kwargs), options, inductor, seconds)


def measured(subject: tracing.Subject, options: Mapping[str, Any] | None, inductor: bool, seconds: float) -> Bench:
    """The same of a model and its arguments, as tracing.subject understood them."""
    device = _device(subject)
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    backends: dict[str, Mapping[str, Any] | None] = {"eager": None}
    if inductor:
        backends["inductor"] = {"backend": "inductor"}
    backends["linfuse"] = {"backend": "linfuse", "options": dict(options) if options else None}
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    left_out: dict[str, str] = {}
    with tracing.undisturbed(subject.model), counters.uncounted(), Progress() as progress:
        for name, how in backends.items():
            progress.say(f"{name}: first call")
            plain = subject.wrapped()
            call = _bound(torch.compile(plain, **how) if how else plain, subject.arguments)
            try:
                with tracing.one_error(subject) if name == "linfuse" else contextlib.nullcontext():
                    first[name] = _turn(call, 1, wait)
            except Exception as why:  # whatever inductor fails with
                if name != "inductor":
                    raise
                left_out[name] = _reason(why)
                continue
            calls[name] = call
        work = _Work()
        turns, count = _take_turns(calls, wait, seconds, progress)
        others = work.of_others()
    each = {name: [1e3 * one for one in took] for name, took in turns.items()}
    return Bench(
        title=subject.title, device=device, threads=torch.get_num_threads(),
        calls=count * len(each["eager"]), ms={name: statistics.median(ms) for name, ms in each.items()},
        fastest_ms={name: min(ms) for name, ms in each.items()},
        slowest_ms={name: max(ms) for name, ms in each.items()}, first_call_s=first, left_out=left_out, others=others,
        spread={name: _spread(ms) for name, ms in each.items()}, machine=_machine(device),
    )


def _ratios(ms: Mapping[str, float]) -> dict[str, float]:
    return {name: ms["eager"] / one for name, one in ms.items()}


def _spread(turns: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(turns, n=4)
    return (high - low) / middle


class _Work:
    """The CPUs' work from now on."""

    def __init__(self) -> None:
        self.wall, self.all, self.own = self._now()

    @staticmethod
    def _now() -> tuple[float, float | None, float]:
        """Seconds of wall time, of all CPUs where the system tells, and of this process."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                ticks = list(map(int, file.readline().split()[1:9]))  # of which 3 and 4 are idle and waiting
            everyone = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            everyone = None
        return time.monotonic(), everyone, time.process_time()

    def of_others(self) -> float | None:
        """The share of the CPUs that other programs used, where it is known."""
        wall, everyone, own = self._now()
        room = (wall - self.wall) * (os.cpu_count() or 1)
        if everyone is None or self.all is None or wall - self.wall < 0.1:  # ticks are hundredths of a second
            return None
        return min(max((everyone - self.all - (own - self.own)) / room, 0.0), 1.0)


def _nothing() -> None:
    pass


def _bound(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _device(subject: tracing.Subject) -> str:
    """Where the model runs: on the GPU if anything of it is there."""
    model = subject.model
    held = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return "cuda" if any(one.is_cuda for one in [*subject.tensors(), *held]) else "cpu"


def _machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else native.machine_fact("cpu")


def _take_turns(calls: Mapping[str, Callable[[], Any]], wait: Callable[[], None], seconds: float,
                progress: Progress) -> tuple[dict[str, list[float]], int]:
    """Seconds a call, by name, a number for each turn; and how many calls a turn is."""
    slowest = max(_turn(call, 2, wait) for call in calls.values())
    count = max(1, math.ceil(_TURN / max(slowest, 1e-9)))
    turns: dict[str, list[float]] = {name: [] for name in calls}
    order, start = list(calls), time.perf_counter()
    for done in range(_MOST):
        spent = time.perf_counter() - start
        if done >= _FEWEST and spent > seconds:
            break
        progress.say(f"measuring {', '.join(calls)}: turn {done + 1}, {spent:.1f} of {seconds:.1f} s")
        for name in order:
            _settle()
            _turn(calls[name], 1, wait)  # wakes threads, and brings its weights into caches
            turns[name].append(_turn(calls[name], count, wait))
        order.append(order.pop(0))  # nobody always follows the same one
    return turns, count


def _turn(call: Callable[[], Any], count: int, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - start) / count


def _settle() -> None:
    """Waits until this process's threads stopped spinning, so that who comes next has the cores to itself."""
    end = time.monotonic() + _QUIET
    while time.monotonic() < end:
        wall, cpu = time.monotonic(), time.process_time()
        time.sleep(0.001)
        if time.process_time() - cpu < 0.2 * (time.monotonic() - wall):
            return


def _reason(why: BaseException) -> str:
    """Of an exception with others behind it, what the last one says, in one line."""
    while True:
        inner = getattr(why, "inner_exception", None) or why.__cause__
        if inner is None:
            break
        why = inner
    if type(why).__name__ == "InvalidCxxCompiler":
        return "it has no C++ compiler that works (the variable CXX names one)"
    lines = str(why).strip().splitlines()
    return f"{type(why).__name__}: {lines[0]}" if lines else type(why).__name__


__all__ = ["Bench", "bench"]
