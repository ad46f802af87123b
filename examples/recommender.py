# SPDX-License-Identifier: Apache-2.0
"""Two towers that score users and items: linfuse runs part of the model, and PyTorch the rest.

    python examples/recommender.py [--batch 1024] [--features 256] [--explain]

Each tower looks up an embedding, appends what else is known, and ends in a vector of length 1; the score is the
product of the two vectors. linfuse takes what it has ops for, the linear layers and what follows them, and leaves the
rest, such as looking up embeddings, to PyTorch. Nothing has to be rewritten, and linfuse.explain tells which op runs
where and why.
"""

import torch
from torch import nn
from torch.nn import functional as F

from common import arguments, demonstrate

USERS, ITEMS, EMBEDDING, KNOWN, OUT = 10_000, 5_000, 64, 16, 64


class Tower(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(count, EMBEDDING)
        self.hidden = nn.Linear(EMBEDDING + KNOWN, width)
        self.out = nn.Linear(width, OUT)

    def forward(self, index: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.embedding(index), known], dim=1)
        x = F.gelu(self.hidden(x))
        return F.normalize(self.out(x), dim=1)


class Recommender(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.user = Tower(USERS, width)
        self.item = Tower(ITEMS, width)

    def forward(
        self, user: torch.Tensor, of_user: torch.Tensor, item: torch.Tensor, of_item: torch.Tensor
    ) -> torch.Tensor:
        return (self.user(user, of_user) * self.item(item, of_item)).sum(dim=1)


if __name__ == "__main__":
    args = arguments(__doc__, batch=1024, features=256)
    torch.manual_seed(0)
    model = Recommender(args.features)
    user, of_user = torch.randint(USERS, (args.batch,)), torch.rand(args.batch, KNOWN)
    item, of_item = torch.randint(ITEMS, (args.batch,)), torch.rand(args.batch, KNOWN)
    inputs = user, of_user, item, of_item
    demonstrate(args, model, *inputs)

    import linfuse

    account = linfuse.explain(model, *inputs)
    for kernel in account.kernels:
        print(f"linfuse: {', '.join(kernel.covers)}")
    for left in account.fallbacks:
        print(f"PyTorch: {left}")
