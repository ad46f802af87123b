# SPDX-License-Identifier: Apache-2.0
"""What a loss head costs each of R ranks that share its words: counted from its sizes, and how statistics of so many
ranks meet, simulated in one process by lf_loss_combine.

    python bench/ranks.py [--tokens 8192] [--words 128256] [--features 4096] [--flops 600e12] [--near 400e9]
                          [--far 45e9]

--flops: of a product on one GPU, per second; --near, --far: bytes per second to other ranks within 8 and beyond. Times
are of these alone: no latency, nothing overlapped.
"""

import argparse
import ctypes
import os
import pathlib
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROW = np.dtype([(name, np.float32) for name in ("largest", "sum", "target", "all", "spread")])  # lf_loss_row


def readable(count):
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000


def counted(args, ranks):
    """Bytes that a rank gets, and milliseconds."""
    link = args.near if ranks <= 8 else args.far
    product = 2 * args.tokens * args.words * args.features / ranks
    gathered = (ranks - 1) * 16 * (args.tokens + 1)
    summed = 2 * (ranks - 1) / ranks * 4 * args.tokens * args.features
    return gathered, summed, 4e3 * product / args.flops, 1e3 * gathered / link, 1e3 * summed / link


def simulated(library, args, ranks, tokens=64):
    """The worst error of a logsumexp, relative to double precision, and microseconds a token to combine."""
    logits = np.random.default_rng(0).normal(0, 4, (tokens, args.words)).astype(np.float32)
    parts = np.zeros((ranks, tokens), ROW)
    for rank, shard in enumerate(np.array_split(logits, ranks, axis=1)):
        parts[rank]["largest"] = shard.max(axis=1)
        parts[rank]["sum"] = np.exp(shard.astype(np.float64) - shard.max(axis=1, keepdims=True)).sum(axis=1)
    rows = np.zeros(tokens, ROW)
    context = ctypes.c_void_p()
    library.lf_context_new(ctypes.byref(context))
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        status = library.lf_loss_combine(context, ctypes.c_int64(tokens), ranks,
                                         *(one.ctypes.data_as(ctypes.c_void_p) for one in (parts, rows)))
        took.append(time.perf_counter() - begin)
        assert status == 0
    library.lf_context_free(context)
    wide = logits.astype(np.float64)
    peak = wide.max(axis=1)
    right = peak + np.log(np.exp(wide - peak[:, None]).sum(axis=1))
    got = rows["largest"].astype(np.float64) + np.log(rows["sum"].astype(np.float64))
    return np.abs(got / right - 1).max(), 1e6 * min(took) / tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"tokens": 8192, "words": 128256, "features": 4096}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"flops": 600e12, "near": 400e9, "far": 45e9}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    args = parser.parse_args()
    library = ctypes.CDLL(os.environ.get("LINFUSE_LIBRARY", str(ROOT / "build" / "release" / "liblinfuse.so")))
    print("| ranks | words of each | gathered | summed | products | gather | sum | combining, a token | error |")
    print("| --- " * 9 + "|")
    for ranks in (8, 16, 64, 256, 1024, 4096):
        gathered, summed, products, gather, total = counted(args, ranks)
        error, combining = simulated(library, args, ranks)
        print(f"| {ranks} | {args.words / ranks:.0f} | {readable(gathered)} | {readable(summed)} | {products:.3g} ms "
              f"| {gather:.3g} ms | {total:.3g} ms | {combining:.3g} us | {error:.1g} |")


if __name__ == "__main__":
    main()
