# SPDX-License-Identifier: Apache-2.0
"""A small classifier, trained in plain PyTorch and served by linfuse.

    python examples/mlp_classifier.py [--batch 4096] [--features 256] [--steps 100] [--save DIR] [--explain]

It learns to tell apart the arms of a spiral, which it draws itself. Training is PyTorch's alone. Serving needs no
gradients: under torch.no_grad the whole classifier, from points to class probabilities, runs in linfuse. It is as
accurate as before: the same points get the same class.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from common import arguments, demonstrate

ARMS = 5


def spiral(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane [count, 2], and the arm that each lies on [count]."""
    arm = torch.randint(ARMS, (count,))
    radius = torch.rand(count)
    angle = 2 * math.pi * arm / ARMS + 4 * radius + 0.15 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


def train(model: nn.Module, batch: int, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        points, arm = spiral(batch)
        loss = F.cross_entropy(model(points), arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}")


def accuracy(probabilities: torch.Tensor, arm: torch.Tensor) -> float:
    return (probabilities.argmax(1) == arm).float().mean().item()


if __name__ == "__main__":
    args = arguments(__doc__, batch=4096, features=256, steps=100)
    torch.manual_seed(0)
    width = args.features
    model = nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ARMS)
    )
    train(model, min(args.batch, 512), args.steps)

    points, arm = spiral(args.batch)
    plain, fused = demonstrate(args, nn.Sequential(model, nn.Softmax(dim=1)), points)
    print(f"accuracy on new points: PyTorch {accuracy(plain, arm):.2%}, linfuse {accuracy(fused, arm):.2%}")
