# SPDX-License-Identifier: Apache-2.0
"""Amounts for people: three digits and a unit, one launch and two launches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence


def readable(value: float, units: Sequence[str]) -> str:
    """Three digits and the unit that makes them readable, as the command prints them."""
    at = 0
    while value >= 999.5 and at + 1 < len(units):
        value, at = value / 1000, at + 1
    if value == math.floor(value) and at == 0:
        return f"{value:.0f} {units[at]}"
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {units[at]}"


def time(us: float) -> str:
    return readable(us, ("us", "ms", "s"))


def bytes_of(count: float) -> str:
    return readable(count, ("B", "kB", "MB", "GB", "TB"))


def flops_of(count: float) -> str:
    return readable(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"))


def times(ratio: float) -> str:
    """How many times as fast: 1.7x, 0.93x, 23x."""
    return f"{ratio:.{0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2}f}x"


def counted(count: int, one: str, several: str | None = None) -> str:
    """1 graph, 2 graphs; 1 launch, 2 launches."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names in the order of their first coming, the same one counted: embedding x2, cat."""
    counts = Counter(names)
    words = [name if count == 1 else f"{name} x{count}" for name, count in counts.items()]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
