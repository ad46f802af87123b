#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house's rules that a program can see: who includes whom, how wide lines are, that each has its licence.

    check_includes.py [ROOT]

Prints what is wrong, a line each, and exits 1 if anything is. Before that it checks itself on a small tree with one
mistake of each sort in it.
"""

import pathlib
import re
import sys
import tempfile

# Module -> the modules it may include. base <- ir <- {rewrite, onnx, plan} <- prepare <- backend <- {cpu, cuda} <- run;
# io stands beside ir.
MAY_INCLUDE = {
    "base": {"base"},
    "ir": {"base", "ir"},
    "io": {"base", "io"},
    "rewrite": {"base", "ir", "rewrite"},
    "plan": {"base", "ir", "plan"},
    "onnx": {"base", "ir", "onnx"},
    "prepare": {"base", "ir", "rewrite", "plan", "prepare"},
    "backend": {"base", "ir", "plan", "prepare", "backend"},
    "cpu": {"base", "ir", "plan", "prepare", "backend", "cpu"},
    "cuda": {"base", "ir", "plan", "prepare", "backend", "cuda"},
    "cli": {"cli"},
}
MAY_INCLUDE["run"] = {"run", *MAY_INCLUDE} - {"cli"}
# Kernels are compiled for one instruction set each: a function of another header would come along compiled for it.
KERNEL = re.compile(r"src/cpu/kern_\w+\.c")
KERNEL_MAY_INCLUDE = re.compile(r"src/cpu/kern(_\w+)?\.h|src/ir/(ops\.def|functions\.def|monoids\.def|ops\.h)")

MAX_COLUMNS = 120
SIGNED = ("src", "include", "tests", "tools", "cmake", "bench", "python", ".ci")
MEASURED = (*SIGNED, "examples")
PRINTED = "tests/golden/"  # what the emitter wrote, kept to be compared: as wide as it comes
SIGNED_ALONE = ("CMakeLists.txt", "Makefile")
CODE = {".c", ".h", ".def", ".py", ".sh", ".cu", ".cmake"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def resolve(root, source, name):
    """The file in the tree that `source` means by `name`, relative to root; None for a header from outside."""
    for folder in (source.parent, root / "src", root / "include"):
        found = (folder / name).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found.relative_to(root).as_posix()
    return None


def edge_fault(source, target):
    """What is wrong with one file of src/ including another file of the tree; None if nothing."""
    if KERNEL.fullmatch(source):
        return None if KERNEL_MAY_INCLUDE.fullmatch(target) else "a kernel may not include"
    module = source.split("/")[1]
    if module not in MAY_INCLUDE:
        return "an unknown module includes"
    if target.startswith("include/"):
        return None
    target_module = target.split("/")[1] if target.startswith("src/") else None
    return None if target_module in MAY_INCLUDE[module] else f"{module} may not include"


def include_faults(root):
    faults, edges = [], 0
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".c", ".h", ".def"):
            continue
        source, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            quote, name = match.groups()
            where = f"{source}:{text.count(chr(10), 0, match.start()) + 1}"
            target = resolve(root, path, name)
            if target is None:
                if quote == '"':
                    faults.append(f"{where}: \"{name}\" is not in the tree")
                continue
            edges += 1
            fault = edge_fault(source, target)
            if fault:
                faults.append(f"{where}: {fault} {target}")
    return faults, edges


def is_code(path):
    """By its ending, or a script without one that starts with #!."""
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    return path.suffix == "" and path.is_file() and path.read_bytes()[:2] == b"#!"


def code_files(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root).parts
            if "__pycache__" not in inside and not any(p.startswith("corpus_") for p in inside) and is_code(path):
                yield path


def width_faults(root):
    """Lines too wide. A row of a table in a .def is a line, however wide."""
    for path in code_files(root, MEASURED):
        name = path.relative_to(root).as_posix()
        if name.startswith(PRINTED):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > MAX_COLUMNS and not (path.suffix == ".def" and line.startswith("LF_")):
                yield f"{name}:{number}: {len(line)} columns, over {MAX_COLUMNS}"


def licence_faults(root):
    alone = [root / name for name in SIGNED_ALONE if (root / name).is_file()]
    for path in [*code_files(root, SIGNED), *alone]:
        head = path.read_text(encoding="utf-8").splitlines()[:3]
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
            yield f"{path.relative_to(root).as_posix()}: no SPDX line at its top"


def check(root):
    """All faults of the tree at root, and how many include edges were looked at."""
    root = root.resolve()
    faults, edges = include_faults(root)
    return [*faults, *width_faults(root), *licence_faults(root)], edges


