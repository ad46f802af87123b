# SPDX-License-Identifier: Apache-2.0
"""Linear -> Subtract -> Mean -> LogSumExp -> GELU -> residual add, as you would write it; one line makes it fast.

    python examples/mean_residual.py [--batch 512] [--features 2048] [--save DIR] [--explain]

A row's mean is all the product is for: linfuse makes of it a product with one vector, and guards rows with NaN or Inf.
"""

import torch
from torch import nn
from torch.nn import functional as F

from common import arguments, demonstrate


class MeanResidual(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.subtract = nn.Parameter(torch.rand(out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) - self.subtract
        y = y.mean(dim=1, keepdim=True)
        y = torch.logsumexp(y, dim=1, keepdim=True)
        return F.gelu(y) + x


if __name__ == "__main__":
    args = arguments(__doc__, batch=512, features=2048)
    demonstrate(args, MeanResidual(args.features, args.features), torch.rand(args.batch, args.features))
