# SPDX-License-Identifier: Apache-2.0
"""Linear -> GELU -> Softmax, as you would write it; one line makes it fast.

    python examples/gelu_softmax.py [--batch 512] [--features 2048] [--save DIR] [--explain]

The softmax needs the whole row and then its values again: linfuse keeps them at hand in between.
"""

import torch
from torch import nn

from common import arguments, demonstrate


class GeluSoftmax(nn.Sequential):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(nn.Linear(in_features, out_features), nn.GELU(), nn.Softmax(dim=1))


if __name__ == "__main__":
    args = arguments(__doc__, batch=512, features=2048)
    demonstrate(args, GeluSoftmax(args.features, args.features), torch.rand(args.batch, args.features))
