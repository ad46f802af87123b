# SPDX-License-Identifier: Apache-2.0
"""What the examples share: options, and showing that a compiled model gives what the model gives, and how fast."""

import argparse
import statistics
import time

import torch
from torch import nn


def arguments(doc: str, batch: int, features: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--features", type=int, default=features)
    parser.add_argument("--explain", action="store_true", help="print what linfuse made of it")
    parser.add_argument("--save", metavar="DIR", help="save it there, for `linfuse run` and examples/serve.c")
    return parser.parse_args()


def seconds(functions, x: torch.Tensor, least: int = 5, most: int = 101, enough: float = 5.0) -> list[float]:
    """The median time of a call of each: they take turns, so that what disturbs one disturbs all. `least` turns, and
    up to `most` while they take less than `enough` seconds together."""
    times: list[list[float]] = [[] for _ in functions]
    begun = time.perf_counter()
    while len(times[0]) < least or (len(times[0]) < most and time.perf_counter() - begun < enough):
        for function, own in zip(functions, times):
            start = time.perf_counter()
            function(x)
            own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{1e3 * seconds:.0f} ms"


def demonstrate(model: nn.Module, x: torch.Tensor, args: argparse.Namespace) -> None:
    model = model.eval()
    fast = torch.compile(model, backend="linfuse")  # the one line
    with torch.no_grad():
        want, got = model(x), fast(x)
        apart = (got - want).abs().max().item() / want.square().mean().sqrt().item()
        plain, fused = seconds([model, fast], x)
    print(f"PyTorch {_ms(plain)}, linfuse {_ms(fused)}: {plain / fused:.2f} times as fast")
    print(f"largest difference {apart:.1e} of the results' rms")
    if args.explain or args.save:
        import linfuse  # for these two; compiling needs no import

        if args.explain:
            print(linfuse.explain(model, x))
        if args.save:
            saved = linfuse.save(model, (x,), args.save)
            print(f"saved {saved.model} and {saved.weights}")
    if not apart < 1e-4:
        raise SystemExit("the results differ")
