# SPDX-License-Identifier: Apache-2.0
"""The scalar loss head on a CPU, by the C library: lf_loss_step makes the loss and its gradients 192 rows at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import native, weights
from .homes import FLOATS, NATIVE
from .loss_tiles import SMALL

allowed = True  # tests switch it off: the torch ops compute all
_REDUCTIONS = ("mean", "sum")  # lf_reduction
_ROWS = 192  # whose logits C keeps at a time: LF_LOSS_TOKENS
_COPIED = 64 << 20  # bytes of operands that may be copied to be row-major: as many as the torch ops keep of logits


def takes(rows: int, x: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, temperature: float,
          operand: torch.dtype, z_loss: float) -> bool:
    """Whether C computes the scalar loss of words; rows: how many count. Wherever it can, unless it would keep more
    than 4 MiB and a quarter of the logits, which the torch ops do not: in each type, with gradients or without, for 4
    rows or 1024, it takes 0.25 to 0.8 of the torch ops' time. (1024 rows, 16,000 words, 512 features, one AMD core with
    AVX512-BF16, relative to eager: 0.50 where the torch ops take 0.83 in f32, 1.3 where they take 2.1 in bf16.)"""
    given = [one for one in (x, weight, bias) if one is not None]
    copied = sum(one.nbytes for one in given if not one.is_contiguous())
    fit = max(rows // 4, SMALL // (4 * max(weight.shape[0], 1)))
    return (allowed and min(rows, _ROWS) <= fit and x.device.type == "cpu" and min(weight.shape) > 0
            and all(one.dtype in FLOATS for one in given) and copied <= _COPIED
            # autocast rounds operands; C takes them as they are
            and torch.promote_types(x.dtype, weight.dtype) is operand
            # lf_loss_options has these bounds
            and temperature > 0 and all(map(math.isfinite, (temperature, softcap or 0, z_loss))))


def step(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, class_weight: Tensor | None,
         ignore_index: int, label_smoothing: float, softcap: float | None, temperature: float, reduction: str,
         z_loss: float, gradients: Sequence[Tensor | None]) -> float:
    """The loss. target: int64, words of the weight or ignore_index; gradients: where those of x, weight and bias go,
    f32, None where one is not wanted. Needs `takes`."""
    tensors = [None if one is None else one.contiguous() for one in (x, weight, bias)]
    target = target.contiguous()
    of_class = None if class_weight is None else class_weight.to(torch.float32).contiguous()
    options = native.LossOptions(_REDUCTIONS.index(reduction), ignore_index, label_smoothing, softcap or 0.0,
                                 temperature, z_loss, None if of_class is None else of_class.data_ptr())
    given = native.Loss(*map(_array, tensors), target.data_ptr(), options, [*map(_array, gradients)])
    with weights.making:  # a context is one thread's at a time
        return given.step(weights.context(x.device, torch.get_num_threads()))


def _array(tensor: Tensor | None) -> native.Array | None:
    return None if tensor is None else native.Array(tensor.data_ptr(), NATIVE[tensor.dtype], tensor.shape)
