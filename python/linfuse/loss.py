# SPDX-License-Identifier: Apache-2.0
"""The loss head of a language model: a linear layer and what is made of its logits, which are never stored.

    loss = linfuse.linear_cross_entropy(hidden, lm_head.weight, labels)
    nll, lse, entropy = linfuse.linear_logprobs(hidden, lm_head.weight, tokens)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from . import loss_ops
from .native import Error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
if not torch.distributed.is_available():
    tensors_over_ranks = None
elif torch.__version__.startswith("2.4."):
    import torch.distributed._tensor as tensors_over_ranks
else:
    import torch.distributed.tensor as tensors_over_ranks

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WORDS = (torch.int64, torch.int32)
_REDUCTIONS = ("mean", "sum", "none")


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    temperature: float = 1.0,
    z_loss: float = 0.0,
    process_group: ProcessGroup | None = None,
    vocab_range: tuple[int, int] | None = None,
) -> Tensor:
    """F.cross_entropy(F.linear(x, weight, bias), target, ...) without the logits, and differentiable.

    x             [..., K]; weight [N, K], bias [N]: float32, bfloat16, float16 or float64, each in its own type
    target        [...] of words, int64 or int32; or [..., N] of probabilities, in a floating type
    class_weight, ignore_index, label_smoothing, reduction   as in F.cross_entropy
    softcap       logits are softcap * tanh(linear / softcap), and then
    temperature   divided by this
    z_loss        adds z_loss * logsumexp^2 for each valid target, averaged over them where the reduction is a mean
    process_group, vocab_range   weight and bias hold the words first <= word < end of vocab_range, other ranks of the
                  group the rest; targets, class_weight and probabilities are of the whole vocabulary. Every rank gives
                  the same x and gets the same result; x's gradient is the sum of the ranks'. Without vocab_range,
                  every rank has as many words, in rank order. A DTensor as weight, sharded by Shard(0), says it all.
                  A range shorter than the weight has rows leaves the last rows, which are padding, out.

    The result is float32 (float64 for float64). A scalar result makes the gradients with it and backward only scales
    them; reduction="none", and ranks, keep a few numbers a row and make the logits again, tile by tile, in backward.
    """
    if reduction not in _REDUCTIONS:
        raise Error(f"reduction is one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise Error(f"label_smoothing is between 0 and 1, not {label_smoothing}")
    head = _head(x, weight, target, bias, class_weight, softcap, temperature, process_group, vocab_range)
    want = [torch.is_grad_enabled() and one is not None and one.requires_grad for one in head.tensors[:3]]
    loss = of_rows(head, ignore_index, label_smoothing, reduction, softcap, temperature, z_loss, want)
    return loss.reshape(x.shape[:-1]) if reduction == "none" else loss


def linear_logprobs(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropy: bool = True,
    argmax: bool = False,
    process_group: ProcessGroup | None = None,
    vocab_range: tuple[int, int] | None = None,
) -> tuple[Tensor | None, ...]:
    """nll, lse, entropy of each row without the logits, each [...] and differentiable.

    nll is minus the target's log-probability, lse the logsumexp of the row's logits, entropy that of their softmax
    (None with entropy=False). argmax=True adds the word with the largest logit. All are 0 where the target is
    ignore_index, and argmax is -1. The arguments are those of linear_cross_entropy; targets are words.
    """
    if target.is_floating_point():
        raise Error("linear_logprobs: target is words (int64 or int32), not probabilities")
    head = _head(x, weight, target, bias, None, softcap, temperature, process_group, vocab_range)
    if argmax and head.group is not None:
        raise Error("linear_logprobs: argmax is not exchanged between ranks; leave it out where words are split")
    nll, lse, third, best, _ = torch.ops.linfuse.head_rows(
        *head.tensors, ignore_index, 0.0, softcap, float(temperature), head.operand,
        "entropy" if entropy else "", argmax, head.group, head.first)
    shape = x.shape[:-1]
    results = nll.reshape(shape), lse.reshape(shape), third.reshape(shape) if entropy else None
    return (*results, best.reshape(shape)) if argmax else results


class Given(NamedTuple):
    """A head as the ops take it."""

    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]  # x, weight, bias, target, class_weight
    operand: torch.dtype
    group: str | None
    first: int


def of_rows(head: Given, ignore_index: int, label_smoothing: float, reduction: str, softcap: float | None,
            temperature: float, z_loss: float, want: Sequence[bool]) -> Tensor:
    """linear_cross_entropy of arguments that are checked; "none" gives [M]. want: the gradients of x, weight and bias
    that are asked for."""
    common = (*head.tensors, ignore_index, float(label_smoothing), softcap, float(temperature), head.operand)
    if reduction != "none" and head.group is None:
        loss: Tensor = torch.ops.linfuse.head_loss(*common, reduction, float(z_loss), want)[0]
        return loss
    third = "smooth" if label_smoothing else ""
    nll, lse, extra, _, _ = torch.ops.linfuse.head_rows(*common, third, False, head.group, head.first)
    by = loss_ops.counts(head.tensors[3], head.tensors[4], ignore_index, label_smoothing, z_loss, reduction, nll.dtype)
    rows = by.loss(nll, lse, extra)
    return rows if reduction == "none" else by.total(rows)


def _head(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
          softcap: float | None, temperature: float, group: Any, vocab_range: tuple[int, int] | None) -> Given:
    """Checks the arguments and brings them to two dims."""
    if tensors_over_ranks is not None and isinstance(weight, tensors_over_ranks.DTensor):
        weight, bias, x, group, vocab_range = _of_dtensor(weight, bias, x, group, vocab_range)
    for name, one in (("x", x), ("weight", weight), ("target", target)):
        if not isinstance(one, Tensor):
            raise Error(f"{name} is a {type(one).__name__}; it must be a torch.Tensor")
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise Error(f"x {_shown(x)} and weight {_shown(weight)}: weight is [N, K] and x [..., K]")
    for name, one in (("x", x), ("weight", weight), ("bias", bias), ("class_weight", class_weight)):
        if one is not None and one.dtype not in _FLOATS:
            raise Error(f"{name} is {one.dtype}; it must be float32, bfloat16, float16 or float64")
        if one is not None and one.device != x.device:
            raise Error(f"{name} is on {one.device} and x on {x.device}; move them to one device")
    if target.device != x.device:
        raise Error(f"target is on {target.device} and x on {x.device}; move them to one device")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise Error(f"bias {_shown(bias)} and weight {_shown(weight)}: bias is [N]")
    if softcap is not None and not softcap > 0:
        raise Error(f"softcap is a positive number or None, not {softcap}")
    if temperature == 0:
        raise Error("temperature must not be 0")
    alone = group is None or group.size() == 1
    first, end = vocab_range if vocab_range is not None else _even(weight, None if alone else group)
    if not 0 <= first <= end or end - first > weight.shape[0]:
        raise Error(f"vocab_range ({first}, {end}) names {end - first} words and weight {_shown(weight)} has "
                    f"{weight.shape[0]}")
    if alone and first != 0:
        raise Error(f"vocab_range ({first}, {end}) begins behind word 0; process_group must name the ranks that hold "
                    "the other words")
    if end - first < weight.shape[0]:
        weight, bias = weight[: end - first], None if bias is None else bias[: end - first]
    _check_target(x, target, class_weight, end if alone else None)
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])  # -1 would be ambiguous where there are no numbers
    target = target.reshape(rows.shape[0], target.shape[-1]) if target.is_floating_point() else target.reshape(-1)
    return Given((rows, weight, bias, target, class_weight), _operand(x, weight),
                  None if alone else group.group_name, first)


def _check_target(x: Tensor, target: Tensor, class_weight: Tensor | None, words: int | None) -> None:
    """words: how many, where this rank knows."""
    wide = class_weight.shape[0] if words is None and class_weight is not None else words
    if target.is_floating_point():
        if target.requires_grad:
            raise Error("target probabilities require grad, which they do not get; give target.detach()")
        wide = target.shape[-1] if wide is None and target.dim() else wide
        if target.shape != (*x.shape[:-1], wide):
            raise Error(f"x {_shown(x)} and target {_shown(target)}: probabilities are [..., {wide}]")
    elif target.dtype not in _WORDS:
        raise Error(f"target is {target.dtype}; words are int64 or int32, probabilities a floating type")
    elif target.shape != x.shape[:-1]:
        raise Error(f"x {_shown(x)} and target {_shown(target)}: target is [...] where x is [..., K]")
    if class_weight is not None and class_weight.requires_grad:
        raise Error("class_weight requires grad, which it does not get; give class_weight.detach()")
    if class_weight is not None and class_weight.shape != (wide,):
        raise Error(f"class_weight {_shown(class_weight)}: it is [{wide}], one for each word")


def _shown(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _even(weight: Tensor, group: Any) -> tuple[int, int]:
    """This rank's words, where all have as many."""
    words = weight.shape[0]
    first = 0 if group is None else torch.distributed.get_rank(group) * words
    return first, first + words


