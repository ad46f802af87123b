# SPDX-License-Identifier: Apache-2.0
"""A linear layer's logits by tiles of rows and words: their statistics, and gradients through them.

M rows of x, N words (rows of the weight), K features. A tile of logits is made, used and dropped. A row's statistics
are combined tile by tile in order of words, and whatever shape a call has, a product has a multiple of 16 rows: the
statistics of a row do not depend on the others. Everything runs in torch ops, without waiting for a device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# Words of a tile. On a CPU 512 rows of it are 4 MiB, which stay in cache between the few ops on them; on a GPU a
# product of fewer than some 10^4 columns does not fill the machine.
_WORDS = {"cpu": 2048}
_WORDS_ELSEWHERE = 16384
SMALL = 4 << 20  # bytes of logits that are not worth cutting: a tile's
# Bytes of the logits that are kept while a gradient is made of them. A chunk of rows reads and writes all of the
# weight's gradient, so a larger one moves less memory: 64 MiB is 512 rows of 32,768 words, 1 GiB 2048 rows of 131,072.
_KEPT = {"cpu": 64 << 20}
_KEPT_ELSEWHERE = 1 << 30
_ROWS = 512  # of a tile, where logits are not kept; on a GPU four times as many
_STEP = 16  # rows: BLAS libraries take other code for a few rows and for odd ones, with other roundings
_MM_WIDENS = "dtype" in torch.ops.aten.mm.overloads()  # products of half precision that give f32, on GPUs


class Tile(NamedTuple):
    """Words begin <= word < end of a shard."""

    begin: int
    end: int


class Stats(NamedTuple):
    """What is kept of rows while tiles go by, one number a row each. shift is the peak, or 0 where that is -inf."""

    peak: Tensor  # the largest logit
    total: Tensor  # sum of exp(logit - shift)
    picked: Tensor  # the target's logit, 0 where it is in another tile
    mass: Tensor  # sum of q, the weights of `extra`
    extra: Tensor  # sum of q * (logit - shift), or of exp(logit - shift) * (logit - shift)
    best: Tensor | None  # the word of the largest logit


class Slopes(NamedTuple):
    """What the result changes by with each of a row's statistics, one number a row each; None: nothing."""

    nll: Tensor | None
    lse: Tensor | None
    extra: Tensor | None


class Found(NamedTuple):
    """What statistics give, one number a row each."""

    nll: Tensor
    lse: Tensor
    extra: Tensor
    kept: Tensor  # [M, 4]: shift, total, mass / divisor and divisor: what gradients need
    best: Tensor | None


def sums_in(operand: torch.dtype) -> torch.dtype:
    """The type of everything that is summed."""
    return torch.float64 if operand is torch.float64 else torch.float32


@dataclass(frozen=True)
class Extra:
    """The third statistic of a row. smooth: sum of q * (logsumexp - logit), where q is class weights [N] or ones over
    words, or given for each row; entropy: that of the row's softmax."""

    kind: str  # "", smooth, entropy
    q: Tensor | None = None  # [N]
    words: Tensor | float = 1.0  # of the whole vocabulary; q is divided by it
    rows_of_q: Tensor | None = None  # target probabilities [M, N]; not divided
    smoothing: float = 0.0

    def weights(self, rows: Tensor | slice, tile: Tile, like: Tensor) -> Tensor | None:
        """q of a tile, [N] or [M, N], before it is divided by words; None: ones."""
        q = None if self.q is None else self.q[tile.begin : tile.end]
        if self.rows_of_q is None:
            return q
        given = self.rows_of_q[rows, tile.begin : tile.end].to(like.dtype)
        if self.smoothing:
            given = given * (1 - self.smoothing) + self.smoothing / self.words
        return given if q is None else given * q

    @property
    def divisor(self) -> Tensor | float:
        """What sums over q are divided by."""
        return 1.0 if self.rows_of_q is not None else self.words


