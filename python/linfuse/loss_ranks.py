# SPDX-License-Identifier: Apache-2.0
"""A head whose words are split over ranks: what ranks tell each other.

Each has the statistics of its own words. One all-gather of four numbers a row (16 bytes in f32), and of four more that
say which words a rank has, gives all of them everyone's, which each combines in rank order: so all have the same bits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .loss_tiles import Extra, Stats, merged
from .native import Error


def _group(name: str) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)


def combined(stats: Stats, extra: Extra, mine: tuple[int, int], name: str) -> tuple[Stats, Tensor]:
    """Statistics of all words, and how many words there are (a tensor of one number). mine: this rank's words."""
    group = _group(name)
    given = extra.rows_of_q is not None  # then a row has its own mass, and no target
    head = stats.mass.new_zeros(4)
    head[0], head[1] = mine  # numbers of the host fill in without a copy that a GPU waits for
    head[2] = float(mine[1] - mine[0]) if extra.q is None else extra.q.sum()
    rows = torch.stack([stats.peak, stats.total, stats.mass if given else stats.picked, stats.extra], dim=1)
    sent = torch.cat([head[None], rows])
    all_ranks = [torch.empty_like(sent) for _ in range(group.size())]
    dist.all_gather(all_ranks, sent, group=group)
    zero = torch.zeros_like(stats.mass)

    def of_rank(got: Tensor) -> Stats:
        peak, total, third, last = got[1:].unbind(dim=1)
        if given:
            return Stats(peak, total, zero, third, last, None)
        mass = zero + got[0, 2] if extra.kind == "smooth" else zero
        return Stats(peak, total, third, mass, last, None)

    ranges = torch.stack([got[0, :2] for got in all_ranks])
    if ranges.device.type == "cpu":
        _check(ranges)
    whole = functools.reduce(lambda a, b: merged(a, b, extra.kind == "entropy"), map(of_rank, all_ranks))
    return whole, ranges[:, 1].max()


def _check(ranges: Tensor) -> None:
    """Every word is some rank's, and only one's."""
    pairs = sorted((int(first), int(end)) for first, end in ranges.tolist() if first != end)
    ends = [0, *(end for _, end in pairs)]
    if any(first != end for (first, _), end in zip(pairs, ends)):
        shown = ", ".join(f"({int(first)}, {int(end)})" for first, end in ranges.tolist())
        raise Error(f"vocab_range of the ranks: {shown}; together they must hold each word once")


def summed(gradient: Tensor, name: str) -> Tensor:
    """The sum over ranks, in place."""
    dist.all_reduce(gradient, group=_group(name))
    return gradient
