# SPDX-License-Identifier: Apache-2.0
"""Instructions of one machine stay in that machine's file.

    check_isa.py LIBRARY.a COMMAND SOURCE_DIR

Disassembles the library: registers that only AVX, its successors and AMX have may be named in kern_avx2 and
kern_avx512 alone, and in functions elsewhere whose names say so (they end in _avx2 or _avx512, and are called where the
machine has it); and must be named there (else the check sees nothing). Then, where qemu's user emulation is installed,
runs the command on a processor from before AVX.
"""

import re
import shutil
import subprocess
import sys

ALLOWED = {"kern_avx2.c.o": "ymm", "kern_avx512.c.o": "zmm"}
OLD = "Nehalem"  # SSE4.2, no AVX


def registers_by_file(library):
    """File in the library -> the wide registers it names."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True
    ).stdout
    found, name, says_so = {}, None, False
    for line in text.splitlines():
        start = re.match(r"(\S+):\s+file format", line)
        function = re.match(r"[0-9a-f]+ <(\S+)>:", line)
        if start:
            name = start.group(1)
            found[name] = set()
        elif function:
            says_so = re.search(r"_avx(2|512)\b", function.group(1))
        elif name and not says_so:
            found[name].update(re.findall(r"%(ymm|zmm|tmm|k[1-7]\b)", line))
            if re.search(r"\tv[a-z0-9]+ .*%xmm", line):
                found[name].add("vex")
    return found


def check_registers(library):
    found = registers_by_file(library)
    assert len(found) > 50, f"{library}: only {len(found)} files in it"
    strays = {name: sorted(names) for name, names in found.items() if names and name not in ALLOWED}
    assert not strays, f"AVX outside its own files: {strays}"
    for name, register in ALLOWED.items():
        assert register in found.get(name, ()), f"{name} does not use {register}: is it what we think it is?"
    print(f"{len(found)} files, AVX only in {', '.join(sorted(ALLOWED))}")


def check_old_machine(command, source):
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if not emulator:
        print("qemu-x86_64 is not installed: not run on an old machine")
        return
    model = f"{source}/models/mlp.lf"
    done = subprocess.run([emulator, "-cpu", OLD, command, "check", model, "--batch", "2", "--threads", "2"],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"on {OLD}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    wanted = subprocess.run([emulator, "-E", "LINFUSE_ISA=avx2", "-cpu", OLD, command, "check", model],
                            capture_output=True, text=True)
    assert wanted.returncode == 2 and "LINFUSE_ISA" in wanted.stderr, f"avx2 asked for on {OLD}: {wanted}"
    print(f"runs on {OLD}")


if __name__ == "__main__":
    check_registers(sys.argv[1])
    check_old_machine(sys.argv[2], sys.argv[3])
