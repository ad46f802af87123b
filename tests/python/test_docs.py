# SPDX-License-Identifier: Apache-2.0
"""README, docs/ and the other pages: links lead somewhere, code blocks run, what is generated is not stale."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from linfuse import native

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md"),
                *(ROOT / "bench").glob("*.md")])  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
RUN = {"python": [sys.executable], "sh": ["bash", "-eu"]}
SHOWN = {"text", "c", "cmake"}  # what is printed, and what other tests compile


def name(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    return [match.groupdict() for match in FENCE.finditer(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if not re.match(r"\w+:", link)]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_its_language(page):
    assert {block["language"] for block in blocks(page)} <= {*RUN, *SHOWN}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_code_without_a_fence(page):
    """Indented code says no language, and none of these tests would see it."""
    outside = FENCE.sub("", page.read_text())
    assert not re.search(r"(?:^|\n)\n {4,}\S", outside)


def runs():
    """Pages by language, with the code of a page's blocks as one program, as a reader would type them."""
    for page in PAGES:
        for language in RUN:
            code = [block["code"] for block in blocks(page) if block["language"] == language and not block["why"]]
            if code:
                yield pytest.param(language, "\n".join(code), id=f"{name(page)}-{language}")


@pytest.mark.parametrize("language, code", list(runs()))
def test_code_blocks_run(language, code, environment, command, tmp_path):
    for folder in ("models", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    paths = {**environment, "PATH": f"{command.parent}:{environment['PATH']}"}
    done = subprocess.run([*RUN[language], "-c", code], env=paths, cwd=tmp_path, capture_output=True, text=True,
                          timeout=300)  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


MODEL = "input x f32[B, 3]\nparam w f32[2, 3]\ny = linear(x, w)\nz = softmax(y, dim=1)\nreturn z\n"
PROGRAMS = [
    pytest.param(block["code"], id=name(page))
    for page in PAGES
    for block in blocks(page)
    if "int main(" in block["code"]
]


@pytest.mark.parametrize("code", PROGRAMS)
def test_programs_in_c_compile_and_run(code, library, tmp_path):
    """One model for all of them: in the program's text, or in saved/, as linfuse.save would leave it there."""
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "model.lf").write_text(MODEL)
    save_file({"w": np.array([[1, 2, 3], [0, 1, 0]], np.float32)}, saved / "model.safetensors")
    (tmp_path / "program.c").write_text(code)
    words = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "program.c", str(library)]
    subprocess.run([*words, f"-Wl,-rpath,{library.parent}", "-o", "program"], cwd=tmp_path, check=True)
    assert subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True).stdout == "0.679 0.321\n"


# What parts of programs take for granted.
GIVEN = """
#include <linfuse.h>
#include <omp.h>
#include <stdio.h>

enum { MPI_BYTE, MPI_COMM_WORLD };
int MPI_Allgather(const void *mine, int count, int type, void *all, int counts, int types, int ranks);
static lf_context *context;
static lf_program *program;
static lf_call *call;
static FILE *file;
static int ranks;
static int64_t first, words;
static lf_loss loss;
int sum(void *user, float *numbers, size_t count);
static lf_tensor x, weight, by_x, by_weight;
static int64_t target[1], dims[1];
static const void *inputs[1];
static void *outputs[1], *stream, *workspace;
static size_t bytes;
"""


def test_parts_of_programs_in_c_compile(tmp_path):
    """Those of a page in one file: functions as they are, statements in a function each."""
    for page in PAGES:
        codes = [block["code"] for block in blocks(page) if block["language"] == "c"]
        parts = [code for code in codes if "int main(" not in code]
        made = [part if part.startswith("static ") else f"void part_{i}(void)\n{{\n{part}}}\n"
                for i, part in enumerate(parts)]  # fmt: skip
        (tmp_path / "parts.c").write_text("\n".join([GIVEN, *made]))
        words = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-fopenmp", "-fsyntax-only"]
        words += [f"-I{ROOT / 'include'}", "parts.c"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{name(page)}: {done.stderr}"


@pytest.mark.parametrize("tool", ["chart", "supported"])
def test_what_is_generated_is_not_stale(tool, environment):
    done = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"], env=environment, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# How sources in C, Python, CMake and shells read a variable of the environment.
READS = re.compile(
    r"""(?:getenv\(|environ\.(?:get|setdefault|pop)\(|environ\[|_built\(|ENV\{)\s*"?(LINFUSE_[A-Z0-9_]+)"""
    r"""|"(LINFUSE_[A-Z0-9_]+)" (?:not )?in os\.environ"""
)
READS_IN_SHELL = re.compile(r"\$\{?(LINFUSE_[A-Z0-9_]+)")


def test_every_variable_is_in_docs():
    """docs/environment.md names every variable of ours that something reads, and no other."""
    read = set()
    for place in ("src", "python", "tests", "tools", "bench", "examples", "cmake", ".ci", "Makefile"):
        files = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*")
        for file in files:
            if not file.is_file() or file.suffix in (".pyc", ".npy", ".png", ".so"):
                continue
            text = file.read_text(errors="replace")
            shell = file.suffix in (".sh", "") and file.name != "Makefile"
            found = READS.findall(text) + ([(name, "") for name in READS_IN_SHELL.findall(text)] if shell else [])
            read |= {one or other for one, other in found}
    assert len(read) > 10
    told = set(re.findall(r"`(LINFUSE_[A-Z0-9_]+)", (ROOT / "docs" / "environment.md").read_text()))
    assert told == read


@pytest.mark.parametrize("file", ["include/linfuse.h", "docs/cli.md", "docs/python.md", "python/linfuse/backend.py",
                                  "python/linfuse/program.py"])  # fmt: skip
def test_every_precision_is_told(file):
    text = (ROOT / file).read_text()
    assert [word for word in native.option_words("precision") if word not in text] == []


def test_readme_stays_short():
    """It is the front page; the rest belongs in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
