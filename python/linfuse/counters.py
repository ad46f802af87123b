# SPDX-License-Identifier: Apache-2.0
"""What ran fused, what did not, and why: linfuse.stats()."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import amounts, memory, notices

if TYPE_CHECKING:
    from .calling import Slot
    from .fused import CompiledGraph, Part
    from .weights import Prepared


class Left(NamedTuple):
    """A node, or a part at a call, that PyTorch runs."""

    node: str  # its name in the graph; of a part its name
    op: str  # how PyTorch spells it; of a part all its ops, with spaces between
    reason: str

    @property
    def computes(self) -> bool:
        """Whether there is anything to run, as there is not for a view."""
        return self.reason != notices.VIEW


@dataclass(frozen=True)
class Fallback:
    """What was left to PyTorch for one reason. when: "compile", where `count` is of ops in graphs, each time they were
    handed over; or "call", where it is of calls of parts that are fused otherwise."""

    reason: str
    ops: tuple[str, ...]  # as PyTorch calls them: embedding; each as often as it was left
    nodes: tuple[str, ...]  # what they are called in the graph; or the parts that were called
    when: str
    count: int

    def __str__(self) -> str:
        return f"{amounts.listed(self.ops)}: {self.reason}"


@dataclass(frozen=True)
class Stats:
    """Counts since the start or the last reset_stats(); programs and bytes are those alive now."""

    graphs: int  # graphs PyTorch handed over
    graphs_fused: int  # of these, those of which only views are left to PyTorch, if anything is
    ops: int  # of all graphs, without such views
    fused_parts: int  # pieces of graphs that linfuse runs
    loss_heads: int  # losses of graphs that run without their logits
    fused_calls: int  # calls of parts that ran fused
    programs: int  # programs alive
    programs_made: int
    prepared: int  # how often parameters were prepared
    param_bytes: int  # copies of parameters
    prepared_bytes: int  # parameters prepared
    workspace_bytes: int
    output_bytes: int  # memory of large outputs that is kept for later ones; linfuse.empty_cache() gives it back
    fallbacks: list[Fallback]  # by reason, the most frequent first

    def json(self) -> dict[str, Any]:
        """As an object of plain values."""
        return asdict(self)

    def facts(self) -> list[str]:
        """What is counted, a line each, without what was left to PyTorch."""
        counted, size = amounts.counted, amounts.bytes_of
        memory = {
            "prepared weights": self.prepared_bytes, "workspace": self.workspace_bytes,
            "copies of parameters": self.param_bytes, "outputs kept": self.output_bytes,
        }
        held = ", ".join(f"{size(count)} of {what}" for what, count in memory.items() if count)
        heads = f"{counted(self.loss_heads, 'loss head')}, " if self.loss_heads else ""
        return [
            f"{counted(self.graphs, 'graph')}, {self.graphs_fused} fused as a whole; "
            f"{counted(self.fused_parts, 'fused part')}, {heads}{counted(self.fused_calls, 'fused call')}",
            f"{counted(self.programs, 'program')} alive{held and ': '}{held}",
        ]

    def left(self) -> list[tuple[str, list[Fallback]]]:
        """What was left to PyTorch: a heading, and what stands below it."""
        ops = [one for one in self.fallbacks if one.when == "compile"]
        calls = [one for one in self.fallbacks if one.when == "call"]
        found = [(f"{sum(one.count for one in ops)} of {amounts.counted(self.ops, 'op')} in PyTorch", ops)]
        found += [(f"{amounts.counted(sum(one.count for one in calls), 'call')} in PyTorch", calls)]
        return [(heading, several) for heading, several in found if several]

    def __str__(self) -> str:
        lines = self.facts()
        for heading, several in self.left():
            if len(several) == 1:
                lines.append(f"{heading}: {several[0]}")
            else:
                lines += [f"{heading}:", *(f"  {one}" for one in several)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from . import html

        return html.stats(self)


class _Registry:
    """Everything alive, without keeping it alive, and counts of what is gone."""

    def __init__(self) -> None:
        self.here = threading.local()  # .uncounted: whether what this thread does is left out
        self.lock = threading.RLock()  # a collection of garbage may come in between, and count what goes
        self.measuring = threading.Lock()  # held while calls are left out
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

    def counts_here(self) -> bool:
        return not getattr(self.here, "uncounted", False)

    def count(self, name: str, by: int = 1) -> None:
        if self.counts_here():
            with self.lock:
                self.counts[name] += by

    def end(self, slots: Iterable[Slot]) -> None:
        """Counts the calls of a program that is gone."""
        with self.lock:
            self.counts["fused_calls"] += sum(slot.runs - slot.runs_not_counted for slot in slots)

    def leave(self, left: Left, when: str) -> None:
        if left.reason == notices.NEEDS_GRADIENTS:
            notices.of_gradients()
        if self.counts_here():
            with self.lock:
                self.left[left, when] += 1


registry = _Registry()


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """What this thread does meanwhile is no part of stats(), nor are other threads' calls meanwhile. Programs that it
    makes must live until the end. One thread at a time."""
    with registry.measuring:
        before = {slot: slot.runs for slot in _slots(registry.alive())}
        registry.here.uncounted = True
        try:
            yield
        finally:
            registry.here.uncounted = False
            for slot in _slots(registry.alive()):
                slot.runs_not_counted += slot.runs - before.get(slot, 0)


def _slots(programs: Iterable[Prepared]) -> list[Slot]:
    return [slot for prepared in programs for slot in list(prepared.slots)]


def _renew_locks() -> None:
    registry.lock = threading.RLock()  # a forked child may have inherited one that is held
    registry.measuring = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def _bytes(slot: Slot) -> int:
    return slot.call.memory() + (slot.room.numel() if slot.room is not None else 0)


def stats() -> Stats:
    """What ran fused and what fell back to PyTorch, with the reasons."""
    programs = registry.alive()
    held = [prepared.program.memory() for prepared in programs]
    slots = _slots(programs)
    with registry.lock:
        counts, left = Counter(registry.counts), dict(registry.left)
    fused = counts["fused_calls"] + sum(slot.runs - slot.runs_not_counted for slot in slots)
    return Stats(
        graphs=counts["graphs"],
        graphs_fused=counts["graphs_fused"],
        ops=counts["ops"],
        fused_parts=counts["fused_parts"],
        loss_heads=counts["loss_heads"],
        fused_calls=fused,
        programs=len(programs),
        programs_made=counts["programs_made"],
        prepared=counts["prepared"],
        param_bytes=sum(one.params for one in held),
        prepared_bytes=sum(one.prepared for one in held),
        output_bytes=memory.kept_bytes(),
        workspace_bytes=sum(map(_bytes, slots)),
        fallbacks=_by_reason(left),
    )


def _by_reason(left: Mapping[tuple[Left, str], int]) -> list[Fallback]:
    """What was left, once for each reason."""
    found: dict[tuple[str, str], list[tuple[Left, int]]] = {}
    for (one, when), count in left.items():
        found.setdefault((one.reason, when), []).append((one, count))
    grouped = []
    for (reason, when), several in found.items():
        often = [(one, count if when == "compile" else 1) for one, count in several]
        ops = [notices.short(op) for one, count in often for op in one.op.split() * count]
        nodes = tuple(one.node for one, _ in several)
        grouped.append(Fallback(reason, tuple(ops), nodes, when, sum(count for _, count in several)))
    return sorted(grouped, key=lambda one: (-one.count, one.reason))


def reset_stats() -> None:
    """Counts from nothing again. What is alive stays so. What was warned of is, once more."""
    notices.forget()
    with registry.lock:
        registry.clear()
    for slot in _slots(registry.alive()):
        slot.runs_not_counted = slot.runs
