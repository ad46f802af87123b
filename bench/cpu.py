# SPDX-License-Identifier: Apache-2.0
"""linfuse beside PyTorch eager, torch.compile and ONNX Runtime on this CPU: `make bench`.

  bench/cpu.py                 every case; leaves bench/results/cpu-DATE-CPU.{json,md,png}
  bench/cpu.py --quick         fewer rounds, the largest cases smaller; leaves build/bench/cpu-*
  bench/cpu.py --only NAME     the case of that name, else those whose name contains it (may be repeated)

Exit status: 0, or 1 when results differ or linfuse did not run. Times are reported, never asserted.
"""

import argparse
import os
import sys
from pathlib import Path

import machine

# Before the peers are imported: they read these once.
os.environ.update(OMP_NUM_THREADS="2", MKL_NUM_THREADS="2", OPENBLAS_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1",
                  TORCHINDUCTOR_CACHE_DIR=str(machine.ROOT / "build" / "bench" / "inductor"))

import onnxruntime
import torch

import build
import cases
import measure
import report
from contenders import THREADS, start_compiler

RESULTS = Path(__file__).resolve().parent / "results"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--build", type=Path, default=machine.ROOT / "build" / "release", help="where the library was built"
    )
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    return parser.parse_args()


def chosen(only):
    names = {c.name for c in cases.CASES}
    def wanted(case, word):
        return case.name == word if word in names else word in case.name
    found = [c for c in cases.CASES if not only or any(wanted(c, word) for word in only)]
    if not found:
        sys.exit(f"bench: no case is called {' or '.join(only)}; --list names them")
    return found


def measure_all(args, files, cores, peak):
    records = []
    for case in chosen(args.only):
        records.append(measure.measure(case, args.quick, files, cores))
        report.add_shares(records[-1], peak)
        print(f"{case.name:22} {report.times(records[-1]['ratio']):>7} of {report.times(case.target)}", flush=True)
    return records


def save(folder, title, heading, peak, records):
    import chart

    folder.mkdir(parents=True, exist_ok=True)
    stem = f"cpu-{heading['date'][:10]}-{machine.cpu_slug()}"
    (folder / f"{stem}.json").write_text(report.as_json(heading, peak, records))
    (folder / f"{stem}.md").write_text(report.as_markdown(title, heading, peak, records, f"{stem}.png"))
    chart.draw(records, heading, folder / f"{stem}.png")
    return folder / stem


def main():
    args = arguments()
    if args.list:
        for case in cases.CASES:
            print(f"{case.name:22} {report.size(case.sizes)}")
        return 0
    cores = machine.pin(THREADS)
    files = build.build(args.build)
    heading = {
        **machine.heading(cores),
        "versions": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
    }
    peak = build.machine_peak(files, THREADS)
    print("\n".join(report.heading_lines(heading, peak)), end="\n\n")
    start_compiler()
    records = measure_all(args, files, cores, peak)
    heading["load_after"] = list(os.getloadavg())
    print("\n" + report.aligned(report.SPEED_HEAD, [report.speed_row(r) for r in records]), report.HOW, sep="\n\n")
    print(
        "\n" + report.aligned(report.MEMORY_HEAD, [report.memory_row(r) for r in records]),
        report.HOW_MEMORY,
        sep="\n\n",
    )
    print("\n" + "\n".join(report.summary(records)))
    whole = not args.quick and not args.only
    folder = args.out or (RESULTS if whole else build.OUT)
    print(f"\nsaved: {save(folder, 'linfuse on the CPU, beside its peers', heading, peak, records)}.json, .md, .png")
    return 0 if all(r["agree"] and r["linfuse_ms"] for r in records) else 1


if __name__ == "__main__":
    sys.exit(main())
