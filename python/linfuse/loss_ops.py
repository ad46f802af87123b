# SPDX-License-Identifier: Apache-2.0
"""The loss head as ops of PyTorch's: functional, with shapes for tracing and with gradients.

    torch.ops.linfuse.head_loss     a scalar loss; its gradients are made with it, and backward only scales them
    torch.ops.linfuse.head_rows     per-token results; keeps four numbers a row, and backward makes the tiles again

x: [M, K], weight: [N, K], bias: [N], target: [M] words or [M, N] probabilities, class_weight: [N].
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import loss_cpu, loss_ranks
from .loss_tiles import Extra, Gradients, Head, Slopes, Stats, found, none_yet, stats_of, sums_in

_PIECE = 1 << 20  # numbers that are scaled at a time
_library = torch.library.Library("linfuse", "FRAGMENT")  # the ops go when it does
_HEAD = "Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor? class_weight, int ignore_index, " \
    "float label_smoothing, float? softcap, float temperature, ScalarType operand"


# ---- what rows count by ----


class Counts(NamedTuple):
    """The loss of a row is nll * .nll + extra * .extra + lse^2 * .z, the result the sum of them times scale."""

    nll: Tensor | None  # [M], as the next two; 0 in rows that do not count
    extra: Tensor | None
    z: Tensor | None
    scale: Tensor  # one number, f64; 0 where no row counts
    any: Tensor  # whether a row counts

    def of(self, rows: Tensor | slice) -> Counts:
        return Counts(*(None if one is None else one[rows] for one in self[:3]), *self[3:])

    def loss(self, nll: Tensor, lse: Tensor, extra: Tensor) -> Tensor:
        """Each row's, before it is scaled."""
        terms = [nll * self.nll if self.nll is not None else None,
                 extra * self.extra if self.extra is not None else None,
                 lse.square() * self.z if self.z is not None else None]
        loss = functools.reduce(lambda a, b: a if b is None else b if a is None else a + b, terms)
        assert loss is not None
        return loss

    def total(self, rows: Tensor) -> Tensor:
        """The result of rows' losses, summed in double precision."""
        total = rows.double().sum() * self.scale
        return torch.where(self.any, total, math.nan).to(rows.dtype)


def counts(target: Tensor, class_weight: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float,
           reduction: str, dtype: torch.dtype) -> Counts:
    """PyTorch's: a mean is over the class weights of valid targets, that of z_loss over valid targets."""
    rows = target.shape[0]
    if target.is_floating_point():
        extra = torch.ones(rows, dtype=dtype, device=target.device)
        nll, valid, weights = None, extra, extra
    else:
        weights = valid = (target != ignore_index).to(dtype)
        extra = valid * label_smoothing if label_smoothing else None
        if class_weight is not None:
            at = target.long().clamp(0, class_weight.shape[0] - 1)
            weights = torch.where(valid != 0, class_weight.to(dtype)[at], 0)
        nll = weights * (1 - label_smoothing)
    whole, rows_valid = weights.double().sum(), valid.double().sum()
    some, z = rows_valid > 0, None
    if z_loss:  # averaged over rows, where the rest is over weights
        each = torch.where(some, z_loss * whole / rows_valid, 0) if reduction == "mean" else z_loss
        z = (valid * each).to(dtype)
    if reduction != "mean":
        return Counts(nll, extra, z, torch.ones_like(whole), torch.ones_like(some))
    return Counts(nll, extra, z, torch.where(some, 1 / whole, 0), some)


# ---- targets that are no words, on a GPU ----


class _Flag:
    """Whether a target was out of range on a device. Nothing waits for it: it is copied to the host by the device's
    own time and looked at by the next call."""

    def __init__(self, device: torch.device):
        self._there = torch.zeros(1, dtype=torch.bool, device=device)
        self._here = torch.zeros(1, dtype=torch.bool, pin_memory=True)

    def raise_it(self) -> None:
        if self._here[0]:
            self._there.zero_()
            self._here.zero_()
            raise IndexError("Target is out of bounds, in an earlier call of linfuse's loss head on "
                             f"{self._there.device}; its loss was NaN")

    def set_by(self, bad: Tensor) -> None:
        self._there.logical_or_(bad.any())
        self._here.copy_(self._there, non_blocking=True)


@functools.cache
def _flag(device: torch.device) -> _Flag:
    return _Flag(device)


# ---- a call ----


