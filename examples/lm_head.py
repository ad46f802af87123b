# SPDX-License-Identifier: Apache-2.0
"""The head of a language model as scoring uses it: log-probabilities of given tokens, without storing the logits.

    python examples/lm_head.py [--batch 192] [--features 256] [--vocabulary 50257] [--explain]

A token's log-probability is its logit minus the logsumexp of the row's logits. PyTorch stores the logits, a row as long
as the vocabulary for each position; linfuse keeps the running maximum and sum of each row while it computes them. Both
look up the targets' rows of the weight, which is all that their own logits need.
"""

import torch
from torch import nn
from torch.nn import functional as F

from common import arguments, demonstrate


class LmHead(nn.Module):
    def __init__(self, features: int, vocabulary: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, vocabulary, bias=False)

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        all_logits = self.linear(hidden)
        target_logit = (hidden * F.embedding(target, self.linear.weight)).sum(dim=1)
        return target_logit - torch.logsumexp(all_logits, dim=1)


def _resident(field: str) -> int:
    """Bytes of this process: VmRSS, in memory now, or VmHWM, the most since that was last reset."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def peak_bytes(function, *inputs: torch.Tensor) -> int:
    """How much memory a call adds to the process at its peak. Linux only."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = _resident("VmRSS")
    function(*inputs)
    return _resident("VmHWM") - before


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    args = arguments(__doc__, batch=192, features=256, vocabulary=50257)
    torch.manual_seed(0)
    model = LmHead(args.features, args.vocabulary).eval()
    hidden, target = torch.randn(args.batch, args.features), torch.randint(args.vocabulary, (args.batch,))
    _, fused = demonstrate(args, model, hidden, target)

    import linfuse

    fast = torch.compile(model, backend="linfuse")
    with torch.no_grad():
        textbook = F.log_softmax(model.linear(hidden), dim=1).gather(1, target[:, None])[:, 0]
        fast(hidden, target)  # compiles and packs the weight, which is done once
        added = {"PyTorch": peak_bytes(model, hidden, target), "linfuse": peak_bytes(fast, hidden, target)}
    kept = linfuse.explain(model, hidden, target).fused
    print("memory that a call adds: " + ", ".join(f"{name} {megabytes(count)}" for name, count in added.items()))
    print(f"linfuse keeps {megabytes(kept.workspace_bytes)} of workspace between calls, "
          f"and a packed copy of the weight, {megabytes(kept.prepared_bytes)}")
    print(f"perplexity of random targets: {torch.exp(-fused.mean()):.0f}, "
          f"by log_softmax and gather {torch.exp(-textbook.mean()):.0f}")
    torch.testing.assert_close(fused, textbook, rtol=1e-5, atol=1e-5)
