# SPDX-License-Identifier: Apache-2.0
"""What ran fused, what did not, and why: linfuse.stats()."""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
import weakref
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import memory

if TYPE_CHECKING:
    from .fused import CompiledGraph, Part
    from .weights import Prepared, Slot


class Left(NamedTuple):
    """A node, or a part at a call, that PyTorch runs."""

    node: str  # its name in the graph; for a part all its nodes
    op: str  # how PyTorch spells it
    reason: str


@dataclass(frozen=True)
class Fallback:
    """What was left to PyTorch and how often: `count` traces where `when` is "compile", calls where it is "call"."""

    node: str
    op: str
    reason: str
    when: str
    count: int


@dataclass(frozen=True)
class Stats:
    """Counts since the start or the last reset_stats(); programs and bytes are those alive now."""

    graphs: int  # graphs PyTorch handed over
    graphs_fused: int  # of these, those without a node left to PyTorch
    parts: int  # pieces of graphs that linfuse runs
    calls_fused: int  # calls of parts that ran fused
    programs: int  # programs alive
    programs_made: int
    prepared: int  # how often parameters were prepared
    param_bytes: int  # copies of parameters
    prepared_bytes: int  # parameters prepared
    workspace_bytes: int
    output_bytes: int  # memory of large outputs that is kept for later ones; linfuse.empty_cache() gives it back
    fallbacks: tuple[Fallback, ...]

    def json(self) -> dict[str, Any]:
        """As an object of plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graphs, {self.graphs_fused} of them fused as a whole; {self.parts} fused parts, "
            f"{self.calls_fused} fused calls",
            f"{self.programs} program{'' if self.programs == 1 else 's'} alive, "
            f"{self.prepared_bytes} bytes of prepared weights",
        ]
        lines += [f"PyTorch ({one.when}, {one.count}x): {one.node} [{one.op}]: {one.reason}" for one in self.fallbacks]
        return "\n".join(lines)


NEEDS_GRADIENTS = "requires grad while grad mode is on"


class _Registry:
    """Everything alive, without keeping it alive, and counts of what is gone."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a collection of garbage may come in between, and count what goes
        self.parts: weakref.WeakSet[Part] = weakref.WeakSet()
        self.graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
        self.programs: weakref.WeakSet[Prepared] = weakref.WeakSet()
        self.clear()

    def alive(self) -> list[Prepared]:
        """The programs. Other threads may make some meanwhile."""
        while True:
            try:
                return list(self.programs)
            except RuntimeError:  # one came while they were gone through
                continue

    def clear(self) -> None:
        self.counts: Counter[str] = Counter()
        self.left: Counter[tuple[Left, str]] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        with self.lock:
            self.counts[name] += by

    def leave(self, left: Left, when: str) -> None:
        if left.reason == NEEDS_GRADIENTS:
            say_once_about_gradients()
        with self.lock:
            self.left[left, when] += 1


registry = _Registry()


def _renew_lock() -> None:
    registry.lock = threading.RLock()  # a forked child may have inherited one that is held


os.register_at_fork(after_in_child=_renew_lock)


@functools.cache
def say_once_about_gradients() -> None:
    """A warning: who meant to be fast should hear of it without asking for stats()."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("linfuse", "torch"):
        level, frame = level + 1, frame.f_back  # to the user's own line
    warnings.warn(
        "linfuse: PyTorch runs what needs gradients; to run it fused, call it under torch.no_grad() or "
        "torch.inference_mode()",
        stacklevel=level,
    )


def _bytes(slot: Slot) -> int:
    return slot.call.memory() + (slot.room.numel() if slot.room is not None else 0)


def stats() -> Stats:
    """What ran fused and what fell back to PyTorch, with the reasons."""
    programs = registry.alive()
    held = [prepared.program.memory() for prepared in programs]
    slots = [slot for prepared in programs for slot in list(prepared.slots)]
    with registry.lock:
        counts, left = Counter(registry.counts), dict(registry.left)
    fused = counts["calls_fused"] + sum(slot.runs - slot.runs_before_reset for slot in slots)
    return Stats(
        graphs=counts["graphs"],
        graphs_fused=counts["graphs_fused"],
        parts=counts["parts"],
        calls_fused=fused,
        programs=len(programs),
        programs_made=counts["programs_made"],
        prepared=counts["prepared"],
        param_bytes=sum(one.params for one in held),
        prepared_bytes=sum(one.prepared for one in held),
        output_bytes=memory.kept_bytes(),
        workspace_bytes=sum(map(_bytes, slots)),
        fallbacks=tuple(Fallback(*what, when, count) for (what, when), count in sorted(left.items())),
    )


def reset_stats() -> None:
    """Counts from nothing again. What is alive stays so."""
    with registry.lock:
        registry.clear()
    for prepared in registry.alive():
        for slot in list(prepared.slots):
            slot.runs_before_reset = slot.runs