def _may_ask(tensor: Tensor) -> bool:
    """Whether to ask for a tensor's numbers waits for nothing."""
    return tensor.device.type == "cpu"


@dataclass
class _Call:
    """Rows to compute. On a CPU those that are ignored are left out; a GPU computes them, since how many there are is
    not asked, and their results are dropped."""

    x: Tensor
    head: Head
    extra: Extra
    words: tuple[int, int]  # this rank's
    target: Tensor | None  # [M], words of all ranks'
    only: Tensor | None  # which rows, or all
    valid: Tensor | None  # [M], where all are computed and not all count

    @staticmethod
    def of(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
           ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
           operand: torch.dtype, extra: str, first: int, whole: int) -> _Call:
        """whole: words of all ranks, 0 where that is not known."""
        head = Head(weight, bias, operand, softcap, temperature)
        words = first, first + weight.shape[0]
        q = None if class_weight is None else class_weight[words[0] : words[1]].to(head.dtype)
        if target.is_floating_point():
            seen = target if target.shape[1] == weight.shape[0] else target[:, words[0] : words[1]]
            third = Extra("smooth", q, float(target.shape[1]), seen, label_smoothing)
            return _Call(x, head, third, words, None, None, None)
        third = Extra(extra, q if extra == "smooth" else None, float(whole or 1))
        target = target.long()
        valid = target != ignore_index
        if _may_ask(target):
            only = None if bool(valid.all()) else valid.nonzero()[:, 0]
            return _Call(x, head, third, words, target, only, None)
        return _Call(x, head, third, words, target, None, valid)

    def rows(self, chunk: slice) -> Tensor | slice:
        return chunk if self.only is None else self.only[chunk]

    @property
    def count(self) -> int:
        return self.x.shape[0] if self.only is None else self.only.shape[0]

    def taken(self, chunk: slice) -> tuple[Tensor | slice, Tensor, Tensor | None]:
        """A chunk's rows, x as products take it, and targets among this rank's words."""
        rows = self.rows(chunk)
        target = None if self.target is None else self.target[rows] - self.words[0]
        return rows, self.head.taken(self.x[rows]), target

    def bad(self, whole: float | Tensor) -> Tensor | None:
        """Which rows' targets are none of so many words; an error on a CPU, whose rows are then all good."""
        if self.target is None:
            return None
        target = self.target[self.rows(slice(None))]
        bad = (target < 0) | (target >= whole)
        if _may_ask(target):
            if bool(bad.any()):
                raise IndexError(f"Target {int(target[bad][0])} is out of bounds.")
            return None
        bad &= self.valid
        if target.is_cuda:
            _flag(target.device).set_by(bad)
        return bad

    def spread(self, of_rows: Tensor, missing: float = 0) -> Tensor:
        """One number a row, missing where a row does not count."""
        if self.only is not None:
            return of_rows.new_full((self.x.shape[0],), missing).index_copy_(0, self.only, of_rows)
        return of_rows if self.valid is None else torch.where(self.valid, of_rows, missing)

    def spread_rows(self, of_rows: Tensor) -> Tensor:
        """Several numbers a row."""
        if self.only is None:
            return of_rows
        return of_rows.new_zeros(self.x.shape[0], of_rows.shape[1]).index_copy_(0, self.only, of_rows)


@contextlib.contextmanager
def _as_written(x: Tensor) -> Iterator[None]:
    """No autocast inside an op; and what an earlier call left to be said is said."""
    if x.is_cuda:
        _flag(x.device).raise_it()
    with torch.autocast(x.device.type, enabled=False):
        yield


# ---- head_loss ----


