# SPDX-License-Identifier: Apache-2.0
"""torch.compile(model, backend="linfuse") beside eager PyTorch, the default backend and the C call: `make bench-torch`.

  bench/door.py                    every section; leaves bench/results/door-DATE-MACHINE.{json,md}
  bench/door.py --quick            smaller and fewer; leaves build/bench/door-*
  bench/door.py --only overhead    one section (overhead, first, full, sweep); leaves build/bench/door-*
  bench/door.py --device cuda      on the GPU

Exit status: 0, or 1 when results differ. Times are reported, never asserted.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import machine

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its workers would run into what is timed next
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(machine.ROOT / "build" / "bench" / "inductor"))

import torch

import build
import door_sections
import report

RESULTS = Path(__file__).resolve().parent / "results"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], choices=list(door_sections.SECTIONS))
    parser.add_argument("--models", default="", metavar="WORD,...", help="of the sweep those whose name contains one")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--without", action="append", default=[], choices=["inductor"], help="a backend not to measure")
    parser.add_argument(
        "--build", type=Path, default=machine.ROOT / "build" / "release", help="where the library was built"
    )
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--add", action="store_true", help="keep the other sections of the report that is there")
    return parser.parse_args()


def heading_of(args):
    heading = machine.heading(sorted(os.sched_getaffinity(0)), args.build)
    heading["versions"] = {"torch": torch.__version__, "python": sys.version.split()[0]}
    heading["threads"] = torch.get_num_threads()
    heading["device"] = torch.cuda.get_device_name() if args.device == "cuda" else machine.cpu_model()
    return heading


def as_markdown(heading, sections):
    versions = ", ".join(f"{name} {version}" for name, version in heading["versions"].items())
    load = ", ".join(f"{one:.2f}" for one in heading["load_before"])
    lines = [
        '# torch.compile(model, backend="linfuse")',
        f"- {heading['device']}, {heading['cores']}, {heading['threads']} threads, load before: {load}; {versions}",
    ]
    for section in sections.values():
        lines += [
            f"## {section['title']}",
            f"{section['when']}, `{section['command']}`",
            report.markdown(section["head"], section["rows"]),
            *section["words"],
        ]
    return "\n\n".join(lines) + "\n"


def added(before, now):
    """Sections measured in pieces: those of before that were not measured now, and of a sweep its models."""
    together = {**before, **now}
    if "sweep" in before and "sweep" in now:
        both = [{**before["sweep"][key], **now["sweep"][key]} for key in ("seconds", "errors")]
        together["sweep"] = {**now["sweep"], **door_sections.sweep_section(*both)}
    return {name: together[name] for name in door_sections.SECTIONS if name in together}


def main():
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench: door.py --device cuda wants a PyTorch with CUDA and a GPU")
    files = build.build(args.build) if args.device == "cpu" else build.Files(args.build / "liblinfuse.so", None, None)
    os.environ["LINFUSE_LIBRARY"] = str(files.library)
    context = door_sections.Context(args.device, args.quick, args.models, args.without, files)
    heading = heading_of(args)
    print(f"{heading['date']}, commit {heading['commit']}, {heading['device']}")
    sections = {}
    for name, section in door_sections.SECTIONS.items():
        if args.only and name not in args.only:
            continue
        made = sections[name] = section(context)
        made["when"] = f"{machine.heading([])['date']}, commit {heading['commit']}"
        made["command"] = heading["command"]
        print(f"\n{made['title']}\n" + report.aligned(made["head"], made["rows"]), *made["words"], sep="\n", flush=True)
    heading["load_after"] = list(os.getloadavg())
    folder = args.out or (build.OUT if args.quick or args.only or args.models else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    slug = heading["device"].lower().replace(" ", "-") if args.device == "cuda" else machine.cpu_slug()
    stem = folder / f"door-{heading['date'][:10]}-{slug}"
    if args.add and stem.with_suffix(".json").exists():
        sections = added(json.loads(stem.with_suffix(".json").read_text())["sections"], sections)
    stem.with_suffix(".json").write_text(json.dumps({"heading": heading, "sections": sections}, indent=1) + "\n")
    stem.with_suffix(".md").write_text(as_markdown(heading, sections))
    print(f"\nsaved: {stem}.json, .md")
    return 0 if all(section["right"] for section in sections.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
