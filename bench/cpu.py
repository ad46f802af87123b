# SPDX-License-Identifier: Apache-2.0
"""linfuse beside PyTorch eager, torch.compile and ONNX Runtime on this CPU: `make bench`.

  bench/cpu.py                 every case; leaves bench/results/cpu-DATE-CPU.{json,md,png} and -scaling.png
  bench/cpu.py --quick         fewer rounds, the largest cases smaller; leaves build/bench/cpu-*
  bench/cpu.py --only NAME     the case of that name, else those whose name contains it (may be repeated)
  bench/cpu.py --threads 1,all on so many cores with as many threads, one after the other; default: 1,2,4,all

Exit status: 0, or 1 when results differ or linfuse did not run. Times are reported, never asserted.
"""

import argparse
import os
import sys
from pathlib import Path

import machine

# Before the peers are imported: they read these once.
CORES = machine.cores()
os.environ.update(OMP_NUM_THREADS=str(len(CORES)), MKL_NUM_THREADS=str(len(CORES)), OPENBLAS_NUM_THREADS="1",
                  TORCHINDUCTOR_COMPILE_THREADS="1")

import onnxruntime
import torch

import build
import cases
import measure
import report
from contenders import start_compiler

RESULTS = Path(__file__).resolve().parent / "results"


def thread_counts(text):
    """Of "1,2,all": numbers of threads, each once."""
    counts = {len(CORES) if word == "all" else int(word) for word in text.split(",")}
    if not all(1 <= count <= len(CORES) for count in counts):
        raise argparse.ArgumentTypeError(f"{text}: this machine lends 1 to {len(CORES)} cores")
    return sorted(counts)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--build", type=Path, default=machine.ROOT / "build" / "release", help="where the library was built"
    )
    parser.add_argument("--out", type=Path, help="where the report goes")
    usual = sorted({count for count in (1, 2, 4) if count <= len(CORES)} | {len(CORES)})
    parser.add_argument("--threads", type=thread_counts, default=usual, help="1,2,4,all")
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


def measure_all(args, files, threads, peak):
    """Every case, on as many cores as threads."""
    cores = machine.pin(threads, CORES)
    # Inductor writes the number of threads into its code, and finds that code again by what it was made of.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(build.OUT / f"inductor-{threads}")
    records = []
    for case in chosen(args.only):
        records.append(measure.measure(case, args.quick, files, cores))
        report.add_shares(records[-1], peak)
        print(f"{threads:3} {case.name:22} {report.times(records[-1]['ratio']):>7} of {report.times(case.target)}",
              flush=True)
    return records


def save(folder, title, heading, peaks, records):
    import chart

    folder.mkdir(parents=True, exist_ok=True)
    stem = f"cpu-{heading['date'][:10]}-{machine.cpu_slug()}"
    charts = [f"{stem}.png"] + ([f"{stem}-scaling.png"] if len(peaks) > 1 else [])
    (folder / f"{stem}.json").write_text(report.as_json(heading, peaks, records))
    (folder / f"{stem}.md").write_text(report.as_markdown(title, heading, peaks, records, charts))
    chart.draw(report.of_most_threads(records), heading, folder / charts[0])
    if len(charts) > 1:
        chart.draw_scaling(records, heading, folder / charts[1])
    return folder / stem


def main():
    args = arguments()
    if args.list:
        for case in cases.CASES:
            print(f"{case.name:22} {report.size(case.sizes)}")
        return 0
    files = build.build(args.build)
    heading = {
        **machine.heading(CORES[: args.threads[-1]]),
        "versions": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
    }
    peaks = {threads: build.machine_peak(files, threads) for threads in args.threads}
    print("\n".join(report.heading_lines(heading, peaks)), end="\n\n")
    start_compiler()
    records = [record for threads in args.threads for record in measure_all(args, files, threads, peaks[threads])]
    heading["load_after"] = list(os.getloadavg())
    print("\n" + report.aligned(report.SPEED_HEAD, [report.speed_row(r) for r in records]), report.HOW, sep="\n\n")
    print(
        "\n" + report.aligned(report.MEMORY_HEAD, [report.memory_row(r) for r in report.of_most_threads(records)]),
        report.HOW_MEMORY,
        sep="\n\n",
    )
    print("\n" + "\n".join(report.summary(records)))
    whole = not args.quick and not args.only
    folder = args.out or (RESULTS if whole else build.OUT)
    print(f"\nsaved: {save(folder, 'linfuse on the CPU, beside its peers', heading, peaks, records)}.json, .md, .png")
    return 0 if all(r["agree"] and r["linfuse_ms"] for r in records) else 1


if __name__ == "__main__":
    sys.exit(main())