def _loss(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
          ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
          operand: torch.dtype, reduction: str, z_loss: float, want: Sequence[bool]) -> tuple[Tensor, ...]:
    with _as_written(x):
        call = _Call.of(x, weight, bias, target, class_weight, ignore_index, label_smoothing, softcap, temperature,
                        operand, "smooth" if label_smoothing else "", 0, weight.shape[0])
        bad = call.bad(weight.shape[0])
        if call.target is not None and call.valid is None and loss_cpu.takes(
                call.count, x, weight, bias, softcap, temperature, operand, z_loss):
            total, scale, *made = _loss_fake(x, weight, bias, target, class_weight, ignore_index, label_smoothing,
                                             softcap, temperature, operand, reduction, z_loss, want)
            wanted = [one if asked else None for one, asked in zip(made, want)]
            total.fill_(loss_cpu.step(x, weight, bias, call.target, class_weight, ignore_index, label_smoothing,
                                      softcap, temperature, reduction, z_loss, wanted))
            return total, scale.fill_(1), *made
        head = call.head
        by = counts(target, class_weight, ignore_index, label_smoothing, z_loss, reduction, head.dtype)
        gradients = Gradients(head, x, want)
        losses = x.new_zeros(x.shape[0], dtype=head.dtype)
        for chunk in head.chunks(call.count, any(want)):
            rows, of_x, words = call.taken(chunk)
            logits: list[Tensor] | None = [] if any(want) else None
            stats = stats_of(head, of_x, words, call.extra, rows, keep=logits)
            got = found(stats, call.extra, None if bad is None else bad[chunk])
            mine = by.of(rows)
            losses[rows] = mine.loss(got.nll, got.lse, got.extra)
            if logits is not None:
                slopes = Slopes(mine.nll, None if mine.z is None else 2 * mine.z * got.lse, mine.extra)
                gradients.add(head, of_x, rows, logits, words, call.extra, got.kept, got.extra, slopes)
        if call.valid is not None:
            losses = torch.where(call.valid, losses, 0)
        return by.total(losses), by.scale.to(head.dtype), gradients.x, gradients.weight, gradients.bias


def _loss_fake(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
               ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
               operand: torch.dtype, reduction: str, z_loss: float, want: Sequence[bool]) -> tuple[Tensor, ...]:
    wide = sums_in(operand)
    shapes = [list(x.shape), list(weight.shape), [weight.shape[0]]]
    gradients = [x.new_empty(shape if wanted else [0], dtype=wide) for shape, wanted in zip(shapes, want)]
    return x.new_empty((), dtype=wide), x.new_empty((), dtype=wide), *gradients


def _loss_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.types = [None if one is None else one.dtype for one in inputs[:3]]
    ctx.want = inputs[-1]
    ctx.set_materialize_grads(False)


def _no_second(ctx: Any, *upstream: Any) -> Any:
    raise RuntimeError("linfuse's loss head has no second derivatives: its gradients are made without a graph")


def _loss_backward(ctx: Any, of_loss: Tensor | None, *_: Any) -> tuple[Any, ...]:
    missing = (None,) * 10
    if of_loss is None:
        return None, None, None, *missing
    scale, *gradients = ctx.saved_tensors
    scaled = [torch.ops.linfuse.head_scaled(one, of_loss * scale, dtype) if wanted else None
              for one, dtype, wanted in zip(gradients, ctx.types, ctx.want)]
    return *scaled, *missing