@dataclass(frozen=True)
class Head:
    """A linear layer and what turns its results into logits: softcap * tanh(. / softcap), / temperature.
    weight: [N, K] and bias: [N], in any types; operand: the type that a product's operands are rounded to."""

    weight: Tensor
    bias: Tensor | None
    operand: torch.dtype
    softcap: float | None
    temperature: float

    @property
    def dtype(self) -> torch.dtype:
        return sums_in(self.operand)

    @functools.cached_property
    def tiles(self) -> list[Tile]:
        words, step = self.weight.shape[0], _WORDS.get(self.weight.device.type, _WORDS_ELSEWHERE)
        return [Tile(begin, min(begin + step, words)) for begin in range(0, words, step)]

    def chunks(self, rows: int, keep: bool) -> Iterator[slice]:
        """Rows a tile has. Logits that are kept are at most a quarter of all rows', unless they are few, down to 16
        rows."""
        device = self.weight.device.type
        if keep:
            row = max(self.weight.shape[0], 1) * self.dtype.itemsize
            fit, few = _KEPT.get(device, _KEPT_ELSEWHERE) // row, SMALL // row
            step = max(min(fit, max(math.ceil(rows / 4), few)) // _STEP, 1) * _STEP
        else:
            step = _ROWS if device == "cpu" else 4 * _ROWS
        return (slice(begin, min(begin + step, rows)) for begin in range(0, rows, step))

    def taken(self, operand: Tensor) -> Tensor:
        """An operand as a product takes it. CPUs multiply in the type of the sums."""
        rounded = operand.to(self.operand)
        return rounded.to(self.dtype) if operand.device.type == "cpu" else rounded

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype is self.dtype:
            return torch.mm(a, b)
        return torch.mm(a, b, out_dtype=self.dtype) if _MM_WIDENS and a.is_cuda else torch.mm(a, b).to(self.dtype)

    def add_product(self, into: Tensor, a: Tensor, b: Tensor) -> None:
        if a.dtype is into.dtype:
            into.addmm_(a, b)
        else:
            into.add_(self.product(a, b))

    def logits(self, x: Tensor, tile: Tile) -> Tensor:
        """x: [M, K], as taken. [M, tile]"""
        rows = x.shape[0]
        if rows % _STEP:
            x = torch.cat([x, x.new_zeros(_STEP - rows % _STEP, x.shape[1])])
        z = self.product(x, self.taken(self.weight[tile.begin : tile.end]).t())[:rows]
        if self.bias is not None:
            z.add_(self.bias[tile.begin : tile.end])
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z if self.temperature == 1 else z.div_(self.temperature)


# ---- statistics ----


def shift_of(peak: Tensor) -> Tensor:
    """What is subtracted from logits, so that their exp neither overflows nor vanishes."""
    return torch.where(peak == -math.inf, 0.0, peak)


def none_yet(rows: int, like: Tensor, best: bool) -> Stats:
    """Statistics of no words."""
    zero = like.new_zeros(rows)
    return Stats(like.new_full((rows,), -math.inf), zero, zero, zero, zero,
                 torch.zeros(rows, dtype=torch.int64, device=like.device) if best else None)


def merged(a: Stats, b: Stats, entropy: bool) -> Stats:
    """Statistics of a's words and then b's."""
    peak = torch.maximum(a.peak, b.peak)
    shift = shift_of(peak)

    def moved(one: Stats) -> tuple[Tensor, Tensor]:
        scale, by = (one.peak - shift).exp(), shift_of(one.peak) - shift
        extra = scale * (one.extra + by * one.total) if entropy else one.extra + by * one.mass
        return scale * one.total, extra

    (total, extra), (b_total, b_extra) = moved(a), moved(b)
    first = (a.peak >= b.peak) | a.peak.isnan()
    best = None if a.best is None or b.best is None else torch.where(first, a.best, b.best)
    return Stats(peak, total + b_total, a.picked + b.picked, a.mass + b.mass, extra + b_extra, best)


def _stats_of(z: Tensor, tile: Tile, target: Tensor | None, extra: Extra, rows: Tensor | slice, best: bool) -> Stats:
    """One tile's. z: [M, tile], left as it is; target: [M], words of the shard."""
    zero = z.new_zeros(z.shape[0])
    if best:
        peak, where = z.max(dim=1)
    else:
        peak, where = z.amax(dim=1), None
    from_shift = z - shift_of(peak)[:, None]
    mass, third = zero, zero
    if extra.kind == "smooth":
        q = extra.weights(rows, tile, z)
        third = (from_shift if q is None else from_shift * q).sum(dim=1)
        mass = zero + (tile.end - tile.begin if q is None else q.sum(dim=-1))
    if extra.kind == "entropy":
        exps = from_shift.exp()
        third = from_shift.mul_(exps).masked_fill_(exps == 0, 0).sum(dim=1)
    else:
        exps = from_shift.exp_()
    picked = zero
    if target is not None:
        word, inside = _word_in(target, tile)
        picked = torch.where(inside, z.gather(1, word[:, None])[:, 0], 0)
    return Stats(peak, exps.sum(dim=1), picked, mass, third, None if where is None else where + tile.begin)


def _word_in(target: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """The target's column in a tile, and whether it has one: else the column is any."""
    word = target - tile.begin
    size = tile.end - tile.begin
    return word.clamp(0, size - 1), (word >= 0) & (word < size)


def stats_of(head: Head, x: Tensor, target: Tensor | None, extra: Extra, rows: Tensor | slice, best: bool = False,
             keep: list[Tensor] | None = None) -> Stats:
    """All tiles' statistics of a chunk of rows. x: [M, K], as taken; keep: where logits go, tile by tile."""
    stats = None
    for tile in head.tiles:
        z = head.logits(x, tile)
        one = _stats_of(z, tile, target, extra, rows, best)
        stats = one if stats is None else merged(stats, one, extra.kind == "entropy")
        if keep is not None:
            keep.append(z)
    return none_yet(x.shape[0], x.new_empty(0, dtype=head.dtype), best) if stats is None else stats


def found(stats: Stats, extra: Extra, bad: Tensor | None = None) -> Found:
    """The results of rows. Each is made of differences from the shift, which are small where logits are large.
    bad: [M], rows whose target is no word; what is computed for them, and from them, is NaN."""
    shift, log_total = shift_of(stats.peak), stats.total.log()
    if bad is not None:
        shift = torch.where(bad, math.nan, shift)
    third = torch.zeros_like(shift)
    mass = stats.mass / extra.divisor
    if extra.kind == "smooth":
        third = mass * log_total - stats.extra / extra.divisor
    elif extra.kind == "entropy":
        third = log_total - stats.extra / stats.total
    nll = log_total - (stats.picked - shift)
    kept = torch.stack([shift, stats.total, mass, torch.zeros_like(mass) + extra.divisor], dim=1)
    return Found(nll, log_total + shift, third, kept, stats.best)


# ---- gradients ----


def _through(z: Tensor, tile: Tile, target: Tensor | None, extra: Extra, rows: Tensor | slice, kept: Tensor,
             entropy: Tensor, slopes: Slopes, head: Head) -> Tensor:
    """The gradient of a tile of what the product and the bias give. z: [M, tile], its logits; may be overwritten."""
    shift, total, mass, divisor = kept.unbind(dim=1)
    smooth = slopes.extra if extra.kind == "smooth" else None
    of_lse = _sum(slopes.nll, slopes.lse, None if smooth is None else smooth * mass)
    bent = None if head.softcap is None else (z * (head.temperature / head.softcap)).square_().neg_().add_(1)
    from_shift = z.sub_(shift[:, None])
    if slopes.extra is not None and extra.kind == "entropy":
        share = from_shift.exp().div_(total[:, None])
        g = from_shift.sub_((total.log() - entropy)[:, None]).mul_(-slopes.extra[:, None])
        if of_lse is not None:
            g.add_(of_lse[:, None])
        g.mul_(share).masked_fill_(share == 0, 0)
    else:  # exp(logit - logsumexp) would round once more, where it matters most
        g = from_shift.exp_().mul_(0.0 if of_lse is None else (of_lse / total)[:, None])
    if smooth is not None:
        q = extra.weights(rows, tile, z)
        each = (smooth / divisor)[:, None]
        g.sub_(each if q is None else each * q)
    if slopes.nll is not None and target is not None:
        word, inside = _word_in(target, tile)
        at = word[:, None]
        g.scatter_(1, at, g.gather(1, at) - torch.where(inside, slopes.nll, 0)[:, None])
    if bent is not None:
        g.mul_(bent)
    return g if head.temperature == 1 else g.div_(head.temperature)


def _sum(*terms: Tensor | None) -> Tensor | None:
    return functools.reduce(lambda a, b: a if b is None else b if a is None else a + b, terms)


class Gradients:
    """The gradients that are asked for, as they are summed. x: [M, K], weight: [N, K], bias: [N], in the type of the
    sums; one that is not asked for is empty."""

    def __init__(self, head: Head, x: Tensor, want: Sequence[bool]):
        def zeros(wanted: bool, *shape: int) -> Tensor:
            return torch.zeros(shape if wanted else (0,), dtype=head.dtype, device=x.device)

        words = head.weight.shape[0]
        self._want = want
        self.x = zeros(want[0], *x.shape)
        self.weight = zeros(want[1], words, x.shape[1])
        self.bias = zeros(want[2], words)

    def add(self, head: Head, x: Tensor, rows: Tensor | slice, logits: list[Tensor] | None, target: Tensor | None,
            extra: Extra, kept: Tensor, entropy: Tensor, slopes: Slopes) -> None:
        """Adds those of a chunk of rows, and takes its logits. x: [chunk, K], as taken."""
        of_x = torch.zeros(x.shape, dtype=head.dtype, device=x.device) if self._want[0] else None
        for tile in head.tiles:
            z = logits.pop(0) if logits else head.logits(x, tile)
            g = _through(z, tile, target, extra, rows, kept, entropy, slopes, head)
            if self._want[2]:
                self.bias[tile.begin : tile.end] += g.sum(dim=0)
            g = head.taken(g)
            if of_x is not None:
                head.add_product(of_x, g, head.taken(head.weight[tile.begin : tile.end]))
            if self._want[1]:
                head.add_product(self.weight[tile.begin : tile.end], g.t(), x)
        if of_x is not None:
            self.x[rows] = of_x
