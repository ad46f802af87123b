# SPDX-License-Identifier: Apache-2.0
"""What the benchmark needs built: the two small C programs beside it, and where the library lies."""

import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
OUT = machine.ROOT / "build" / "bench"


@dataclass(frozen=True)
class Files:
    library: Path   # liblinfuse.so
    overhead: Path  # times lf_call_run from C
    peak: Path      # times the machine


def compile_c(source, program, *words):
    """words: flags, and files that the program depends on."""
    files = [source, Path(__file__), *(word for word in words if Path(word).is_file())]
    if program.exists() and all(program.stat().st_mtime > Path(f).stat().st_mtime for f in files):
        return
    flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program), *map(str, words)], check=True)


def build(folder):
    """folder: where CMake built the library (build/release)."""
    library, archive = folder / "liblinfuse.so", folder / "liblinfuse.a"
    if not library.exists() or not archive.exists():
        sys.exit(f"bench: no library in {folder}: run `make` first")
    OUT.mkdir(parents=True, exist_ok=True)
    needs = subprocess.run(["pkg-config", "--libs", "jansson"], check=True, capture_output=True, text=True).stdout
    compile_c(HERE / "overhead.c", OUT / "overhead", archive, "-O2", f"-I{machine.ROOT / 'include'}",
              *shlex.split(needs), "-lpthread", "-lm")
    fastest = ["-O3", "-march=native", "-ffp-contract=fast"]  # the last: -std=c11 alone makes no multiply-adds
    if platform.machine() == "x86_64":
        fastest.append("-mprefer-vector-width=512")  # gcc would halve a vector of 64 bytes
    compile_c(HERE / "peak.c", OUT / "peak", *fastest, "-lpthread")
    return Files(library, OUT / "overhead", OUT / "peak")


def installed():
    """A folder that says of the tree's package what an installed one does: torch.compile finds its name by it."""
    info = OUT / "installed" / "linfuse-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: linfuse\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\nlinfuse = linfuse.backend:backend\n")
    return info.parent


def machine_peak(files, threads):
    """Multiply-adds in flop/s and reading in byte/s, by peak.c."""
    text = subprocess.run([files.peak, str(threads)], check=True, capture_output=True, text=True).stdout
    flops, read = map(float, text.split())
    return {"flops": flops, "bytes": read}


def flops_now(files, threads):
    """Multiply-adds in flop/s as the machine gives them at this moment."""
    text = subprocess.run([files.peak, str(threads), "now"], check=True, capture_output=True, text=True).stdout
    return float(text)