def _scaled(gradient: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded once, and without a copy in between: on a CPU PyTorch makes one, so that there it is done in pieces."""
    scaled = torch.empty_like(gradient, dtype=dtype)
    rows = _PIECE // max(gradient[:1].numel(), 1) + 1 if _may_ask(gradient) else max(len(gradient), 1)
    for begin in range(0, len(gradient), rows):
        torch.mul(gradient[begin : begin + rows], scale, out=scaled[begin : begin + rows])
    return scaled


# ---- head_rows ----


def _rows(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
          ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
          operand: torch.dtype, extra: str, argmax: bool, group: str | None, first: int) -> tuple[Tensor, ...]:
    with _as_written(x):
        whole: Any = weight.shape[0] if group is None else 0
        call = _Call.of(x, weight, bias, target, class_weight, ignore_index, label_smoothing, softcap, temperature,
                        operand, extra, first, whole)
        third = call.extra
        parts = []
        for chunk in call.head.chunks(call.count, False):
            rows, of_x, words = call.taken(chunk)
            parts.append(stats_of(call.head, of_x, words, third, rows, argmax))
        stats = Stats(*(None if one[0] is None else torch.cat(one) for one in zip(*parts))) if parts else \
            none_yet(0, x.new_empty(0, dtype=call.head.dtype), argmax)
        if group is not None:
            stats, whole = loss_ranks.combined(stats, third, call.words, group)
            if third.rows_of_q is None:
                third = Extra(third.kind, third.q, whole)
        got = found(stats, third, call.bad(whole))
        best = x.new_empty(0, dtype=torch.int64) if got.best is None else call.spread(got.best, -1)
        return (*map(call.spread, (got.nll, got.lse, got.extra)), best, call.spread_rows(got.kept))


def _rows_fake(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
               ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
               operand: torch.dtype, extra: str, argmax: bool, group: str | None, first: int) -> tuple[Tensor, ...]:
    wide, rows = sums_in(operand), x.shape[0]
    return (*(x.new_empty(rows, dtype=wide) for _ in range(3)), x.new_empty(rows if argmax else 0, dtype=torch.int64),
            x.new_empty(rows, 4, dtype=wide))


def _rows_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], output[2], output[4])
    ctx.rest = inputs[5:11] + inputs[12:]
    ctx.want = [False if one is None else one.requires_grad for one in inputs[:3]]
    ctx.mark_non_differentiable(output[3])
    ctx.set_materialize_grads(False)


def _rows_backward(ctx: Any, nll: Tensor | None, lse: Tensor | None, extra: Tensor | None, *_: Any) -> tuple[Any, ...]:
    gradients = torch.ops.linfuse.head_rows_backward(nll, lse, extra, *ctx.saved_tensors, *ctx.rest, ctx.want)
    given = [one if wanted else None for one, wanted in zip(gradients, ctx.want)]
    return *given, *(None,) * 11


def _back(nll: Tensor | None, lse: Tensor | None, of_extra: Tensor | None, x: Tensor, weight: Tensor,
          bias: Tensor | None, target: Tensor, class_weight: Tensor | None, third: Tensor, kept: Tensor,
          ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
          operand: torch.dtype, extra: str, group: str | None, first: int, want: Sequence[bool]
          ) -> tuple[Tensor, ...]:
    with _as_written(x):
        call = _Call.of(x, weight, bias, target, class_weight, ignore_index, label_smoothing, softcap, temperature,
                        operand, extra, first, 0)
        slopes = [one if one is None or call.valid is None else torch.where(call.valid, one, 0)
                  for one in (nll, lse, of_extra)]
        gradients = Gradients(call.head, x, want)
        for chunk in call.head.chunks(call.count, False):
            rows, of_x, words = call.taken(chunk)
            mine = Slopes(*(None if one is None else one[rows] for one in slopes))
            gradients.add(call.head, of_x, rows, None, words, call.extra, kept[rows], third[rows], mine)
        if group is not None and want[0]:
            loss_ranks.summed(gradients.x, group)
        types = (x.dtype, weight.dtype, x.dtype if bias is None else bias.dtype)
        return tuple(one.to(dtype) for one, dtype in
                     zip((gradients.x, gradients.weight, gradients.bias), types))


def _back_fake(nll: Tensor | None, lse: Tensor | None, of_extra: Tensor | None, x: Tensor, weight: Tensor,
               bias: Tensor | None, target: Tensor, class_weight: Tensor | None, third: Tensor, kept: Tensor,
               ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float,
               operand: torch.dtype, extra: str, group: str | None, first: int, want: Sequence[bool]
               ) -> tuple[Tensor, ...]:
    like = (x, weight, x.new_empty(weight.shape[0]) if bias is None else bias)
    return tuple(one.new_empty(one.shape if wanted else [0]) for one, wanted in zip(like, want))


def _define(name: str, schema: str, run: Any, fake: Any, backward: Any, saves: Any = None) -> None:
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linfuse::{name}", fake, lib=_library)
    torch.library.register_autograd(f"linfuse::{name}", backward, setup_context=saves, lib=_library)


_define("head_loss", f"({_HEAD}, str reduction, float z_loss, bool[] want) -> "
        "(Tensor loss, Tensor scale, Tensor of_x, Tensor of_weight, Tensor of_bias)",
        _loss, _loss_fake, _loss_backward, _loss_saves)
_define("head_scaled", "(Tensor gradient, Tensor scale, ScalarType dtype) -> Tensor", _scaled,
        lambda gradient, scale, dtype: torch.empty_like(gradient, dtype=dtype), _no_second)
_define("head_rows", f"({_HEAD}, str extra, bool argmax, str? group, int first) -> "
        "(Tensor nll, Tensor lse, Tensor third, Tensor best, Tensor kept)",
        _rows, _rows_fake, _rows_backward, _rows_saves)
_define("head_rows_backward", "(Tensor? nll, Tensor? lse, Tensor? of_extra, Tensor x, Tensor weight, Tensor? bias, "
        "Tensor target, Tensor? class_weight, Tensor third, Tensor kept, int ignore_index, float label_smoothing, "
        "float? softcap, float temperature, ScalarType operand, str extra, str? group, int first, bool[] want) -> "
        "(Tensor of_x, Tensor of_weight, Tensor of_bias)", _back, _back_fake, _no_second)
