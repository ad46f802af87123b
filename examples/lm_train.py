# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model whose loss head never stores its logits.

    python examples/lm_train.py [--steps 60] [--batch 16] [--length 32] [--features 64] [--vocabulary 4000] [--plain]

The data are arithmetic progressions: the next word is the last one plus a step that the first two tell. --plain trains
the same model with F.cross_entropy(F.linear(...)) instead; the losses are the same to the digits shown.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

import linfuse


class Model(nn.Module):
    """Mixes each word with the two before it, and predicts the next. The head's weight is the embedding's."""

    def __init__(self, vocabulary: int, features: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)
        self.mix = nn.Conv1d(features, features, kernel_size=3)
        self.body = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))
        nn.init.normal_(self.embedding.weight, std=features**-0.5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        x = x + self.mix(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return x + self.body(x)


def progressions(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    """[batch, length + 1] words; few first words and steps, so that a short training sees them all."""
    first, step = torch.randint(64, (batch, 1)), torch.randint(1, 4, (batch, 1))
    return (first + step * torch.arange(length + 1)) % vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in {"steps": 60, "batch": 16, "length": 32, "features": 64, "vocabulary": 4000}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--plain", action="store_true", help="with logits, as PyTorch computes it")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Model(args.vocabulary, args.features)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    begin = time.perf_counter()
    for step in range(args.steps):
        words = progressions(args.batch, args.length, args.vocabulary)
        hidden, target = model(words[:, :-1]), words[:, 1:].contiguous()
        if args.plain:
            loss = F.cross_entropy(F.linear(hidden, model.embedding.weight).flatten(0, 1), target.flatten())
        else:
            loss = linfuse.linear_cross_entropy(hidden, model.embedding.weight, target)  # the one line
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"{time.perf_counter() - begin:.1f} s; logits {'are' if args.plain else 'would be'} "
          f"{4 * args.batch * args.length * args.vocabulary / 1e6:.1f} MB a step, and their gradient as much")


if __name__ == "__main__":
    main()
