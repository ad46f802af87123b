# SPDX-License-Identifier: Apache-2.0
"""Linear -> LogSumExp -> LeakyReLU twice -> GELU twice, as you would write it; one line makes it fast.

    python examples/lse_chain.py [--batch 512] [--features 2048] [--save DIR] [--explain]

All that follows the product sees one number a row: linfuse never stores the row.
"""

import torch
from torch import nn
from torch.nn import functional as F

from common import arguments, demonstrate


class LseChain(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.leaky_relu(x, negative_slope=0.01)
        x = F.gelu(x)
        return F.gelu(x)


if __name__ == "__main__":
    args = arguments(__doc__, batch=512, features=2048)
    demonstrate(args, LseChain(args.features, args.features), torch.rand(args.batch, args.features))
