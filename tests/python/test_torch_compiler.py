# SPDX-License-Identifier: Apache-2.0
"""The run-time compiler that comes with PyTorch, where there is no CUDA toolkit: found, and it finds its own parts."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

BESIDE = pathlib.Path(torch.__file__).resolve().parents[1] / "nvidia"
SCRIPT = """
import ctypes
from linfuse import cuda
cuda._find_compiler()
lib, program = ctypes.CDLL({name!r}), ctypes.c_void_p()
text = b"__global__ void f(float *x) {{ *x = 1; }}"
assert lib.nvrtcCreateProgram(ctypes.byref(program), text, b"f.cu", 0, None, None) == 0
assert lib.nvrtcCompileProgram(program, 0, None) == 0
print("compiled")
"""


@pytest.mark.skipif(not list(BESIDE.glob("*/lib/libnvrtc.so.*")), reason="no run-time compiler beside PyTorch")
def test_it_compiles():
    (name,) = {file.name for file in BESIDE.glob("*/lib/libnvrtc.so.*")}
    alone = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "LINFUSE_NVRTC")}
    script = SCRIPT.format(name=name)
    done = subprocess.run([sys.executable, "-c", script], env=alone, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "compiled", done.stderr
