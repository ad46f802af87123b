# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's compute-sanitizer over small models that between them run every family of kernels (make sanitize-gpu).

    python3 tests/sanitize_gpu.py LINFUSE [--tools memcheck,racecheck,synccheck] [--only NAME,...]
                                  [--precisions fp32,...] [--units best,mma,plain]

LINFUSE is the built command. Each model is checked by it (fused and op by op, beside double precision) under each tool,
with the kernels this GPU is best served with and with those that others get (LINFUSE_CUDA), in each precision they
have, at each of its batches. Anything a tool finds, a check that does not hold, and a run past its time are failures,
and so is having run nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

TOOLS = ("memcheck", "racecheck", "synccheck")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
UNITS = ("best", "mma", "plain")
TOOLKIT = "/usr/local/cuda/bin"  # where it is when it is not on the path
SECONDS = 240  # of one run; racecheck is the slowest

# name -> batches, model. Batches of at most 128 rows are one row block, of more several: kernels of their own.
MODELS: dict[str, tuple[tuple[int, ...], str]] = {
    "stored": ((1, 130), "input x f32[B, 72]\nparam w f32[260, 72]\nparam b f32[260]\n"
                         "a = linear(x, w, b)\nc = gelu(a)\nreturn c\n"),
    "softmax": ((5, 140), "input x f32[B, 96]\nparam w f32[264, 96]\n"
                          "a = linear(x, w)\nc = softmax(a, dim=1)\nreturn c\n"),
    "logsumexp": ((3, 129), "input x f32[B, 65]\nparam w f32[300, 65]\n"
                            "a = linear(x, w)\nc = logsumexp(a, dim=1)\nreturn c\n"),
    "norms": ((140,), "input x f32[B, 64]\nparam w f32[256, 64]\n"
                      "a = linear(x, w)\nc = group_norm(a, 8)\nd = layer_norm(c, [256])\nreturn d\n"),
    "columns": ((140,), "input x f32[B, 64]\nparam w f32[72, 64]\nparam m f32[72]\nparam v f32[72]\n"
                        "a = linear(x, w)\nc = batch_norm(a, m, v, training=true)\nreturn c\n"),
    "pooled": ((33,), "input x f32[B, 64]\nparam w f32[192, 64]\n"
                      "a = linear(x, w)\nc = unsqueeze(a, 1)\nd = max_pool1d(c, 4)\ne = squeeze(d, 1)\nreturn e\n"),
    # The mean of what is not finite: rows are done again as written.
    "guarded": ((70,), "input x f32[B, 64]\nparam w f32[80, 64]\ny = sub(x, 0.002)\nz = log(y)\n"
                       "a = linear(z, w)\nc = mean(a, dim=1, keepdim=true)\nd = mul(c, 4)\nreturn d\n"),
    # Rows too wide in range for the tensor cores: done again on the ordinary units.
    "wide": ((140,), "input x f32[B, 64]\nparam w f32[264, 64]\nz = mul(x, 80)\ny = exp(z)\n"
                     "a = linear(y, w)\nc = max(a, dim=1)\nreturn c\n"),
    "ring": ((3, 700), "input x f32[B, 5120]\nparam w f32[3, 5120]\na = linear(x, w)\n"
             "b = mean(a, dim=1, keepdim=true)\nc = add(b, x)\nreturn c\n"),
    "named": ((37,), "input x f32[B, K]\ninput y f32[K, N]\n"
                     "a = matmul(x, y)\nc = softmax(a, dim=1)\nd = sum(c, dim=0)\nreturn c, d\n"),
    "two": ((34,), "input x f32[B, 64]\nparam v f32[72, 64]\nparam w f32[10, 72]\n"
                   "a = linear(x, v)\nc = relu(a)\nd = linear(c, w)\ne = log_softmax(d, dim=1)\nreturn e\n"),
}


class Job(NamedTuple):
    tool: str
    unit: str
    name: str
    precision: str
    batch: int


def _jobs(tools: list[str], units: list[str], names: list[str], precisions: list[str]) -> list[Job]:
    jobs = []
    for tool, unit, name, precision in itertools.product(tools, units, names, precisions):
        if unit != "plain" or precision == "fp32":  # the ordinary units have no other
            jobs += [Job(tool, unit, name, precision, batch) for batch in MODELS[name][0]]
    return jobs


def _run(job: Job, sanitizer: str, command: str, folder: pathlib.Path) -> tuple[str, float]:
    """What is wrong, "" where nothing is, and the seconds it took."""
    tool, unit, name, precision, batch = job
    text = MODELS[name][1]
    dims = ["--dim", f"B={batch}"] + (["--dim", "K=50", "--dim", "N=70"] if "K]" in text else [])
    line = [sanitizer, "--tool", tool, "--error-exitcode", "99", command, "check", str(folder / f"{name}.lf")]
    line += ["--device", "cuda", "--precision", precision, *dims]
    environment = {**os.environ, **({} if unit == "best" else {"LINFUSE_CUDA": unit})}
    begun = time.monotonic()
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s", time.monotonic() - begun
    took = time.monotonic() - begun
    if done.returncode == 0:
        return "", took
    return f"{' '.join(line)}: exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-2000:]}", took


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("command")
    reader.add_argument("--tools", default=",".join(TOOLS))
    reader.add_argument("--only", default=",".join(MODELS))
    reader.add_argument("--precisions", default=",".join(PRECISIONS))
    reader.add_argument("--units", default=",".join(UNITS))
    reader.add_argument("--at-once", type=int, default=min(16, os.cpu_count() or 1))
    chosen = reader.parse_args()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=TOOLKIT)
    if not sanitizer:
        print("sanitize_gpu: compute-sanitizer is not here; it comes with the CUDA toolkit", file=sys.stderr)
        return 3
    jobs = _jobs(chosen.tools.split(","), chosen.units.split(","), chosen.only.split(","), chosen.precisions.split(","))
    bad = 0
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        for name, (_, text) in MODELS.items():
            (folder / f"{name}.lf").write_text(text)
        with concurrent.futures.ThreadPoolExecutor(chosen.at_once) as pool:
            for job, (wrong, took) in zip(
                jobs, pool.map(lambda job: _run(job, sanitizer, chosen.command, folder), jobs)
            ):
                print(
                    f"{job.tool:9}  {job.unit:5}  {job.name:9}  {job.precision}  batch {job.batch:<4} {took:5.1f} s  "
                    f"{'WRONG' if wrong else 'clean'}",
                    flush=True,
                )
                if wrong:
                    bad += 1
                    print(wrong, flush=True)
    print(f"{len(jobs)} runs, {bad} of them wrong")
    return 1 if bad or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