def _operand(x: Tensor, weight: Tensor) -> torch.dtype:
    """The type that F.linear would multiply in."""
    promoted = torch.promote_types(x.dtype, weight.dtype)
    if promoted is not torch.float64 and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return promoted


def _of_dtensor(weight: Any, bias: Any, x: Any, group: Any, vocab_range: Any) -> tuple[Any, ...]:
    """The local parts of a weight that is sharded by its rows."""
    by_rows, whole = tensors_over_ranks.Shard(0), tensors_over_ranks.Replicate()
    sharded = [dim for dim, placement in enumerate(weight.placements) if placement == by_rows]
    others = [one for one in weight.placements if one not in (by_rows, whole)]
    if len(sharded) != 1 or others or group is not None or vocab_range is not None:
        raise Error(f"weight is a DTensor with placements {tuple(weight.placements)}: it must be sharded by Shard(0) "
                    "over one dim of its mesh, and says itself what process_group and vocab_range would")
    mesh, dim = weight.device_mesh, sharded[0]
    words, ranks = weight.shape[0], mesh.size(dim)
    each = -(-words // ranks)  # as torch.chunk
    first = min(mesh.get_local_rank(dim) * each, words)

    def local(one: Any) -> Any:
        return one.to_local() if isinstance(one, tensors_over_ranks.DTensor) else one

    held = local(weight)
    return held, local(bias), local(x), mesh.get_group(dim), (first, first + held.shape[0])


class LinearCrossEntropy(nn.Linear):
    """A linear layer and the cross-entropy of its logits, which are never stored: module(x, target).

    Its weight and bias are those of nn.Linear and load its state; `module.weight = embedding.weight` ties it. The
    other arguments are linear_cross_entropy's.
    """

    class_weight: Tensor | None

    def __init__(self, in_features: int, num_classes: int, bias: bool = False, *, class_weight: Tensor | None = None,
                 ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean",
                 softcap: float | None = None, temperature: float = 1.0, z_loss: float = 0.0,
                 process_group: Any = None, vocab_range: tuple[int, int] | None = None,
                 device: Any = None, dtype: torch.dtype | None = None):
        super().__init__(in_features, num_classes, bias, device=device, dtype=dtype)
        self.register_buffer("class_weight", class_weight)
        self.options = dict(ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction,
                            softcap=softcap, temperature=temperature, z_loss=z_loss, process_group=process_group,
                            vocab_range=vocab_range)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return linear_cross_entropy(x, self.weight, target, self.bias, class_weight=self.class_weight, **self.options)


class LinearLogprobs(nn.Linear):
    """A linear layer and what linear_logprobs makes of its logits: module(x, target) gives nll, lse, entropy."""

    def __init__(self, in_features: int, num_classes: int, bias: bool = False, *, ignore_index: int = -100,
                 softcap: float | None = None, temperature: float = 1.0, entropy: bool = True, argmax: bool = False,
                 process_group: Any = None, vocab_range: tuple[int, int] | None = None,
                 device: Any = None, dtype: torch.dtype | None = None):
        super().__init__(in_features, num_classes, bias, device=device, dtype=dtype)
        self.options = dict(ignore_index=ignore_index, softcap=softcap, temperature=temperature, entropy=entropy,
                            argmax=argmax, process_group=process_group, vocab_range=vocab_range)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return linear_logprobs(x, self.weight, target, self.bias, **self.options)
