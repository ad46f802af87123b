# SPDX-License-Identifier: Apache-2.0
"""What the examples share: options, and showing that a compiled model gives what the model gives, and how fast."""

import argparse

import torch
from torch import nn


def arguments(doc: str, **sizes: int) -> argparse.Namespace:
    """The command line of an example: an option for each size, by name with its default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--explain", action="store_true", help="print what linfuse made of it")
    parser.add_argument("--save", metavar="DIR", help="save it there, for `linfuse run` and examples/serve.c")
    return parser.parse_args()


def demonstrate(args: argparse.Namespace, model: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compiles, compares and measures a model. Returns PyTorch's result and linfuse's."""
    model = model.eval()
    fast = torch.compile(model, backend="linfuse")  # the one line
    with torch.no_grad():
        want, got = model(*inputs), fast(*inputs)
    apart = (got - want).abs().max().item() / want.square().mean().sqrt().item()

    import linfuse  # for what follows; compiling needs no import

    print(linfuse.bench(model, *inputs, inductor=False, seconds=1.0).headline)
    print(f"largest difference {apart:.1e} of the results' rms")
    if args.explain:
        print(linfuse.explain(model, *inputs))
    if args.save:
        saved = linfuse.save(model, inputs, args.save)
        print(f"saved {saved.model} and {saved.weights}")
    if not apart < 1e-4:
        raise SystemExit("the results differ")
    return want, got