def self_test():
    """A good tree has no faults; each planted mistake is found, and nothing else is."""
    spdx = "/* SPDX-License-Identifier: Apache-2.0 */\n"
    wide = "x" * (MAX_COLUMNS + 1) + "\n"
    good = {
        "include/linfuse.h": spdx,
        "src/base/arena.h": spdx + "#include <linfuse.h>\n",
        "src/base/arena.c": spdx + '#include "base/arena.h"\n#include "arena.h"\n#include <stdio.h>\n',
        "src/ir/ops.def": spdx + "LF_" + wide,
        "src/ir/graph.h": spdx + '#include "base/arena.h"\n',
        "src/io/npy.h": spdx + '#include "base/arena.h"\n',
        "src/rewrite/rewrite.h": spdx + '#include "ir/graph.h"\n',
        "src/plan/plan.h": spdx + '#include "ir/graph.h"\n',
        "src/prepare/prepare.h": spdx + '#include "plan/plan.h"\n#include "rewrite/rewrite.h"\n',
        "src/backend/backend.h": spdx + '#include "prepare/prepare.h"\n',
        "src/cpu/kern.h": spdx,
        "src/cpu/kern_tile.h": spdx,
        "src/cuda/cuda.h": spdx + '#include "backend/backend.h"\n',
        "src/cpu/loops.h": spdx + '#include "plan/plan.h"\n#include "backend/backend.h"\n',
        "src/cpu/kern_avx2.c": spdx
        + '#include "cpu/kern.h"\n#include "kern_tile.h"\n#include "ir/ops.def"\n#include <immintrin.h>\n',
        "src/run/run.c": spdx + '#include "cpu/loops.h"\n#include "rewrite/rewrite.h"\n#include "io/npy.h"\n',
        "src/cli/cli.h": spdx,
        "src/cli/main.c": spdx + '#include <linfuse.h>\n#include <jansson.h>\n#include "cli/cli.h"\n',
        "src/ir/width.c": spdx + wide[1:] + "\u00e9" * MAX_COLUMNS + "\n",
        "tests/golden/emit_mlp.cu": spdx + wide,
        "tests/fuzz/corpus_lf/a.c": "not ours\n" * 1000 + wide,
    }
    bad = {
        "src/base/up.c": spdx + '#include "ir/graph.h"\n',
        "src/ir/up.c": spdx + '#  include  "plan/plan.h" // far\n',
        "src/rewrite/side.c": spdx + '#include "plan/plan.h"\n',
        "src/plan/side.h": spdx + '#include "../rewrite/rewrite.h"\n',
        "src/io/side.c": spdx + '#include "ir/graph.h"\n',
        "src/plan/up.c": spdx + '#include "prepare/prepare.h"\n',
        "src/prepare/up.c": spdx + '#include "cpu/loops.h"\n',
        "src/backend/up.c": spdx + '#include "cpu/loops.h"\n',
        "src/cpu/side.c": spdx + '#include "cuda/cuda.h"\n',
        "src/cpu/up.c": spdx + "#include <rewrite/rewrite.h>\n",
        "src/cpu/kern_neon.c": spdx + '#include "base/arena.h"\n',
        "src/cpu/kern_scalar.c": spdx + '#include "loops.h"\n',
        "src/cli/deep.c": spdx + '#include "base/arena.h"\n',
        "src/attic/new.c": spdx + '#include "base/arena.h"\n',
        "src/run/lost.c": spdx + '#include "run/nowhere.h"\n',
        "src/ir/wide.c": spdx + wide,
        "src/ir/wide.h": spdx + "LF_" + wide,
        "src/ir/wide.def": spdx + wide,
        "examples/wide.py": wide,
        "tests/unsigned_test.c": "int x;\n",
        "tools/unsigned": "#!/bin/sh\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def plant(name, text):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")

        for name, text in good.items():
            plant(name, text)
        faults, edges = check(root)
        if faults or edges == 0:
            return [f"self test: a good tree has faults, or no edges ({edges}): {faults}"]
        for name, text in bad.items():
            plant(name, text)
            faults, _ = check(root)
            (root / name).unlink()
            if len(faults) != 1 or not faults[0].startswith(name):
                return [f"self test: planted in {name}, found {faults}"]
    return []


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    faults = self_test()
    if not faults:
        faults, edges = check(root)
        if edges == 0:
            faults.append(f"{root}: no include line found: is this the source tree?")
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else f"house in order: {edges} includes looked at")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
